"""A worker from the fork server is what a plain start makes of the same command, only sooner."""

import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import elastic_worker

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(240)]
ROOT = Path(__file__).parent.parent.parent
LAUNCH = Path(elastic_worker.__file__).parent / "warm" / "launch.py"
PATIENCE_S = 90.0

PROBE = """
import json, os, sys
before = sorted(globals())
is_warm = 'torch' in sys.modules
facts = dict(
    argv=sys.argv, orig=sys.orig_argv, name=__name__, file=globals().get('__file__'), spec=getattr(__spec__, 'name', None),
    package=__package__, doc=__doc__, cached=globals().get('__cached__'), loader=type(__loader__).__name__,
    builtins=type(__builtins__).__name__, globals=before, path=sys.path, cwd=os.getcwd(), environment=dict(os.environ),
    flags=str(sys.flags), options=str(sys.warnoptions), executable=sys.executable, prefix=sys.prefix,
    main=sys.modules['__main__'].__dict__ is globals(),
)
import signal, resource, threading, gc, locale
open_now = ['/proc/self/fd/' + name for name in os.listdir('/proc/self/fd')]
streams = (sys.stdin, sys.stdout, sys.stderr)
facts.update(
    handlers={str(n): str(signal.getsignal(n)) for n in signal.valid_signals()}, mask=str(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    umask=os.umask(0o22), descriptors=sorted(os.readlink(name) for name in open_now if os.path.exists(name) and name[-2] + name[-1] > '/2'),
    streams=[(s.name, s.encoding, s.errors, s.mode, s.line_buffering, s.write_through, s.isatty(), str(type(s.buffer))) for s in streams],
    leads=os.getpid() == os.getpgrp() == os.getsid(0), tasks=len(os.listdir('/proc/self/task')),
    thread=threading.main_thread() is threading.current_thread(), threads=[t.name for t in threading.enumerate()],
    limits=[resource.getrlimit(n) for n in range(16)], nice=os.nice(0), affinity=sorted(os.sched_getaffinity(0)),
    gc=(gc.isenabled(), gc.get_threshold()), locale=locale.setlocale(locale.LC_ALL), hook=sys.excepthook is sys.__excepthook__,
    comm=open('/proc/self/comm').read(), command=open('/proc/self/cmdline').read().replace(chr(0), ' ').strip(),
    recursion=sys.getrecursionlimit(), stdin=sys.stdin.read(),
)
import multiprocessing, torch
facts.update(
    method=multiprocessing.get_start_method(), process=multiprocessing.current_process().name,
    torch_threads=(torch.get_num_threads(), torch.get_num_interop_threads()), grad=torch.is_grad_enabled(),
    dtype=str(torch.get_default_dtype()), cuda=torch.cuda.is_initialized(),
    mp_main=sys.modules['__mp_main__'] is sys.modules['__main__'],
)
print(json.dumps([is_warm, facts]))
"""


@dataclass(frozen=True)
class End:
    status: int
    out: str
    error: str


class Warm:
    """A fork server beside a process that stands for torchrun's agent."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.agent = subprocess.Popen(["/bin/sleep", "600"])
        clean = {name: value for name, value in os.environ.items() if name not in ("PYTHON_EXEC", "ELASTIC_WARM", "ELASTIC_WARM_START")}
        self.environment = clean | {"TMPDIR": str(folder), "OMP_NUM_THREADS": "1"} | environment
        command = [sys.executable, "-IS", str(LAUNCH), str(self.agent.pid), "torchrun"]
        printed = subprocess.run(command, env=self.environment, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout
        self.exported = dict(word.split("=", 1) for word in shlex.split(printed)[1:])
        self.python = self.exported.get("PYTHON_EXEC", sys.executable)

    def start(self, *command: str, cwd: Path | None = None, **options: object) -> "subprocess.Popen[str]":
        extra = options.pop("environment", {})
        assert isinstance(extra, dict)
        environment = self.environment | self.exported | {"RANK": "1"} | extra
        return self._start(self.python, command, cwd or self.folder, environment, options)

    def start_plainly(self, *command: str, cwd: Path | None = None, **options: object) -> "subprocess.Popen[str]":
        extra = options.pop("environment", {})
        assert isinstance(extra, dict)
        return self._start(sys.executable, command, cwd or self.folder, self.environment | {"RANK": "1"} | extra, options)

    @staticmethod
    def _start(
        python: str, command: tuple[str, ...], cwd: Path, environment: dict[str, str], options: dict[str, object]
    ) -> "subprocess.Popen[str]":
        pipes: dict[str, object] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([python, "-u", *command], cwd=cwd, env=environment, start_new_session=True, **(pipes | options))  # type: ignore[call-overload,no-any-return]

    def server(self) -> int:
        """The pid of the fork server."""
        title = f"elastic_worker: fork server of {self.agent.pid}"
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if title == (entry / "cmdline").read_text().rstrip("\0"):
                        return int(entry.name)
                except OSError:
                    continue
        return 0

    def stop(self) -> None:
        self.agent.kill()
        self.agent.wait()


def end_of(process: "subprocess.Popen[str]", say: str = "") -> End:
    out, error = process.communicate(say, timeout=PATIENCE_S)
    return End(process.returncode, out, error)


def until(holds: Callable[[], bool], what: str) -> None:
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < PATIENCE_S, what
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    server = Warm(tmp_path_factory.mktemp("warm"), {})
    yield server
    server.stop()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Warm]:
    """A server of this test's own, for tests that break it."""
    server = Warm(tmp_path, {})
    yield server
    server.stop()


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return name


