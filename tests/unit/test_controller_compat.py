"""What a job gets where upstream's exact objects were asked for, by the controller's flag or by the job's own annotation."""

import ast
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from job_builders import NOW, OURS, PLAIN, Cluster, elastic_job, job, replica

from controller.acting.apply import Applier
from controller.acting.event_recorder import EventRecorder
from controller.deciding import compat
from controller.deciding.actions import Create, Plan
from controller.watching.keys import Key
from controller.watching.snapshot import Snapshot
from elastic.api.job import Job, JobStatus, Object
from elastic.kube.resources import EVENTS, PODS, Resource

STRICT = replace(OURS, strict=True)
METRICS = [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]


def annotated(one: Job, word: str) -> Job:
    metadata = msgspec.structs.replace(one.metadata, annotations={"elastic-training/compat": word})
    return msgspec.structs.replace(one, metadata=metadata)


def made(cluster: Cluster) -> dict[str, list[str]]:
    """Names by kind of everything that the job's first rounds make."""
    found: dict[str, list[str]] = {}
    for planned in cluster.settle():
        for action in planned.actions:
            if isinstance(action, Create):
                found.setdefault(action.object["kind"], []).append(action.name)
    return found


def environment(planned: Plan) -> set[str]:
    pods = [a.object for a in planned.actions if isinstance(a, Create) and a.resource == PODS]
    return {variable["name"] for pod in pods for container in pod["spec"]["containers"] for variable in container["env"]}


def test_a_strict_elastic_job_has_pods_and_services_and_nothing_else() -> None:
    assert set(made(Cluster(elastic_job(3), settings=OURS))) == {"Pod", "Service", "Secret", "PodDisruptionBudget"}
    assert set(made(Cluster(elastic_job(3), settings=STRICT))) == {"Pod", "Service"}


def test_workers_of_a_strict_job_meet_at_worker_0_as_upstream_s_do() -> None:
    cluster = Cluster(elastic_job(3), settings=STRICT)
    assert {"PET_RDZV_ENDPOINT", "PET_RDZV_BACKEND"} <= environment(cluster.round())


def test_an_annotation_makes_one_job_strict_and_leaves_the_others() -> None:
    chosen = Cluster(annotated(elastic_job(3), "strict"), settings=OURS)
    assert set(made(chosen)) == {"Pod", "Service"}
    assert "PodDisruptionBudget" in made(Cluster(elastic_job(3), settings=OURS))


def test_an_annotation_takes_one_job_out_of_a_strict_controller_s_rule() -> None:
    assert "PodDisruptionBudget" in made(Cluster(annotated(elastic_job(3), "default"), settings=STRICT))


def test_a_word_that_is_no_mode_changes_nothing_and_is_remarked_on() -> None:
    for settings, rule in ((OURS, "default"), (STRICT, "strict")):
        one = annotated(elastic_job(3), "exact")
        seen = compat.as_chosen(one, Snapshot(now=NOW, settings=settings))
        assert seen.settings == settings
        words = "metadata.annotations[elastic-training/compat] is 'exact' but must be default or strict;"
        assert seen.remarks == (f"{words} the controller's own mode, {rule}, applies",)


class Kube:
    """Makes whatever is asked for, and keeps the Events."""

    def __init__(self) -> None:
        self.events: list[Object] = []

    async def create(self, resource: Resource, body: Object, *, namespace: str) -> Object:
        if resource == EVENTS:
            self.events.append(body)
        return {**body, "metadata": {**body["metadata"], "uid": f"uid-{body['metadata']['name']}"}}


async def told(planned: Plan) -> list[tuple[str, str]]:
    """Who told what, once the plan's pods are made."""
    kube = Kube()
    pods = replace(planned, actions=tuple(a for a in planned.actions if isinstance(a, Create) and a.resource == PODS), status=None)
    raw: Object = {"kind": "PyTorchJob", "metadata": {"name": "train", "namespace": "team", "uid": "u"}}
    await Applier(kube, EventRecorder(kube), None).carry_out(Key("PyTorchJob", "team", "train"), raw, pods, old=JobStatus(), now=NOW)  # type: ignore[arg-type]
    return sorted((event["source"]["component"], event["message"]) for event in kube.events)


async def test_a_strict_job_has_an_event_for_each_pod_in_the_name_of_upstream_s_controller() -> None:
    assert await told(Cluster(elastic_job(2), settings=STRICT).round()) == [
        ("pytorchjob-controller", "Created pod: train-worker-0"),
        ("pytorchjob-controller", "Created pod: train-worker-1"),
    ]
    assert await told(Cluster(elastic_job(2), settings=OURS).round()) == [
        ("elastic-controller", "Created pod: train-worker-0, train-worker-1"),
    ]


@pytest.mark.parametrize(("kind", "is_made"), [("PyTorchJob", True), ("PaddleJob", False)])
def test_strict_makes_an_autoscaler_for_pytorch_only(kind: str, is_made: bool) -> None:
    policy = {"minReplicas": 1, "maxReplicas": 5, "metrics": METRICS}
    one = job(kind, Worker=replica(2, kind=kind), elasticPolicy=policy)
    assert "HorizontalPodAutoscaler" in made(Cluster(one, settings=PLAIN))
    assert ("HorizontalPodAutoscaler" in made(Cluster(one, settings=STRICT))) is is_made


@pytest.mark.parametrize(("command", "verbs"), [((), ["create"]), (("ours",), ["create", "get"])])
def test_a_strict_launcher_may_exec_as_upstream_s_unless_our_own_client_needs_more(command: tuple[str, ...], verbs: list[str]) -> None:
    one = job("MPIJob", Launcher=replica(1, kind="MPIJob"), Worker=replica(2, kind="MPIJob"))
    cluster = Cluster(one, settings=replace(PLAIN, strict=True, kubectl_command=command))
    plans = [cluster.round(), cluster.round()]
    role = next(a.object for planned in plans for a in planned.actions if isinstance(a, Create) and a.object["kind"] == "Role")
    assert role["rules"][1]["verbs"] == verbs


def test_only_the_compat_module_asks_for_the_setting() -> None:
    """Each difference has a question of its name there; a branch elsewhere would be one that docs/compat.md does not list."""
    root = Path(compat.__file__).parents[1]
    asking = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "strict"
    }
    assert asking == {"deciding/compat.py"}
