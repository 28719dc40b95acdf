"""Each kind of hang is described by what its processes show, and work that takes long does not look like one."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hanging_ranks import Fields, Ranks
from torch_agents import wait_until

from elastic_training.rendezvous.engine.messages.doing import STILL_LOOKS
from elastic_worker.looking import dumping

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(300)]

Start = Callable[..., Ranks]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start ranks that are stopped at the end of the test."""
    started: list[Ranks] = []

    def begin(way: str, **options: Any) -> Ranks:
        started.append(Ranks(tmp_path, way, **options))
        return started[-1]

    yield begin
    for ranks in started:
        ranks.stop()


def is_still(look: Fields) -> bool:
    return int(str(look.get("looks", 1))) >= STILL_LOOKS


HANGS = {
    "sleep": ("other", "sleeps", "time.sleep(LONG_S)"),
    "loop": ("other", "computes", 're.match(r"(a+)+$", "a" * 64 + "b")'),
    "read": ("other", "waits to read {folder}/fifo", "os.read(pipe, 1)"),
    "mismatch": ("collective", "waits in barrier", "dist.barrier()"),
    "deadlock": ("collective", "waits in recv", "dist.recv(torch.zeros(4), (dist.get_rank() + 1) % dist.get_world_size())"),
}


@pytest.mark.parametrize("way", HANGS)
def test_a_hang_is_named_with_its_line(start: Start, way: str) -> None:
    kind, does, code = HANGS[way]
    ranks = start(way)
    ranks.wait_for("at", 1)
    look = ranks.look_until(1, is_still)
    words = does.format(folder=ranks.folder)
    assert (look["kind"], look["does"], look["code"]) == (kind, words[:160], code[:80])
    assert str(look["place"]).startswith("train.py:")
    other = ranks.look_until(0, is_still)
    expected = "waits in recv" if way == "deadlock" else "waits in backward for the gradients of other ranks"
    assert (other["kind"], other["does"]) == ("collective", expected)


def test_a_loader_process_that_never_answers_is_named_with_its_line(start: Start) -> None:
    ranks = start("loader")
    ranks.wait_for("at", 1)
    look = ranks.look_until(1, lambda look: is_still(look) and "loader process" in str(look["does"]))
    assert look["kind"] == "other"
    does = str(look["does"])
    assert does.startswith("waits for its DataLoader; its loader process ")
    assert " sleeps at train.py:" in does
    assert look["code"] == "for _ in DataLoader(Rows(), batch_size=4, num_workers=1):"


def test_a_stopped_rank_is_named_and_its_stack_is_left_alone(start: Start) -> None:
    ranks = start("stopped")
    ranks.wait_for("at", 1)
    os.kill(ranks.processes[1].pid, signal.SIGSTOP)
    look = ranks.look_until(1, is_still)
    assert (look["kind"], look["does"]) == ("stopped", "is stopped by a signal")
    assert ranks.look_until(0, is_still)["kind"] == "collective"


@pytest.mark.parametrize("way", ["save", "evaluate", "compile"])
def test_work_that_takes_long_is_never_still(start: Start, way: str) -> None:
    """Wait for the work between two looks, not for a time: the tests share the machine."""
    ranks = start(way)
    ranks.wait_for("at", 1)
    seen = []
    for _ in range(12):
        before, size = ranks.cpu_ticks(1), _size_of(ranks.folder / "save")

        def has_worked(before: int = before, size: int = size) -> bool:
            return ranks.cpu_ticks(1) >= before + 10 or _size_of(ranks.folder / "save") > size

        wait_until(has_worked, what="the rank goes on")
        seen.append(ranks.look(1))
    assert {look["kind"] for look in seen} == {"other"}, seen
    assert not any(is_still(look) for look in seen), seen


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def test_a_loop_of_python_is_named_with_its_lines_and_never_still(start: Start) -> None:
    ranks = start("endless")
    ranks.wait_for("at", 1)
    look = ranks.look_until(1, lambda look: look["does"] == "runs Python" and "-" in str(look["place"]))
    assert str(look["place"]).startswith("train.py:")
    assert not is_still(look)
    other = ranks.look_until(0, is_still)
    assert (other["kind"], other["does"]) == ("collective", "waits in backward for the gradients of other ranks")


def test_the_flight_recorder_says_which_rank_began_no_further_collective(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank has begun fewer operations than the others of its group, which wait for it."""
    monkeypatch.setattr(dumping, "RECORDER_S", 60.0)
    ranks = start("sleep", TORCH_FR_BUFFER_SIZE="2000")
    ranks.wait_for("at", 1)
    ranks.look_until(0, lambda look: look["kind"] == "collective")
    waiting, sleeping = (dumping.of_recorder(process.pid) for process in ranks.processes)
    begun = [int(re.findall(r"group 0.*: collective (\d+) begun", said)[0]) for said in (waiting, sleeping)]
    assert begun[0] == begun[1] + 1, (waiting, sleeping)
    assert re.search(rf"; under way: gloo:all_?reduce {begun[0]} for \d+ s", waiting)
    assert "under way" not in sleeping
