"""A worker from the fork server is what a plain start makes of the same command, only sooner.

It differs in one thing: it shows its stacks when a signal asks for them, for which it has two handlers and two files in memory.
"""

import json
import os
import signal
import textwrap
from collections.abc import Iterator

import pytest
from warm_server import Warm, end_of, write

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.full, pytest.mark.timeout(240)]

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
open_now = [name for name in open_now if os.path.exists(name) and '/memfd:elastic-' not in os.readlink(name)]
streams = (sys.stdin, sys.stdout, sys.stderr)
facts.update(
    handlers={str(n): str(signal.getsignal(n)) for n in signal.valid_signals() if n - signal.SIGRTMIN not in (5, 6)},
    mask=str(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
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


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    server = Warm(tmp_path_factory.mktemp("warm"), {}, is_torchrun=True)
    yield server
    server.stop()


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
    """Return the lines that must be alike: a dump also names frames below the script, and a list of extension modules."""
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
        key = multiprocessing.current_process().authkey.hex()  # its bytes may be anything, the sign between the columns too
        name = next(tempfile._get_candidate_names())
        print(random.random(), numpy.random.rand(), torch.rand(1).item(), torch.initial_seed(), key, name, sep='|')
        """,
    )
    draws = [end_of(process).out.strip().split("|") for process in [warm.start("draw.py") for _ in range(3)]]
    for values in zip(*draws, strict=True):
        assert len(set(values)) == 3, draws
