"""Check the life of warm workers and of their fork server, and the cases in which workers start plainly."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from warm_server import End, Warm, end_of, is_alive, line_of, write

from elastic_worker.gloo_deadlock.procfs import worker_of
from elastic_worker.warm.readiness import wait_for_imports

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(240)]
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    server = Warm(tmp_path_factory.mktemp("warm"), {})
    yield server
    server.stop()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Warm]:
    """Run a fork server for a test that breaks it."""
    server = Warm(tmp_path, {}, is_torchrun=True)
    yield server
    server.stop()


SIGNALLED = """
import os, signal, sys
def say(number, frame):
    print('got', signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        sys.exit(5)
waker, wake = os.pipe()
os.set_blocking(wake, False)
signal.set_wakeup_fd(wake)  # time.sleep may miss a signal that comes just before it
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGWINCH):
    signal.signal(number, say)
signal.pthread_sigmask(signal.SIG_SETMASK, [])
print('ready', 'torch' in sys.modules, flush=True)
while True:
    os.read(waker, 1)
"""


def ordinary() -> None:
    """Do nothing to the new process."""


def hang_up_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def user_signal_ignored() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def user_signal_blocked() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])


@pytest.mark.parametrize("before", [ordinary, hang_up_ignored, user_signal_blocked])
def test_signals_reach_the_worker(warm: Warm, before: Callable[[], None]) -> None:
    """All processes under nohup begin with SIGHUP ignored. A stub never forwarded it to a worker that handled it."""
    worker = warm.start(write(warm.folder, "signalled.py", SIGNALLED), preexec_fn=before)
    assert line_of(worker) == "ready True\n"
    for name in ("SIGUSR1", "SIGHUP", "SIGWINCH", "SIGTERM"):
        os.killpg(worker.pid, signal.Signals[name])
        assert line_of(worker) == f"got {name}\n"
    assert end_of(worker).status == 5


SLOW_TO_BECOME = """
import os, time
def slow(make_session=os.setsid):
    with open({folder!r} + '/between', 'w') as file:
        file.write(str(os.getpid()))
    os.rename({folder!r} + '/between', {folder!r} + '/forked')
    while not os.path.exists({folder!r} + '/go on'):
        time.sleep(0.01)
    make_session()
os.setsid = slow
"""


def test_a_signal_to_a_worker_that_was_just_forked_is_not_lost(tmp_path: Path) -> None:
    """The worker still had the fork server's handlers and ignored signals. A signal must end it as it ends a new interpreter."""
    write(tmp_path, "site/sitecustomize.py", SLOW_TO_BECOME.format(folder=str(tmp_path)))
    server = Warm(tmp_path, {"PYTHONPATH": str(tmp_path / "site")}, preexec_fn=user_signal_ignored)
    try:
        worker = server.start(write(tmp_path, "signalled.py", SIGNALLED))
        server.until((tmp_path / "forked").exists, "the server has forked")
        forked = int((tmp_path / "forked").read_text())
        os.kill(worker.pid, signal.SIGUSR1)
        server.until(lambda: is_pending(forked, signal.SIGUSR1), "the signal waits for the worker")
        (tmp_path / "go on").touch()
        assert end_of(worker) == End(-signal.SIGUSR1, "", "")
    finally:
        server.stop()


def is_pending(pid: int, number: signal.Signals) -> bool:
    lines = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(lines["ShdPnd"], 16) >> (number - 1) & 1)


def test_a_worker_ends_with_its_stub(warm: Warm) -> None:
    process = warm.start(write(warm.folder, "sleeper.py", "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)"))
    pid = int(line_of(process))
    assert is_alive(pid)
    process.kill()
    warm.until(lambda: not is_alive(pid), "the worker is gone")
    end_of(process)


