"""The words of an agent about a worker that failed: the end of its stderr, which is passed on as before, and the line of its exception."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from elastic_worker.agent import last_words, worker_stderr
from elastic_worker.agent.first_failure import RECENT_S
from elastic_worker.agent.last_words import Failure, exception_line
from elastic_worker.agent.worker_stderr import KEPT_BYTES, MOST_ERROR, PipedStderr, WorkerStderr

START = "Traceback (most recent call last):"
OF_LIBRARIES = (
    '  File "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 17, in _call_impl\n    return self.forward()\n'
    '  File "/usr/lib/python3.11/json/decoder.py", line 5, in decode\n  File "<frozen runpy>", line 88, in _run_code\n'
)
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    step()\nValueError: bad batch\n'


@pytest.mark.parametrize(
    ("stderr", "line"),
    [
        (TRACEBACK, "ValueError: bad batch (train.py:3)"),
        (TRACEBACK + "[W1122 10:00:00] Warning: destroy_process_group() was not called\n", "ValueError: bad batch (train.py:3)"),
        ("".join(f"[rank3]: {line}\n" for line in TRACEBACK.splitlines()), "ValueError: bad batch (train.py:3)"),
        ("".join(f"[rank1]: [rank0]: {line}\n" for line in TRACEBACK.splitlines()), "ValueError: bad batch (train.py:3)"),
        (
            TRACEBACK + "\nDuring handling of the above exception, another exception occurred:\n\n" + TRACEBACK.replace("bad", "no"),
            "ValueError: no batch (train.py:3)",
        ),
        (TRACEBACK.replace("    step()\n", f"    step()\n{OF_LIBRARIES}"), "ValueError: bad batch (train.py:3)"),
        (f"{START}\n{OF_LIBRARIES}OSError: no route\n", "OSError: no route (<frozen runpy>:88)"),
        (TRACEBACK.replace("bad batch", "x" * 400), f"ValueError: {'x' * 272}... (train.py:3)"),
        (TRACEBACK.replace("train.py", "/data/\x1b[2J.py"), "ValueError: bad batch (\\x1b[2J.py:3)"),
        (TRACEBACK.replace("train.py", "t" * 999), f"ValueError: bad batch ({'t' * 60}:3)"),
        ('  File "train.py", line 1\n    x = = 1\nSyntaxError: invalid syntax\n\n', "SyntaxError: invalid syntax"),
        (TRACEBACK.replace("bad batch", "a\x1b[31mred\x07"), "ValueError: a\\x1b[31mred\\x07 (train.py:3)"),
        ("Traceback (most recent call last):\n  File", "File"),
        ("", ""),
    ],
)
def test_the_line_of_the_exception_is_found(stderr: str, line: str) -> None:
    assert exception_line(stderr) == line


def test_a_message_is_bounded_and_has_no_control_characters() -> None:
    stderr = TRACEBACK + "RuntimeError: " + "\x1b" * 4000 + "é" * 4000
    message = last_words.message("uid", closed="over\nbudget", failure=Failure(2, stderr))
    first, second, rest = message.split("\n", 2)
    assert first == "elastic-training closed the rendezvous of job uid: over\\nbudget"
    assert second == "elastic-training saw a worker fail in job uid: rank 2: ValueError: bad batch (train.py:3)"
    assert len(rest.encode()) <= last_words.MOST_STDERR
    assert all(c.isprintable() or c in "\n\t" for c in message)


def test_the_message_goes_where_the_container_says(tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    last_words.write({}, closed="x", failure=None)
    last_words.write({"ELASTIC_TERMINATION_LOG": str(log), "ELASTIC_JOB_UID": "uid"}, closed="x", failure=Failure(0, "y"))
    assert log.read_text().splitlines()[1].endswith("rank 0: y")


@pytest.fixture
def out() -> Iterator[tuple[int, int]]:
    """Stand for the place to which an agent's stderr goes."""
    reads, writes = os.pipe()
    yield reads, writes
    os.close(reads)
    os.close(writes)


def run(pipe: PipedStderr, code: str) -> "subprocess.Popen[bytes]":
    pipe.begin()
    with open(pipe.path, "w") as stderr:
        return subprocess.Popen([sys.executable, "-IS", "-c", code], stderr=stderr)


def test_all_of_stderr_is_passed_on_and_its_end_is_kept(out: tuple[int, int]) -> None:
    pipe = PipedStderr(0, target=out[1])
    assert run(pipe, "import sys; sys.stderr.write('x' * 5000 + '\\nlast line\\n')").wait() == 0
    assert pipe.tail(10) == "last line\n"
    assert len(os.read(out[0], 65536)) == 5011 > KEPT_BYTES


