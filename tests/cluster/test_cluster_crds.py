"""Our CRDs on a real API server: it takes them, and then takes and refuses jobs as parse does."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from arbitrary_json import places, planted
from click.testing import CliRunner
from written_jobs import Mistake, job, job_names, mistakes

from elastic.api import API_VERSION, KINDS, Kind, SpecError, parse
from elastic.api.crd import crd
from elastic.api.extent import MOST_BYTES, MOST_STATUS_BYTES, stored_bytes
from elastic.cli import main
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError

ODD_VALUES = [None, True, False, 0, 1, 2, -1, 1.5, 10**20, "", "1", "None", "Worker", [], [None], ["a"], {}, {"a": 1}, {"a": None}]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
STRICT = {"fieldValidation": "Strict", "fieldManager": "test"}
DRY = STRICT | {"dryRun": "All"}


def collection(kind: Kind, namespace: str) -> str:
    return f"/apis/{API_VERSION}/namespaces/{namespace}/{kind.plural}"


def placed(obj: dict[str, Any], namespace: str) -> dict[str, Any]:
    metadata = obj.get("metadata")
    return obj | {"metadata": metadata | {"namespace": namespace}} if isinstance(metadata, dict) else obj


async def refused(kube: Kube, path: str, obj: dict[str, Any], params: dict[str, str] = DRY) -> KubeError | None:
    try:
        await kube.request("POST", path, params=params, body=obj)
    except KubeError as error:
        return error
    return None


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
async def test_a_strict_server_takes_the_crd(kube: Kube, kind: Kind):
    await kube.request(
        "PATCH", f"{CRDS}/{kind.crd_name}", params=DRY | {"force": "true"}, body=crd(kind), content_type="application/apply-patch+yaml"
    )


def test_the_output_of_elastic_crds_can_be_piped_into_kubectl(kubeconfig: Path):
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl")
    printed = CliRunner().invoke(main, ["crds"]).stdout
    command = ["kubectl", f"--kubeconfig={kubeconfig}", "apply", "--server-side", "--dry-run=server", "--force-conflicts", "-f", "-"]
    answer = subprocess.run(command, input=printed, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("serverside-applied") == len(KINDS)


async def test_the_server_takes_every_good_job_and_writes_nothing_into_it(kube: Kube, served: str):
    for name in job_names():
        obj = placed(job(name), served)
        stored = await kube.request("POST", collection(KINDS[obj["kind"]], served), params=STRICT, body=obj)
        written = {key: value for key, value in stored["spec"].items() if not key.endswith("ReplicaSpecs")}
        assert written == {key: value for key, value in obj["spec"].items() if not key.endswith("ReplicaSpecs")}, name


@pytest.mark.parametrize("mistake", mistakes(), ids=lambda mistake: mistake.name)
async def test_the_server_does_with_each_mistake_what_the_table_says(kube: Kube, served: str, mistake: Mistake):
    kind = KINDS.get(mistake.job["kind"], KINDS["PyTorchJob"])
    error = await refused(kube, collection(kind, served), placed(mistake.job, served))
    if mistake.server == "takes":
        assert error is None
        return
    assert error is not None
    if mistake.server == "rule":
        assert mistake.rule in error.message


async def test_the_server_takes_every_job_that_parse_takes(kube: Kube, served: str):
    chance = random.Random(7)
    taken = 0
    for _ in range(300):
        good = placed(job(chance.choice(job_names())), served)
        at = chance.choice([at for at in places(good) if at[:1] == ("spec",)])
        changed = planted(good, at, chance.choice(ODD_VALUES))
        try:
            parse(changed)
        except SpecError:
            continue
        error = await refused(kube, collection(KINDS[good["kind"]], served), changed, {"dryRun": "All"})
        assert error is None, f"{at}: {error}"
        taken += 1
    assert taken > 30


@pytest.mark.parametrize(("name", "longest"), [("pytorch-elastic-etcd", 54), ("mpi-static", 54), ("tf-multi-worker", 54), ("xgboost", 54)])
async def test_the_longest_name_is_the_same_for_parse_and_server(kube: Kube, served: str, name: str, longest: int):
    for length, is_good in ((longest, True), (longest + 1, False)):
        obj = placed(job(name, {"metadata": {"name": "n" * length}}), served)
        assert (await refused(kube, collection(KINDS[obj["kind"]], served), obj) is None) == is_good
        if is_good:
            parse(obj)
        else:
            with pytest.raises(SpecError, match="shorten it by 1"):
                parse(obj)


async def test_the_rules_guard_scale_and_a_maximum_that_falls_below(kube: Kube, served: str):
    kind = KINDS["PyTorchJob"]
    path = collection(kind, served)
    await kube.request("POST", path, params=STRICT, body=placed(job("pytorch-elastic", {"metadata": {"name": "scaled"}}), served))
    merge = "application/merge-patch+json"
    for replicas, said in ((9, "Worker.replicas is 9 but maxReplicas is 8"), (0, "Worker.replicas is 0 but minReplicas is 1")):
        with pytest.raises(KubeError, match=said) as raised:
            await kube.request("PATCH", f"{path}/scaled/scale", body={"spec": {"replicas": replicas}}, content_type=merge)
        assert raised.value.message.count("Worker.replicas is") == 1  # one mistake, one message
    scaled = await kube.request("PATCH", f"{path}/scaled/scale", body={"spec": {"replicas": 8}}, content_type=merge)
    assert scaled["spec"]["replicas"] == 8
    with pytest.raises(KubeError, match=r"Worker\.replicas is 8 but maxReplicas is 5"):
        await kube.request("PATCH", f"{path}/scaled", body={"spec": {"elasticPolicy": {"maxReplicas": 5}}}, content_type=merge)


async def test_the_largest_job_that_parse_takes_has_room_for_the_largest_status(kube: Kube, served: str):
    path = collection(KINDS["PyTorchJob"], served)
    body = placed(job("pytorch-elastic", {"metadata": {"name": "large"}}), served)
    container = body["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "TEXT", "value": "x" * (MOST_BYTES - stored_bytes(body) - 200)}]
    parse(body)
    await kube.request("POST", path, params=STRICT, body=body)
    entry = "x" * 136
    counted = [entry] * (MOST_STATUS_BYTES // (len(entry) + 3))
    merge = "application/merge-patch+json"
    await kube.request("PATCH", f"{path}/large/status", body={"status": {"elastic": {"counted": counted}}}, content_type=merge)
    container["env"][0]["value"] += "x" * 400
    with pytest.raises(SpecError, match="could not store its status"):
        parse(body)


async def test_the_manager_of_a_job_and_its_queue_stay_unchanged(kube: Kube, served: str):
    path = collection(KINDS["PyTorchJob"], served)
    policy = {"managedBy": "kueue.x-k8s.io/multikueue", "schedulingPolicy": {"queue": "a"}}
    body = placed(job("pytorch-elastic", {"metadata": {"name": "kept"}, "spec": {"runPolicy": policy}}), served)
    await kube.request("POST", path, params=STRICT, body=body)
    merge = "application/merge-patch+json"
    for changed, said in (
        ({"managedBy": "kubeflow.org/training-operator"}, "managedBy is immutable"),
        ({"managedBy": None}, "managedBy is immutable"),
        ({"schedulingPolicy": {"queue": "b"}}, "spec.runPolicy.schedulingPolicy.queue is immutable"),
    ):
        with pytest.raises(KubeError, match=said):
            await kube.request("PATCH", f"{path}/kept", body={"spec": {"runPolicy": changed}}, content_type=merge)
    await kube.request("PATCH", f"{path}/kept", body={"spec": {"runPolicy": {"suspend": True}}}, content_type=merge)


async def test_the_whole_status_is_kept_and_shown_in_columns(kube: Kube, served: str, kubeconfig: Path):
    path = collection(KINDS["JAXJob"], served)
    await kube.request("POST", path, params=STRICT, body=placed(job("jax", {"metadata": {"name": "told"}}), served))
    now = "2026-01-31T12:00:00Z"
    status = {
        "conditions": [
            {
                "type": "Created",
                "status": "True",
                "reason": "JAXJobCreated",
                "message": "m",
                "lastUpdateTime": now,
                "lastTransitionTime": now,
            }
        ],
        "replicaStatuses": {"Worker": {"active": 2, "selector": "a=b"}},
        "startTime": now,
        "elastic": {
            "generation": 3,
            "worldSize": 2,
            "leaving": [{"member": "told-worker-1", "cause": "plan", "by": now}],
            "restarts": {"user": 1},
            "restartCount": 1,
            "lastRescale": {"id": "3-a", "cause": "plan", "at": now, "fromSize": 1, "toSize": 2},
            "ranks": "1,0",
            "waitsFor": "1 of 3 workers: told-worker-2 has no node",
        },
    }
    stored = await kube.request(
        "PATCH", f"{path}/told/status", params=STRICT, body={"status": status}, content_type="application/merge-patch+json"
    )
    assert stored["status"] == status
    scale = await kube.request("GET", f"{path}/told/scale")
    assert scale["status"] == {"replicas": 2, "selector": "a=b"}
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl")
    command = ["kubectl", f"--kubeconfig={kubeconfig}", "get", "jaxjobs", "told", "-n", served]
    headers, cells = (await asyncio.to_thread(subprocess.check_output, command, text=True)).splitlines()
    assert headers.split() == ["NAME", "STATE", "AGE", "WORKERS", "WANTED", "WORLD", "RESTARTS", "RESCALED", "WAITS", "FOR"]
    shown = cells.split()
    assert (shown[:2], shown[3], shown[5:7]) == (["told", "Created"], "2", ["2", "1"])
    assert cells.endswith("1 of 3 workers: told-worker-2 has no node")
