"""The dashboard's memory of jobs has bounds, and becomes rarer with age."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
import sqlite3
import sys

import pytest
from dashboard_scene import Scene, job, running
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.api.kinds import KINDS
from elastic.membership.training import TrainingProgress
from elastic_training.dashboard.history import book as book_module
from elastic_training.dashboard.history import store as store_module
from elastic_training.dashboard.history.record import MOST_RESCALES, JobRecord
from elastic_training.dashboard.history.series import GAPS_S, MOST_BYTES, ROWS, Row, Series
from elastic_training.dashboard.history.store import HistoryStore, pause_s
from elastic_training.dashboard.watching.seen import job_seen

PYTORCH = KINDS["PyTorchJob"]
OVER = {"type": "Succeeded", "status": "True"}


def row(at: float, *, world: float = 2.0, step: float = 0.0) -> Row:
    return Row(at, world, 2.0, 1.0, step, math.nan, math.nan, world)


def test_rows_become_rarer_with_age_and_reach_back_for_days():
    series = Series()
    for second in range(0, 86400, 2):
        series.add(row(float(second), step=float(second)))
    times = [found.at for found in series.rows()]
    assert times == sorted(times)
    assert times[-1] == 86398.0
    assert times[0] <= 1200.0
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert gaps[-1] <= GAPS_S[0]
    assert max(gaps) <= 2 * GAPS_S[2]
    assert len(times) <= ROWS * len(GAPS_S)


def test_a_change_of_the_size_has_a_row_of_its_own_also_within_seconds():
    series = Series()
    for at, world in ((0.0, 2), (1.0, 2), (1.5, 1), (1.7, 2), (2.0, 2)):
        series.add(row(at, world=world))
    assert [(found.at, found.world) for found in series.rows()][-3:] == [(1.5, 1), (1.7, 2), (2.0, 2)]


def area(series: Series) -> float:
    """Return the worker-seconds."""
    return sum(row.world * (after.at - row.at) for row, after in itertools.pairwise(series.rows()))


def test_a_pause_of_a_second_stays_a_second_after_hours():
    """A row that stands for a minute had the least of it, so that the chart showed a minute without workers."""
    series = Series()
    for second in range(0, 3 * 3600, 5):
        series.add(row(float(second), world=3.0))
        if second == 600:
            series.add(row(601.0, world=0.0))
            series.add(row(602.0, world=3.0))
    old = next(row for row in series.rows() if row.least == 0.0)
    assert old.world == pytest.approx(3.0 - 3.0 / 60, abs=0.01)
    assert area(series) == pytest.approx(3.0 * (3 * 3600 - 5 - 1))


@given(st.integers(), st.integers(2, 3000))
@settings(max_examples=40)
def test_rows_that_become_rarer_keep_the_workers_times_their_seconds(seed, count):
    draw = random.Random(seed)
    changes = [(draw.choice((0.01, 1.0, 5.0, 30.0)) * draw.random(), draw.randrange(6)) for _ in range(count)]
    series, now, expected = Series(), 0.0, 0.0
    for seconds, world in changes:
        series.add(row(now, world=float(world)))
        expected += seconds * world
        now += seconds
    series.add(row(now, world=9.0))
    assert area(series) == pytest.approx(expected)
    assert min(found.least for found in series.rows()) == min(world for _, world in changes)


@given(st.lists(st.tuples(st.floats(0, 1e9), st.integers(0, 5)), max_size=400))
def test_any_rows_in_any_order_of_time_stay_in_order_and_within_bounds(given_rows):
    series = Series()
    for at, world in given_rows:
        series.add(row(at, world=float(world)))
    times = [found.at for found in series.rows()]
    assert times == sorted(times)
    assert sum(map(len, series.stored())) <= MOST_BYTES
    assert Series.of(series.stored()).stored() == series.stored()


def test_a_flapping_job_costs_no_more_memory_than_a_calm_one():
    series = Series()
    for second in range(20_000):
        series.add(row(second / 10, world=float(second % 2)))
    assert sum(map(len, series.stored())) <= MOST_BYTES


@pytest.mark.parametrize("stored", [[], [b"", b""], [b"x", b"", b""], [b"\0" * 56 * (ROWS + 1), b"", b""]])
def test_an_invalid_stored_series_is_refused(stored):
    with pytest.raises(ValueError, match="not the rings"):
        Series.of(stored)


def rescaled(number: int, **phases: int) -> dict:
    return {"id": f"r{number}", "at": "2026-01-01T00:00:00Z", "cause": "plan", "fromSize": 1, "toSize": 2, "phases": phases}


def test_a_rescale_whose_phases_become_known_later_is_counted_once():
    record = JobRecord()
    for phases in ({"round": 100}, {"round": 100, "firstStep": 900}):
        record.see(job_seen(PYTORCH, job(status={"elastic": {"lastRescale": rescaled(1, **phases)}})), now=1.0)
    assert record.lost_ms == {"round": 100, "firstStep": 900}
    assert len(record.rescales) == 1


def test_only_the_newest_rescales_are_kept_and_all_are_counted():
    record = JobRecord()
    for number in range(MOST_RESCALES + 20):
        record.see(job_seen(PYTORCH, job(status={"elastic": {"lastRescale": rescaled(number, round=10)}})), now=float(number))
    assert next(iter(record.rescales)) == "r20"
    assert len(record.rescales) == MOST_RESCALES
    assert record.lost_ms["round"] == 10 * (MOST_RESCALES + 20)


def hear(record: JobRecord, at: float, **progress) -> None:
    told = {"job": "uid-train", "generation": 1, "phase": "running", "size": 2, **progress}
    record.hear(TrainingProgress(**told), job_seen(PYTORCH, job()), now=at, monotonic=at)


def test_samples_a_second_and_loss_come_from_reports():
    record = JobRecord()
    for at in range(0, 60, 5):
        hear(record, float(at), step=at, highest=at, values={"samples": at * 100.0, "train_loss": 1.0 / (at + 1)})
    assert record.rate == pytest.approx(100.0)
    assert record.unit == "samples"
    assert record.loss == pytest.approx(1 / 56)
    newest = record.series.last()
    assert newest is not None
    assert (newest.world, newest.step) == (2.0, 55.0)


def test_without_samples_steps_are_counted_once_for_all_workers():
    record = JobRecord()
    for at in range(0, 60, 5):
        hear(record, float(at), step=at * 2, highest=at * 2)
    assert record.rate == pytest.approx(2.0)
    assert record.unit == "steps"


def test_no_speed_is_shown_of_a_world_that_is_not_there():
    record = JobRecord()
    for at in range(0, 60, 5):
        hear(record, float(at), step=at, highest=at)
    hear(record, 61.0, size=0, phase="forming")
    assert record.rate is None


def test_a_speed_is_shown_only_as_long_as_steps_come():
    """It stayed for ever when a job hung."""
    record = JobRecord()
    for at in range(0, 60, 5):
        hear(record, float(at), step=at, highest=at)
    assert (record.stepped_at, record.step_due_s, record.is_late(70.0)) == (55.0, 15.0, False)
    for at in (60, 65, 71):
        hear(record, float(at), step=55, highest=55, age_s=float(at - 55))
    newest = record.series.last()
    assert newest is not None
    assert (record.stepped_at, record.is_late(71.0), math.isnan(newest.rate), newest.step) == (55.0, True, True, 55.0)
    hear(record, 75.0, step=56, highest=56)
    assert not record.is_late(80.0)


def test_a_program_that_reports_seldom_keeps_its_speed_between_its_reports():
    record = JobRecord()
    for at in range(0, 600, 120):
        hear(record, float(at), step=at, highest=at)
    assert record.step_due_s == 240.0
    assert not record.is_late(480.0 + 230)
    hear(record, 490.0, generation=2, step=1, highest=480)
    assert record.step_due_s == 240.0, "the time between two worlds is no time between two steps"


def test_no_time_counts_once_the_rendezvous_server_forgot_the_job():
    record = JobRecord()
    hear(record, 0.0, step=1, highest=1)
    hear(record, 10.0, step=2, highest=2)
    record.forget_training(20.0)
    assert record.spent(1000.0) == {"training": 20.0}


def test_the_jobs_that_were_silent_for_longest_are_forgotten_first(monkeypatch):
    monkeypatch.setattr(book_module, "MOST_JOBS", 3)
    scene = Scene(*(job(f"train-{number}") for number in range(3)))
    scene.put(job("train-0", workers=5), job("train-3"))
    assert scene.book.known() == ["uid-train-2", "uid-train-0", "uid-train-3"]


async def test_a_restart_keeps_the_history(tmp_path):
    first = Scene(job(status={"elastic": {"worldSize": 2, "lastRescale": rescaled(1, round=100)}}))
    for at in range(0, 30, 5):
        first.now = 1000.0 + at
        first.book.hear(TrainingProgress(job="uid-train", generation=1, phase="running", size=2, step=at, highest=at))
    await HistoryStore(tmp_path / "history.db", first.book).save()
    second = Scene()
    await HistoryStore(tmp_path / "history.db", second.book).load()
    before, after = first.book.get("uid-train"), second.book.get("uid-train")
    assert before is not None
    assert after is not None
    assert after.series.stored() == before.series.stored()
    assert (after.rescales, after.lost_ms, after.spent(0.0)) == (before.rescales, before.lost_ms, {"training": 25.0})
    second.put(job())
    assert len(after.series) > len(before.series)


async def test_how_far_a_job_came_is_known_once_it_is_suspended_or_over_and_after_a_restart(tmp_path):
    """The rendezvous server forgets it then, and all that was left was the step of its last restart."""
    shown = Scene(job(status=running(step=260)))
    for at in range(0, 30, 5):
        shown.now = 1000.0 + at
        values = {"samples": at * 10.0, "loss": 0.5}
        shown.book.hear(
            TrainingProgress(job="uid-train", generation=1, phase="running", size=2, step=303 + at, highest=303 + at, values=values)
        )
    shown.book.hear(TrainingProgress(job="uid-train", phase="closed", forgotten=True))
    await HistoryStore(tmp_path / "history.db", shown.book).save()
    again = Scene()
    await HistoryStore(tmp_path / "history.db", again.book).load()
    for scene in (shown, again):
        for status, more in ((running(step=260), {"runPolicy": {"suspend": True}}), ({"conditions": [OVER]}, {})):
            scene.put(job(status=status, **more))
            row = scene.views.row(next(scene.observer.jobs()))
            assert (row.step, row.loss, row.rate, row.unit) == (328, 0.5, None, "samples")


def test_a_job_that_was_resumed_keeps_its_step_until_it_reports_another():
    record = JobRecord()
    hear(record, 0.0, step=328, highest=328, values={"loss": 0.5})
    record.forget_training(1.0)
    hear(record, 60.0)
    assert (record.step, record.loss) == (328, 0.5)
    hear(record, 65.0, step=300, highest=300, values={"loss": 0.6})
    assert (record.step, record.loss) == (300, 0.6)


async def test_a_series_of_an_earlier_release_is_not_misread(tmp_path, monkeypatch):
    """Its rows had seven columns: as many bytes as fewer rows of eight."""
    first = Scene(job(), job("other"))
    monkeypatch.setattr(store_module, "Stored", lambda **parts: list(parts.values())[:4])
    await HistoryStore(tmp_path / "history.db", first.book).save()
    second = Scene()
    await HistoryStore(tmp_path / "history.db", second.book).load()
    assert second.book.known() == []


async def test_a_job_that_went_meanwhile_leaves_the_file(tmp_path):
    scene = Scene(job(), job("other"))
    store = HistoryStore(tmp_path / "history.db", scene.book)
    await store.save()
    scene.book.drop_all_but(["uid-other"])
    await store.save()
    again = Scene()
    await HistoryStore(tmp_path / "history.db", again.book).load()
    assert again.book.known() == ["uid-other"]


@pytest.mark.parametrize("data", [b"", b"no database at all" * 1000])
async def test_a_file_that_is_no_history_is_set_aside(tmp_path, data):
    file = tmp_path / "history.db"
    file.write_bytes(data)
    scene = Scene(job())
    store = HistoryStore(file, scene.book)
    await store.load()
    await store.save()
    again = Scene()
    await HistoryStore(file, again.book).load()
    assert again.book.known() == ["uid-train"]
    assert file.stat().st_mode & 0o777 == 0o600


async def test_a_record_that_is_not_ours_costs_no_other(tmp_path):
    scene = Scene(job(), job("other"))
    file = tmp_path / "history.db"
    await HistoryStore(file, scene.book).save()
    with contextlib.closing(sqlite3.connect(file)) as opened, opened:
        opened.execute("UPDATE jobs SET record = ? WHERE uid = 'uid-train'", (b"\xc1junk",))
    again = Scene()
    await HistoryStore(file, again.book).load()
    assert again.book.known() == ["uid-other"]


async def test_a_full_disk_costs_the_history_only(tmp_path):
    scene = Scene(job())
    store = HistoryStore(tmp_path / "gone" / "history.db", scene.book)
    await store.save()
    assert scene.book.unsaved == {"uid-train"}
    (tmp_path / "gone").mkdir()
    await store.save()
    assert scene.book.unsaved == set()


SAVING = """
import asyncio, sys
from pathlib import Path
from elastic_training.dashboard.history.book import Book
from elastic_training.dashboard.history.store import HistoryStore
from elastic.membership.training import TrainingProgress

