#!/usr/bin/env python3
"""Play scenarios.py on a real control plane, and record the acts of its kube-controller-manager in recordings/."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import metrics_apis  # noqa: E402
from real_servers import ControlPlane, machine_address  # noqa: E402
from scenarios import GROUP, SCENARIOS, Scenario  # noqa: E402

from elastic import certificates  # noqa: E402
from elastic.kube import connect  # noqa: E402
from elastic.kube.client import Kube, Patch  # noqa: E402
from elastic.kube.errors import KubeError  # noqa: E402
from elastic.kube.resources import (  # noqa: E402
    API_SERVICES,
    CUSTOM_RESOURCE_DEFINITIONS,
    ENDPOINT_SLICES,
    EVENTS,
    HORIZONTAL_POD_AUTOSCALERS,
    NAMESPACES,
    PODS,
    SERVICES,
    Resource,
)

Object = dict[str, Any]
TRAINERS = Resource(GROUP, "v1", "trainers", kind="Trainer")
ADMISSION_POLICIES, ADMISSION_POLICY_BINDINGS = (
    Resource("admissionregistration.k8s.io", "v1", plural, namespaced=False)
    for plural in ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
)
RECORDINGS = HERE / "recordings"
LOOK_S, NEXT_LOOK_WITHIN_S = 2.0, 40.0
AT_A_TIME = 12
EVENTS_AFTER_S = 4.0
KNOWN_AFTER_S = 35.0
"""Seconds until the controller knows a new kind. It lists the API's kinds every 30 s."""


class Metrics:
    """The three APIs behind one service. The answers about a namespace are those of its scenario."""

    def __init__(self) -> None:
        self.now: dict[str, Object] = {}
        self.asked: dict[str, list[float]] = {}
        self.asked_again: dict[str, asyncio.Event] = {}

    async def serve(self, request: web.Request) -> web.Response:
        parts = request.path.strip("/").split("/")
        if len(parts) == 3:
            return web.json_response(metrics_apis.resources(parts[1]))
        namespace = metrics_apis.namespace_of(request.path)
        if namespace not in self.now:
            return web.json_response({"kind": "Status", "code": 404}, status=404)
        at = time.time()
        status, body = metrics_apis.answer(request.path, self.now[namespace], now=at)
        self.asked[namespace].append(at)
        self.asked_again[namespace].set()
        return web.json_response(body, status=status)


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def publish(kube: Kube, metrics: Metrics, folder: Path) -> web.AppRunner:
    address = machine_address()
    ca = certificates.make_ca("metrics")
    pair = certificates.issue(ca, "metrics", names=("metrics.default.svc",))
    (folder / "metrics.pem").write_bytes(pair.certificate + b"\n" + pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "metrics.pem")
    app = web.Application()
    app.router.add_get("/{tail:.*}", metrics.serve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, address, 0, ssl_context=context)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    ports = [{"name": "https", "port": 443}]
    await kube.create(SERVICES, {"metadata": {"name": "metrics"}, "spec": {"ports": ports}}, namespace="default")
    piece = {
        "metadata": {"name": "metrics", "labels": {"kubernetes.io/service-name": "metrics"}},
        "addressType": "IPv4",
        "ports": [{"name": "https", "port": port}],
        "endpoints": [{"addresses": [address]}],
    }
    await kube.create(ENDPOINT_SLICES, piece, namespace="default")
    for group, version in metrics_apis.VERSIONS.items():
        spec = {"group": group, "version": version, "groupPriorityMinimum": 100, "versionPriority": 10}
        spec |= {"insecureSkipTLSVerify": True, "service": {"name": "metrics", "namespace": "default"}}
        await kube.create(API_SERVICES, {"metadata": {"name": f"{version}.{group}"}, "spec": spec})
    for group, version in metrics_apis.VERSIONS.items():
        await _until(lambda group=group, version=version: kube.request("GET", f"/apis/{group}/{version}"))  # type: ignore[misc]
    return runner


async def _until(ask: Callable[[], Awaitable[object]]) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            await ask()
            return
        except KubeError:
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.3)


async def define(kube: Kube) -> None:
    names = {"plural": "trainers", "singular": "trainer", "kind": "Trainer"}
    scale = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}
    version = {"name": "v1", "served": True, "storage": True, "subresources": {"status": {}, "scale": scale}}
    version["schema"] = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    spec = {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]}
    await kube.create(CUSTOM_RESOURCE_DEFINITIONS, {"metadata": {"name": f"trainers.{GROUP}"}, "spec": spec})
    await _until(lambda: kube.list(TRAINERS, namespace="default"))


