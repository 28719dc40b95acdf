"""Prove what a worker does when its launcher tells of a loss, in unmodified programs, without Horovod's compiled part."""

import os
import queue
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from gloo_sockets import gloo_pair

import elastic_worker.horovod.bootstrap
from elastic_worker.horovod import watch
from elastic_worker.horovod.watch import Watch

BOOTSTRAP = os.path.dirname(elastic_worker.horovod.bootstrap.__file__)
ROOT = Path(__file__).resolve().parents[4]


def until(claim: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Launcher:
    """Answers questions in the order in which the test gives the answers."""

    def __init__(self) -> None:
        self.answers: queue.Queue[Any] = queue.Queue()
        self.asked = 0

    def ask(self) -> str | None:
        self.asked += 1
        answer = self.answers.get(timeout=60)
        if isinstance(answer, Exception):
            raise answer
        return str(answer) if answer is not None else None


class Basics:
    """Horovod's class: each initialisation opens a connection of gloo's."""

    def __init__(self) -> None:
        self.has_world = False
        self.opened: list[tuple[socket.socket, socket.socket]] = []

    def init(self, *arguments: Any, **options: Any) -> str:
        """Initialise."""
        if not self.has_world:
            self.opened.append(gloo_pair())
        self.has_world = True
        return f"{arguments} {options}"

    def _add_process_set_impl(self, ranks: list[int]) -> int:
        self.opened.append(gloo_pair())
        return len(ranks)

    def is_initialized(self) -> bool:
        return self.has_world

    def is_shut(self, number: int) -> bool:
        peer = self.opened[number][1]
        peer.setblocking(False)
        try:
            return peer.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False


class Worker:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watch, "FIRST_PAUSE_S", 0.01)
        self.launcher = Launcher()
        self.said: list[str] = []
        basics = type("HorovodBasics", (Basics,), {})
        watch.watched(basics, Watch(self.launcher.ask, self.said.append))
        self.hvd: Basics = basics()

    def init_again(self) -> None:
        self.hvd.has_world = False
        self.hvd.init()


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    made = Worker(monkeypatch)
    yield made
    made.launcher.answers.put(None)
    for pair in made.hvd.opened:
        for one in pair:
            one.close()


def test_a_worker_that_is_told_of_a_loss_shuts_the_connections_of_its_world(worker: Worker) -> None:
    assert worker.hvd.init("comm", process_sets=[]) == "('comm',) {'process_sets': []}"
    worker.launcher.answers.put("")
    until(lambda: worker.launcher.asked == 2)
    assert not worker.hvd.is_shut(0)
    worker.launcher.answers.put("worker w2:0 ended with status 137")
    until(lambda: bool(worker.said))
    assert worker.hvd.is_shut(0)
    assert worker.said[0].startswith("worker w2:0 ended with status 137; shut ")


def test_the_connections_of_a_process_set_that_was_added_later_are_shut_too(worker: Worker) -> None:
    worker.hvd.init()
    assert worker.hvd._add_process_set_impl([0, 1]) == 2
    worker.launcher.answers.put("worker w2:0 ended with status 137")
    until(lambda: bool(worker.said))
    assert worker.hvd.is_shut(0)
    assert worker.hvd.is_shut(1)


def test_a_second_init_of_the_same_world_keeps_its_connections_in_view(worker: Worker) -> None:
    """Programs may call `hvd.init` twice; Horovod ignores the second call."""
    worker.hvd.init()
    worker.hvd.init()
    worker.launcher.answers.put("worker w2:0 ended with status 137")
    until(lambda: worker.hvd.is_shut(0))


def test_news_of_the_former_world_does_not_shut_the_present_one(worker: Worker) -> None:
    """The question is under way while the worker enters the next world. The answer may be about either; so it is asked again."""
    worker.hvd.init()
    until(lambda: worker.launcher.asked == 1)
    worker.init_again()
    worker.launcher.answers.put("worker w2:0 ended with status 137")
    until(lambda: worker.launcher.asked == 2)
    assert not worker.hvd.is_shut(1)
    worker.launcher.answers.put("worker w1:0 ended with status 137")
    until(lambda: worker.hvd.is_shut(1))


def test_after_a_loss_the_next_world_is_watched(worker: Worker) -> None:
    worker.hvd.init()
    for number in range(3):
        worker.launcher.answers.put("worker w2:0 ended with status 137")
        until(partial(worker.hvd.is_shut, number))
        worker.init_again()


