"""Check the figures of each job that a round gives to the metrics page and the metrics APIs."""

from __future__ import annotations

from dataclasses import replace

from autoscale_cluster import state
from autoscale_jobs import NOON
from test_autoscale_seen import raw_job

from elastic_training.autoscale.deciding.jobs import JobState, ScaledJob
from elastic_training.autoscale.deciding.round import Setting, decide_all
from elastic_training.autoscale.figures import JobFigures
from elastic_training.autoscale.watching.projections import job_seen


def figures_of(state: JobState, *, monotonic: float = 1.0) -> JobFigures:
    return decide_all([state], [], [], setting=Setting(), now=NOON, monotonic=monotonic)[state.seen.key].figures


def test_selectors_find_the_labels_and_the_sizes_of_the_job_as_it_was_written() -> None:
    raw = raw_job()
    raw["metadata"]["labels"] = {"team": "a"}
    raw["spec"]["elasticPolicy"] |= {"minReplicas": 2, "maxReplicas": 8, "allowedSizes": [2, 4, 8]}
    seen = job_seen(raw)
    assert isinstance(seen, ScaledJob)
    found = figures_of(JobState(seen=seen))
    assert found.labels == {"team": "a"}
    assert (found.bounds.above(5), found.bounds.below(8)) == (8, 4)


def test_a_throughput_is_of_the_time_when_so_many_workers_were_measured_last() -> None:
    """After a restart, or back at a former size, the throughput has the time of its last measurement."""
    one = state("one", 2, rates={1: 100.0, 2: 180.0})
    sizes = tuple(replace(known, at=NOON - 600 * known.size) for known in one.memory.sizes)
    found = figures_of(replace(one, memory=replace(one.memory, sizes=sizes)))
    assert (found.throughput, found.measured_at) == (180.0, NOON - 1200)
    unknown = figures_of(state("one", 3, rates={1: 100.0}))
    assert (unknown.throughput, unknown.measured_at) == (None, None)


def test_a_job_is_silent_once_it_reports_no_more_and_not_before_it_ever_did() -> None:
    one = state("one", 2, rates={2: 180.0})
    assert not figures_of(one, monotonic=59.0).is_silent
    assert figures_of(one, monotonic=61.0).is_silent
    slow = replace(one, training=replace(one.training, step_s=600.0))
    assert not figures_of(slow, monotonic=3600.0).is_silent, "its steps take so long"
    assert not figures_of(replace(one, training=replace(one.training, last=None)), monotonic=61.0).is_silent
