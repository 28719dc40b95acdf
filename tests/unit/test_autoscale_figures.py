"""What a round tells of each job to those who serve its figures."""

from __future__ import annotations

from autoscale_jobs import NOON
from test_autoscale_seen import raw_job

from autoscale.deciding.jobs import JobSeen, JobState
from autoscale.deciding.round import Setting, decide_all
from autoscale.figures import JobFigures
from autoscale.watching.projections import job_seen


def figures_of(state: JobState, *, monotonic: float = 1.0) -> JobFigures:
    return decide_all([state], [], [], setting=Setting(), now=NOON, monotonic=monotonic)[state.seen.key].figures


def test_selectors_find_the_labels_and_the_sizes_of_the_job_as_it_was_written() -> None:
    raw = raw_job()
    raw["metadata"]["labels"] = {"team": "a"}
    raw["spec"]["elasticPolicy"] |= {"minReplicas": 2, "maxReplicas": 8, "allowedSizes": [2, 4, 8]}
    seen = job_seen(raw)
    assert isinstance(seen, JobSeen)
    found = figures_of(JobState(seen=seen))
    assert found.labels == {"team": "a"}
    assert (found.bounds.above(5), found.bounds.below(8)) == (8, 4)
