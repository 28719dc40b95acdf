"""Check that edits in a job's pods and status never stop the job, and are reported."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from arbitrary_status import arbitrary
from job_builders import NOW, OURS, Cluster, created, deleted, elastic_job, job, pod, replica, restarts, snapshot
from msgspec.inspect import type_info

from elastic.api import parse
from elastic.api.book import MOST_GENERATION, MOST_TIMES, Rescale
from elastic.api.job import ElasticStatus, JobStatus, to_object
from elastic.api.kinds import API_VERSION, KINDS
from elastic.api.names import REPLICA_INDEX, REPLICA_TYPE
from elastic.kube.resources import PODS
from elastic.membership.wire import Decoder, Expectation, encode
from elastic_training.controller.acting.link import expectation as on_the_wire
from elastic_training.controller.deciding.actions import Create, SetExpectation
from elastic_training.controller.deciding.plan import plan
from elastic_training.controller.facts.keys import Key
from elastic_training.controller.facts.owned import OWNED_LABEL
from elastic_training.controller.facts.snapshot import PodPhase, WorldSeen, pod_from
from elastic_training.controller.watching.observe import _owned

INDEXES = ["99999999999999", "7", "-1", "0", "", "x", "01"]


def raw_pod(label: str | None, *, name: str = "train-worker-1", owner: str = "job-uid") -> dict[str, Any]:
    labels = {REPLICA_TYPE: "worker"} | ({} if label is None else {REPLICA_INDEX: label})
    owners = [{"controller": True, "uid": owner}] if owner else []
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels, "ownerReferences": owners},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


@pytest.mark.parametrize("label", INDEXES)
def test_a_pod_is_known_by_its_name_and_a_label_that_says_otherwise_is_told(label: str):
    found = pod_from(raw_pod(label))
    assert found.index == 1
    planned = plan(job(Worker=replica(2)), snapshot(pod(index=0), found))
    (told,) = [event for event in planned.news if event.reason == "PodLabelChanged"]
    says = f'says "{label}"' if label else "is missing"
    assert told.message == f"the label {REPLICA_INDEX} of pod train-worker-1 {says}, but the pod has index 1; set the label to 1"


def test_a_pod_whose_label_is_as_it_was_made_is_not_told_of():
    for found in (pod_from(raw_pod("1")), pod_from(raw_pod(None, name="train-launcher"))):
        assert found.index_label is None
    assert pod_from(raw_pod(None, name="train-launcher")).index == 0


@pytest.mark.parametrize("label", INDEXES)
def test_a_job_grows_by_a_pod_of_a_free_name_for_any_label(label: str):
    planned = plan(elastic_job(3), snapshot(pod(index=0), pod_from(raw_pod(label))))
    assert created(planned) == ["train-worker-2"]


def test_a_pod_that_lost_its_owner_is_told_of_once():
    stray = pod_from(raw_pod("1", owner=""))
    planned = plan(job(Worker=replica(2)), replace(snapshot(pod(index=0)), left_behind=(stray,)))
    (told,) = [event for event in planned.news if event.reason == "PodWithoutOwner"]
    assert "delete the pod, or set its ownerReference to the job" in told.message
    former = pod_from(raw_pod("1", owner="an earlier job"))
    planned = plan(job(Worker=replica(2)), replace(snapshot(pod(index=0)), left_behind=(former,)))
    assert "PodWithoutOwner" not in {event.reason for event in planned.news}


OUT_OF_BOUNDS: list[dict[str, Any]] = [
    {"generation": 2**53 + 1},
    {"generation": 2**63},
    {"generation": -1},
    {"fruitless": 10**9},
    {"step": -5},
    {"restarts": {"user": -1}},
    {"restarts": {"user": 10**9}},
    {"open": [{"id": "", "generation": 1, "cause": "user"}]},
    {"open": [{"id": "a", "generation": 2**60, "cause": "user"}]},
    {"leaving": [{"member": "", "cause": "plan"}]},
    {"charged": [{"cause": "x" * 100, "at": "2026-01-01T00:00:00Z"}]},
    {"charged": [{"cause": "two words", "at": "2026-01-01T00:00:00Z"}]},
    {"open": [{"id": "\u00e9", "generation": 1, "cause": "user"}]},
    {"open": [{"id": "a", "generation": 1, "cause": "\u00e9"}]},
    {"open": [{"id": "a", "generation": 1, "cause": "user", "pod": "\n"}]},
    {"leaving": [{"member": '"', "cause": "plan"}]},
    {"restarts": {"\u00e9": 1}},
    {"restarts": {f"cause-{n}": 1 for n in range(65)}},
    {"refused": [{"type": "Worker", "at": "2026-01-01T00:00:00Z", "count": 2**63}]},
]


def with_elastic_status(part: dict[str, Any]) -> dict[str, Any]:
    return to_object(elastic_job()) | {"status": {"elastic": {"backend": "elastic", "worldSize": 3} | part}}


@pytest.mark.parametrize("part", OUT_OF_BOUNDS, ids=str)
def test_foreign_entries_in_the_status_are_skipped_and_told_and_the_server_still_understands_us(part: dict[str, Any]):
    read, warnings = parse(with_elastic_status(part), stored=True)
    assert "this part of status is ignored" in str(warnings[-1])
    assert read.status.elastic is not None
    assert (read.status.elastic.backend, read.status.elastic.world_size) == ("elastic", 3), "the rest is kept"
    planned = plan(read, replace(snapshot(pod(), settings=OURS), remarks=tuple(map(str, warnings))))
    assert "SpecRemark" in {event.reason for event in planned.news}
    (told,) = [action for action in planned.actions if isinstance(action, SetExpectation)]
    sent = on_the_wire(told, now=NOW)
    Decoder[Expectation](Expectation).decode(encode(sent))


def test_the_highest_number_of_a_group_that_a_status_may_have_leaves_room_for_more():
    read, warnings = parse(with_elastic_status({"generation": MOST_GENERATION}), stored=True)
    assert read.status.elastic is not None
    assert (read.status.elastic.generation, warnings) == (MOST_GENERATION, [])


def test_a_number_that_was_passed_over_is_learnt_again_from_the_world():
    cluster = Cluster(elastic_job(2), settings=OURS)
    cluster.settle()
    cluster.run_all()
    rescale = Rescale(id="r5", cause="plan", reason="why", at=NOW, to_size=2)
    cluster.world = WorldSeen(generation=5, members=frozenset(cluster.names()), phase="running", rescale=rescale)
    cluster.settle()
    known = cluster.job.status.elastic
    assert known is not None
    assert known.generation == 5
    status = msgspec.structs.replace(cluster.job.status, elastic=msgspec.structs.replace(known, generation=ElasticStatus().generation))
    cluster.job = msgspec.structs.replace(cluster.job, status=status)
    cluster.settle()
    assert cluster.job.status.elastic == known


@pytest.mark.parametrize("seed", range(10))
def test_no_status_stops_a_job_or_makes_a_message_that_the_server_refuses(seed: int):
    """Every value that the model allows: at each bound, far dates in time zones, words that JSON escapes."""
    draw = random.Random(seed)
    budget = {"restartBudget": {"windowSeconds": 600}, "maxRestarts": 5, "maxRestartsWithoutProgress": 5}
    asked = to_object(elastic_job(elastic=budget))
    for _ in range(40):
        status = arbitrary(type_info(JobStatus), draw)
        status["elastic"] = arbitrary(type_info(ElasticStatus), draw) | ({"backend": "elastic"} if draw.random() < 0.8 else {})
        if draw.random() < 0.5:
            status["elastic"].pop("closed", None)
            status["conditions"] = []
        read, _ = parse(asked | {"status": status}, stored=True)
        planned = plan(read, snapshot(pod(), pod(index=1, phase=PodPhase.FAILED, code=1), settings=OURS))
        for action in planned.actions:
            if isinstance(action, SetExpectation):
                Decoder[Expectation](Expectation).decode(encode(on_the_wire(action, now=NOW)))
        if planned.status is not None:
            again, warnings = parse(asked | {"status": json.loads(msgspec.json.encode(planned.status))}, stored=True)
            assert (again.status, warnings) == (planned.status, []), "what a controller writes, the next one reads"


def test_a_counter_of_restarts_stays_at_its_bound():
    read, _ = parse(with_elastic_status({"restarts": {"user": MOST_TIMES}}), stored=True)
    world = WorldSeen(generation=1, members=frozenset(), phase="forming", unacknowledged_restarts=restarts("user"))
    planned = plan(read, replace(snapshot(pod(), settings=OURS), world=world))
    assert planned.status is not None
    assert planned.status.elastic is not None
    assert planned.status.elastic.restarts == {"user": MOST_TIMES}


def test_a_counter_of_restarts_that_the_controller_keeps_itself_stays_at_its_bound():
    known = ElasticStatus(restarts={"user": MOST_TIMES})
    one = job(Master=replica(1), Worker=replica(1), status=JobStatus(start_time=NOW, elastic=known))
    planned = plan(one, snapshot(pod("master"), pod(phase=PodPhase.FAILED, code=1), settings=OURS))
    assert planned.status is not None
    assert planned.status.elastic is not None
    assert planned.status.elastic.restarts == {"user": MOST_TIMES}


@pytest.mark.parametrize("label", ["elastic-training/group", "elastic-training/job", REPLICA_INDEX])
@pytest.mark.parametrize("kind", ["PyTorchJob", "TFJob", "MPIJob"])
def test_a_label_of_the_controllers_own_in_a_template_is_told_and_not_taken(kind: str, label: str):
    """With a group of its own making, each pod was deleted and made again in every reconcile, without end and without a pause."""
    types = {type: replica(1, kind=kind) for type in ("Worker", *KINDS[kind].required)}
    for spec in types.values():
        spec["template"]["metadata"] = {"labels": {label: "mine", "team": "a"}}
    one = job(kind, **types)
    cluster = Cluster(one)
    plans = cluster.settle()
    assert not [name for planned in plans for name in deleted(planned)]
    labels = [a.object["metadata"]["labels"] for planned in plans for a in planned.actions if isinstance(a, Create) and a.resource == PODS]
    assert len(labels) == len(types)
    assert all(found.get(label) != "mine" and found["team"] == "a" for found in labels)
    _, warnings = parse(to_object(one))
    assert "is the controller's own label" in str(warnings[0])


def test_a_replica_with_the_labels_of_another_object_of_the_job_is_seen_as_a_replica_only():
    metadata = raw_pod("1")["metadata"] | {"namespace": "team"}
    metadata["ownerReferences"] = [{"controller": True, "uid": "job-uid", "apiVersion": API_VERSION, "kind": "PyTorchJob", "name": "train"}]
    beside = {"kind": "Pod", "apiVersion": "v1", "metadata": metadata | {"labels": {OWNED_LABEL: "train"}}}
    assert str(_owned(beside).key) == str(Key("PyTorchJob", "team", "train"))
    beside["metadata"] = metadata | {"labels": metadata["labels"] | {OWNED_LABEL: "train"}}
    assert _owned(beside).key is None
