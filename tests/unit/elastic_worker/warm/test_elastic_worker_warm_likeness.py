"""When a worker may start warm, and when it would not be what a plain start makes of it."""

import os
import socket
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_worker.warm import differences, launch, program

NAMES = st.text("ABCDEFGHIJ_", min_size=1, max_size=12)
ENVIRONMENTS = st.dictionaries(NAMES | st.sampled_from(sorted(differences.PER_WORKER)), st.text("01", max_size=2), max_size=6)


def test_a_workers_own_variables_may_differ() -> None:
    before = {"HOME": "/root"}
    asked = {
        "HOME": "/root",
        "RANK": "3",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "ELASTIC_GENERATION": "7",
        "ELASTIC_REPORTS": "/tmp/elastic-abc/reports",
        "ELASTIC_WORLD": "/tmp/elastic-abc/world",
        "CUDA_VISIBLE_DEVICES": "2",
    }
    assert differences.of_environment(before, before, asked) == ""


@pytest.mark.parametrize("asked", [{"OMP_NUM_THREADS": "4"}, {}, {"OMP_NUM_THREADS": "1", "LD_PRELOAD": "libx.so"}])
def test_anything_else_that_differs_is_named(asked: dict[str, str]) -> None:
    before = {"OMP_NUM_THREADS": "1"}
    assert "differs from what it was when torch was imported" in differences.of_environment(before, before, asked)


def test_settings_of_the_imports_may_be_there_or_not() -> None:
    before, after = {}, {"TORCHINDUCTOR_CACHE_DIR": "/tmp/torchinductor_root"}
    assert differences.of_environment(before, after, after) == ""
    assert differences.of_environment(before, after, before) == ""


@given(before=ENVIRONMENTS, asked=ENVIRONMENTS)
def test_importing_again_in_the_environment_for_a_worker_makes_it_like_one(before: dict[str, str], asked: dict[str, str]) -> None:
    renewed = differences.environment_for(before, asked)
    assert differences.of_environment(renewed, renewed, asked) == ""


def test_a_process_is_like_itself_and_a_changed_limit_is_named() -> None:
    own = differences.inherited_state(os.getpid())
    assert differences.of_inherited_state(own, own) == ""
    assert differences.of_inherited_state(own, own | {"limits": "none"}) == "its limits differs from the fork server's"


def test_a_package_installed_after_the_imports_is_noticed(tmp_path: Path) -> None:
    package = tmp_path / "thing"
    package.mkdir()
    (package / "__init__.py").touch()
    module = type(sys)("thing")
    module.__file__ = str(package / "__init__.py")
    then = differences.package_folders({"thing": module, "thing.part": module, "os": os}, [str(tmp_path)])
    assert set(then) == {str(tmp_path)}
    assert differences.of_packages(then) == ""
    os.utime(tmp_path, ns=(1, 1))
    assert differences.of_packages(then) == f"{tmp_path} has changed since torch was imported"


def test_only_the_two_forms_that_torchrun_writes_are_read() -> None:
    assert program.read(["-u", "train.py", "-m", "x"]) == program.Program("train.py", False, ("-m", "x"))
    assert program.read(["-u", "-m", "pkg.train", "--lr", "1"]) == program.Program("pkg.train", True, ("--lr", "1"))
    for odd in ([], ["-u"], ["train.py"], ["-u", "-X", "dev", "train.py"], ["-u", "-m"], ["-u", ""]):
        assert program.read(odd) is None


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import os, torch\nprint(os.environ['RANK'], os.environ['TORCH_NCCL_BLOCKING_WAIT'])\n", ""),
        ("import os\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch\n", "names OMP_N..., which is read when torch is imported"),
        ("import os\nos.environ.setdefault('TORCH_LOGS', 'x')\n", "names TORCH_L..., which is read when torch is imported"),
        ("print('OMP_NUM_THREADS')\n", ""),
        ("PK\x03\x04", "is an archive"),
    ],
)
def test_a_script_that_sets_what_torch_reads_at_import_starts_plainly(tmp_path: Path, source: str, why: str) -> None:
    (tmp_path / "train.py").write_text(source)
    found = program.obstacle(program.Program("train.py", False, ()), folder=str(tmp_path), loaded=["torch", "torch.nn"])
    assert (why in found) if why else found == ""


def test_a_folder_with_a_module_of_the_name_of_a_loaded_one_starts_plainly(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "numpy").mkdir()
    (tmp_path / "random.txt").touch()
    run = program.Program("train.py", False, ())
    assert program.obstacle(run, folder=str(tmp_path), loaded=["numpy", "random"]) == ""
    (tmp_path / "random.py").touch()
    assert program.obstacle(run, folder=str(tmp_path), loaded=["random"]) == "the program's folder has a module random of its own"
    (tmp_path / "numpy" / "__init__.py").touch()
    assert program.obstacle(run, folder=str(tmp_path), loaded=["numpy.linalg"]) == "the program's folder has a module numpy of its own"