@pytest.mark.parametrize(
    "command",
    [
        ["probe.py", "--lr", "0.1"],
        ["./deeper/../probe.py"],
        ["deeper/link.py"],
        ["{folder}/probe.py", "a b", "ü", ""],
        ["-m", "probe", "x"],
        ["-m", "package"],
    ],
)
def test_a_warm_worker_finds_what_a_plain_one_finds(warm: Warm, command: list[str]) -> None:
    write(warm.folder, "probe.py", PROBE)
    write(warm.folder, "package/__main__.py", PROBE)
    (warm.folder / "deeper").mkdir(exist_ok=True)
    if not (warm.folder / "deeper/link.py").exists():
        (warm.folder / "deeper/link.py").symlink_to("../probe.py")
    words = [word.replace("{folder}", str(warm.folder)) for word in command]

    def in_an_odd_place() -> None:
        os.umask(0o27)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    options = {"environment": {"TORCHELASTIC_RUN_ID": "é"}, "preexec_fn": in_an_odd_place}
    plain = end_of(warm.start_plainly(*words, **options), "hello\n")
    assert plain.status == 0, plain.error
    is_warm, expected = json.loads(plain.out)
    assert not is_warm
    got = end_of(warm.start(*words, **options), "hello\n")
    assert got.status == 0, got.error
    assert got.error == plain.error
    is_warm, found = json.loads(got.out)
    assert is_warm
    assert found == expected


BEHAVIOURS = {
    "ends_by_itself": "print('hello')",
    "exits_with_a_status": "import sys; sys.exit(7)",
    "exits_with_words": "import sys; sys.exit('no data')",
    "exits_with_none": "import sys; sys.exit(None)",
    "leaves_at_once": "import os; print('x', end=''); os._exit(9)",
    "raises": "def f():\n    raise ValueError('bad')\ntry:\n    f()\nexcept ValueError as error:\n    raise KeyError('worse') from error",
    "is_interrupted": "raise KeyboardInterrupt",
    "has_a_hook": """
        import sys
        sys.excepthook = lambda kind, error, trace: print(kind, error, trace.tb_frame.f_code.co_name, trace.tb_next is None)
        1 / 0
    """,
    "is_no_python": "print('never')\nif:",
    "cleans_up": "import atexit\natexit.register(print, 'last')\nprint('first')\nraise RuntimeError('between')",
    "kills_itself": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "is_terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "crashes": "import ctypes; ctypes.string_at(0)",
    "aborts": "import os; os.abort()",
    "fails_in_a_thread": """
        import threading
        thread = threading.Thread(target=lambda: 1 / 0, name='one')
        thread.start()
        thread.join()
        print(threading.active_count())
    """,
    "leaves_a_thread": """
        import threading, time
        threading.Thread(target=lambda: (time.sleep(.2), print('late'))).start()
        print('main is done')
    """,
    "starts_processes": """
        import multiprocessing, sys
        def square(n):
            return n * n
        if __name__ == '__main__':
            for method in ('spawn', 'fork', 'forkserver'):
                with multiprocessing.get_context(method).Pool(2) as pool:
                    print(method, pool.map(square, range(4)))
    """,
    "runs_programs": """
        import subprocess, sys
        command = [sys.executable, '-c', 'import sys; print(sys.argv, sys.path[0])', 'x']
        print(subprocess.run(command, capture_output=True, text=True).stdout)
    """,
    "warns": "import warnings; warnings.warn('careful')",
    "reads": "print(input(), input())",
    "uses_inspect": "import inspect\ndef f():\n    pass\nprint(inspect.getsource(f))",
    "pickles_its_own": "import pickle\nclass A:\n    pass\nprint(type(pickle.loads(pickle.dumps(A()))), A.__module__)",
    "dumps_on_fault": "import faulthandler, ctypes\nfaulthandler.enable()\nctypes.string_at(0)",
}


@pytest.mark.parametrize("form", ["script", "module"])
@pytest.mark.parametrize("name", BEHAVIOURS)
def test_a_warm_worker_behaves_and_ends_as_a_plain_one(warm: Warm, name: str, form: str) -> None:
    write(warm.folder, name + ".py", "import sys\nwarm = 'torch' in sys.modules\n" + textwrap.dedent(BEHAVIOURS[name]))
    command = ["-m", name] if form == "module" else [name + ".py"]
    plain = end_of(warm.start_plainly(*command), "one\ntwo\n")
    got = end_of(warm.start(*command), "one\ntwo\n")
    assert got.status == plain.status
    assert got.out == plain.out
    assert _without_addresses(got.error) == _without_addresses(plain.error)


