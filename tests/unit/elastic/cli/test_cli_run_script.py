"""Check the job that `elastic run` makes of a script, the folding of the noise of torchrun, and the last lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from elastic.api import parse
from elastic.api.kinds import KINDS
from elastic.cli import main
from elastic.cli.folding import Folding
from elastic.cli.local_paths import placed, without_command
from elastic.cli.run_printer import Printer
from elastic.client.script_job import ScriptOptions, job_of, name_of
from elastic.kube.following import ConditionNews, FollowedJob, Line, Outcome, Ranks
from elastic.kube.processes import processes_per_worker

PYTORCH = KINDS["PyTorchJob"]
JOB = FollowedJob(PYTORCH, "default", "train", "uid")
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
    assert job.run_policy.backoff_limit == 3 + 4, "never reached before the three restarts of maxRestarts"
    container = made["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["torchrun", str(script), "--epochs", "3"]
    assert container["workingDir"] == str(Path.cwd())
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 2}}
    once = yaml.safe_load(elastic("run", script, "--max-restarts", 0, "--save", "-").stdout)["spec"]
    assert (once["elasticPolicy"]["maxRestarts"], once["runPolicy"]["backoffLimit"]) == (0, 1)
    assert "restartBudget" not in once["elasticPolicy"], "who asks for a number of restarts gets it"
    assert made["spec"]["elasticPolicy"]["restartBudget"] == {"sameError": 1}
    hangs = yaml.safe_load(elastic("run", script, "--hang-timeout", 90, "--save", "-").stdout)["spec"]
    assert hangs["elasticPolicy"]["hangTimeoutSeconds"] == 90
    saved = tmp_path / "job.yaml"
    assert elastic("run", script, "--save", saved).stdout == f"the job is in {saved}; run it with `elastic run {saved}`\n"
    assert elastic("validate", "--strict", saved).exit_code == 0


def test_a_script_takes_resources_variables_processes_and_an_image(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "from the shell")
    words = ["--cpus", "1.5", "--memory", "4Gi", "--env", "A=b=c", "--env", "TOKEN", "--nproc-per-node", 2]
    made = yaml.safe_load(elastic("run", script, *words, "--image", "registry/train:2", "--first-step-timeout", 30, "--save", "-").stdout)
    (container,) = made["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {"cpu": "1.5", "memory": "4Gi"}}
    assert container["env"] == [{"name": "A", "value": "b=c"}, {"name": "TOKEN", "value": "from the shell"}]
    assert container["image"] == "registry/train:2"
    assert made["spec"]["nprocPerNode"] == "2"
    assert made["spec"]["elasticPolicy"]["firstStepTimeoutSeconds"] == 30


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--workers", "4:1"], "'4:1': the least number must be at least 1 and at most the greatest"),
        (["--workers", "many"], "'many' is neither a number of workers nor MIN:MAX"),
        (["--save", "/no/such/folder/job.yaml"], "/no/such/folder/job.yaml cannot be written: No such file or directory"),
        (["--epochs", "3"], "No such option '--epochs'. The script's own options stand after `--`: elastic run "),
        (["--worker", "3"], "No such option '--worker'. Did you mean --workers? The script's own options stand after `--`: elastic run "),
        (["--max-restarts", "-1"], "-1 is not in the range 0<=x<=1000"),
        (["--cpus", "many"], "'many' is not a quantity; name an amount such as 2, 500m or 4Gi"),
        (["--memory", "0"], "0 is not more than 0; name an amount"),
        (["--env", "=x"], "'=x' has no name; give NAME=VALUE"),
        (["--env", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE is not set in this shell; give NOT_SET_ANYWHERE=VALUE"),
        (["--image", "a", "--image", "b"], "a and b are two images for one script"),
    ],
)
def test_a_wrong_wish_is_one_line(script: Path, words: list[str], line: str) -> None:
    said = elastic("run", script, *words)
    assert said.exit_code == 2
    assert line in said.stderr.splitlines()[-1]


def test_a_wrong_name_is_told_of_the_job_and_not_of_a_line_of_the_script_and_is_not_saved(script: Path, tmp_path: Path) -> None:
    for more in ([], ["--save", tmp_path / "job.yaml"]):
        said = elastic("run", script, "--name", "Foo_Bar", *more)
        assert said.exit_code == 2
        assert f'the job of {script}: error: metadata.name: name is "Foo_Bar"; use lower-case letters' in said.stderr
    assert not (tmp_path / "job.yaml").exists()


def test_a_script_that_is_not_there_and_options_that_are_for_scripts_only_are_named(tmp_path: Path) -> None:
    assert "there is no file /no/such.py" in elastic("run", "/no/such.py").stderr
    for options, given in ((["--name", "x"], "--name"), (["--workers", "1", "--save", "x"], "--workers and --save")):
        said = elastic("run", tmp_path / "job.yaml", *options)
        assert (said.exit_code, f"{given} is for a SCRIPT, whose job this command makes" in said.stderr) == (2, True)


def test_save_writes_over_an_earlier_job_and_over_nothing_else(script: Path, tmp_path: Path) -> None:
    """`--save train.py` left YAML where the user's script had been."""
    job, notes, empty = tmp_path / "job.yaml", tmp_path / "notes.yaml", tmp_path / "empty.yaml"
    link = tmp_path / "link.py"
    link.symlink_to(script)
    for file in (script, link):
        said = elastic("run", script, "--save", file)
        assert (said.exit_code, f"--save {file} is the script itself" in said.stderr) == (2, True)
    assert script.read_text() == "print('hello')"
    assert elastic("run", script, "--save", job).exit_code == 0
    assert elastic("run", script, "--workers", "3", "--save", job).exit_code == 0
    assert yaml.safe_load(job.read_text())["spec"]["elasticPolicy"]["maxReplicas"] == 3
    for text in ("a: 1", job.read_text() + "---\nkind: ConfigMap\napiVersion: v1\nmetadata: {name: a}\n", "print(1)\n", "{"):
        notes.write_text(text)
        said = elastic("run", script, "--save", notes)
        assert (said.exit_code, notes.read_text()) == (2, text)
        assert f"--save {notes}: this file is there and is not the YAML of one job; name another file, or remove" in said.stderr
    empty.touch()
    assert elastic("run", script, "--save", empty).exit_code == 0