def test_a_program_without_a_source_file_starts_plainly(tmp_path: Path) -> None:
    (tmp_path / "old.pyc").touch()
    for name in ("old.pyc", "."):
        assert "not a Python source file" in program.obstacle(program.Program(name, False, ()), folder=str(tmp_path), loaded=[])


def test_a_script_that_is_missing_is_said_to_be(tmp_path: Path) -> None:
    """It was `not a Python source file`."""
    for name in ("train.py", str(tmp_path / "train.py")):
        found = program.obstacle(program.Program(name, False, ()), folder=str(tmp_path), loaded=[])
        assert found == f"there is no file {tmp_path}/train.py"


@pytest.mark.parametrize(
    ("environment", "executable", "why"),
    [
        ({}, "/usr/bin/python3", ""),
        ({"ELASTIC_WARM_START": "on"}, "/usr/bin/python3", ""),
        ({"ELASTIC_WARM_START": "off"}, "/usr/bin/python3", "ELASTIC_WARM_START is off"),
        ({"PYTHON_EXEC": "/opt/py"}, "/usr/bin/python3", "PYTHON_EXEC is set to /opt/py"),
        ({"PYTHONINSPECT": "1"}, "/usr/bin/python3", "PYTHONINSPECT is set"),
        (
            {},
            "/opt/my python/bin/python3",
            "the interpreter's path '/opt/my python/bin/python3' cannot stand in the first line of a script",
        ),
    ],
)
def test_the_user_and_odd_interpreters_turn_it_off(environment: dict[str, str], executable: str, why: str) -> None:
    assert launch.obstacle(environment, executable) == why


@pytest.mark.parametrize(
    ("command", "environment"),
    [(["torchrun", "--no-python", "sh"], {}), (["torchrun", "--no_python", "sh"], {}), (["torchrun", "sh"], {"PET_NO_PYTHON": "1"})],
)
def test_nothing_is_started_for_workers_that_run_no_python(
    command: list[str], environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert launch.main([str(os.getpid()), *command]) == 0
    assert capsys.readouterr() == ("", "elastic_worker: workers start plainly: torchrun runs them without Python (--no-python)\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "environment", "omp"),
    [
        (["torchrun", "train.py"], {}, None),
        (["torchrun", "--nproc-per-node=4", "train.py"], {}, "1"),
        (["torchrun", "--nproc_per_node", "2", "train.py"], {}, "1"),
        (["torchrun", "train.py"], {"PET_NPROC_PER_NODE": "2"}, "1"),
        (["torchrun", "train.py"], {"PET_NPROC_PER_NODE": "2", "OMP_NUM_THREADS": "8"}, "8"),
    ],
)
def test_the_server_imports_with_the_threads_that_torchrun_will_set(
    command: list[str], environment: dict[str, str], omp: str | None
) -> None:
    assert launch.environment_of_workers(command, environment).get("OMP_NUM_THREADS") == omp


def test_folders_of_killed_servers_are_swept_away_and_those_of_living_ones_are_not(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as living, socket.socket(socket.AF_UNIX) as dead:
        for name, listener in (("elastic-warm-living", living), ("elastic-warm-dead", dead)):
            (tmp_path / name).mkdir()
            listener.bind(str(tmp_path / name / "socket"))
            listener.listen()
        dead.close()
        (tmp_path / "elastic-warm-other").mkdir()
        (tmp_path / "mine").mkdir()
        launch.sweep(str(tmp_path), now=time.time())
        assert len(list(tmp_path.iterdir())) == 4, "what is young may be about to be used"
        launch.sweep(str(tmp_path), now=time.time() + 2 * launch.OLD_S)
        assert {path.name for path in tmp_path.iterdir()} == {"elastic-warm-living", "mine"}


@pytest.mark.parametrize(
    ("command", "is_torchrun"),
    [
        (["torchrun", "train.py"], True),
        (["/opt/bin/torchrun"], True),
        (["python3", "-m", "torch.distributed.run", "train.py"], True),
        (["/usr/bin/python3.12", "-u", "-m", "torch.distributed.run"], True),
        (["python3", "-O", "-m", "torch.distributed.run"], False),
        (["python3", "-m", "torch.distributed.launch"], False),
        (["python3", "train.py"], False),
        (["bash", "-c", "torchrun train.py"], False),
        ([], False),
    ],
)
def test_only_torchrun_itself_runs_in_an_interpreter_of_ours(command: list[str], is_torchrun: bool) -> None:
    assert launch.is_torchrun(command) == is_torchrun


def test_torchrun_is_found_as_a_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "torchrun"
    script.write_text("")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program.read_agent(["torchrun", "x"]) == program.Program(name=str(script), is_module=False, arguments=("x",))
    module = program.Program(name="torch.distributed.run", is_module=True, arguments=("x", "-m"))
    assert program.read_agent(["python", "-u", "-m", "torch.distributed.run", "x", "-m"]) == module
    monkeypatch.setenv("PATH", "")
    assert program.read_agent(["torchrun", "x"]) is None
