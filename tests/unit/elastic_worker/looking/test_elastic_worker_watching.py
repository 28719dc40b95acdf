"""Equal looks at a worker are counted, and whatever shows that it gets on begins the count again."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from test_elastic_worker_describing import C10D, FUTEX, NANOSLEEP, dump, process, sight

from elastic_worker.gloo_deadlock import procfs
from elastic_worker.looking import dumping, stacks, watching
from elastic_worker.looking import sight as sights
from elastic_worker.looking.sight import TICKS, Sight
from elastic_worker.looking.source_lines import SourceLines

LOOK_S = 10.0
SLEEPING = dump("/app/train.py:41 main")
REDUCING = dump(f"{C10D}:2999 all_reduce", "/app/train.py:57 main")


class Worker:
    """A worker as a test describes it, and the clock of the looks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.text = SLEEPING
        self.main = process(10, NANOSLEEP, 1)
        self.others: tuple[sights.Process, ...] = ()
        self.switches = 0
        self.answers: int | None = 0
        self.signals = 0
        self.is_gone = False
        monkeypatch.setattr("platform.machine", lambda: "x86_64")
        monkeypatch.setattr(sights, "take", self._take)
        monkeypatch.setattr(sights, "with_stacks", self._with_stacks)
        monkeypatch.setattr(sights, "with_child_stacks", lambda seen: seen)
        monkeypatch.setattr(sights, "measured_again", lambda seen: seen)
        monkeypatch.setattr(dumping, "ticks", lambda pid, began: self.answers)
        self.watched = watching.Watched(9, look_s=LOOK_S)

    def _take(self, pid: int) -> Sight:
        if self.is_gone:
            raise procfs.Unreadable("it has ended")
        return replace(sight("", self.main, *self.others), at=self.now, switches=self.switches)

    def _with_stacks(self, seen: Sight) -> Sight:
        self.signals += 1
        return replace(seen, stacks=stacks.of_faulthandler(self.text))

    def uses(self, cpu_s: float = 0.0, faults: int = 0, traffic: int = 0) -> None:
        """Let the worker use this much more."""
        stat, old = self.main.stat, (*self.main.traffic, 0)[0]
        stat = replace(stat, ticks=stat.ticks + round(cpu_s * TICKS), faults=stat.faults + faults)
        self.main = replace(self.main, stat=stat, traffic=(old + traffic,))

    def look(self, after_s: float = LOOK_S) -> dict[str, object]:
        self.now += after_s
        return self.watched.look(size=2).fields

    def counts(self, number: int) -> list[object]:
        return [self.look()["looks"] for _ in range(number)]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    return Worker(monkeypatch)


def test_equal_looks_are_counted_since_the_first(worker: Worker) -> None:
    assert worker.counts(3) == [1, 2, 3]
    assert worker.look() == {"kind": "other", "does": "sleeps", "place": "train.py:41", "looks": 4, "for_s": 30.0, "cpu": 0.0}


@pytest.mark.parametrize("used", [{"cpu_s": 0.6}, {"traffic": 1}])
def test_cpu_time_and_traffic_begin_the_count_again(worker: Worker, used: dict[str, float]) -> None:
    assert worker.counts(3) == [1, 2, 3]
    worker.uses(**used)  # type: ignore[arg-type]
    assert worker.counts(3) == [1, 2, 3]


def test_a_download_begins_the_count_again_and_heartbeats_do_not(worker: Worker) -> None:
    """A rank that read from a socket looked as if it stood still: the kernel counts such reads for the connection only."""
    worker.main = process(10, 45, 7, target="socket:[5]")
    for looks in (1, 2, 3):
        worker.main = replace(worker.main, network=worker.main.network + 3000)
        assert worker.look()["looks"] == looks
    worker.main = replace(worker.main, network=worker.main.network + 50_000)
    assert worker.counts(2) == [1, 2]


def test_little_cpu_time_does_not_begin_the_count_again(worker: Worker) -> None:
    for looks in (1, 2, 3, 4):
        worker.uses(cpu_s=0.4)
        assert worker.look()["looks"] == looks


def test_a_child_process_that_comes_or_works_begins_the_count_again(worker: Worker) -> None:
    assert worker.counts(2) == [1, 2]
    worker.others = (process(50, FUTEX),)
    assert worker.counts(3) == [1, 2, 3]
    worker.others = (replace(worker.others[0], traffic=(5,)),)
    assert worker.look()["looks"] == 1


def test_a_rank_in_a_collective_is_still_for_any_work_in_its_background(worker: Worker) -> None:
    worker.text, worker.main = REDUCING, process(10, FUTEX)
    for looks in (1, 2, 3, 4):
        worker.uses(cpu_s=3.0, traffic=100)
        assert worker.look()["looks"] == looks


def test_a_rank_that_wakes_up_in_its_collective_trains_on(worker: Worker) -> None:
    """A script without reports was at the same line at each look, because its steps are short."""
    worker.text, worker.main = REDUCING, process(10, FUTEX)
    for _ in range(4):
        worker.switches += 1000
        assert worker.look()["looks"] == 1


def test_a_loop_that_does_not_answer_is_still_and_one_that_answers_is_not(worker: Worker) -> None:
    worker.main = process(10, state="R")
    assert worker.counts(4) == [1, 2, 3, 4]
    worker.answers = 1
    assert worker.counts(2) == [1, 2]
    worker.answers = None
    assert worker.counts(3) == [1, 1, 1]


