"""Builders for tests of plans: a job, its pods, a snapshot. Each takes only the differences."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from elastic.api import parse
from elastic.api.job import Job, JobStatus, Object, to_object
from elastic.api.kinds import KINDS
from elastic.api.names import REPLICA_TYPE, pod_name
from elastic.kube.resources import PODS, SERVICES
from elastic.membership.wire import Restart
from elastic.signals.seen import on_job, on_pod
from elastic.signals.table import BUILT_IN
from elastic_training.controller.deciding.actions import Create, Delete, Forget, Plan, SetExpectation, Update
from elastic_training.controller.deciding.derivation import derive
from elastic_training.controller.deciding.objects import pods
from elastic_training.controller.deciding.plan import plan
from elastic_training.controller.facts.settings import Rendezvous, Settings
from elastic_training.controller.facts.snapshot import (
    Container,
    Node,
    Owned,
    Pod,
    PodPhase,
    Service,
    Snapshot,
    WorldSeen,
    node_from,
    pod_from,
)


def restarts(*causes: str, generation: int = 1) -> tuple[Restart, ...]:
    """Return restarts as the rendezvous server tells them: one for each cause, each of a different pod."""
    return tuple(Restart(id=f"{generation}-s/{n}-{cause}", generation=generation, cause=cause) for n, cause in enumerate(causes))


NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
PLAIN = Settings()
OURS = Settings(rendezvous=Rendezvous(endpoint="rdzv:8443", ca="CA"))


def replica(count: int = 1, *, restart: str = "OnFailure", kind: str = "PyTorchJob", command: bool = True, **spec: Any) -> dict[str, Any]:
    container: dict[str, Any] = {"name": KINDS[kind].container, "image": "example/train:1"}
    if command:
        container["command"] = ["torchrun", "train.py"]
    return {"replicas": count, "restartPolicy": restart, "template": {"spec": {"containers": [container], **spec}}}


def job(kind: str = "PyTorchJob", *, status: JobStatus | None = None, policy: Mapping[str, Any] | None = None, **spec: Any) -> Job:
    """Return a job. Arguments like `Worker=replica(3)` are replica types, and all others are fields of spec."""
    types = {word: spec.pop(word) for word in list(spec) if KINDS[kind].replica_type(word)}
    raw = {
        "apiVersion": "kubeflow.org/v1",
        "kind": kind,
        "metadata": {"name": "train", "namespace": "team", "uid": "job-uid", "resourceVersion": "1"},
        "spec": {KINDS[kind].replica_key: types, "runPolicy": dict(policy or {}), **spec},
    }
    parsed, _ = parse(raw, stored=True)
    return with_status(parsed, status) if status is not None else parsed


def with_status(one: Job, status: JobStatus) -> Job:
    import msgspec

    return msgspec.structs.replace(one, status=status)


def elastic_job(workers: int = 3, *, least: int = 1, most: int = 5, **more: Any) -> Job:
    policy = {"minReplicas": least, "maxReplicas": most, **more.pop("elastic", {})}
    return job(Worker=replica(workers, restart=more.pop("restart", "OnFailure")), elasticPolicy=policy, **more)


def pod(type: str = "worker", index: int = 0, phase: PodPhase = PodPhase.RUNNING, *, code: int | None = None, **changes: Any) -> Pod:
    name = f"train-{type}-{index}"
    containers = () if code is None else (Container(name="pytorch", exit_code=code),)
    made = Pod(name=name, uid=f"uid-{name}", type=type, index=index, phase=phase, is_ready=phase is PodPhase.RUNNING, containers=containers)
    return replace(made, **changes)


def snapshot(*pods: Pod, after_s: float = 0, settings: Settings = PLAIN, **more: Any) -> Snapshot:
    return Snapshot(now=NOW + timedelta(seconds=after_s), settings=settings, pods=tuple(map(with_sights, pods)), token="token", **more)


def pod_for(one: Job, type: str, index: int, look: Snapshot) -> Object:
    """Return the pod of one replica, as the controller creates it."""
    return pods.pod_for(derive(one, look), type, index)


def with_sights(one: Pod) -> Pod:
    """Return the pod with the signals that its fields stand for."""
    if not (one.is_deleting or one.disruption or one.reason or one.sights):
        return one
    deletion = {"deletionTimestamp": (one.gone_by or NOW + timedelta(seconds=30)).isoformat()} if one.is_deleting else {}
    condition = {"type": "DisruptionTarget", "status": "True", "reason": one.disruption}
    raw = {
        "metadata": deletion,
        "status": {"reason": one.reason, "message": one.message, "conditions": [condition] if one.disruption else []},
    }
    return replace(one, sights=on_pod(BUILT_IN, raw))


def tainted(name: str, *taints: str, is_cordoned: bool = False, labels: Mapping[str, str] | None = None, **more: Any) -> Node:
    """Return a node with these taints, KEY or KEY=VALUE; `more` are fields of its status or metadata."""
    listed = [{"key": key, "value": value, "effect": "NoSchedule"} for key, _, value in (taint.partition("=") for taint in taints)]
    metadata = {"name": name, "labels": dict(labels or {}), "annotations": more.get("annotations", {})}
    return node_from({"metadata": metadata, "spec": {"taints": listed, "unschedulable": is_cordoned}, "status": more.get("status", {})})


class Cluster:
    """The least that carries a plan out: what is made is pending until told otherwise, what is deleted is gone at once."""

    def __init__(self, one: Job, *, settings: Settings = PLAIN, lingering: bool = False) -> None:
        self.job = one
        self.settings = settings
        self.lingering = lingering
        self.pods: dict[str, Pod] = {}
        self.services: dict[str, Service] = {}
        self.owned: dict[tuple[str, str], Owned] = {}
        self.world: WorldSeen | None = None
        self.is_forgotten = False
        self.last_step: int | None = None
        self.nodes: dict[str, Node] = {}
        self.sees_nodes = True
        self.now = NOW
        self.made = 0
        self.job_is_gone = False
        self.told: list[Any] = []
        self.marked: list[tuple[str, Mapping[str, Any]]] = []

    def look(self) -> Snapshot:
        return Snapshot(
            now=self.now,
            settings=self.settings,
            pods=tuple(sorted(map(with_sights, self.pods.values()), key=lambda p: (p.type, p.index))),
            services=tuple(self.services.values()),
            owned=tuple(self.owned.values()),
            world=self.world,
            is_forgotten=self.is_forgotten,
            last_step=self.last_step,
            nodes=self.nodes,
            sees_nodes=self.sees_nodes,
            sights=on_job(BUILT_IN, to_object(self.job)),
            token="token",
        )

    def round(self) -> Plan:
        planned = plan(self.job, self.look())
        for action in planned.actions:
            self._do(action)
        if planned.status is not None:
            self.job = with_status(self.job, planned.status)
        return planned

    def settle(self, *, most: int = 20) -> list[Plan]:
        """Run rounds until nothing is left to do; return every plan on the way."""
        plans = []
        for _ in range(most):
            before = self.job.status
            planned = self.round()
            plans.append(planned)
            if self.job.status == before and not [a for a in planned.actions if isinstance(a, Create | Delete)]:
                return plans
        raise AssertionError(f"never settles: {plans[-1]}")

    def set(self, name: str, phase: PodPhase, *, code: int | None = None, **changes: Any) -> None:
        container = self.job.kind.container
        # The container has begun, regardless of the pod's present phase.
        containers = () if phase is PodPhase.PENDING else (Container(name=container, exit_code=code),)
        self.pods[name] = replace(self.pods[name], phase=phase, is_ready=phase is PodPhase.RUNNING, containers=containers, **changes)

    def run_all(self) -> None:
        for name, one in self.pods.items():
            if one.phase is PodPhase.PENDING:
                self.set(name, PodPhase.RUNNING)

    def state(self) -> str:
        last = self.job.status.conditions[-1]
        return last.type if last.status == "True" else f"not {last.type}"

    def names(self) -> list[str]:
        return sorted(self.pods)

    def _do(self, action: Any) -> None:
        match action:
            case Create(resource, item) if resource == PODS and REPLICA_TYPE in item["metadata"]["labels"]:
                assert item["metadata"]["name"] not in self.pods, "two pods of one name"
                self._make_pod(item)
            case Create(resource, item) if resource == SERVICES and REPLICA_TYPE in item["metadata"]["labels"]:
                name = item["metadata"]["name"]
                self.services[name] = Service(name=name, uid=f"service-{name}", owner=self.job.metadata.uid)
            case Update(resource, name, {"metadata": {"annotations": annotations}}) if resource == PODS:
                kept = {key: value for key, value in {**dict(self.pods[name].marks), **annotations}.items() if value is not None}
                self.pods[name] = replace(self.pods[name], marks=tuple(kept.items()))
                self.marked.append((name, annotations))
            case Update(resource, name, change) if resource == PODS:
                # As the kubelet ends a pod that has been active for too long.
                assert change == {"metadata": {"uid": self.pods[name].uid}, "spec": {"activeDeadlineSeconds": 1}}
                self.pods[name] = replace(self.pods[name], phase=PodPhase.FAILED, deadline_s=1, reason="DeadlineExceeded")
            case Create(_, item):
                kind, name = item["kind"], item["metadata"]["name"]
                self.made += 1
                uid = f"{self.made:08}-{kind}"
                raw = {**item, "metadata": {**item["metadata"], "uid": uid}}
                self.owned[kind, name] = Owned(kind=kind, name=name, uid=uid, raw=raw)
            case Delete(resource, name) if (resource.kind, name) in self.owned:
                del self.owned[resource.kind, name]
            case Delete(resource, name, uid) if resource == PODS:
                assert self.pods[name].uid == uid
                self.delete(name)
            case Delete(resource, name) if resource == SERVICES:
                del self.services[name]
            case _:
                self.told.append(action)
                if isinstance(action, Forget | SetExpectation):
                    self.is_forgotten = isinstance(action, Forget)

    def delete(self, name: str) -> None:
        if self.lingering and self.pods[name].phase is PodPhase.RUNNING:
            self.pods[name] = replace(self.pods[name], is_deleting=True)
        else:
            del self.pods[name]

    def _make_pod(self, item: Mapping[str, Any]) -> None:
        labels = item["metadata"]["labels"]
        name = item["metadata"]["name"]
        self.made += 1
        self.pods[name] = Pod(
            name=name,
            uid=f"uid-{self.made}",
            type=labels["training.kubeflow.org/replica-type"],
            index=int(labels.get("training.kubeflow.org/replica-index", 0)),
            group=labels.get("elastic-training/group", ""),
            marks=pod_from(item).marks,
            number=pod_from(item).number,
            created_at=self.now,
        )


def created(planned: Plan) -> list[str]:
    return [a.name for a in planned.actions if isinstance(a, Create) and a.resource == PODS]


def deleted(planned: Plan) -> list[str]:
    return [a.name for a in planned.actions if isinstance(a, Delete) and a.resource == PODS]


def reasons(plans: Iterable[Plan]) -> list[str]:
    return [news.reason for planned in plans for news in planned.news]


def places(one: Job) -> list[str]:
    return [pod_name(one.kind, one.metadata.name, t, i) for t, spec in one.replicas.items() for i in range(spec.replicas)]
