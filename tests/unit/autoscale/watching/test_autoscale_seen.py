"""Check the facts that are read of jobs, pods and their owners from the API, and the controller's copy of a decision."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from autoscale_cluster import WORKER, node, state
from autoscale_jobs import NOON
from written_jobs import job as job_file

from elastic.api import parse
from elastic.api.job import ElasticStatus
from elastic.api.scaling import ANNOTATION, MANAGER, Decision, DecisionRecord, PolicyName, ScalingPolicy, as_text
from elastic.api.words import Through
from elastic_training.autoscale.deciding.jobs import ScaledJob, SizeOwner, Unscaled
from elastic_training.autoscale.deciding.round import Setting, decide_all
from elastic_training.autoscale.figures import JobName
from elastic_training.autoscale.running.book import Book
from elastic_training.autoscale.watching.observer import Observer
from elastic_training.autoscale.watching.projections import job_seen, pod_seen, shape_of, size_owners
from elastic_training.controller.deciding.autoscaling import recorded


def raw_job(**policy: Any) -> dict[str, Any]:
    raw = job_file("pytorch-elastic")
    raw["metadata"] |= {"uid": "u", "namespace": "default"}
    raw["spec"]["elasticPolicy"].pop("metrics", None)
    raw["spec"]["elasticPolicy"]["scalingPolicy"] = policy
    return raw


def test_only_jobs_with_a_policy_of_ours_are_seen() -> None:
    seen = job_seen(raw_job())
    assert seen is not None
    assert seen.policy == ScalingPolicy()
    without = raw_job()
    del without["spec"]["elasticPolicy"]["scalingPolicy"]
    assert job_seen(without) == Unscaled("u", without["spec"]["elasticPolicy"]["minReplicas"], "default")
    del without["spec"]["elasticPolicy"]
    assert job_seen(without) == Unscaled("u", without["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"], "default"), (
        "no worker can be spared"
    )
    without["spec"]["runPolicy"] = {"suspend": True}
    assert job_seen(without) is None
    with_metrics = raw_job(policy="hpa")
    with_metrics["spec"]["elasticPolicy"]["metrics"] = [{"type": "Resource"}]
    assert job_seen(with_metrics) is not None, "it is measured: the user's metrics may be ours"
    assert job_seen(raw_job(policy="nonsense")) is None
    assert job_seen({"metadata": {"name": "x"}, "spec": [1]}) is None
    suspended = raw_job()
    suspended["spec"]["runPolicy"] = {"suspend": True}
    seen = job_seen(suspended)
    assert seen is not None
    assert not seen.is_active


def test_a_job_without_a_policy_is_seen_with_its_minimum_and_not_scaled() -> None:
    kube: Any = None
    observer = Observer(kube, kinds=["PyTorchJob"])
    plain = raw_job()
    plain["metadata"] |= {"name": "plain", "uid": "plain", "resourceVersion": "1"}
    del plain["spec"]["elasticPolicy"]["scalingPolicy"]
    for raw in (plain, raw_job()):
        observer._jobs["PyTorchJob"]._put(raw)
    assert [(one.uid, one.least) for one in observer.unscaled()] == [("plain", plain["spec"]["elasticPolicy"]["minReplicas"])]
    assert [seen.uid for seen in observer.jobs()] == ["u"]
    assert observer.job(JobName("PyTorchJob", "default", "plain")) is None
    assert observer.job_of_uid("plain") is None


def test_a_job_in_a_queue_of_kueues_keeps_its_number_and_says_why() -> None:
    raw = raw_job(policy="capacity")
    raw["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    queued = job_seen(raw)
    assert queued is not None
    one = replace(state("one", 2, policy=PolicyName.CAPACITY), seen=queued)
    (outcome,) = decide_all([one], [node("n", 9)], [], setting=Setting(), now=NOON, monotonic=1.0).values()
    assert outcome.decision.count == queued.replicas
    assert "Kueue suspends an admitted job" in outcome.decision.reason


@pytest.mark.parametrize("amount", ["1e999999999999", "1e-999999999999"])
def test_a_template_with_an_absurd_amount_costs_no_more_than_another(amount: str) -> None:
    found = job_seen(asking(amount))
    assert found is not None
    assert 0 < found.shape.amounts["cpu"] < 1e20


def test_a_template_that_asks_for_less_than_nothing_makes_no_room() -> None:
    with pytest.raises(ValueError, match="less than nothing"):
        job_seen(asking("1", overhead={"cpu": "-64"}))


def asking(cpu: str, **spec: Any) -> dict[str, Any]:
    raw = raw_job()
    template = raw["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    template["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    template |= spec
    return raw


def test_a_job_of_another_manager_is_left_alone() -> None:
    raw = raw_job()
    raw["spec"]["runPolicy"] = {"managedBy": "kueue.x-k8s.io/multikueue"}
    seen = job_seen(raw)
    assert seen is not None
    assert not seen.is_active


def fields(replicas: bool = True) -> dict[str, Any]:
    return {"f:spec": {"f:pytorchReplicaSpecs": {"f:Worker": {"f:replicas": {}} if replicas else {}}}}


def test_the_managed_fields_tell_who_set_the_number_of_workers() -> None:
    entries = [
        {"manager": "kubectl", "time": "t1", "fieldsV1": fields(replicas=False)},
        {"manager": "kubectl-scale", "time": "t2", "subresource": "scale", "fieldsV1": fields()},
    ]
    raw = {"metadata": {"managedFields": entries}}
    assert size_owners(raw, ("pytorchReplicaSpecs", "Worker", "replicas")) == (SizeOwner("kubectl-scale", True, "t2"),)


def seen_by(*owners: SizeOwner, replicas: int = 2, hold: int = 600) -> ScaledJob:
    return replace(state("one", replicas, hold_seconds=hold).seen, owners=owners)


def held(book: Book, seen: ScaledJob, now: float) -> int | None:
    (one,) = book.states([seen], now=now)
    return one.memory.hand.count if one.memory.hand is not None and now < one.memory.hand.until else None


def test_the_number_that_a_user_sets_is_held_and_ours_or_the_first_one_is_not() -> None:
    book = Book(is_ready=lambda: True)
    created = seen_by(SizeOwner("kubectl-client-side-apply", False))
    assert held(book, created, NOON) is None, "the number that the job began with"
    ours = seen_by(SizeOwner(MANAGER, True, "t1"), replicas=3)
    assert held(book, ours, NOON + 1) is None
    edited = seen_by(SizeOwner("kubectl-edit", False, "t2"), replicas=5)
    assert held(book, edited, NOON + 2) == 5
    assert held(book, edited, NOON + 500) == 5
    assert held(book, edited, NOON + 700) is None, "held for as long as the policy says, once"
    again = seen_by(SizeOwner("kubectl", True, "t3"), replicas=5)
    assert held(book, again, NOON + 800) == 5, "set anew"


def test_a_number_that_an_hpa_overwrites_before_the_next_round_is_held_and_brought_back() -> None:
    """On a real server, the HorizontalPodAutoscaler looked within a second after `kubectl scale`, before a round saw the number."""
    book = Book(is_ready=lambda: True)
    by_hpa = through_hpa(seen_by(SizeOwner("kube-controller-manager", True), replicas=3))
    assert held(book, by_hpa, NOON) is None
    book.saw(through_hpa(seen_by(SizeOwner("kubectl", True), replicas=5)), now=NOON + 1)
    book.saw(by_hpa, now=NOON + 1.1)
    assert held(book, by_hpa, NOON + 2) == 5
    assert held(book, through_hpa(seen_by(SizeOwner("kube-controller-manager", True), replicas=5)), NOON + 16) == 5
    assert held(book, by_hpa, NOON + 602) is None


def test_a_users_hpa_that_the_policy_goes_through_by_now_holds_no_number() -> None:
    """A user who followed the warning was still warned, and the number was held, until holdSeconds had passed."""
    book = Book(is_ready=lambda: True)
    beside = seen_by(SizeOwner("kube-controller-manager", True), replicas=5)
    assert held(book, beside, NOON) == 5
    assert held(book, through_hpa(beside), NOON + 1) is None


def test_our_own_number_ends_a_users() -> None:
    book = Book(is_ready=lambda: True)
    assert held(book, seen_by(SizeOwner("kubectl", True), replicas=5), NOON) == 5
    assert held(book, seen_by(SizeOwner(MANAGER, True), replicas=3), NOON + 1) is None


def through_hpa(seen: ScaledJob) -> ScaledJob:
    return replace(seen, policy=msgspec.structs.replace(seen.policy, through=Through.HPA))


def test_a_user_who_scales_a_job_before_the_autoscaler_ever_did_is_respected() -> None:
    assert held(Book(is_ready=lambda: True), seen_by(SizeOwner("kubectl", True, "t")), NOON) == 2


def test_a_restarted_autoscaler_still_knows_a_number_that_a_user_set() -> None:
    record = DecisionRecord(decision=Decision(workers=5), was_ours=True, hand=5, hand_until=NOON + 300)
    seen = replace(seen_by(SizeOwner("kubectl-edit", False, "t"), replicas=5), record=record)
    book = Book(is_ready=lambda: True)
    assert held(book, seen, NOON) == 5
    assert held(book, seen, NOON + 301) is None


def test_a_worker_that_waits_for_room_is_known_by_its_condition() -> None:
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": "2027-01-15T08:00:00Z"}
    labels = {"training.kubeflow.org/replica-type": "worker", "training.kubeflow.org/replica-index": "3"}
    owners = [{"kind": "Other", "uid": "other"}, {"kind": "PyTorchJob", "name": "one", "uid": "uid-one", "controller": True}]
    metadata = {"name": "one-worker-3", "namespace": "default", "labels": labels, "ownerReferences": owners}
    raw = {"metadata": metadata, **WORKER, "status": {"conditions": [waiting]}}
    found = pod_seen(raw)
    assert found is not None
    assert (found.owner, found.index, found.is_worker) == ("uid-one", 3, True)
    assert found.unschedulable_since == 1_800_000_000.0
    assert found.shape is shape_of(WORKER), "equal needs share one value"
    assert pod_seen({**raw, "status": {"phase": "Succeeded"}}) is None


def test_workers_are_found_by_their_job_with_the_labels_that_selectors_ask_for() -> None:
    kube: Any = None
    observer = Observer(kube, kinds=["PyTorchJob"])
    labels = {"training.kubeflow.org/replica-type": "worker", "team": "a"}
    owner = {"kind": "PyTorchJob", "uid": "u", "controller": True}
    worker = {"name": "one-worker-0", "namespace": "default", "resourceVersion": "1", "labels": labels, "ownerReferences": [owner]}
    master = worker | {"name": "one-master-0", "labels": {"training.kubeflow.org/replica-type": "master"}}
    stranger = worker | {"name": "stranger", "ownerReferences": []}
    for metadata in (worker, master, stranger):
        observer._pods._put({"metadata": metadata, "spec": {}, "status": {"phase": "Running"}})
    assert [(pod.key[1], pod.labels) for pod in observer.workers("u")] == [("one-worker-0", labels)]
    assert {pod.key[1]: dict(pod.labels) for pod in observer.pods() if pod.owner != "u"} == {"stranger": {}}


@pytest.mark.parametrize("is_scaled", [True, False])
def test_a_pod_of_another_namespace_is_no_worker_of_a_job_that_it_names_as_its_owner(is_scaled: bool) -> None:
    """A pod with the uid of another tenant's job told steps for it, and two such pods without room took one of its workers."""
    kube: Any = None
    observer = Observer(kube, kinds=["PyTorchJob"])
    raw = raw_job()
    if not is_scaled:
        del raw["spec"]["elasticPolicy"]["scalingPolicy"]
    observer._jobs["PyTorchJob"]._put(raw)
    owner = {"kind": "PyTorchJob", "uid": raw["metadata"]["uid"], "controller": True}
    labels = {"training.kubeflow.org/replica-type": "worker", "training.kubeflow.org/replica-index": "x"}
    for namespace in (raw["metadata"]["namespace"], "tenant-a"):
        metadata = {"name": "worker", "namespace": namespace, "resourceVersion": "1", "labels": labels, "ownerReferences": [owner]}
        observer._pods._put({"metadata": metadata, "spec": {}, "status": {"phase": "Running"}})
    found = {pod.key[0]: (pod.owner, pod.is_worker) for pod in observer.pods()}
    assert found == {raw["metadata"]["namespace"]: (owner["uid"], True), "tenant-a": ("", False)}


def test_nothing_is_kept_of_the_needs_of_templates_that_are_gone() -> None:
    """A template may hold a megabyte, and users may change it without end."""
    known = weakref.ref(shape_of({"spec": {"nodeSelector": {"only": "here"}}}))
    gc.collect()
    assert known() is None


# --- the controller's copy of a decision


def test_the_controller_copies_the_decision_and_nothing_that_it_cannot_read() -> None:
    raw = raw_job()
    decision = Decision(workers=3, reason="because", throughput="12.3", efficiency_percent=87)
    raw["metadata"]["annotations"] = {ANNOTATION: as_text(DecisionRecord(decision=decision))}
    assert recorded(parse(raw)[0], ElasticStatus()).autoscaler == decision
    raw["metadata"]["annotations"] = {ANNOTATION: json.dumps({"decision": {"workers": 10**9}})}
    assert recorded(parse(raw)[0], ElasticStatus(autoscaler=decision)).autoscaler is None
    raw["metadata"]["annotations"] = {ANNOTATION: as_text(DecisionRecord(decision=decision))}
    del raw["spec"]["elasticPolicy"]["scalingPolicy"]
    assert recorded(parse(raw)[0], ElasticStatus(autoscaler=decision)).autoscaler is None