async def main():
    file, step = Path(sys.argv[1]), int(sys.argv[2])
    book = Book(job_of_uid=lambda uid: None, clock=lambda: 5.0 * step)
    store = HistoryStore(file, book)
    await store.load()
    while True:
        step += 1
        book.hear(TrainingProgress(job="uid-train", generation=1, phase="running", size=2, step=step, highest=step))
        await store.save()
        print(step, flush=True)

asyncio.run(main())
"""


async def test_a_saved_history_outlives_a_sigkill_in_the_middle_of_a_save(tmp_path):
    """Each process is killed while it saves as fast as it can; the next one begins with all that was reported as saved."""
    file, step = tmp_path / "history.db", 0
    for kill in range(2):
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", SAVING, str(file), str(step), stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        for _ in range(20 + 13 * kill):
            step = int(await process.stdout.readline())
        process.kill()
        rest = (await process.stdout.read()).split()
        await process.wait()
        step = int(rest[-1]) if rest else step
        scene = Scene()
        await HistoryStore(file, scene.book).load()
        record = scene.book.get("uid-train")
        assert record is not None
        last = record.series.last()
        assert last is not None
        assert last.step in (step, step + 1), "what was saved last, or what was being saved"
        step = int(last.step)


def test_few_jobs_are_saved_each_five_seconds_and_many_each_half_minute():
    assert [pause_s(written) for written in (0, 100_000, 500_000, 90_000_000)] == [5.0, 5.0, pytest.approx(15.3, abs=0.1), 30.0]


def test_only_the_reports_of_a_job_that_meets_elsewhere_are_known() -> None:
    """A PyTorchJob without elasticPolicy reports through Kubeflow's callback. Nothing tells how many workers it has."""
    record = JobRecord()
    hear(record, 0.0, phase="", size=0, step=94, highest=94, values={"loss": 0.5}, percent=47, remaining_s=120.0)
    hear(record, 60.0, phase="", size=0, step=190, highest=190, values={"loss": 0.4}, percent=95, remaining_s=10.0)
    assert (record.step, record.loss, record.percent, record.remaining_s) == (190, 0.4, 95, 10.0)
    assert (record.world, record.rate, record.spent(120.0)) == (None, None, {})