def test_nothing_runs_on_when_the_agent_ends(own: Warm) -> None:
    process = own.start(write(own.folder, "sleeper.py", "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)"))
    pid, server, folder = int(line_of(process)), own.server(), Path(own.exported["ELASTIC_WARM"])
    assert server
    assert folder.exists()
    own.agent.kill()
    own.until(lambda: not is_alive(pid) and not is_alive(server), "worker and server are gone")
    assert end_of(process).status == -signal.SIGKILL
    assert not folder.exists()


def test_the_death_of_the_server_ends_its_workers_and_the_next_start_is_plain(own: Warm) -> None:
    write(own.folder, "sleeper.py", "import os, sys, time\nprint(os.getpid(), flush=True)\ntime.sleep(600 if len(sys.argv) > 1 else 0)")
    process = own.start("sleeper.py", "long")
    pid = int(line_of(process))
    server = own.server()
    assert server
    os.kill(server, signal.SIGKILL)
    assert end_of(process).status == -signal.SIGKILL
    own.until(lambda: not is_alive(pid), "the worker is gone")
    after = end_of(own.start("sleeper.py"))
    assert after.status == 0
    assert after.error == "elastic_worker: this worker starts plainly: [Errno 111] Connection refused\n"


def test_an_agent_joins_the_rendezvous_once_the_server_can_fork(own: Warm) -> None:
    """A newcomer joined a world while its server still imported, so the others stood still for 8 to 20 s."""
    own.until(lambda: own.server() != 0, "the server runs")
    server, done = own.server(), threading.Event()
    os.kill(server, signal.SIGSTOP)

    def wait() -> None:
        wait_for_imports(own.exported)
        done.set()

    threading.Thread(target=wait, daemon=True).start()
    assert not done.wait(0.5)
    os.kill(server, signal.SIGCONT)
    own.until(done.is_set, "the server has imported")
    after = end_of(own.start(write(own.folder, "who.py", "import sys\nprint('torch._dynamo' in sys.modules)")))
    assert after == End(0, "True\n", ""), "the server takes what comes next"


def test_another_environment_starts_plainly_once_and_warm_from_then_on(own: Warm) -> None:
    write(own.folder, "who.py", "import os, sys\nprint('torch' in sys.modules, os.environ.get('MKL' + '_NUM_THREADS'))")
    environment = {"MKL_NUM_THREADS": "1"}
    first = end_of(own.start("who.py", environment=environment))
    assert (first.out, first.status) == ("False 1\n", 0)
    assert first.error == "elastic_worker: this worker starts plainly: MKL_NUM_THREADS differs from what it was when torch was imported\n"
    second = end_of(own.start("who.py", environment=environment))
    assert second.error == ""
    assert second.out == "True 1\n"


def test_other_limits_and_closed_descriptors_start_plainly(warm: Warm) -> None:
    write(warm.folder, "who.py", "import os, sys\nprint('torch' in sys.modules)")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))

    got = end_of(warm.start("who.py", preexec_fn=lower))
    assert got == End(0, "False\n", "elastic_worker: this worker starts plainly: its limits differs from the fork server's\n")
    closed = end_of(warm.start("who.py", preexec_fn=lambda: os.close(0)))
    assert closed == End(0, "False\n", "elastic_worker: this worker starts plainly: [Errno 9] Bad file descriptor\n")


def test_a_temporary_folder_with_a_long_name_is_no_obstacle(tmp_path: Path) -> None:
    """A pod's own TMPDIR on the laptop cluster was longer than a socket's address may be. All workers there started plainly."""
    long = tmp_path / ("a" * 120)
    long.mkdir()
    server = Warm(tmp_path, {"TMPDIR": str(long)})
    try:
        assert server.exported["PYTHON_EXEC"].startswith(str(long))
        write(tmp_path, "who.py", "import os; print(os.getppid() != 1)")
        assert end_of(server.start("who.py")).error == ""
        assert server.server() != 0
    finally:
        server.stop()


