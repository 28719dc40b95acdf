"""The nodes, variables and pod groups of a TrainJob are those that Kubeflow Trainer's tests expect, except as the recording says."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from job_builders import OURS, Cluster

from elastic.api import parse
from elastic.api.job import Object
from elastic.api.names import NODE_NUMBER, WAITS_FOR
from elastic_training.controller.deciding.actions import Create
from elastic_training.controller.deciding.trainjobs.claims import CLAIM
from elastic_training.controller.deciding.trainjobs.lowering import lower

RECORDED: Object = json.loads((Path(__file__).parents[3] / "trainer" / "recordings" / "lowering.json").read_text())
CASES: list[Object] = RECORDED["cases"]
IDS = [f"{Path(case['source']).parts[-2]}: {case['name']}" for case in CASES]
ROLE = "jobset.sigs.k8s.io/replicatedjob-name"
INDEX = "$index"
"""Value of a variable that has the number of its node."""
Facts = dict[str, Any]


def made(case: Object) -> Facts:
    """Return what the controller makes of a TrainJob, or the fields for which it refuses it."""
    job = case["trainJob"] | {"metadata": case["trainJob"]["metadata"] | {"uid": "t-1"}}
    items, problems = lower(job, case["runtime"], gang_scheduler=case.get("gangScheduler", ""))
    if problems:
        return {"refused": [problem.path for problem in problems]}
    nodes, *initializers = [item for item in items if item["kind"] != CLAIM]
    facts: Facts = {"suspended": nodes["spec"]["runPolicy"]["suspend"], "pods": {}}
    facts |= {key: nodes["metadata"][key] for key in ("labels", "annotations")}
    for item in (nodes, *initializers):
        for created in created_for(item, case.get("gangScheduler", "")):
            found = created.object
            if created.resource.kind == "Pod" and ROLE in found["metadata"]["labels"]:
                add(facts["pods"], found)
            elif created.resource.kind == "PodGroup" and item is nodes:
                facts["podGroup"] = found["spec"]
            elif created.resource.kind == "ConfigMap" and "hostfile" in found["data"]:
                # Both names lead to the same address.
                facts["hosts"] = [line.replace(".default.svc ", " ") for line in found["data"]["hostfile"].splitlines()]
    return facts


def created_for(item: Object, gang_scheduler: str) -> list[Create]:
    """Return the objects of one job that runs, because its initializers have completed."""
    item = json.loads(json.dumps(item))
    item["metadata"] |= {"uid": "p-1"}
    item["metadata"]["annotations"].pop(WAITS_FOR, None)
    item["spec"]["runPolicy"]["suspend"] = False
    town = Cluster(parse(item)[0], settings=replace(OURS, gang_scheduler=gang_scheduler))
    found: list[Create] = []
    for _ in range(3):
        found += [action for plan in town.settle(most=200) for action in plan.actions if isinstance(action, Create)]
        town.run_all()
        for key, group in town.owned.items():
            if group.kind == "PodGroup":
                town.owned[key] = replace(group, raw={**group.raw, "status": {"phase": "Inqueue"}})
    return found


def add(pods: Facts, pod: Object) -> None:
    """Add one pod to those of its role. All of a role are equal except for their names."""
    labels, spec = pod["metadata"]["labels"], pod["spec"]
    known = pods.setdefault(labels[ROLE], {"count": 0, "names": []})
    known["count"] += 1
    known["names"].append(f"{spec.get('hostname')}.{spec.get('subdomain')}")
    known |= {"labels": labels, "annotations": pod["metadata"].get("annotations") or {}}
    known |= {key: value for key, value in spec.items() if key not in ("containers", "initContainers")}
    known["volumeNames"] = [volume["name"] for volume in spec.get("volumes", ())]
    for key in ("containers", "initContainers"):
        known[key] = {container["name"]: readable(container) for container in spec.get(key, ())}


def readable(container: Object) -> Facts:
    """Return a container with its variables by name, and the paths of its mounts."""
    variables = {
        entry["name"]: INDEX if NODE_NUMBER in str(entry.get("valueFrom")) else entry.get("value") for entry in container.get("env", ())
    }
    found = container | {"env": variables, "mounts": [mount["mountPath"] for mount in container.get("volumeMounts", ())]}
    # A shell brings our library before it runs the command.
    command = list(container.get("command") or ())
    return found | {"command": command[4:]} if command[:2] == ["/bin/sh", "-c"] and command[3:4] == ["elastic"] else found


def differences(want: Any, found: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path of each wanted fact that was not found, with what was found instead."""
    if path.endswith("withoutEnv"):
        return
    if path.endswith(("mounts", "volumeNames", "names", "hosts")):
        if not set(want) <= set(found or ()):
            yield path, found
    elif isinstance(want, dict) and isinstance(found, dict):
        for key, value in want.items():
            yield from differences(value, found.get(key), f"{path}.{key}" if path else key)
        for name in want.get("withoutEnv", ()):
            if name in found["env"]:
                yield f"{path}.env.{name}", found["env"][name]
    elif want != found:
        yield path, found


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_train_job_is_carried_out_as_at_kubeflow_trainer(case: Object) -> None:
    found, expected = made(case), {one["path"]: one["ours"] for one in case.get("differs", ())}
    if "" in expected:
        assert [field.startswith(wanted) for field, wanted in zip(found["refused"], expected[""]["refused"], strict=False)] == [True], found
        return
    assert "refused" not in found, found
    policy = next((word for word in case["runtime"]["spec"].get("mlPolicy", {}) if word != "numNodes"), "plain")
    known = [one for one in RECORDED["everywhere"] if one.get("policy", policy) == policy]
    left = dict(differences(case["want"], found))
    left = {
        path: value for path, value in left.items() if not any(fnmatch.fnmatch(path, one["path"]) and value == one["ours"] for one in known)
    }
    assert left == expected


def test_every_difference_has_a_reason_and_is_met() -> None:
    told = [*RECORDED["everywhere"], *(one for case in CASES for one in case.get("differs", ()))]
    assert [one for one in told if not one["why"].endswith(".")] == []
    paths = [
        path
        for case in CASES
        if not any(one["path"] == "" for one in case.get("differs", ()))
        for path, _ in differences(case["want"], made(case))
    ]
    assert [one["path"] for one in RECORDED["everywhere"] if not any(fnmatch.fnmatch(path, one["path"]) for path in paths)] == []