class Recording:
    def __init__(self, kube: Kube, metrics: Metrics, scenario: Scenario) -> None:
        self._kube, self._metrics, self._scenario = kube, metrics, scenario
        self._namespace = f"s-{scenario.name}"
        self._statuses: list[Object] = []
        self._sizes: list[Object] = []
        self._steps: list[Object] = []

    async def record(self) -> Object:
        metrics, namespace, scenario = self._metrics, self._namespace, self._scenario
        await self._kube.create(NAMESPACES, {"metadata": {"name": namespace}})
        metrics.now[namespace], metrics.asked[namespace] = scenario.steps[0].metrics, []
        metrics.asked_again[namespace] = asyncio.Event()
        await self._make_target()
        pods = [await self._make_pod(wanted) for wanted in scenario.pods]
        watching = [asyncio.create_task(self._follow_target()), asyncio.create_task(self._follow_autoscaler())]
        await asyncio.sleep(0.5)
        if scenario.refused:
            await self._refuse_scaling()
        for rival in scenario.rivals:
            await self._make_autoscaler(rival)
        if scenario.rivals:
            await asyncio.sleep(LOOK_S * 2.5)
        metrics.asked[namespace].clear()
        self._statuses.clear()
        hpa = await self._make_autoscaler("h")
        began = time.time()
        await self._play()
        await asyncio.sleep(EVENTS_AFTER_S)
        for task in watching:
            task.cancel()
        events = (await self._kube.list(EVENTS, namespace=namespace)).items
        about = [e for e in events if (e["involvedObject"]["kind"], e["involvedObject"]["name"]) == ("HorizontalPodAutoscaler", "h")]
        told = {(e["type"], e["reason"], e["message"]) for e in about}
        return {
            "name": scenario.name,
            "began": began,
            "hpa": {"metadata": {"name": "h", "namespace": namespace}, "spec": hpa["spec"]},
            "pods": pods,
            "steps": self._steps,
            "asked": metrics.asked[namespace],
            "statuses": self._statuses,
            "sizes": self._sizes,
            "events": sorted(told),
        }

    async def _play(self) -> None:
        scenario, namespace = self._scenario, self._namespace
        self._steps.append({"at": time.time(), "metrics": scenario.steps[0].metrics})
        if scenario.silent:
            await asyncio.sleep(LOOK_S * (scenario.silent + 1.5))
        for number, step in enumerate(scenario.steps):
            if number:
                self._metrics.now[namespace] = step.metrics
                self._steps.append({"at": time.time(), "metrics": step.metrics})
                if step.replicas is not None:
                    self._steps[-1]["replicas"] = step.replicas
                    await self._kube.patch(TRAINERS, "t", {"spec": {"replicas": step.replicas}}, namespace=namespace)
            for _ in range(step.looks):
                await self._next_look()

    async def _next_look(self) -> None:
        """Wait until the controller has asked for the metrics and acted on the answers."""
        asked = self._metrics.asked_again[self._namespace]
        asked.clear()
        async with asyncio.timeout(NEXT_LOOK_WITHIN_S):
            await asked.wait()
        await asyncio.sleep(0.8)

    async def _make_target(self) -> None:
        scenario, namespace = self._scenario, self._namespace
        body = {"apiVersion": TRAINERS.api_version, "kind": "Trainer", "metadata": {"name": "t"}, "spec": {"replicas": scenario.replicas}}
        await self._kube.create(TRAINERS, body, namespace=namespace)
        status = {"replicas": scenario.replicas} | ({"selector": scenario.selector} if scenario.selector else {})
        await self._kube.patch(TRAINERS, "t", {"status": status}, namespace=namespace, subresource="status")
        service = {"metadata": {"name": "thing"}, "spec": {"ports": [{"port": 80}]}}
        await self._kube.create(SERVICES, service, namespace=namespace)

    async def _refuse_scaling(self) -> None:
        """Forbid everybody to change the scale, and wait until the policy holds."""
        rule = {"apiGroups": [GROUP], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["trainers/scale"]}
        here = {"matchLabels": {"kubernetes.io/metadata.name": self._namespace}}
        spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "false", "message": "nobody scales here"}]}
        await self._kube.create(ADMISSION_POLICIES, {"metadata": {"name": "unscaled"}, "spec": spec})
        bound = {"policyName": "unscaled", "validationActions": ["Deny"], "matchResources": {"namespaceSelector": here}}
        await self._kube.create(ADMISSION_POLICY_BINDINGS, {"metadata": {"name": "unscaled"}, "spec": bound})
        end = time.monotonic() + 30
        while True:
            scale = {"spec": {"replicas": self._scenario.replicas}}
            try:
                await self._kube.patch(TRAINERS, "t", scale, namespace=self._namespace, subresource="scale")
            except KubeError as error:
                print(f"{self._scenario.name}: {error}", flush=True)
                return
            assert time.monotonic() < end, "the policy does not hold"
            await asyncio.sleep(0.3)

    async def _make_autoscaler(self, name: str) -> Object:
        body = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": name}}
        return await self._kube.create(
            HORIZONTAL_POD_AUTOSCALERS,
            body | {"spec": {**self._scenario.spec, "scaleTargetRef": self._scenario.target}},
            namespace=self._namespace,
        )

    async def _make_pod(self, wanted: Object) -> Object:
        requests = {"resources": {"requests": wanted["requests"]}} if wanted["requests"] else {}
        spec = {"schedulerName": "nobody", "automountServiceAccountToken": False}
        spec["containers"] = [{"name": "main", "image": "x", **requests}]
        metadata = {"name": wanted["name"], "labels": {"app": "x"}, "finalizers": ["example.com/hold"] if wanted.get("deleted") else []}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        end = time.monotonic() + 30
        while True:
            with suppress(KubeError):
                await self._kube.create(PODS, body, namespace=self._namespace)
                break
            assert time.monotonic() < end, "no pod can be made"
            await asyncio.sleep(0.3)  # the namespace's account does not exist yet
        now = time.time()
        ready = {"type": "Ready", "status": str(wanted["ready"]), "lastTransitionTime": stamp(now - wanted["turned_s"])}
        status = {"phase": wanted["phase"], "startTime": stamp(now - wanted["age_s"]), "conditions": [ready]}
        await self._kube.patch(
            PODS, wanted["name"], {"status": status}, namespace=self._namespace, kind=Patch.STRATEGIC, subresource="status"
        )
        if wanted.get("deleted"):
            await self._kube.delete(PODS, wanted["name"], namespace=self._namespace, grace_s=0)
        made = await self._kube.get(PODS, wanted["name"], namespace=self._namespace)
        kept = {key: made["metadata"][key] for key in ("name", "namespace", "labels", "deletionTimestamp") if key in made["metadata"]}
        return {"metadata": kept, "spec": {"containers": made["spec"]["containers"]}, "status": made["status"]}

    async def _follow_target(self) -> None:
        """Play the target's controller: its status has the replicas of its spec."""
        last = None
        while True:
            with suppress(KubeError):
                obj = await self._kube.get(TRAINERS, "t", namespace=self._namespace)
                wanted = obj["spec"]["replicas"]
                if wanted != last:
                    self._sizes.append({"at": time.time(), "replicas": wanted})
                    last = wanted
                if obj["status"]["replicas"] != wanted:
                    await self._kube.patch(TRAINERS, "t", {"status": {"replicas": wanted}}, namespace=self._namespace, subresource="status")
            await asyncio.sleep(0.1)

    async def _follow_autoscaler(self) -> None:
        async for event in self._kube.watch(HORIZONTAL_POD_AUTOSCALERS, namespace=self._namespace, resource_version="0"):
            found = event.object.get("status") or {}
            if event.object["metadata"].get("name") != "h":
                continue
            if found.get("conditions") or found.get("currentReplicas"):
                self._statuses.append({"at": time.time(), "status": without_times(found)})