@pytest.mark.parametrize(
    ("file", "name"), [("Train_2.py", "train-2"), ("2x.py", "job-2x"), ("Ünï.py", "job"), ("a" * 99 + ".py", "a" * 40)]
)
def test_names_of_scripts_become_names_of_jobs(file: str, name: str) -> None:
    made = name_of(Path(file))
    assert made == name if file.isascii() else made.startswith(("job", "n"))
    parse(job_of(Path(file), [], ScriptOptions(name=made), working_dir=Path("/")))


def test_on_the_laptop_programs_start_in_the_callers_folder_and_files_next_to_the_job_file_are_found(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/train.py").write_text("")
    (tmp_path / "here.py").write_text("")
    job = job_of(Path("x"), [], ScriptOptions(), working_dir=Path("/"))
    container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container |= {"command": ["torchrun", "train.py", "here.py", "--file", "/abs.py"], "args": ["train.py"], "workingDir": None}
    made, said = placed(job, PYTORCH, file=tmp_path / "jobs/job.yaml", working_dir=tmp_path)
    found = made["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    assert found["command"] == ["torchrun", f"{tmp_path}/jobs/train.py", "here.py", "--file", "/abs.py"]
    assert found["args"] == [f"{tmp_path}/jobs/train.py"]
    assert said == [f"working directory {tmp_path}", f"train.py taken from {tmp_path}/jobs"]
    container["command"] = ["python", "gone.py", "--out", "result.py"]
    assert placed(job, PYTORCH, file=tmp_path / "jobs/job.yaml", working_dir=tmp_path)[1] == [
        f"working directory {tmp_path}",
        f"train.py taken from {tmp_path}/jobs",
        "gone.py does not exist there, nor next to the job file",
    ]
    chosen, silent = placed(made, PYTORCH, file=tmp_path / "jobs/job.yaml", working_dir=Path("/elsewhere"))
    assert (chosen, silent) == (made, []), "who names a working directory has decided"
    assert without_command(job, PYTORCH) == []
    del container["command"], container["args"]
    assert without_command(job, PYTORCH) == ["Worker"]


def test_every_example_has_its_commands(tmp_path: Path) -> None:
    """MPI workers only wait for their launcher, and the controller gives them a command."""
    files = sorted((Path(__file__).parents[4] / "examples").rglob("*.yaml"))
    jobs = [document for file in files for document in yaml.safe_load_all(file.read_text()) if document and document["kind"] in KINDS]
    assert {job["kind"] for job in jobs} >= {"PyTorchJob", "MPIJob"}
    assert [job["metadata"]["name"] for job in jobs if without_command(job, KINDS[job["kind"]])] == []


def test_torchruns_own_words_are_folded_and_the_users_traceback_is_kept() -> None:
    folding = Folding()
    shown = [line for text in ["step 1", *USERS, *AGENTS, "step 2"] for line in folding.lines("w0", text)]
    assert shown == ["step 1", *USERS, "step 2"]
    assert folding.folded == len(AGENTS)
    assert folding.error() == ("w0", USERS)


SIGTERM = [
    "Traceback (most recent call last):",
    '  File "/usr/lib/python3.11/weakref.py", line 666, in _exitfunc',
    "    f()",
    '  File "/lib/torch/distributed/elastic/multiprocessing/api.py", line 86, in _terminate_process_handler',
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 77 got signal: 15",
]
USAGE = ["usage: torchrun [-h] [--nnodes NNODES]", "                training_script ..."]


def test_frames_in_cpp_are_folded_and_the_warning_before_them_is_kept() -> None:
    """A job succeeded, and seventy lines of them stood before the word."""
    text = """[rank2]:[W1123 07:50:03.123456789 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=3): Failed to recv, got 0 bytes.
Exception raised from recvBytes at /pytorch/torch/csrc/distributed/c10d/Utils.hpp:678 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x80 (0x7f0c in /torch/lib/libc10.so)
frame #8: <unknown function> + 0x3d2825 (0x7f0c6efd2825 in /torch/lib/libtorch_python.so)
<omitting python frames>
frame #35: _start + 0x21 (0x560a29a5f081 in /venv/bin/python3 /venv/bin/torchrun)

trained

twice""".splitlines()
    folding = Folding()
    assert [line for text_ in text for line in folding.lines("p", text_)] == [text[0], "trained", "", "twice"]
    assert folding.folded == 6
    assert folding.failed == []


def test_an_agents_own_sigterm_is_folded_wherever_it_was() -> None:
    folding = Folding()
    shown = [line for text in [*USERS, *SIGTERM, "=" * 30, "step 2"] for line in folding.lines("w0", text)]
    assert shown == [*USERS, "=" * 30, "step 2"]
    assert folding.folded == len(SIGTERM)
    assert folding.error() == ("w0", USERS)


def test_only_the_error_of_torchruns_usage_is_kept_unless_the_usage_was_asked_for() -> None:
    folding, error = Folding(), "torchrun: error: unrecognized arguments: --nonsense"
    assert [line for text in [*USAGE, error, "after"] for line in folding.lines("w0", text)] == [error, "after"]
    assert folding.error() == ("w0", [error])
    assert [line for text in [*USAGE, "", "options:"] for line in folding.lines("w1", text)] == [*USAGE, "", "options:"]
    assert folding.folded == len(USAGE)
    trace = ["Traceback (most recent call last):", '  File "/lib/torch/distributed/run.py", line 800, in x', "ValueError: Unsupported: foo"]
    assert [line for text in trace for line in folding.lines("w2", text)] == trace[-1:]
    assert folding.error("w2") == ("w2", trace[-1:])


def test_tracebacks_of_two_ranks_of_one_pod_are_told_apart_and_the_quoted_one_is_found() -> None:
    """Their lines may come in turns."""
    peers = ["Traceback (most recent call last):", '  File "train.py", line 9', "RuntimeError: Connection closed by peer [::1]:2"]
    folding, of = Folding(), {0: [f"[rank0]: {line}" for line in peers], 1: [f"[rank1]: {line}" for line in USERS]}
    shown = [line for texts in zip(of[0], of[1], strict=True) for text in texts for line in folding.lines("w0", text)]
    assert shown == of[1], "the first tells of a lost peer"
    assert folding.error("w0") == ("w0", of[1])
    assert folding.error("w0", "ended (rank 0: RuntimeError: Connection closed by peer [::1]:2)") == ("w0", of[0])


def test_a_traceback_that_never_ends_is_bounded_and_not_lost() -> None:
    folding = Folding()
    for text in [USERS[0], *("  frame" for _ in range(10_000))]:
        assert folding.lines("w0", text) == []
    assert 0 < len(folding.rest()) <= 200


def test_the_first_error_of_a_failed_job_stands_last_with_its_rank(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(folds=True)
    printer.tell(JOB, Ranks({"train-worker-0": 1, "train-worker-1": 0}))
    for pod, lines in (
        ("train-worker-1", ["Traceback (most recent call last):", "RuntimeError: peer gone"]),
        ("train-worker-0", USERS + AGENTS),
    ):
        for text in lines:
            printer.tell(JOB, Line(pod, text))
    reason = "a worker of train-worker-0 ended with status 1 (rank 1: ValueError: bad batch)"
    printer.tell(JOB, ConditionNews("Failed", "PyTorchJobFailed", reason))
    printer.end(JOB, Outcome.FAILED)
    said = [line.partition(" s  ")[2] for line in capsys.readouterr().out.splitlines()]
    assert said[-5:] == [
        "the first error, of train-worker-0 rank 1:",
        *(f"train-worker-0 rank 1 | {line}" for line in USERS),
        f"PyTorchJob train: failed: {reason}",
    ]
    assert "9 lines of torch about itself are folded; --all-output shows them" in said


@pytest.mark.parametrize(
    ("processes", "text", "title"),
    [
        (1, "step 1", "train-worker-0 rank 1"),
        (2, "step 1", "train-worker-0 ranks 2-3"),
        (2, "[rank3]: ValueError: bad", "train-worker-0 rank 3"),
        (2, "[default1]:step 1", "train-worker-0 rank 3"),
        (2, "[0]:step 1", "train-worker-0 rank 2"),
        (2, "[1, 2]: a list", "train-worker-0 ranks 2-3"),
        (None, "step 1", "train-worker-0 group rank 1"),
    ],
)
def test_a_line_has_the_rank_of_its_process(processes: int | None, text: str, title: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A worker's rank is its agent's; with two processes in each, the second worker has ranks 2 and 3."""
    printer = Printer()
    printer.tell(JOB, Ranks({"train-worker-1": 0, "train-worker-0": 1}, processes))
    printer.tell(JOB, Line("train-worker-0", text))
    assert capsys.readouterr().out.partition(" s  ")[2] == f"{title} | {text}\n"


@pytest.mark.parametrize(
    ("spec", "container", "processes"),
    [
        ({"nprocPerNode": "2"}, {}, 2),
        ({"elasticPolicy": {"nProcPerNode": 4}}, {}, 4),
        ({"nprocPerNode": "2"}, {"command": ["torchrun", "--nproc_per_node=3", "train.py"]}, 3),
        ({"nprocPerNode": "2"}, {"args": ["--nproc-per-node", "gpu"], "resources": {"limits": {"nvidia.com/gpu": 8}}}, 8),
        ({"nprocPerNode": "2"}, {"env": [{"name": "PET_NPROC_PER_NODE", "value": "5"}]}, 5),
        ({}, {"resources": {"limits": {"nvidia.com/gpu": "4"}}}, 4),
        ({}, {}, None),
        ({"nprocPerNode": "cpu"}, {"resources": {"limits": {"nvidia.com/gpu": "4"}}}, None),
        ({"nprocPerNode": "0"}, {}, None),
        ({"nprocPerNode": "2"}, {"command": ["torchrun", "--nproc-per-node"]}, None),
    ],
)
def test_a_job_says_how_many_processes_each_worker_has(spec: dict[str, Any], container: dict[str, Any], processes: int | None) -> None:
    worker = {"template": {"spec": {"containers": [container]}}}
    assert processes_per_worker({**spec, "pytorchReplicaSpecs": {"Worker": worker}}) == processes


def test_two_jobs_of_one_name_are_told_where(tmp_path: Path, script: Path) -> None:
    job = elastic("run", script, "--save", "-").stdout
    (tmp_path / "two.yaml").write_text(f"{job}---\n{job}")
    said = elastic("validate", tmp_path / "two.yaml")
    assert said.exit_code == 1
    assert f"metadata.name: my-train is the name of the PyTorchJob at {tmp_path}/two.yaml:2 too; give one of them another" in said.stdout


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
