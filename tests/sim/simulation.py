"""The controller's real plan and apply on a fake cluster, in virtual time, with faults drawn from a seed.
The same seed gives the same run. Kubelets, users, evictions, lost answers, crashes and old views are all one random sequence.
"""

import asyncio
import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from controller.actions import Tell
from controller.apply import Applier, Outcome
from controller.keys import JOBS, Key
from controller.objects import OWNED_LABEL, UNMARKED
from controller.observe import OTHER_RESOURCES
from controller.plan import plan
from controller.settings import Rendezvous, Settings
from controller.snapshot import Owned, Snapshot, World, pod_from, service_from
from controller.tell import Teller
from elastic.api import parse
from elastic.kube.errors import KubeError
from elastic.kube.resources import EVENTS, PODS, SERVICES, Object, Resource

NAMESPACE, NAME = "team", "train"
START = datetime(2026, 1, 1, tzinfo=UTC)


class Crash(Exception):
    """The controller's process ends here, in the middle of whatever it did."""


@dataclass(frozen=True)
class Faults:
    """Chances per API call: refused, done but the answer lost, and the end of the controller before or after it."""

    refused: float = 0.05
    answer_lost: float = 0.05
    crash: float = 0.02


NO_FAULTS = Faults(0, 0, 0)


class FakeKube:
    """The verbs that Applier uses, on dicts, with versions, uids and preconditions as the real server has them."""

    def __init__(self, draw: random.Random) -> None:
        self.objects: dict[tuple[Resource, str], Object] = {}
        self.version = 0
        self.faults = NO_FAULTS
        self.now = START
        self.writes = 0
        self._draw = draw

    async def create(self, resource: Resource, body: Object, *, namespace: str) -> Object:
        return self._call(lambda: self._create(resource, body))

    async def get(self, resource: Resource, name: str, *, namespace: str) -> Object:
        return self._call(lambda: copy.deepcopy(self._find(resource, name)))

    async def patch(self, resource: Resource, name: str, body: Object, *, namespace: str, subresource: str | None = None) -> Object:
        return self._call(lambda: self._patch(resource, name, body))

    async def delete(self, resource: Resource, name: str, *, namespace: str, uid: str, **_: Any) -> Object:
        return self._call(lambda: self._delete(resource, name, uid))

    def all(self, resource: Resource) -> Iterator[Object]:
        return (item for (found, _), item in list(self.objects.items()) if found == resource)

    def change(self, resource: Resource, name: str, change: Callable[[Object], None]) -> None:
        """Somebody else's write."""
        item = self._find(resource, name)
        change(item)
        self._touch(item)

    def drop(self, resource: Resource, name: str) -> None:
        self.version += 1
        self.objects.pop((resource, name), None)

    def _call(self, act: Callable[[], Object]) -> Object:
        drawn = self._draw.random()
        if drawn < self.faults.crash / 2:
            raise Crash
        if drawn < self.faults.crash / 2 + self.faults.refused:
            raise KubeError(code=self._draw.choice([409, 429, 500, 503]), reason="Busy", message="not now")
        answer = act()
        if drawn > 1 - self.faults.crash / 2:
            raise Crash
        if drawn > 1 - self.faults.crash / 2 - self.faults.answer_lost:
            raise KubeError(code=0, reason="Unreachable", message="the connection broke")
        return answer

    def _find(self, resource: Resource, name: str) -> Object:
        try:
            return self.objects[resource, name]
        except KeyError:
            raise KubeError(code=404, reason="NotFound", message=f"{resource.plural} {name} not found") from None

    def _touch(self, item: Object) -> Object:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(item)

    def _create(self, resource: Resource, body: Object) -> Object:
        item = copy.deepcopy(body)
        key = (resource, item["metadata"]["name"])
        if key in self.objects:
            raise KubeError(code=409, reason="AlreadyExists", message=f"{key[1]} already exists")
        self.writes += resource != EVENTS
        item["metadata"]["uid"] = f"uid-{self.version + 1}"
        if resource == PODS:
            item["status"] = {"phase": "Pending"}
        if resource != EVENTS:
            self.objects[key] = item
        return self._touch(item)

    def _patch(self, resource: Resource, name: str, body: Object) -> Object:
        item = self._find(resource, name)
        wanted = (body.get("metadata") or {}).get("resourceVersion")
        if wanted is not None and wanted != item["metadata"]["resourceVersion"]:
            raise KubeError(code=409, reason="Conflict", message="the object has been modified")
        self.writes += 1
        _merge(item, {key: value for key, value in body.items() if key != "metadata"})
        return self._touch(item)

    def _delete(self, resource: Resource, name: str, uid: str) -> Object:
        item = self._find(resource, name)
        if item["metadata"]["uid"] != uid:
            raise KubeError(code=409, reason="Conflict", message="the precondition of the uid failed")
        self.writes += 1
        if resource == PODS and item["status"]["phase"] == "Running":
            if "deletionTimestamp" not in item["metadata"]:
                item["metadata"]["deletionTimestamp"] = (self.now + timedelta(seconds=30)).isoformat()
            return self._touch(item)
        self.drop(resource, name)
        return copy.deepcopy(item)


