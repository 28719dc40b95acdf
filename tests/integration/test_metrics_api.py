"""Serve the autoscaler's metrics API behind the laptop's API server, and behind a real one if there is one (KUBEBUILDER_ASSETS).

The autoscaling loop of each acts on `desired_workers`. No namespace is held up when everything is uninstalled.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from job_builders import snapshot
from metrics_groups import JOBS, PLACE, PYTORCH, ROLES, api_server, available, clear, deleted, discovered, furnish, publish, until, withdraw
from real_servers import machine_address

from elastic.api import parse
from elastic.kube import connect
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import (
    API_SERVICES,
    HORIZONTAL_POD_AUTOSCALERS,
    PODS,
    Object,
    Resource,
)
from elastic_training.autoscale.deciding.cluster import PodSeen
from elastic_training.autoscale.deciding.signals import Bounds
from elastic_training.autoscale.figures import JobFigures, JobName
from elastic_training.autoscale.serving.answers import CUSTOM, EXTERNAL, VERSIONS
from elastic_training.autoscale.serving.registration import Registration
from elastic_training.autoscale.serving.server import MetricsApi
from elastic_training.autoscale.watching.projections import pod_seen
from elastic_training.controller.deciding.objects.hpa import autoscaler

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=["own", pytest.param("real", marks=pytest.mark.cluster)])
def kubeconfig(request: pytest.FixtureRequest) -> Iterator[Path]:
    with api_server(request, autoscaler_period_s=2) as kubeconfig:
        yield kubeconfig


@pytest_asyncio.fixture
async def kube(kubeconfig: Path) -> AsyncIterator[Kube]:
    async with connect(kubeconfig) as client:
        yield client


@dataclass
class Known:
    """The autoscaler's knowledge of jobs, as a test sets it."""

    found: dict[JobName, JobFigures] = field(default_factory=dict)
    is_known: bool = False
    pods: list[PodSeen] = field(default_factory=list)

    def workers(self, uid: str) -> list[PodSeen]:
        return [pod for pod in self.pods if pod.owner == uid]

    def of(self, key: JobName) -> JobFigures | None:
        return self.found.get(key)

    def jobs(self, namespace: str | None = None) -> Sequence[JobFigures]:
        return [job for key, job in self.found.items() if namespace in (None, key.namespace)]

    def want(self, key: JobName, wanted: int, *, replicas: int, throughput: float | None = None) -> None:
        bounds = Bounds(1, 40)
        self.found[key] = JobFigures(
            key=key, uid=key.name, replicas=replicas, bounds=bounds, working=replicas, wanted=wanted, throughput=throughput
        )
        self.is_known = True


class Replica:
    def __init__(self, kube: Kube, known: Known, name: str) -> None:
        self.name = name
        self.opened = socket.create_server((machine_address(), 0))
        self.port = self.opened.getsockname()[1]
        api = MetricsApi(kube, known, known.workers, self.opened, PLACE, owner=PLACE.name, namespace=None)
        self._task = asyncio.create_task(api.run())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.opened.close()


@dataclass
class Serving:
    known: Known
    replicas: list[Replica]


@pytest_asyncio.fixture
async def serving(kube: Kube) -> AsyncIterator[Serving]:
    await furnish(kube)
    known = Known()
    replicas = [Replica(kube, known, f"replica-{n}-{uuid.uuid4().hex[:6]}") for n in range(2)]
    for one in replicas:
        await publish(kube, one.name, one.port)
    try:
        await until("both groups are available", lambda: available(kube))
        yield Serving(known, replicas)
    finally:
        for one in replicas:
            await one.stop()
            await withdraw(kube, one.name)
        await clear(kube)


