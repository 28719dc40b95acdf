"""A sight of a worker is described in words that name what it does, and where in its program."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_worker.gloo_deadlock.procfs import Stat
from elastic_worker.looking import frames, stacks
from elastic_worker.looking.calls import Wait, wait_of
from elastic_worker.looking.describing import describe
from elastic_worker.looking.frames import is_user, place
from elastic_worker.looking.sight import Process, Sight
from elastic_worker.looking.stacks import Frame

PYTHON, TORCH = "/usr/lib/python3.11", "/venv/lib/python3.11/site-packages/torch"
FUTEX, NANOSLEEP, READ, POLL, WAIT4, FSYNC, OPENAT, FLOCK, IOCTL = 202, 230, 0, 7, 61, 74, 257, 73, 16


def dump(*main: str, others: tuple[tuple[str, ...], ...] = ()) -> str:
    """Return a dump as faulthandler writes it. Each call is `path:line function`; the innermost comes first."""
    threads = [("Thread 0x00007f27a4ff96c0 (most recent call first):", thread) for thread in others]
    threads.append(("Current thread 0x00007f27b1234740 (most recent call first):", main))
    return "\n".join("\n".join([head, *map(_line, thread), ""]) for head, thread in threads)


def _line(call: str) -> str:
    where, function = call.split(" ")
    path, line = where.rsplit(":", 1)
    return f'  File "{path}", line {line} in {function}'


def process(pid: int = 10, *call: int, state: str = "S", target: str = "", parent: int = 1, name: str = "python") -> Process:
    return Process(pid, name, Stat(state, parent, began=5, ticks=0, faults=0), call=(*call, 0, 0, 0)[:7] if call else (), target=target)


def sight(text: str, main: Process | None = None, *others: Process, group: str = "", **children: str) -> Sight:
    return Sight(
        at=0.0,
        main=main or process(10, FUTEX),
        others=others,
        is_held=False,
        folder="/app",
        group_threads=frozenset(filter(None, (group,))),
        switches=0,
        stacks=stacks.of_faulthandler(text) if text else None,
        child_stacks={int(pid[1:]): stacks.of_faulthandler(child) for pid, child in children.items()},
    )


@pytest.fixture(autouse=True)
def x86_64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the recorded calls as on the machine where they were recorded."""
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