def test_torchrun_finds_in_the_shared_interpreter_what_it_finds_in_its_own(own: Warm) -> None:
    shared = own.facts()
    command = ["/bin/sh", "-c", 'exec "$0" "$@"', own.folder / "bin" / "torchrun", "a b", "--flag"]
    plain = subprocess.Popen(command, env=own.environment, cwd=own.folder)
    try:
        expected = own.facts()
    finally:
        plain.kill()
        plain.wait()
    assert shared.pop("title").rstrip("\0") == expected.pop("title").replace("\0", " ").rstrip()  # type: ignore[attr-defined]
    added = {name: value for name, value in shared.pop("environment").items() if name not in own.exported}  # type: ignore[attr-defined]
    assert added == expected.pop("environment")
    assert shared == expected


def test_if_the_shared_interpreter_cannot_fork_torchrun_and_its_workers_start_plainly(tmp_path: Path) -> None:
    """The torch of this test keeps a thread, which no child would have."""
    write(
        tmp_path, "site/torch/__init__.py", "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True).start()"
    )
    write(tmp_path, "site/torch/distributed.py", "")
    server = Warm(tmp_path, {"PYTHONPATH": str(tmp_path / "site")}, is_torchrun=True)
    try:
        facts = server.facts()
        environment = facts["environment"]
        assert isinstance(environment, dict)
        assert not {"PYTHON_EXEC", "ELASTIC_WARM"} & environment.keys()
        assert facts["argv"] == [str(tmp_path / "bin" / "torchrun"), "a b", "--flag"]
        assert not Path(server.exported["ELASTIC_WARM"]).exists()
        assert server.server() == 0
    finally:
        server.stop()


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    off = Warm(tmp_path, {"ELASTIC_WARM_START": "off"})
    try:
        assert off.exported == {}
        assert off.server() == 0
    finally:
        off.stop()


@pytest.mark.timeout(600)
def test_torchruns_workers_are_warm_through_every_change_and_none_of_them_loses_the_job(tmp_path: Path) -> None:
    """It plays the benchmark's sequence: start, crash, add, SIGTERM, SIGKILL, loss of the first member."""
    raw = tmp_path / "raw.json"
    command = [sys.executable, "-m", "benchmarks.rescale", "--settings", "warm", "--raw", str(raw)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stderr
    measured = json.loads(raw.read_text())
    assert [one["scenario"] for one in measured] == ["start", "crash", "add", "sigterm", "add", "sigkill", "add", "host"], ended.stdout
    assert [one["note"] for one in measured] == [""] * 8, ended.stdout
    assert all(one["seconds"] is not None for one in measured), ended.stdout


ABORTS = """
import atexit, os, sys
class Aborts:
    def __del__(self):
        os.abort()
kept = Aborts()
print('trained', flush=True)
{}
"""


@pytest.mark.parametrize("end", ["pass", "sys.exit(0)", "sys.exit()"])
def test_an_abort_after_the_program_has_ended_with_0_counts_as_ended_with_0(warm: Warm, end: str) -> None:
    """Now and then a thread of torch aborts the interpreter, because it wants the lock while the interpreter goes down."""
    ended = end_of(warm.start(write(warm.folder, "aborts.py", ABORTS.format(end))))
    assert (ended.status, ended.out) == (0, "trained\n")
    assert "aborted (SIGABRT) after the program had ended with 0" in ended.error


@pytest.mark.parametrize("end", ["os.abort()", "sys.exit(3)", "atexit.register(os.abort)", "raise ValueError('no')"])
def test_an_abort_before_the_program_has_ended_with_0_stays_an_abort(warm: Warm, end: str) -> None:
    ended = end_of(warm.start(write(warm.folder, "aborts.py", ABORTS.format(end))))
    assert ended.status == -signal.SIGABRT
    assert "had ended with 0" not in ended.error


def test_a_stand_in_names_its_worker(warm: Warm) -> None:
    process = warm.start(write(warm.folder, "sleeper.py", "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)"))
    try:
        worker = int(line_of(process))
        warm.until(lambda: worker_of(process.pid) == worker, "the stub names the worker")
    finally:
        process.kill()
        process.communicate()