def _merge(target: Object, patch: Object) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = copy.deepcopy(value)


class FakeRendezvous:
    """Seals a world of all told members that run, whenever that changes; it can be deaf for a while."""

    def __init__(self) -> None:
        self.told: Tell | None = None
        self.is_deaf = False
        self.world: World | None = None
        self.seen_leaving: set[str] = set()

    async def tell(self, job_uid: str, told: Tell) -> None:
        if self.is_deaf:
            raise ConnectionError("nobody listens")
        self.told = told
        self.seen_leaving |= {leave.member for leave in told.leaving}

    async def forget(self, job_uid: str) -> None:
        self.told = self.world = None

    def seal(self, running: set[str]) -> None:
        if self.told is None or self.is_deaf:
            return
        members = frozenset(running & set(self.told.members))
        if self.world is None or members != self.world.members:
            generation = max(self.told.floor, self.world.generation if self.world else 0) + 1
            self.world = World(generation=generation, members=members, phase="running" if members else "forming")


class Simulation:
    """One job, one cluster, one or two controllers."""

    def __init__(self, manifest: Object, *, seed: int, ours: bool = False, faults: Faults | None = None) -> None:
        self.draw = random.Random(seed)
        self.kube = FakeKube(self.draw)
        self.kube.faults = faults if faults is not None else Faults()
        self.rendezvous = FakeRendezvous() if ours else None
        self.settings = Settings(rendezvous=Rendezvous(endpoint="r:1", ca="CA") if ours else None)
        self.kind = manifest["kind"]
        self.resource = JOBS[self.kind]
        self.user_failures = 0
        self.history: list[str] = []
        self.views: list[dict[tuple[Resource, str], Object]] = []
        self._applier = self._new_controller()
        self.kube.objects[self.resource, NAME] = self.kube._touch(copy.deepcopy(manifest)) | {}
        self.least_view = 0

    @property
    def job(self) -> Object:
        return self.kube.objects[self.resource, NAME]

    def pods(self) -> list[Object]:
        return list(self.kube.all(PODS))

    def live(self) -> list[str]:
        """Pods that are there to stay, as far as the cluster knows."""
        return [p["metadata"]["name"] for p in self.pods() if not _is_deleting(p) and p["status"]["phase"] in ("Pending", "Running")]

    def state(self) -> str:
        conditions = self.job.get("status", {}).get("conditions") or [{"type": "", "status": "True"}]
        return str(conditions[-1]["type"]) if conditions[-1]["status"] == "True" else f"not {conditions[-1]['type']}"

    def is_over(self) -> bool:
        return any(
            c["type"] in ("Succeeded", "Failed") and c["status"] == "True" for c in self.job.get("status", {}).get("conditions") or ()
        )

    def round(self, *, view: dict[tuple[Resource, str], Object] | None = None) -> Outcome | None:
        """One round of a controller on the current view, or on an older one; None if it crashed in it."""
        seen = view if view is not None else copy.deepcopy(self.kube.objects)
        raw = seen[self.resource, NAME]
        job, _ = parse(raw, stored=True)
        planned = plan(job, self._snapshot(seen))
        key = Key(self.kind, NAMESPACE, NAME)
        try:
            return asyncio.run(self._applier.carry_out(key, raw, planned, old=job.status, now=self.kube.now))
        except Crash:
            self.history.append("crash")
            self._applier = self._new_controller()
            return None

    def calm(self, *, rounds: int = 60) -> None:
        """No more faults, kubelets do their work: after this everything must be right."""
        self.kube.faults = NO_FAULTS
        if self.rendezvous is not None:
            self.rendezvous.is_deaf = False
        for _ in range(rounds):
            before = self.kube.writes
            self.round()
            self.kubelet(failures=False, everything=True)
            self.kube.now += timedelta(seconds=31)
            if self.kube.writes == before and all(p["status"]["phase"] != "Pending" for p in self.pods()):
                self.round()
                if self.kube.writes == before:
                    return
        raise AssertionError(f"never settles: {self.state()} {[_brief(p) for p in self.pods()]}")

    def kubelet(self, *, failures: bool, everything: bool = False) -> None:
        for pod in self.pods():
            name = pod["metadata"]["name"]
            if not everything and self.draw.random() < 0.5:
                continue
            if _is_deleting(pod):
                self.kube.drop(PODS, name)
            elif pod["status"]["phase"] == "Pending":
                self.kube.change(PODS, name, lambda p: p["status"].update(_running()))
            elif failures and pod["status"]["phase"] == "Running" and self.draw.random() < 0.1:
                self.user_failures += 1
                self.history.append(f"{name} fails")
                self.kube.change(PODS, name, lambda p: p["status"].update(_failed(p)))
        if self.rendezvous is not None:
            self.rendezvous.seal({p["metadata"]["name"] for p in self.pods() if p["status"]["phase"] == "Running" and not _is_deleting(p)})

    def evict(self) -> None:
        running = [p for p in self.pods() if p["status"]["phase"] == "Running" and not _is_deleting(p)]
        if running:
            name = self.draw.choice(running)["metadata"]["name"]
            self.history.append(f"{name} is evicted")
            if self.draw.random() < 0.5:
                self.kube.change(PODS, name, lambda p: p["status"].update({"phase": "Failed", "reason": "Evicted"}))
            else:
                gone_by = (self.kube.now + timedelta(seconds=30)).isoformat()
                self.kube.change(PODS, name, lambda p: p["metadata"].update({"deletionTimestamp": gone_by}))

    def scale(self, workers: int) -> None:
        self.history.append(f"scale to {workers}")
        key = next(key for key in self.job["spec"] if key.endswith("ReplicaSpecs"))
        self.kube.change(self.resource, NAME, lambda j: j["spec"][key]["Worker"].update({"replicas": workers}))

    def suspend(self, is_suspended: bool) -> None:
        self.history.append(f"suspend {is_suspended}")
        self.kube.change(self.resource, NAME, lambda j: j["spec"]["runPolicy"].update({"suspend": is_suspended}))

    def remember_view(self) -> None:
        self.views = [*self.views[-5:], copy.deepcopy(self.kube.objects)]

    def _new_controller(self) -> Applier:
        return Applier(self.kube, Teller(self.kube), self.rendezvous)  # type: ignore[arg-type]

    def _snapshot(self, seen: dict[tuple[Resource, str], Object]) -> Snapshot:
        uid = seen[self.resource, NAME]["metadata"]["uid"]
        marked = [(r, item) for (r, _), item in seen.items() if r in OTHER_RESOURCES]
        others = [(r, i) for r, i in marked if r in UNMARKED or OWNED_LABEL in i["metadata"].get("labels", {})]
        pods = sorted((pod_from(i) for (r, _), i in seen.items() if r == PODS), key=lambda pod: (pod.type, pod.index))
        return Snapshot(
            now=self.kube.now,
            settings=self.settings,
            pods=tuple(pods),
            services=tuple(service_from(i) for (r, _), i in seen.items() if r == SERVICES),
            owned=tuple(Owned(kind=r.kind, name=i["metadata"]["name"], uid=i["metadata"]["uid"], raw=i) for r, i in others),
            world=self.rendezvous.world if self.rendezvous is not None else None,
            token=f"token of {uid}",
        )


def _is_deleting(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _brief(pod: Object) -> str:
    return f"{pod['metadata']['name']} {pod['status']['phase']}{' leaving' if _is_deleting(pod) else ''}"


def _running() -> Object:
    return {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def _failed(pod: Object) -> Object:
    container = pod["spec"]["containers"][0]["name"]
    return {"phase": "Failed", "containerStatuses": [{"name": container, "state": {"terminated": {"exitCode": 1}}}]}