class Scaled:
    """A job, its HorizontalPodAutoscaler as the controller makes it, and its workers' pods."""

    def __init__(self, kube: Kube, known: Known, name: str) -> None:
        self._kube, self._known, self.key = kube, known, JobName(PYTORCH.name, "default", name)

    async def make(self, replicas: int, *, is_exact: bool, metric: Object | None = None) -> None:
        template = {"spec": {"containers": [{"name": "pytorch", "image": "x"}]}}
        elastic = {"minReplicas": 1, "maxReplicas": 40, "scalingPolicy": {"through": "hpa"}}
        spec = {"elasticPolicy": elastic, "pytorchReplicaSpecs": {"Worker": {"replicas": replicas, "template": template}}}
        metadata = {"name": self.key.name, "namespace": "default"}
        made = await self._kube.create(
            JOBS, {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata, "spec": spec}, namespace="default"
        )
        await self.follow(replicas)
        (hpa,) = autoscaler(parse(made)[0], snapshot())
        if not is_exact:
            hpa["spec"]["behavior"] = {way: {k: v for k, v in r.items() if k != "tolerance"} for way, r in hpa["spec"]["behavior"].items()}
        if metric is not None:
            hpa["spec"]["metrics"] = [metric]
        hpa["metadata"].pop("ownerReferences", None)
        await self._kube.create(HORIZONTAL_POD_AUTOSCALERS, hpa, namespace="default")

    async def follow(self, replicas: int) -> None:
        """Play the job's controller and workers: bring the pods to the wanted number."""
        selector = f"training.kubeflow.org/job-name={self.key.name}"
        status = {"replicaStatuses": {"Worker": {"active": replicas, "selector": selector}}}
        await self._kube.patch(JOBS, self.key.name, {"status": status}, namespace="default", subresource="status")

    async def size(self) -> int:
        job = await self._kube.get(JOBS, self.key.name, namespace="default")
        return int(job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"])

    async def reaches(self, size: int, *, wanted: int, replicas: int) -> None:
        self._known.want(self.key, wanted, replicas=replicas)

        async def is_reached() -> bool:
            return await self.size() == size

        await until(f"{self.key.name} has {size}", is_reached)
        await self.follow(size)
        self._known.want(self.key, wanted, replicas=size)

    async def looks(self) -> Object:
        """Return the status after the controller has looked again."""
        before = (await self.hpa()).get("status")

        async def has_looked() -> bool:
            return (await self.hpa()).get("status") != before

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(8):
                await until("a look", has_looked)
        found: Object = (await self.hpa())["status"]
        return found

    async def hpa(self) -> Object:
        return await self._kube.get(HORIZONTAL_POD_AUTOSCALERS, self.key.name, namespace="default")


async def test_a_stock_autoscaler_goes_from_10_to_11_and_from_20_to_19(kube: Kube, serving: Serving) -> None:
    one, two = (Scaled(kube, serving.known, f"{name}-{uuid.uuid4().hex[:6]}") for name in ("up", "down"))
    await one.make(10, is_exact=True)
    await two.make(20, is_exact=True)
    kept = (await one.hpa())["spec"]["behavior"]
    assert [kept[way]["tolerance"] for way in ("scaleUp", "scaleDown")] == ["0", "0"], "the API server keeps tolerances"
    await asyncio.gather(one.reaches(11, wanted=11, replicas=10), two.reaches(19, wanted=19, replicas=20))

    async def is_active() -> bool:
        """Return whether the autoscaler's status has followed the change of the job."""
        conditions = ((await one.hpa()).get("status") or {}).get("conditions") or ()
        return {c["type"]: c["reason"] for c in conditions}.get("ScalingActive") == "ValidMetricFound"

    await until("the autoscaler's status says that it has a metric", is_active)


async def test_without_tolerance_a_swallowed_step_is_rounded_or_waits_in_words(kube: Kube, serving: Serving) -> None:
    one, two = (Scaled(kube, serving.known, f"{name}-{uuid.uuid4().hex[:6]}") for name in ("up", "down"))
    await one.make(10, is_exact=False)
    await two.make(20, is_exact=False)
    serving.known.want(two.key, 19, replicas=20)
    await one.reaches(12, wanted=11, replicas=10)
    await two.looks()
    assert await two.size() == 20
    path = f"/apis/{EXTERNAL}/v1beta1/namespaces/default/desired_workers"
    found = await kube.request("GET", path, params={"labelSelector": f"job={two.key.name}"})
    (item,) = found["items"]
    assert item["value"] == "20"
    assert item["metricLabels"]["reason"].endswith("it would go to 17 and not stay there, so it waits")
    for scaled in (one, two):
        await kube.delete(HORIZONTAL_POD_AUTOSCALERS, scaled.key.name, namespace="default")


async def test_a_stock_autoscaler_acts_on_what_each_worker_does(kube: Kube, serving: Serving) -> None:
    """The metric has the type Pods: two workers make 20 a second, and each should make 4."""
    one = Scaled(kube, serving.known, f"pods-{uuid.uuid4().hex[:6]}")
    serving.known.want(one.key, 2, replicas=2, throughput=20.0)
    for index in range(2):
        metadata = {"name": f"{one.key.name}-worker-{index}", "labels": {"training.kubeflow.org/job-name": one.key.name}}
        spec = {"containers": [{"name": "pytorch", "image": "i"}], "schedulerName": "nobody"}
        made = await kube.create(PODS, {"metadata": metadata, "spec": spec}, namespace="default")
        status = {
            "phase": "Running",
            "startTime": made["metadata"]["creationTimestamp"],
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        running = pod_seen(await kube.patch(PODS, metadata["name"], {"status": status}, namespace="default", subresource="status"))
        assert running is not None
        serving.known.pods.append(replace(running, owner=one.key.name, labels=metadata["labels"]))
    target = {"type": "AverageValue", "averageValue": "4"}
    await one.make(2, is_exact=True, metric={"type": "Pods", "pods": {"metric": {"name": "throughput"}, "target": target}})

    async def is_reached() -> bool:
        return await one.size() == 5

    await until("the job has the five workers that do 4 each", is_reached)


async def test_discovery_answers_before_any_job_is_known_and_a_namespace_goes(kube: Kube, serving: Serving) -> None:
    assert not serving.known.is_known
    with pytest.raises(KubeError, match="the jobs have not been read yet"):
        await kube.request("GET", f"/apis/{EXTERNAL}/v1beta1/namespaces/default/desired_workers")
    assert await discovered(kube)
    await deleted(kube, f"early-{uuid.uuid4().hex[:6]}")


async def test_a_user_who_may_not_read_values_is_refused_also_at_our_own_port(kube: Kube, serving: Serving) -> None:
    serving.known.want(JobName("PyTorchJob", "default", "x"), 3, replicas=2)
    port = serving.replicas[1].port
    path = f"/apis/{EXTERNAL}/v1beta1/namespaces/default/desired_workers"
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    account: Object = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": f"reader-{uuid.uuid4().hex[:6]}"}}
    accounts = Resource("", "v1", "serviceaccounts", kind="ServiceAccount")
    await kube.create(accounts, account, namespace="default")
    name = account["metadata"]["name"]
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = (await kube.create(accounts, request, namespace="default", name=name, subresource="token"))["status"]["token"]
    cases: tuple[tuple[dict[str, str], int], ...] = (
        ({}, 401),
        ({"X-Remote-User": "admin", "X-Remote-Group": "system:masters"}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": f"Bearer {token}"}, 403),
    )
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session:
        for headers, status in cases:
            async with session.get(f"https://{machine_address()}:{port}{path}", headers=headers) as answer:
                assert answer.status == status, (headers, await answer.text())
        rule = {"apiGroups": [EXTERNAL], "resources": ["desired_workers"], "verbs": ["list"]}
        access = {"metadata": {"name": name}}
        await kube.create(ROLES, access | {"rules": [rule]})
        bindings = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", kind="RoleBinding")
        subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
        await kube.create(bindings, access | {"roleRef": reference, "subjects": [subject]}, namespace="default")

        async def may_read() -> bool:
            headers = {"Authorization": f"Bearer {token}"}
            async with session.get(f"https://{machine_address()}:{port}{path}", headers=headers) as answer:
                return answer.status == 200

        await until("the right counts", may_read)


async def test_a_group_that_another_adapter_has_is_left_to_it_and_is_ours_again_after_it(kube: Kube, serving: Serving) -> None:
    external, old, new = f"v1beta1.{EXTERNAL}", f"v1beta1.{CUSTOM}", f"v1beta2.{CUSTOM}"
    spec = (await kube.get(API_SERVICES, external))["spec"]
    for name in (external, old):
        await kube.patch(API_SERVICES, name, {"spec": {"service": {"name": "adapter", "namespace": "monitoring"}}})
    registration = Registration(kube, PLACE, owner=PLACE.name)
    await registration.trust(b"other")
    assert registration.others == {external: "monitoring/adapter", old: "monitoring/adapter"}
    there = await kube.get(API_SERVICES, external)
    assert (there["spec"]["service"]["name"], there["spec"]["caBundle"]) == ("adapter", spec["caBundle"])
    assert "ownerReferences" not in there["metadata"], "it does not go with us"

    async def is_withdrawn() -> bool:
        """Look again. A look skips a version that changed meanwhile, for example because its availability was written."""
        await registration.trust(b"other")
        return await kube.find(API_SERVICES, new) is None

    await until("ours is withdrawn", is_withdrawn)
    await kube.delete(API_SERVICES, external)
    await kube.delete(API_SERVICES, old)
    await until("both groups are available again", lambda: available(kube))


async def test_registered_services_go_with_the_installation_and_a_namespace_still_goes(kube: Kube, serving: Serving) -> None:
    for one in serving.replicas:
        await one.stop()
    await kube.delete(ROLES, PLACE.name)

    async def gone() -> bool:
        found = {item["metadata"]["name"] for item in (await kube.list(API_SERVICES)).items}
        return not any(f"{version}.{group}" in found for group, versions in VERSIONS.items() for version in versions)

    await until("the API services are gone", gone)
    await deleted(kube, f"after-{uuid.uuid4().hex[:6]}")
