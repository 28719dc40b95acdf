"""Play all kubelets of a cluster without nodes: a pod runs as soon as it exists, and succeeds once it is told to.

The statuses hold containers' states, as a kubelet's do, because the controller's work depends on them.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from elastic.kube.cache import Cache, ViewChange
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import PODS

AT_ONCE = 16
STAMP = "2026-01-01T00:00:00Z"


class Kubelets:
    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube = kube
        self._namespace = namespace
        self._phases: dict[str, str] = {}
        self._due: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._pods = Cache(kube, PODS, project=lambda pod: pod["status"].get("phase", "Pending"), namespace=namespace)

    async def run(self) -> None:
        self._pods.subscribe(self._changed)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pods.run())
            for _ in range(AT_ONCE):
                tasks.create_task(self._work())

    def end_all(self) -> None:
        for name in self._phases:
            self._due.put_nowait((name, "Succeeded"))

    def running(self) -> int:
        return sum(phase == "Running" for phase in self._phases.values())

    def _changed(self, change: ViewChange[str]) -> None:
        name = change.key[1]
        if change.new is None:
            self._phases.pop(name, None)
            return
        self._phases[name] = change.new
        if change.new == "Pending":
            self._due.put_nowait((name, "Running"))

    async def _work(self) -> None:
        while True:
            name, phase = await self._due.get()
            with contextlib.suppress(KubeError):
                await self._kube.patch(PODS, name, {"status": _status(phase)}, namespace=self._namespace, subresource="status")


def _status(phase: str) -> dict[str, Any]:
    runs = phase == "Running"
    ended = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": STAMP, "finishedAt": STAMP}}
    container = {
        "name": "pytorch",
        "image": "example/train:1",
        "imageID": "",
        "ready": runs,
        "restartCount": 0,
        "state": {"running": {"startedAt": STAMP}} if runs else ended,
    }
    return {
        "phase": phase,
        "conditions": [{"type": "Ready", "status": str(runs), "lastTransitionTime": STAMP}],
        "containerStatuses": [container],
    }