def test_a_loop_of_python_is_named_with_the_lines_at_which_it_was_seen(worker: Worker) -> None:
    """Its line changes at each look. The words must not, because each change of them is written into the job's status."""
    worker.main = process(10, state="R")
    seen = []
    for count, line in enumerate((43, 41, 50, 44, 43)):
        worker.text, worker.answers = dump(f"/app/train.py:{line} work", "/app/train.py:90 main"), count
        look = worker.look(after_s=160.0)
        seen.append((look["does"], look["place"]))
    assert seen == [("computes", "train.py:43"), ("runs Python", "train.py:41"), *[("runs Python", "train.py:41-50")] * 3]
    assert "code" not in look
    worker.text, worker.answers = dump("/app/train.py:70 other", "/app/train.py:90 main"), 9
    assert worker.look(after_s=160.0)["place"] == "train.py:70"


def test_the_answers_to_our_own_questions_are_no_output() -> None:
    """A loop of Python answers after the look, and was said to read or write."""
    main = replace(process(10, NANOSLEEP, 1), traffic=(5, 100, 3, 7, 0, 0))
    before = replace(sight("", main), answers=2)
    after = replace(before, main=replace(main, traffic=(5, 103, 3, 10, 0, 0)), answers=5)
    assert after.traffic == before.traffic
    assert replace(after, answers=4).traffic != before.traffic


def test_an_answer_that_comes_while_counts_are_read_is_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endless loop of Python was said to read or write, because its answer came between the two counts."""
    now = {"answers": 4}

    def traffic(pid: int) -> tuple[int, ...]:
        seen = (5, 100 + now["answers"], 3, now["answers"], 0, 0)
        now["answers"] = 5  # it comes right after the first count
        return seen

    monkeypatch.setattr(sights, "_traffic", traffic)
    monkeypatch.setattr(dumping, "answers", lambda pid: now["answers"])
    monkeypatch.setattr(procfs, "stat", lambda pid: process(pid).stat)
    before = replace(sight("", replace(process(10), traffic=(5, 104, 3, 4, 0, 0))), answers=4)
    after = sights.measured_again(before)
    assert after.traffic == before.traffic
    assert after.answers == 5


def test_a_computation_that_gets_memory_gets_on(worker: Worker) -> None:
    worker.main = process(10, state="R")
    for _ in range(4):
        worker.uses(cpu_s=9.0, faults=3)
        assert worker.look()["looks"] == 1


def test_another_process_begins_again(worker: Worker) -> None:
    assert worker.counts(2) == [1, 2]
    worker.main = replace(worker.main, pid=11)
    assert worker.counts(2) == [1, 2]
    worker.is_gone = True
    assert worker.look() == {"kind": "unknown", "does": "has ended"}
    worker.is_gone = False
    assert worker.look()["looks"] == 1


def test_a_wait_for_storage_counts_as_work_for_two_minutes(worker: Worker) -> None:
    """The kernel counts the bytes of a long write only at its end."""
    worker.main = process(10, FUTEX, state="D")
    assert worker.counts(12) == [1] * 12
    assert worker.counts(4) == [1, 2, 3, 4]


def test_signals_become_rare_while_each_finds_something_new(worker: Worker) -> None:
    at = []
    for second in range(0, 800, 10):
        worker.text = dump(f"/app/train.py:{second + 1} main")
        before = worker.signals
        worker.look()
        if worker.signals > before:
            at.append(second)
    assert at == [0, 10, 30, 70, 150, 310, 470, 630, 790]


def test_traffic_spares_the_signal_and_its_end_asks_at_once(worker: Worker) -> None:
    for _ in range(20):
        worker.uses(traffic=1)
        look = worker.look()
    assert worker.signals <= 6
    assert (look["does"], look["looks"]) == ("reads or writes", 1)
    before = worker.signals
    assert worker.counts(4) == [1, 2, 3, 4]
    assert worker.signals == before + 4


def test_stacks_are_written_out_in_any_case(worker: Worker) -> None:
    worker.look()
    before = worker.signals
    worker.now += 0.1
    look = worker.watched.look(is_complete=True)
    assert worker.signals == before + 1
    text = watching.text_of(look, "rank 0:", 1000)
    assert text.startswith("rank 0:\n")
    assert len(watching.text_of(look, "rank 0:", 50)) == 50
    assert "\x1b" not in watching.text_of(look._replace(sight=replace(look.sight, stacks=stacks.of_faulthandler("\x1b[2J"))), "", 100)  # type: ignore[type-var]


def test_lines_are_read_from_regular_files_only_and_bounded(tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text("one\n    two()\n")
    os.mkfifo(tmp_path / "fifo")
    lines = SourceLines()
    assert [lines.text(str(source), number) for number in (2, 0, 9)] == ["two()", "", ""]
    assert lines.text(str(tmp_path / "fifo"), 1) == ""
    assert lines.text(str(tmp_path), 1) == ""
    assert lines.text(str(tmp_path / "missing"), 1) == ""


def test_a_file_that_never_answers_delays_one_look_only(monkeypatch: pytest.MonkeyPatch) -> None:
    held = threading.Event()
    asked = []

    def line(path: str, number: int) -> str:
        asked.append(path)
        held.wait(60)
        return "late"

    monkeypatch.setattr("elastic_worker.looking.source_lines._line", line)
    monkeypatch.setattr("elastic_worker.looking.source_lines.WITHIN_S", 0.01)
    lines = SourceLines()
    assert [lines.text("a", 1), lines.text("a", 1), lines.text("b", 1)] == ["", "", ""]
    assert asked == ["a"]
    held.set()