USER = "/app/train.py:41 main"
C10D, LOGGER = f"{TORCH}/distributed/distributed_c10d.py", f"{TORCH}/distributed/c10d_logger.py"
COLLECTIVES = {
    "waits in all_reduce": (f"{C10D}:2999 all_reduce", f"{LOGGER}:83 wrapper", USER),
    "waits in barrier": (f"{C10D}:5001 barrier", f"{LOGGER}:83 wrapper", USER),
    "waits in recv": (f"{C10D}:2400 recv", f"{LOGGER}:83 wrapper", USER),
    "waits in all_gather_object": (f"{C10D}:3100 all_gather", f"{LOGGER}:83 wrapper", f"{C10D}:3200 all_gather_object", USER),
    "waits in init_process_group": (
        f"{TORCH}/distributed/rendezvous.py:200 _env_rendezvous_handler",
        f"{C10D}:1700 init_process_group",
        USER,
    ),
    "waits in _sync_params_and_buffers": (f"{TORCH}/distributed/utils.py:310 _sync_params_and_buffers", USER),
    "waits in wait_for_unshard": (f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_param_group.py:9 wait_for_unshard", USER),
    "waits in synchronize": ("/venv/lib/python3.11/site-packages/horovod/torch/mpi_ops.py:1300 synchronize", USER),
    "waits for the other ranks of its world": (
        f"{PYTHON}/threading.py:320 wait",
        "/elastic/elastic_worker/training/control.py:210 next_change",
        "/elastic/elastic_worker/training/run.py:140 steps",
        USER,
    ),
    "waits in backward for the gradients of other ranks": (
        f"{TORCH}/autograd/graph.py:865 _engine_run_backward",
        f"{TORCH}/autograd/__init__.py:360 backward",
        f"{TORCH}/_tensor.py:600 backward",
        USER,
    ),
}


@pytest.mark.parametrize("words", COLLECTIVES)
def test_a_wait_for_other_ranks_names_the_public_call(words: str) -> None:
    found = describe(sight(dump(*COLLECTIVES[words])), size=2)
    assert (found.kind, found.does, found.place) == ("collective", words, "train.py:41")


def test_an_asynchronous_collective_is_known_by_its_line() -> None:
    seen = sight(dump(USER), group="pt_gloo_runloop")
    assert describe(seen, size=2, code="work.wait()").does == "waits for a collective"
    assert describe(replace(seen, group_threads=frozenset()), size=2, code="work.wait()").does == "waits for a lock"
    assert describe(seen, size=2, code="lock.acquire()").kind == "other"


def test_a_wait_for_a_gpu_is_one_for_other_ranks_if_nccl_works_there() -> None:
    """The kernels of NCCL end only if all ranks take part, and meanwhile the main thread asks the GPU without a pause."""
    seen = sight(dump(USER), process(state="R"), group="pt_nccl_watchdg")
    assert (describe(seen, size=2, cpu=1.0, code="total += loss.item()").does) == "waits for its GPU"
    assert describe(seen, size=2, cpu=1.0, code="loss = model(x)").does == "computes"
    assert describe(replace(seen, group_threads=frozenset()), size=2, code="loss.item()").does == "computes"
    called = sight(dump(f"{TORCH}/cuda/__init__.py:900 synchronize", USER), process(state="R"), group="pt_nccl_watchdg")
    assert describe(called, size=2).kind == "collective"


def test_a_backward_that_computes_or_is_alone_waits_for_nobody() -> None:
    seen = sight(dump(*COLLECTIVES["waits in backward for the gradients of other ranks"]))
    assert describe(seen, size=1).kind == "other"
    assert describe(seen, size=2, cpu=0.9).does == "computes"
    assert describe(replace(seen, main=process(state="R")), size=2).does == "computes"


def test_a_checkpoint_of_torch_distributed_is_no_collective() -> None:
    writing = (f"{TORCH}/distributed/checkpoint/filesystem.py:300 write_data", USER)
    found = describe(sight(dump(*writing), process(10, 1, 7, target="/ckpt/0.distcp")), size=2)
    assert (found.kind, found.does) == ("other", "waits to write /ckpt/0.distcp")


LOADER = (
    f"{PYTHON}/selectors.py:415 select",
    f"{PYTHON}/multiprocessing/connection.py:930 wait",
    f"{PYTHON}/multiprocessing/queues.py:113 get",
    f"{TORCH}/utils/data/dataloader.py:1200 _try_get_data",
    f"{TORCH}/utils/data/dataloader.py:1300 _get_data",
    USER,
)
PARENT = (
    f"{PYTHON}/multiprocessing/process.py:315 _bootstrap",
    f"{PYTHON}/multiprocessing/popen_fork.py:71 _launch",
    "/app/train.py:39 main",
)
WORKER = (f"{TORCH}/utils/data/_utils/fetch.py:52 fetch", f"{TORCH}/utils/data/_utils/worker.py:350 _worker_loop", *PARENT)
OTHERS = [
    (process(10, NANOSLEEP, 1), (USER,), "sleeps"),
    (process(10, 270, 0), (USER,), "sleeps"),
    (process(10, READ, 7, target="/data/fifo"), (USER,), "waits to read /data/fifo"),
    (process(10, READ, 7, target="pipe:[55]"), (USER,), "waits to read a pipe"),
    (process(10, READ, 0, target="/dev/pts/1"), (USER,), "waits to read its standard input"),
    (process(10, 45, 7, target="socket:[5]"), (f"{PYTHON}/socket.py:700 readinto", USER), "waits to read a socket"),
    (process(10, 1, 7, target="/data/\x1b[2J"), (USER,), "waits to write /data/?[2J"),
    (process(10, OPENAT, 5), (USER,), "waits to open a file"),
    (process(10, FLOCK, 5), (USER,), "waits for the lock of a file"),
    (process(10, FSYNC, 5), (USER,), "waits for storage"),
    (process(10, READ, 5, state="D", target="/nfs/x"), (USER,), "waits for storage"),
    (process(10, FUTEX), (USER,), "waits for a lock"),
    (
        process(10, FUTEX),
        (f"{PYTHON}/threading.py:1100 _wait_for_tstate_lock", f"{PYTHON}/threading.py:1112 join", USER),
        "waits for a thread to end",
    ),
    (process(10, POLL), (f"{PYTHON}/ssl.py:1315 recv_into", USER), "waits for the network"),
    (process(10, POLL), (f"{PYTHON}/multiprocessing/connection.py:930 wait", USER), "waits for another process"),
    (process(10, POLL), (USER,), "waits for input"),
    (process(10, IOCTL), (USER,), "waits in a system call"),
    (process(10, WAIT4), (f"{PYTHON}/subprocess.py:1200 wait", USER), "waits for a child process"),
    (process(10, state="R"), (f"{TORCH}/nn/modules/linear.py:125 forward", USER), "computes"),
]


@pytest.mark.parametrize(("main", "calls", "does"), OTHERS, ids=[does for _, _, does in OTHERS])
def test_other_waits_are_named_by_call_and_frames(main: Process, calls: tuple[str, ...], does: str) -> None:
    found = describe(sight(dump(*calls), main), size=2)
    assert (found.kind, found.does, found.place) == ("other", does, "train.py:41")


def test_a_sleep_is_known_by_its_line_if_the_system_call_is_hidden() -> None:
    assert describe(sight(dump(USER), process(10)), code="time.sleep(3)").does == "sleeps"


def test_a_process_whose_other_threads_compute_computes() -> None:
    assert describe(sight(dump(USER)), cpu=1.5).does == "computes"
    assert describe(sight(dump(USER), process(10, NANOSLEEP)), cpu=1.5).does == "sleeps"


def test_the_only_child_process_is_named() -> None:
    child = process(44, parent=10, name="ffmpeg")
    found = describe(sight(dump(f"{PYTHON}/subprocess.py:1200 wait", USER), process(10, WAIT4), child))
    assert found.does == "waits for a child process: 44 (ffmpeg)"


def test_the_loader_process_that_does_something_is_named() -> None:
    """The stack of a forked process has a copy of its parent's below its own."""
    idle = dump(f"{PYTHON}/multiprocessing/queues.py:113 get", f"{TORCH}/utils/data/_utils/worker.py:330 _worker_loop", *PARENT)
    busy = dump("/app/lib/data.py:12 __getitem__", *WORKER)
    seen = sight(dump(*LOADER), process(10, POLL), process(51, POLL), process(52, NANOSLEEP), p51=idle, p52=busy)
    assert describe(seen).does == "waits for its DataLoader; its loader process 52 sleeps at lib/data.py:12"
    assert describe(replace(seen, child_stacks={51: stacks.of_faulthandler(idle)})).does == "waits for its DataLoader"
    stopped = replace(seen, others=(process(51, state="T"),), child_stacks={})
    assert describe(stopped).does == "waits for its DataLoader; its loader process 51 is stopped by a signal"


def test_a_stopped_process_is_named_before_its_stack() -> None:
    seen = sight("", process(10, FUTEX, state="T"))
    assert (describe(seen).kind, describe(seen).does) == ("stopped", "is stopped by a signal")
    assert describe(replace(seen, is_held=True)).does == "is held by a debugger"


def test_without_a_stack_a_wait_is_unknown_unless_it_is_for_a_file_or_a_child() -> None:
    assert describe(sight("", process(10, FUTEX))).kind == "unknown"
    assert describe(sight("", process(10, NANOSLEEP))).kind == "unknown"
    assert describe(sight("", process(10, READ, 5, target="socket:[1]"))).kind == "unknown"
    assert describe(sight("", process(10, state="R"))).does == "computes"
    assert describe(sight("", process(10, state="Z"))).does == "has ended"
    known = describe(sight("", process(10, READ, 5, target="/data/fifo")))
    assert (known.kind, known.does) == ("other", "waits to read /data/fifo")
    assert describe(sight("", process(10, WAIT4))).kind == "other"
    assert describe(sight("", process(10, FUTEX, state="D"))).does == "waits for storage"


def test_a_program_that_is_an_installed_package_has_a_place_too() -> None:
    package = "/venv/lib/python3.11/site-packages/mytrainer/loop.py:7 train"
    assert describe(sight(dump(f"{TORCH}/nn/modules/module.py:9 _call_impl", package))).place == "loop.py:7"


def test_frames_of_libraries_are_no_place_of_the_program() -> None:
    paths = (
        f"{PYTHON}/threading.py",
        f"{TORCH}/nn/module.py",
        "<frozen runpy>",
        "/x/elastic_worker/a.py",
        "/tmp/torchinductor_me/ab/cab.py",
    )
    assert not any(is_user(Frame(path, 1, "f")) for path in paths)
    assert is_user(Frame("/home/me/python3/train.py", 1, "f"))


def test_a_place_is_relative_below_the_working_folder_printable_and_bounded() -> None:
    assert place(Frame("/app/a/b.py", 3, "f"), "/app") == "a/b.py:3"
    assert place(Frame("/elsewhere/b.py", 3, "f"), "/app") == "b.py:3"
    assert place(Frame("/app/\n.py", 3, "f"), "/app") == "?.py:3"
    assert len(place(Frame("/app/" + 400 * "x", 10**9 - 1, "f"), "/app")) <= 160


def test_the_last_thread_of_a_dump_is_the_main_thread() -> None:
    read = stacks.of_faulthandler(dump(USER, others=((f"{PYTHON}/threading.py:320 wait",), ())))
    assert read.main == (Frame("/app/train.py", 41, "main"),)
    assert [len(thread) for thread in read.others] == [1, 0]


def test_names_of_threads_and_notes_in_a_dump_are_no_frames() -> None:
    text = dump(USER).replace("740 (most", "740 [train] (most").replace("first):\n", "first):\n  Garbage-collecting\n")
    assert stacks.of_faulthandler(text).main == (Frame("/app/train.py", 41, "main"),)


def test_a_dump_of_more_threads_than_it_holds_lacks_the_main_thread() -> None:
    assert stacks.of_faulthandler(dump(USER) + "...\n").main is None
    assert stacks.of_faulthandler("nonsense").main is None


def test_stacks_of_py_spy_are_read_and_nonsense_is_not() -> None:
    thread = '{"pid": 5, "os_thread_id": 5, "thread_name": "MainThread", "frames": [{"name": "f", "filename": "/app/a.py", "line": 3}]}'
    other = '{"pid": 5, "os_thread_id": 6, "thread_name": "Thread-1", "frames": []}'
    read = stacks.of_py_spy(f"[{other}, {thread}]")
    assert read is not None
    assert (read.main, read.others) == ((Frame("/app/a.py", 3, "f"),), ((),))
    for text in ("", "{}", "[1]", '[{"frames": 3}]', "[" * 100_000):
        found = stacks.of_py_spy(text)
        assert found is None or found.main is None


@pytest.mark.parametrize(("machine", "futex", "sleep", "read"), [("x86_64", 202, 230, 0), ("aarch64", 98, 115, 63)])
def test_system_calls_are_known_on_both_architectures(machine: str, futex: int, sleep: int, read: int) -> None:
    assert [wait_of((call, 1), machine) for call in (futex, sleep, read)] == [Wait.THREAD, Wait.TIME, Wait.READ]
    assert wait_of((), machine) is Wait.NOTHING
    assert wait_of((9999,), machine) is Wait.OTHER
    assert wait_of((futex,), "riscv64") is Wait.OTHER


WARM = ("/ours/elastic_worker/warm/interpreter.py:140 run", "/ours/elastic_worker/warm/server.py:237 serve", "<string>:1 <module>")


@pytest.mark.parametrize(
    ("calls", "kept"),
    [
        (("/app/train.py:10 work", "/app/train.py:23 <module>", *WARM), 2),
        (("/app/train.py:10 work", "/usr/lib/python3.11/runpy.py:88 _run_code", "/usr/lib/python3.11/runpy.py:226 run_module", *WARM), 1),
        (("/app/train.py:10 work", "/usr/lib/python3.11/runpy.py:88 _run_code"), 2),
        (WARM, 3),
        (("/usr/lib/python3.11/selectors.py:468 select", *WARM), 1),
        (("/ours/elastic_worker/warm/exit_hook.py:9 hook", "/app/train.py:10 work", *WARM), 2),
    ],
)
def test_the_frames_of_our_launcher_are_cut_off_unless_there_are_no_others(calls: tuple[str, ...], kept: int) -> None:
    """Each stack ended with seven frames that say nothing about the program."""
    text = dump(*calls, others=(("/usr/lib/python3.11/threading.py:327 wait",),))
    shown = stacks.of_faulthandler(stacks.shortened(text, frames.without_launcher))
    assert shown.main is not None
    assert [f"{one.path}:{one.line} {one.function}" for one in shown.main] == list(calls[:kept])
    assert [len(thread) for thread in shown.others] == [1]
