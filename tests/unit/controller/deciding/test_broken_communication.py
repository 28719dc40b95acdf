"""An Event warns if all processes restarted because workers did not reach each other, though nobody was lost."""

import pytest
from job_builders import OURS, Cluster, elastic_job

from elastic.membership import wire
from elastic_training.controller.acting.link import _rescale
from elastic_training.controller.facts.snapshot import WorldSeen

UNREACHED = "w0 could not reach a peer, and no peer was lost or failed; 1 member"


@pytest.mark.parametrize(
    ("reason", "rung", "is_told"),
    [
        (UNREACHED, "warm-restart", True),
        ("w0 could not enter the world: Connection refused; all processes restart", "restart", True),
        (UNREACHED, "in-process", False),
        ("the connection to w1 broke; 1 member", "restart", False),
    ],
)
def test_a_restart_because_of_broken_communication_is_told_once(reason: str, rung: str, *, is_told: bool) -> None:
    cluster = Cluster(elastic_job(1, most=1), settings=OURS)
    cluster.settle()
    cluster.run_all()
    rescale = _rescale(wire.RescaleReport(id="2-s", cause="disruption", reason=reason, rung=rung))
    cluster.world = WorldSeen(generation=2, members=frozenset(cluster.pods), phase="running", rescale=rescale)
    news = [event for planned in (*cluster.settle(), *cluster.settle()) for event in planned.news if event.reason == "BrokenCommunication"]
    assert [event.type for event in news] == (["Warning"] if is_told else [])
