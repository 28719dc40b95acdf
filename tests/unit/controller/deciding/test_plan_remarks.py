"""Remarks on a spec that is accepted although a field has no effect, or another effect than it seems."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from job_builders import OURS, Cluster, elastic_job, job, replica, snapshot

from elastic.api import parse
from elastic.api.job import Job
from elastic_training.controller.deciding.actions import Create, Plan
from elastic_training.controller.deciding.plan import plan

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


@pytest.mark.parametrize(
    ("words", "index"),
    [(["--max-restarts=3"], 0), (["-x", "--max_restarts", "3"], 1), (["-c", "exec torchrun --max-restarts 3 train.py"], 1)],
)
def test_a_restart_count_in_the_command_is_remarked_for_it_wins_over_the_policy(words: list[str], index: int) -> None:
    template = replica(1)
    template["template"]["spec"]["containers"][0]["args"] = words
    spec: dict[str, Any] = {"elasticPolicy": {"maxRestarts": 2}, "pytorchReplicaSpecs": {"Worker": template}}
    raw = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "train", "namespace": "team"}, "spec": spec}
    (remark,) = parse(raw, stored=True)[1]
    field = f"spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].args[{index}]"
    assert str(remark).startswith(f"{field}: --max-restarts in the command overrides elasticPolicy")
    del spec["elasticPolicy"]
    assert parse(raw, stored=True)[1] == []


METRICS = [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]


def queued(**more: Any) -> Job:
    one = elastic_job(elastic={"metrics": METRICS}, **more)
    return msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, labels={"kueue.x-k8s.io/queue-name": "gpus"}))


def made(planned: Plan) -> list[str]:
    return [action.object["kind"] for action in planned.actions if isinstance(action, Create)]


def test_a_job_in_a_queue_of_kueues_has_no_autoscaler_which_would_have_it_suspended_and_hears_why() -> None:
    planned = plan(queued(), snapshot())
    assert "HorizontalPodAutoscaler" not in made(planned)
    assert "AutoscalerLeftOut" in [news.reason for news in planned.news]


def test_a_store_that_no_network_policy_can_guard_is_told_of() -> None:
    one = job(Worker=replica(2, hostNetwork=True), elasticPolicy={"minReplicas": 1, "maxReplicas": 2, "rdzvBackend": "c10d"})
    cluster = Cluster(one, settings=OURS)
    plans = cluster.settle()
    assert "UnguardedStore" in [news.reason for planned in plans for news in planned.news]
    assert ("NetworkPolicy", "train-rdzv") not in cluster.owned
