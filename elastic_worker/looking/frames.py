"""Tell the frames of the user's own program from those of Python, torch and other libraries, and name a place in the program."""

import os
import re
import typing

from elastic_worker.looking.stacks import Frame, Thread

PYTHON_FOLDER = re.compile(r"/lib(?:64)?/python3(?:\.\d+)?t?/")
PACKAGES = re.compile(r"/(?:site|dist)-packages/")
GENERATED = re.compile(r"/torchinductor_[^/]+/")
"""Code that torch.compile has written."""
OURS = re.compile(r"(?:\A|/)elastic_worker/")
LAUNCHER = re.compile(r"(?:\A|/)elastic_worker/warm/")
"""Our part of Python's start of a program."""
RUNPY = ("<frozen runpy>", "/runpy.py")
FRAMEWORKS = re.compile(r"/(?:torch|torchvision|transformers|accelerate|lightning|pytorch_lightning|deepspeed|horovod|numpy)/")
COLLECTIVES = re.compile(
    r"/torch/distributed/(?:distributed_c10d|_functional_collectives|rendezvous|device_mesh|_dist2|nn/functional)\.py\Z"
)
DISTRIBUTED = re.compile(r"/torch/(?:distributed/(?!checkpoint/|elastic/|launcher/|run\.py|launch\.py)|nn/parallel/distributed\.py)")
AUTOGRAD = ("/torch/autograd/graph.py", "_engine_run_backward")
FORKED = ("/multiprocessing/process.py", "_bootstrap")
LOADER_WAITS = ("_get_data", "_try_get_data", "_shutdown_workers")
HOROVOD = re.compile(r"/horovod/[a-z_/]*mpi_ops\.py\Z")
OUR_WAITS = {
    "/training/control.py": ("begin_step", "next_change", "formed", "get", "wait_in"),
    "/training/exchange.py": ("get", "multi_get", "wait"),
    "/training/transfer.py": ("receive",),
}
"""Functions in which the training library waits for other ranks."""
LONGEST = 160
LONGEST_CODE = 80


def is_user(frame: Frame) -> bool:
    """Return whether a frame belongs to the user's own program."""
    path = frame.path
    return not (path.startswith("<") or any(known.search(path) for known in (PYTHON_FOLDER, PACKAGES, GENERATED, OURS)))


def is_of_python(frame: Frame) -> bool:
    """Return whether a frame belongs to Python's standard library."""
    return frame.path.startswith("<") or (PYTHON_FOLDER.search(frame.path) is not None and PACKAGES.search(frame.path) is None)


def user_frame(thread: Thread) -> typing.Optional[Frame]:
    """Return the innermost frame of the user's program, or of a package that is no framework, if the program is such a package."""
    of_package = (one for one in thread if PACKAGES.search(one.path) and not FRAMEWORKS.search(one.path) and not OURS.search(one.path))
    return next((one for one in thread if is_user(one)), None) or next(of_package, None)


def inside(thread: Thread) -> Thread:
    """Return the frames inside of the innermost frame of the user's program."""
    index = next((index for index, one in enumerate(thread) if is_user(one)), len(thread))
    return thread[:index]


def of_child(thread: Thread) -> Thread:
    """Return what a forked process does by itself. Below that its stack has a copy of its parent's."""
    index = next((index for index, one in enumerate(thread) if _is(one, FORKED)), len(thread))
    return thread[:index]


def is_in(thread: typing.Iterable[Frame], *endings: str) -> bool:
    """Return whether one of the frames is in a file with one of these endings."""
    return any(one.path.endswith(endings) for one in thread)


def without_launcher(thread: Thread) -> Thread:
    """Return a stack without the frames of our launcher at its bottom, unless it has no others."""
    index = len(thread)
    for at in range(len(thread) - 1, -1, -1):
        if LAUNCHER.search(thread[at].path):
            index = at
        elif not is_of_python(thread[at]):
            break
    while 0 < index < len(thread) and thread[index - 1].path.endswith(RUNPY):
        index -= 1
    return thread[:index] or thread


def waits_for_loader(thread: Thread) -> bool:
    """Return whether a thread waits for the processes of a DataLoader. Without such processes, a DataLoader runs the program itself."""
    return any(one.path.endswith("/torch/utils/data/dataloader.py") and one.function in LOADER_WAITS for one in thread)


def is_ours(thread: Thread) -> bool:
    """Return whether a thread belongs to elastic_worker: it has frames of ours and of Python only."""
    return any(OURS.search(one.path) for one in thread) and not any(
        is_user(one) or (PACKAGES.search(one.path) and not OURS.search(one.path)) for one in thread
    )


def collective(thread: Thread, *, is_at_rest: bool) -> str:
    """Return the public call of torch.distributed, Horovod or ours in which a main thread waits for other ranks; "" without such a call.

    Other parts of torch.distributed also compute, so that their innermost frame counts only if the process is at rest.
    """
    inner = inside(thread)
    called = [one.function for one in inner if COLLECTIVES.search(one.path) and not one.function.startswith("<")]
    if called:
        public = [name for name in called if not name.startswith("_")]
        return (public or called)[-1]
    if is_at_rest and inner and DISTRIBUTED.search(inner[0].path):
        return inner[0].function
    if any(HOROVOD.search(one.path) and one.function in ("synchronize", "wait", "join") for one in inner):
        return "synchronize"
    if any(OURS.search(one.path) and one.function in _waits_in(one.path) for one in inner):
        return "Run"
    return ""


def is_in_backward(thread: Thread) -> bool:
    """Return whether the innermost Python frame runs autograd's engine, which is in C++."""
    return bool(thread) and _is(thread[0], AUTOGRAD)


def place(frame: Frame, folder: str) -> str:
    """Return file and line, such as "train.py:41"; the path is relative if it is below this folder."""
    path = frame.path
    if folder and path.startswith(folder.rstrip("/") + "/"):
        path = path[len(folder.rstrip("/")) + 1 :]
    elif os.path.isabs(path):
        path = os.path.basename(path)
    return "{}:{}".format(shortened(path, LONGEST - 12), frame.line)


def shortened(text: str, most: int) -> str:
    """Return printable text of bounded length; the end of a longer one."""
    text = printable(text[-most - 1 :])
    return text if len(text) <= most else "..." + text[3 - most :]


def printable(text: str) -> str:
    """Return the text with each letter that cannot be printed replaced."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _waits_in(path: str) -> typing.Tuple[str, ...]:
    return next((functions for ending, functions in OUR_WAITS.items() if path.endswith(ending)), ())


def _is(frame: Frame, known: typing.Tuple[str, str]) -> bool:
    return frame.path.endswith(known[0]) and frame.function == known[1]