def test_the_beginning_of_an_error_is_kept_though_its_message_is_long(out: tuple[int, int]) -> None:
    """PyTorch lists all keys that a checkpoint lacks, and only the end of the list was quoted."""
    pipe = PipedStderr(0, target=os.open(os.devnull, os.O_WRONLY))
    keys = "\n".join(f'\tMissing key(s) in state_dict: "layer.{number}.weight"' for number in range(2000))
    error = f"{TRACEBACK.replace('ValueError: bad batch', 'RuntimeError: Error(s) in loading state_dict for Net:')}{keys}\n"
    code = f"import sys, time\nsys.stderr.write('old line\\n' * 900)\nfor part in {error!r}.splitlines(True): sys.stderr.write(part)"
    assert run(pipe, code).wait() == 0
    tail = pipe.tail(10)
    assert exception_line(tail) == "RuntimeError: Error(s) in loading state_dict for Net: (train.py:3)"
    assert tail.endswith('"layer.1999.weight"\n')
    assert len(tail) <= MOST_ERROR + KEPT_BYTES + 2


@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
def test_an_error_that_the_program_survived_is_not_its_end(prefix: str) -> None:
    """A worker that had caught the loss of a connection ended for another reason, and the failure counted as a peer's."""
    pipe = PipedStderr(0, target=os.open(os.devnull, os.O_WRONLY))
    error = TRACEBACK.replace("ValueError: bad batch", "ConnectionResetError: reset by peer")
    caught = "".join(prefix + line for line in error.splitlines(True))
    code = f"import sys; sys.stderr.write({caught!r} + 'step\\n' * 2000 + 'train.py: error: the loss is NaN\\n')"
    assert run(pipe, code).wait() == 0
    assert exception_line(pipe.tail(10)) == "train.py: error: the loss is NaN"


def test_an_error_of_long_ago_is_not_the_end_of_the_output() -> None:
    pipe = PipedStderr(0, target=os.open(os.devnull, os.O_WRONLY))
    code = f"import sys; sys.stderr.write({TRACEBACK!r} + 'step\\n' * 2000)"
    assert run(pipe, code).wait() == 0
    pipe.settle(10)
    pipe._error_at = time.monotonic() - RECENT_S - 1
    assert exception_line(pipe.tail()) == "step"


def test_a_process_that_outlives_its_world_may_go_on_writing(out: tuple[int, int]) -> None:
    pipe = PipedStderr(0, target=out[1])
    process = run(pipe, "import sys, time; time.sleep(1); sys.stderr.write('still here')")
    pipe.close_writer()
    assert process.wait() == 0
    assert os.read(out[0], 100) == b"still here"


def test_a_message_that_cannot_be_passed_on_stops_no_worker() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    pipe = PipedStderr(0, target=writes)
    assert run(pipe, "import sys; sys.stderr.write('x' * 1000000 + '\\nend')").wait() == 0
    assert pipe.tail(10) == "end"
    os.close(writes)


def test_torch_gives_each_worker_a_pipe_of_its_own_unless_it_writes_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DefaultLogsSpecs, "reify", DefaultLogsSpecs.reify)
    stderr = worker_stderr.of_this_process()
    assert stderr is not None
    assert stderr is worker_stderr.of_this_process()
    envs = {0: {"RANK": "4"}, 1: {"RANK": "5"}}
    chosen = DefaultLogsSpecs(log_dir=os.devnull).reify(envs).stderrs
    processes = []
    for local, rank in ((0, 4), (1, 5)):
        with open(chosen[local], "w") as file:
            code = f"import sys; sys.stdin.read(); sys.stderr.write('I am {rank}')"
            processes.append(subprocess.Popen([sys.executable, "-IS", "-c", code], stderr=file, stdin=subprocess.PIPE))
    stderr.note([process.pid for process in processes])
    for process, rank in zip(processes, (4, 5), strict=True):
        process.communicate()
        source = stderr.of(process.pid)
        assert source is not None
        assert (source.rank, source.tail(10)) == (rank, f"I am {rank}")


def test_if_torch_writes_a_file_the_file_is_read(tmp_path: Path) -> None:
    stderr, file = WorkerStderr(), tmp_path / "stderr.log"
    assert stderr.destinations({0: {"RANK": "1"}}, {0: str(file)}) == {0: str(file)}
    source = stderr.of(123)
    assert source is not None
    assert source.tail() == ""
    file.write_text("x" * 5000 + "\nthe end")
    assert source.tail() == "the end"