def test_a_launcher_that_tells_no_losses_is_asked_once(worker: Worker) -> None:
    """One of the release before knows nothing of these questions."""
    worker.hvd.init()
    worker.launcher.answers.put(None)
    until(lambda: worker.launcher.answers.empty())
    assert not worker.hvd.is_shut(0)
    assert worker.launcher.asked == 1


def test_a_launcher_out_of_reach_is_asked_again(worker: Worker) -> None:
    worker.hvd.init()
    for error in (ConnectionRefusedError(), ValueError("no JSON")):
        worker.launcher.answers.put(error)
    worker.launcher.answers.put("worker w2:0 ended with status 137")
    until(lambda: worker.hvd.is_shut(0))


def test_a_forked_child_neither_asks_nor_holds_up_the_shutdown(worker: Worker) -> None:
    """Workers of a DataLoader have copies of all descriptors: only a shutdown, and no close, reaches the peer then."""
    worker.hvd.init()
    until(lambda: worker.launcher.asked == 1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(worker.launcher.asked - 1)
    os.close(reader)
    worker.launcher.answers.put("worker w2:0 ended with status 137")
    until(lambda: worker.hvd.is_shut(0))
    os.close(writer)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_wrapped_methods_keep_their_names_and_words() -> None:
    basics = type("HorovodBasics", (Basics,), {})
    watch.watched(basics, Watch(lambda: None, print))
    assert (basics.init.__name__, basics.init.__doc__) == ("init", "Initialise.")  # type: ignore[attr-defined]


# --- The start of a worker's process.

IN_A_JOB = {
    "HOROVOD_ELASTIC": "1",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "9",
    "HOROVOD_HOSTNAME": "w0",
    "HOROVOD_LOCAL_RANK": "0",
}


def python(words: str, *paths: Path, **environment: str) -> str:
    """Run words in a worker's Python, with these folders of the user's on its PYTHONPATH."""
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join([BOOTSTRAP, *map(str, paths), str(ROOT)]), **environment}
    done = subprocess.run([sys.executable, "-c", words], env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def horovod(tmp_path: Path) -> Path:
    """Make a folder with a package of Horovod's name and the class that our library watches."""
    common = tmp_path / "packages" / "horovod" / "common"
    common.mkdir(parents=True)
    for package in (common.parent, common):
        (package / "__init__.py").touch()
    (common / "basics.py").write_text("class HorovodBasics:\n    def init(self): ...\n    def is_initialized(self): return False\n")
    return common.parents[1]


WATCHED = "from horovod.common.basics import HorovodBasics as b; print(hasattr(b.init, '__wrapped__'))"


def test_a_worker_that_imports_horovod_is_watched_without_a_change_of_its_program(horovod: Path) -> None:
    assert python(WATCHED, horovod, **IN_A_JOB) == "True\n"


def test_any_other_process_is_left_alone(horovod: Path) -> None:
    assert python(WATCHED, horovod) == "False\n"


def test_a_process_that_does_not_import_horovod_loads_nothing_of_ours() -> None:
    assert python("import sys; print([name for name in sys.modules if name.startswith('elastic_worker')])", **IN_A_JOB) == "[]\n"


def test_a_horovod_of_another_shape_trains_without_the_watch(horovod: Path) -> None:
    (horovod / "horovod" / "common" / "basics.py").write_text("class Other: ...\n")
    said = python("import horovod.common.basics; print('trains')", horovod, **IN_A_JOB)
    assert said.startswith("trains\n")
    assert "elastic-training: this worker does not hear of losses: AttributeError" in said


@pytest.mark.parametrize("environment", [{}, IN_A_JOB], ids=["other process", "worker"])
def test_the_users_own_sitecustomize_runs_as_if_ours_were_not_there(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "sitecustomize.py").write_text("import beside\nhere = __file__\nprint('mine', beside.__name__)\n")
    (tmp_path / "beside.py").touch()
    words = "import sys, sitecustomize; print(sitecustomize.here, any('bootstrap' in path for path in sys.path), sys.path[1])"
    assert python(words, tmp_path, **environment) == f"mine beside\n{tmp_path / 'sitecustomize.py'} False {tmp_path}\n"


def test_a_sitecustomize_of_the_user_that_fails_fails_as_without_ours(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import no_such_module\n")
    said = python("print('goes on')", tmp_path, **IN_A_JOB)
    assert "goes on\n" in said
    assert "Error in sitecustomize" in said
    assert "no_such_module" in said