def _without_addresses(text: str) -> list[str]:
    """A fault's dump names the frames below the script, and a list of extension modules; those may differ."""
    lines = [line for line in text.splitlines() if not line.startswith(("Extension modules", "Current thread", "Thread 0x"))]
    return [line for line in lines if line and "elastic_worker/warm" not in line and '"<string>"' not in line]


def test_a_missing_module_is_reported_as_python_does(warm: Warm) -> None:
    plain, got = end_of(warm.start_plainly("-m", "nowhere.to.be.found")), end_of(warm.start("-m", "nowhere.to.be.found"))
    assert (got.status, got.error) == (plain.status, plain.error)


def test_siblings_draw_different_numbers_and_have_different_keys(warm: Warm) -> None:
    write(
        warm.folder,
        "draw.py",
        """
        import multiprocessing, random, tempfile
        import numpy, torch
        print(random.random(), numpy.random.rand(), torch.rand(1).item(), torch.initial_seed(), multiprocessing.current_process().authkey,
              next(tempfile._get_candidate_names()), sep='|')
        """,
    )
    draws = [end_of(process).out.strip().split("|") for process in [warm.start("draw.py") for _ in range(3)]]
    for values in zip(*draws, strict=True):
        assert len(set(values)) == 3, draws


SIGNALLED = """
import signal, sys, time
def say(number, frame):
    print('got', signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        sys.exit(5)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGWINCH):
    signal.signal(number, say)
print('ready', 'torch' in sys.modules, flush=True)
while True:
    time.sleep(60)
"""


def test_signals_reach_the_worker(warm: Warm) -> None:
    process = warm.start(write(warm.folder, "signalled.py", SIGNALLED))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready True\n"
    for name in ("SIGUSR1", "SIGHUP", "SIGWINCH", "SIGTERM"):
        os.killpg(process.pid, signal.Signals[name])
        assert process.stdout.readline() == f"got {name}\n"
    assert end_of(process).status == 5


def test_a_worker_ends_with_its_stub(warm: Warm) -> None:
    process = warm.start(write(warm.folder, "sleeper.py", "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)"))
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert is_alive(pid)
    process.kill()
    until(lambda: not is_alive(pid), "the worker is gone")
    end_of(process)


def test_nothing_runs_on_when_the_agent_ends(own: Warm) -> None:
    process = own.start(write(own.folder, "sleeper.py", "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)"))
    assert process.stdout is not None
    pid, server, folder = int(process.stdout.readline()), own.server(), Path(own.exported["ELASTIC_WARM"])
    assert server
    assert folder.exists()
    own.agent.kill()
    until(lambda: not is_alive(pid) and not is_alive(server), "worker and server are gone")
    assert end_of(process).status == -signal.SIGKILL
    assert not folder.exists()


def test_the_death_of_the_server_ends_its_workers_and_the_next_start_is_plain(own: Warm) -> None:
    write(own.folder, "sleeper.py", "import os, sys, time\nprint(os.getpid(), flush=True)\ntime.sleep(600 if len(sys.argv) > 1 else 0)")
    process = own.start("sleeper.py", "long")
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    server = own.server()
    assert server
    os.kill(server, signal.SIGKILL)
    assert end_of(process).status == -signal.SIGKILL
    until(lambda: not is_alive(pid), "the worker is gone")
    after = end_of(own.start("sleeper.py"))
    assert after.status == 0
    assert after.error == "elastic_worker: this worker starts plainly: [Errno 111] Connection refused\n"


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
    """A pod's own TMPDIR on the laptop cluster was longer than a socket's address may be, so all workers there started plainly."""
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


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    off = Warm(tmp_path, {"ELASTIC_WARM_START": "off"})
    try:
        assert off.exported == {}
        assert off.server() == 0
    finally:
        off.stop()


@pytest.mark.timeout(600)
def test_torchruns_workers_are_warm_through_every_change_and_none_of_them_loses_the_job(tmp_path: Path) -> None:
    """The benchmark's sequence: start, crash, add, SIGTERM, SIGKILL, loss of the first member."""
    raw = tmp_path / "raw.json"
    command = [sys.executable, "-m", "benchmarks.rescale", "--settings", "warm", "--raw", str(raw)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stderr
    measured = json.loads(raw.read_text())
    assert [one["scenario"] for one in measured] == ["start", "crash", "add", "sigterm", "add", "sigkill", "add", "host"], ended.stdout
    assert [one["note"] for one in measured] == [""] * 8, ended.stdout
    assert all(one["seconds"] is not None for one in measured), ended.stdout
