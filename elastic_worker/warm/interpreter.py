"""Make a forked child of the fork server like a newly started interpreter, and run the program in it.

This module changes this process only. It decides nothing: whether a worker may start warm is decided before the fork.
"""

import builtins
import contextlib
import ctypes
import faulthandler
import importlib
import importlib.machinery
import io
import os
import random
import runpy
import signal
import sys
import types
import typing

from elastic_worker.warm.program import Program
from elastic_worker.warm.request import Request

PR_SET_PDEATHSIG = 1
PR_SET_PTRACER = 0x59616D61
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
ARG_START, ARG_END = 48, 49
PACKAGE = "elastic_worker"

Hook = typing.Callable[[typing.Type[BaseException], BaseException, typing.Optional[types.TracebackType]], typing.Any]


def die_with_parent(library: typing.Any, parent: int) -> None:
    """Let the kernel kill this process with the fork server, because no other process could reap it."""
    library.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def allow_inspection(library: typing.Any, agent: int) -> None:
    """Allow the agent to inspect this process if Yama allows only parents. A plainly started worker has the agent as its parent."""
    library.prctl(PR_SET_PTRACER, agent, 0, 0, 0)


def descriptors() -> typing.FrozenSet[int]:
    """Return the open descriptors, without the descriptor of the listing itself."""
    return frozenset(int(name) for name in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + name))


def fork_once() -> None:
    """Fork once: libraries with fork handlers end their threads now, and only threads of other libraries remain to be counted."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def become(request: Request, *, keep: typing.FrozenSet[int]) -> None:
    """Take over from the stub: session, descriptors, folder, umask, environment, signals. All signals are blocked until then."""
    os.setsid()
    for target, descriptor in enumerate(request.descriptors[:3]):
        os.dup2(descriptor, target)
    os.fchdir(request.descriptors[3])
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            with contextlib.suppress(OSError):  # the listing's own descriptor is gone by now
                os.close(int(name))
    os.umask(request.umask)
    os.environ.clear()
    os.environ.update(request.environment)
    set_signals(request)


def set_signals(request: Request) -> None:
    """Ignore and block the signals that a plain start would; the others have the handlers of a new interpreter."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        is_ignored = number in request.ignored or number in IGNORED_BY_PYTHON
        signal.signal(number, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    if signal.SIGINT not in request.ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if faulthandler.is_enabled():
        faulthandler.disable()
        faulthandler.enable()
    signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked)


def seed() -> None:
    """Seed random generators again: they were seeded at import, and siblings must not draw the same numbers."""
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)
        processes.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]


def run(program: Program, *, arguments: typing.Sequence[str]) -> None:
    """Run the program as `__main__`. Tracebacks of its errors contain no frames of ours."""
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = [sys.executable, *arguments]
    folder = os.getcwd()
    importlib.invalidate_caches()
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, program.import_folder(folder))
    for name in [name for name in sys.modules if name == PACKAGE or name.startswith(PACKAGE + ".")]:
        del sys.modules[name]  # the program may have a newer version
    main = _main_module()
    try:
        if program.is_module:
            sys.argv[:] = ["-m", *program.arguments]
            runpy._run_module_as_main(program.name)  # type: ignore[attr-defined]
        else:
            sys.argv[:] = [program.name, *program.arguments]
            _run_script(program.script(folder), main)
    except SystemExit:
        raise
    except BaseException:
        sys.excepthook = _without_our_frames(sys.excepthook)
        raise


def _main_module() -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    if "__mp_main__" in sys.modules:
        sys.modules["__mp_main__"] = main
    return main


def _run_script(path: str, main: types.ModuleType) -> None:
    main.__dict__.update(__file__=path, __cached__=None, __loader__=importlib.machinery.SourceFileLoader("__main__", path))
    with io.open_code(path) as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def _without_our_frames(hook: Hook) -> Hook:
    def show(kind: typing.Type[BaseException], error: BaseException, trace: typing.Optional[types.TracebackType]) -> typing.Any:
        while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
            trace = trace.tb_next
        return hook(kind, error.with_traceback(trace), trace)

    return show


def _is_ours(filename: str) -> bool:
    return filename == "<string>" or os.path.dirname(filename) == os.path.dirname(__file__)


def leave_path_as_found(root: str) -> None:
    """Remove from sys.path what `-c` and the boot code added."""
    sys.path.remove(root)
    if not getattr(sys.flags, "safe_path", False):
        sys.path.remove("")


def retitle(words: typing.Sequence[str]) -> None:
    """Let `ps` show these words as the command line, as far as there is room."""
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = int(fields[ARG_START - 3]), int(fields[ARG_END - 3])
    size = end - start
    if start <= 0 or size < 2:
        return
    title = os.fsencode(" ".join(words))[: size - 2]
    # The last byte is not zero, because this is how the kernel distinguishes a title from a list of arguments.
    ctypes.memmove(start, title + b"\0" * (size - 1 - len(title)) + b"\x01", size)
