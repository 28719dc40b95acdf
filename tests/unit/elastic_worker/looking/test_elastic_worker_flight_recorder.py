"""A process says what torch's flight recorder knows, and never longer than a few lines or a second."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_elastic_worker_describing import process as process_of

from elastic_worker import flight_recorder, stack_signal
from elastic_worker.flight_recorder import MODULE, NOTHING, is_enabled, summary, told
from elastic_worker.looking import dumping, stacks, watching
from elastic_worker.looking.sight import Sight

NOW = 1_000 * 10**9


def operation(group: int = 0, number: int = 4, *, name: str = "gloo:all_reduce", since_s: int = 12, **more: Any) -> dict[str, Any]:
    counts = {"collective_seq_id": number, "p2p_seq_id": 0, "is_p2p": False, "time_created_ns": NOW - since_s * 10**9}
    return {"pg_id": group, "process_group": [str(group), "default_pg"], "profiling_name": name, **counts, **more}


def trace(*entries: dict[str, Any], groups: int = 1) -> bytes:
    status = {str(group): {"last_completed_collective": "3", "last_enqueued_collective": "4"} for group in range(groups)}
    return json.dumps({"version": "2.10", "entries": entries, "pg_status": status}).encode()


def test_each_group_has_a_line_with_its_last_operations() -> None:
    send = operation(1, is_p2p=True, p2p_seq_id=7, name="nccl:send 0->1", process_group=["1", ""])
    assert summary(trace(operation(number=3, retired=True), operation(), send, groups=3), now_ns=NOW) == [
        "group 0 (default_pg): collective 4 begun, 3 completed; under way: gloo:all_reduce 4 for 12 s",
        "group 1 (1): collective 4 begun, 3 completed; under way: nccl:send 0->1 7 for 12 s",
        "group 2: collective 4 begun, 3 completed",
    ]


def test_a_summary_is_bounded() -> None:
    entries = [operation(group, number, name="x" * 200) for group in range(50) for number in range(9)]
    lines = summary(trace(*entries, groups=50), now_ns=NOW)
    assert len(lines) == flight_recorder.MOST_GROUPS
    assert max(map(len, lines)) == flight_recorder.LONGEST
    few = summary(trace(*(operation(number=number) for number in range(9))), now_ns=NOW)
    assert few[0].endswith(", and 6 more")
    assert summary(b" " * (flight_recorder.MOST_BYTES + 1), now_ns=NOW) == ["torch's flight recorder has 4194305 bytes, which are too many"]


def test_both_recorders_of_a_build_are_asked_for_operations_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def nccl(*options: object) -> bytes:
        asked.append(options)
        return trace(operation(name="nccl:all_gather"))

    def broken(*options: object) -> bytes:
        raise RuntimeError("CUDA error")

    monkeypatch.setitem(sys.modules, MODULE, types.SimpleNamespace(_dump_nccl_trace_json=nccl, _dump_fr_trace_json=broken))  # type: ignore[misc]
    first, second = told().split("\n")
    assert "nccl:all_gather 4 for " in first
    assert second == "torch's flight recorder cannot be read: CUDA error"
    assert asked == [(True, True)], "the dump of all operations may be long, and asks CUDA about each of them"


@pytest.mark.parametrize("dump", [b"[]", b"{", b'{"entries": [{}]}', b'{"entries": [{"pg_id": 0, "process_group": []}]}'])
def test_a_dump_in_another_form_breaks_nothing(monkeypatch: pytest.MonkeyPatch, dump: bytes) -> None:
    monkeypatch.setitem(sys.modules, MODULE, types.SimpleNamespace(_dump_fr_trace_json=lambda *options: dump))  # type: ignore[misc]
    assert told().startswith("torch's flight recorder cannot be read: ")


def test_a_program_without_torch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    assert told() == NOTHING


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"TORCH_FR_BUFFER_SIZE": "0"}, False),
        ({"TORCH_FR_BUFFER_SIZE": "many"}, False),
        ({"TORCH_FR_BUFFER_SIZE": "2000"}, True),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "9" * 5000}, True),
    ],
)
def test_the_recorder_is_asked_only_if_the_user_has_enabled_it(environment: dict[str, str], expected: bool) -> None:
    assert is_enabled(environment) is expected


PROGRAM = """
import sys, time, types
from elastic_worker import flight_recorder
asked = []
def dump(*options):
    asked.append(options)
    return b'{"entries": [], "pg_status": {"0": {"last_enqueued_collective": "%d"}}}' % len(asked)
sys.modules[flight_recorder.MODULE] = types.SimpleNamespace(_dump_fr_trace_json=dump)
flight_recorder.serve({"TORCH_FR_BUFFER_SIZE": "9"})
flight_recorder.serve({"TORCH_FR_BUFFER_SIZE": "9"})
print("ready", flush=True)
sys.stdin.readline()
import re
print("busy", flush=True)
re.match(r"(a+)+$", "a" * 64 + "b")
"""


@pytest.fixture
def program() -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_another_process_asks_and_gets_the_newest_answer(program: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumping, "RECORDER_S", 60.0)
    for count in (1, 2, 3):
        assert dumping.of_recorder(program.pid) == f"group 0: collective {count} begun, ? completed"
    files = [stack_signal.of_descriptor(str(path.readlink()))[0] for path in Path(f"/proc/{program.pid}/fd").iterdir()]
    assert files.count(stack_signal.RECORDER) == 1, "it was asked for twice"


def test_a_busy_interpreter_delays_nobody_for_long(program: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumping, "RECORDER_S", 0.1)
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "busy\n"
    deadline = time.monotonic() + 60
    while not dumping.of_recorder(program.pid).endswith("because the interpreter is busy"):
        assert time.monotonic() < deadline, "it answers, although its interpreter is busy"


def test_a_process_without_the_file_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert dumping.of_recorder(process.pid) == ""
        process.kill()


def test_a_file_that_names_no_pipe_is_left_alone(tmp_path: Path) -> None:
    """Anybody may give a file this name. Nothing must be written to the descriptor of which it speaks."""
    with open(tmp_path / "data", "w+b") as data:
        file = stack_signal.make_file(stack_signal.RECORDER, data.fileno())
        try:
            assert dumping.of_recorder(os.getpid()) == ""
        finally:
            os.close(file)
        assert (tmp_path / "data").read_bytes() == b""


def test_the_answer_is_written_below_the_stacks() -> None:
    seen = Sight(0.0, process_of(), (), is_held=False, folder="", group_threads=frozenset(), switches=0)
    seen = dataclasses.replace(seen, stacks=stacks.Stacks(None, (), "stack"), recorder="group 0: a\ngroup 1: b")
    text = watching.text_of(watching.Look({}, seen), "rank 0:", 1000)
    assert text == "rank 0:\nstack\nFlight recorder of torch:\n  group 0: a\n  group 1: b"
