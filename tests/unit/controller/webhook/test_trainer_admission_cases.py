"""Our definitions and our webhook take and refuse what Kubeflow Trainer's tests expect, except as the recording says."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from api_in_process import served

from elastic.api.kinds import KINDS
from elastic.api.trainer.crd import definitions
from elastic.api.trainer.modes import Mode
from elastic.kube import access
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import CLUSTER_TRAINING_RUNTIMES, CUSTOM_RESOURCE_DEFINITIONS, TRAIN_JOBS, TRAINING_RUNTIMES, Object
from elastic_training.controller.deciding.trainjobs.admission import RuntimeSight
from elastic_training.controller.webhook.answers import AdmissionKind, Request
from elastic_training.controller.webhook.review import answer

RECORDED = Path(__file__).parents[3] / "trainer" / "recordings" / "admission.json"
CASES: list[Object] = json.loads(RECORDED.read_text())
IDS = [f"{Path(case['source']).parts[-2]}: {case['name']}" for case in CASES]
RESOURCES = {resource.kind: resource for resource in (TRAIN_JOBS, TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES)}
Facts = dict[str, Any]
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")


def spelt(value: Any) -> Any:
    """Return the object with the long words that the recording abbreviates."""
    if isinstance(value, dict):
        return value["repeat"] * value["times"] if value.keys() == {"repeat", "times"} else {key: spelt(one) for key, one in value.items()}
    return [spelt(one) for one in value] if isinstance(value, list) else value


async def played(kube: Kube, case: Object) -> Facts:
    """Return what the API server and then the webhook say about the object of a case."""
    item, old = spelt(case["object"]), spelt(case.get("old"))
    resource, namespace = RESOURCES[item["kind"]], item["metadata"].get("namespace")
    before = await kube.create(resource, old, namespace=namespace) if old is not None else None
    stored = before
    try:
        if before is None:
            stored = made = await kube.create(resource, item, namespace=namespace)
        else:
            changed = item | {"metadata": item["metadata"] | {"resourceVersion": before["metadata"]["resourceVersion"]}}
            made = await kube.replace(resource, changed, name=item["metadata"]["name"], namespace=namespace)
    except KubeError as error:
        return {"refused": [cause["field"] for cause in error.body["details"]["causes"]]}
    finally:
        if stored is not None:
            await kube.delete(resource, item["metadata"]["name"], namespace=namespace)
    return reviewed(made, before, case.get("runtimes", ()))


def reviewed(made: Object, before: Object | None, runtimes: list[Object]) -> Facts:
    """Return what the webhook says about an object with the defaults of its definition."""
    known = {(runtime["kind"], runtime["metadata"]["name"]): runtime for runtime in runtimes}
    kind = AdmissionKind("trainer.kubeflow.org", "v1alpha1", made["kind"])
    request = Request(
        uid="u",
        kind=kind,
        name=made["metadata"]["name"],
        namespace=made["metadata"].get("namespace", ""),
        operation="CREATE" if before is None else "UPDATE",
        object=made,
        old_object=before,
    )
    look_up = lambda kind, namespace, name: RuntimeSight(known.get((kind, name)), is_known=True)  # noqa: E731
    found = answer(request, kinds=KINDS, namespace=None, mode=Mode.INSTEAD, look_up=look_up).response
    if found.status is not None:
        return {"refused": [cause.field for cause in found.status.details.causes]}
    times = [patch.get("time") for patch in made["spec"].get("runtimePatches", ())]
    return {"accepted": True, "warns": list(found.warnings), "times": times, "defaults": made["spec"]}


@pytest.fixture(scope="module")
def results() -> list[Facts]:
    async def all_played() -> list[Facts]:
        with tempfile.TemporaryDirectory() as folder:
            async with served(Path(folder)) as kubeconfig, Kube(access.from_kubeconfig(kubeconfig)) as kube:
                for definition in definitions():
                    await kube.create(CUSTOM_RESOURCE_DEFINITIONS, definition)
                return [await played(kube, case) for case in CASES]

    return asyncio.run(all_played())


def is_as(said: Facts, found: Facts) -> bool:
    """Return whether what was found is what is said. A refusal may name further fields, or fields inside of those that are said."""
    if "refused" in said:
        return all(any(field.startswith(wanted) for field in found.get("refused", ())) for wanted in said["refused"]) and "refused" in found
    if "refused" in found:
        return False
    words = said.get("warns")
    warned = words is None or (len(words) <= len(found["warns"]) and all(any(word in line for line in found["warns"]) for word in words))
    is_quiet = words != [] or found["warns"] == []
    return (
        warned and is_quiet and said.get("times", found["times"]) == found["times"] and covers(said.get("defaults", {}), found["defaults"])
    )


def covers(part: Any, whole: Any) -> bool:
    """Return whether the whole has all fields of the part."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and covers(value, whole[key]) for key, value in part.items())
    return bool(part == whole)


@pytest.mark.parametrize("number", range(len(CASES)), ids=IDS)
def test_an_object_is_taken_as_kubeflow_trainer_takes_it(number: int, results: list[Facts]) -> None:
    case, found = CASES[number], results[number]
    differs = case.get("differs")
    if differs is None:
        assert is_as(case["want"], found), (case["want"], found)
    else:
        assert is_as(differs["ours"], found), (differs["ours"], found)
        assert not is_as(case["want"], found), "it differs no more"


def test_every_difference_has_a_reason() -> None:
    assert [case["name"] for case in CASES if "differs" in case and not case["differs"]["why"].endswith(".")] == []