def without_times(status: Object) -> Object:
    conditions = [{k: v for k, v in c.items() if k != "lastTransitionTime"} for c in status.get("conditions") or ()]
    return {k: v for k, v in status.items() if k != "lastScaleTime"} | {"conditions": conditions}


async def main(names: list[str]) -> None:
    chosen = [s for s in SCENARIOS if not names or s.name in names]
    RECORDINGS.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="recording-") as folder,
        ControlPlane(Path(os.environ["KUBEBUILDER_ASSETS"]), Path(folder)) as plane,
    ):
        async with connect(plane.kubeconfig) as kube:
            metrics = Metrics()
            await define(kube)
            runner = await publish(kube, metrics, Path(folder))
            await asyncio.sleep(KNOWN_AFTER_S)
            turns = asyncio.Semaphore(AT_A_TIME)

            async def one(scenario: Scenario) -> None:
                async with turns:
                    try:
                        made = await Recording(kube, metrics, scenario).record()
                    except Exception as error:
                        print(f"{scenario.name}: {type(error).__name__}: {error}", flush=True)
                        return
                    (RECORDINGS / f"{scenario.name}.json").write_text(json.dumps(made, indent=1) + "\n")
                    sizes = [s["replicas"] for s in made["sizes"]]
                    print(f"{scenario.name}: {len(made['statuses'])} statuses, sizes {sizes}", flush=True)

            await asyncio.gather(*(one(s) for s in chosen))
            await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
