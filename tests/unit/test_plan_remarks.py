"""What a user hears about a spec that is taken although something in it has no effect, or another effect than it seems."""

from dataclasses import replace

from job_builders import Cluster, elastic_job, job, replica, snapshot

from controller.plan import plan

CLAMPED = "spec.pytorchReplicaSpecs.Worker.replicas: Worker.replicas is 9 but maxReplicas is 3; 3 are run"


def test_a_clamped_count_is_an_event_and_part_of_the_conditions_message() -> None:
    planned = plan(job(Worker=replica(1)), snapshot(remarks=(CLAMPED,)))
    assert ("SpecRemark", CLAMPED) in [(news.reason, news.message) for news in planned.news]
    assert planned.status is not None
    assert planned.status.conditions[0].message == f"PyTorchJob train is created. {CLAMPED}."


def test_a_later_remark_changes_the_message_of_running_and_nothing_else() -> None:
    cluster = Cluster(job(Worker=replica(1)))
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    before = cluster.job.status.conditions
    planned = plan(cluster.job, replace(cluster.look(), remarks=(CLAMPED,)))
    assert planned.status is not None
    after = planned.status.conditions
    assert [c.type for c in after] == [c.type for c in before] == ["Created", "Running"]
    assert after[1].message == f"{before[1].message} {CLAMPED}."
    assert after[1].last_transition_time == before[1].last_transition_time


def test_a_job_that_asks_for_etcd_hears_in_condition_and_event_what_that_needs() -> None:
    planned = plan(elastic_job(elastic={"rdzvBackend": "etcd-v2", "rdzvHost": "etcd.storage", "rdzvPort": 2379}), snapshot())
    assert planned.status is not None
    assert "rdzvBackend is etcd-v2: torch's own handler is used" in planned.status.conditions[0].message
    assert "EtcdRendezvous" in [news.reason for news in planned.news]
