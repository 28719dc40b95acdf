"""What `elastic run` makes of a script and of a job file's paths, how it folds torchrun's noise, and what it says at the end."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from elastic.api import parse
from elastic.api.kinds import KINDS
from elastic.cli import main
from elastic.cli.folding import Folding
from elastic.cli.local_paths import placed, without_command
from elastic.cli.run_printer import Printer
from elastic.client.script_job import Workers, job_of, name_of
from elastic.kube.following import Condition, JobKey, Line, Outcome, Ranks

PYTORCH = KINDS["PyTorchJob"]
JOB = JobKey(PYTORCH, "default", "train", "uid")
USERS = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "ValueError: bad batch"]
AGENTS = [
    "E1122 10:00:00.123000 77 /lib/torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1)",
    "Traceback (most recent call last):",
    '  File "/lib/torch/distributed/run.py", line 900, in main',
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "=" * 60,
    "train.py FAILED",
    "-" * 60,
    "Root Cause (first observed failure):",
    "=" * 60,
]


def elastic(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], env={"KUBECONFIG": ""})


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "My_Train.py"
    path.write_text("print('hello')")
    return path


def test_a_script_becomes_a_valid_job_that_is_saved_or_printed(script: Path, tmp_path: Path) -> None:
    printed = elastic("run", script, "--workers", "1:4", "--gpus", 2, "--save", "-", "--", "--epochs", 3)
    made = yaml.safe_load(printed.stdout)
    job, warnings = parse(made)
    assert (job.bounds, job.workers, job.metadata.name, list(warnings)) == ((1, 4), 4, "my-train", [])
    container = made["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["torchrun", str(script), "--epochs", "3"]
    assert container["workingDir"] == str(Path.cwd())
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 2}}
    saved = tmp_path / "job.yaml"
    assert elastic("run", script, "--save", saved).stdout == f"the job is in {saved}; run it with `elastic run {saved}`\n"
    assert elastic("validate", "--strict", saved).exit_code == 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--workers", "4:1"], "'4:1': the least number must be at least 1 and at most the greatest"),
        (["--workers", "many"], "'many' is neither a number of workers nor MIN:MAX"),
        (["--save", "/no/such/folder/job.yaml"], "/no/such/folder/job.yaml cannot be written: No such file or directory"),
    ],
)
def test_a_wrong_wish_is_one_line(script: Path, words: list[str], line: str) -> None:
    said = elastic("run", script, *words)
    assert said.exit_code == 2
    assert line in said.stderr.splitlines()[-1]


def test_a_script_that_is_not_there_and_options_that_are_for_scripts_only_are_named(tmp_path: Path) -> None:
    assert "there is no file /no/such.py" in elastic("run", "/no/such.py").stderr
    assert "are for a SCRIPT" in elastic("run", tmp_path / "job.yaml", "--name", "x").stderr


@pytest.mark.parametrize(
    ("file", "name"), [("Train_2.py", "train-2"), ("2x.py", "job-2x"), ("Ünï.py", "job"), ("a" * 99 + ".py", "a" * 40)]
)
def test_names_of_scripts_become_names_of_jobs(file: str, name: str) -> None:
    made = name_of(Path(file))
    assert made == name if file.isascii() else made.startswith(("job", "n"))
    parse(job_of(Path(file), [], workers=Workers(1, 1), gpus=0, working_dir=Path("/"), name=made))


def test_on_the_laptop_programs_start_where_the_caller_is_and_files_beside_the_job_file_are_found(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/train.py").write_text("")
    (tmp_path / "here.py").write_text("")
    job = job_of(Path("x"), [], workers=Workers(1, 1), gpus=0, working_dir=Path("/"))
    container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container |= {"command": ["torchrun", "train.py", "here.py", "--file", "/abs.py"], "args": ["train.py"], "workingDir": None}
    made, said = placed(job, PYTORCH, file=tmp_path / "jobs/job.yaml", working_dir=tmp_path)
    found = made["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    assert found["command"] == ["torchrun", f"{tmp_path}/jobs/train.py", "here.py", "--file", "/abs.py"]
    assert found["args"] == [f"{tmp_path}/jobs/train.py"]
    assert said == [f"working directory {tmp_path}", f"train.py taken from {tmp_path}/jobs"]
    chosen, silent = placed(made, PYTORCH, file=tmp_path / "jobs/job.yaml", working_dir=Path("/elsewhere"))
    assert (chosen, silent) == (made, []), "who names a working directory has decided"
    assert without_command(job, PYTORCH) == []
    del container["command"], container["args"]
    assert without_command(job, PYTORCH) == ["Worker"]


def test_every_example_has_its_commands(tmp_path: Path) -> None:
    """MPI workers only wait for their launcher, and the controller gives them a command."""
    files = sorted((Path(__file__).parents[2] / "examples").rglob("*.yaml"))
    jobs = [document for file in files for document in yaml.safe_load_all(file.read_text()) if document and document["kind"] in KINDS]
    assert {job["kind"] for job in jobs} >= {"PyTorchJob", "MPIJob"}
    assert [job["metadata"]["name"] for job in jobs if without_command(job, KINDS[job["kind"]])] == []


def test_what_torchrun_says_of_itself_is_folded_and_the_users_traceback_is_kept() -> None:
    folding = Folding()
    shown = [line for text in ["step 1", *USERS, *AGENTS, "step 2"] for line in folding.lines("w0", text)]
    assert shown == ["step 1", *USERS, "step 2"]
    assert folding.folded == len(AGENTS)
    assert folding.error() == ("w0", USERS)


def test_a_traceback_that_never_ends_is_bounded_and_not_lost() -> None:
    folding = Folding()
    for text in [USERS[0], *("  frame" for _ in range(10_000))]:
        assert folding.lines("w0", text) == []
    assert 0 < len(folding.rest()) <= 200


def test_of_a_failed_job_the_first_error_stands_last_with_its_rank(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(folds=True)
    printer.tell(JOB, Ranks({"train-worker-0": 1, "train-worker-1": 0}))
    for pod, lines in (
        ("train-worker-1", ["Traceback (most recent call last):", "RuntimeError: peer gone"]),
        ("train-worker-0", USERS + AGENTS),
    ):
        for text in lines:
            printer.tell(JOB, Line(pod, text))
    reason = "a worker of train-worker-0 ended with status 1 (rank 1: ValueError: bad batch)"
    printer.tell(JOB, Condition("Failed", "PyTorchJobFailed", reason))
    printer.end(JOB, Outcome.FAILED)
    said = [line.partition(" s  ")[2] for line in capsys.readouterr().out.splitlines()]
    assert said[-5:] == [
        "the first error, of train-worker-0 rank 1:",
        *(f"train-worker-0 rank 1 | {line}" for line in USERS),
        f"PyTorchJob train: failed: {reason}",
    ]
    assert "9 lines of torchrun about itself are folded; --all-output shows them" in said


def test_two_jobs_of_one_name_are_told_where(tmp_path: Path, script: Path) -> None:
    job = elastic("run", script, "--save", "-").stdout
    (tmp_path / "two.yaml").write_text(f"{job}---\n{job}")
    said = elastic("validate", tmp_path / "two.yaml")
    assert said.exit_code == 1
    assert f"metadata.name: my-train is the name of the PyTorchJob at {tmp_path}/two.yaml:1 too; give one of them another" in said.stdout


def test_tabs_and_empty_files_are_told(tmp_path: Path) -> None:
    (tmp_path / "tab.yaml").write_text("kind: PyTorchJob\nmetadata:\n\tname: x\n")
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    said = elastic("validate", tmp_path / "tab.yaml", tmp_path / "empty.yaml")
    assert said.exit_code == 2
    assert f"{tmp_path}/tab.yaml:3: error: cannot be read: the line is indented with a tab; YAML is indented with spaces" in said.stdout
    assert f"{tmp_path}/empty.yaml: error: cannot be read: there is no object in it" in said.stdout


def test_strict_makes_warnings_errors(tmp_path: Path, script: Path) -> None:
    job = elastic("run", script, "--save", "-").stdout.replace("minReplicas", "minReplica")
    (tmp_path / "typo.yaml").write_text(job)
    assert elastic("validate", tmp_path / "typo.yaml").exit_code == 0
    strict = elastic("validate", "--strict", tmp_path / "typo.yaml")
    assert strict.exit_code == 1
    assert "error: spec.elasticPolicy.minReplica: unknown field, it has no effect; did you mean minReplicas?" in strict.stdout
