"""Put the documents of a file into a cluster, remember the objects that this made, and delete them again on request.

A job is created, because it runs once. All other documents are applied, because they may exist already. An object that existed is never
deleted, unless a job is to be replaced. The server judges the documents, and its refusal is passed on in words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from elastic.api.kinds import KINDS
from elastic.api.names import JOB_NAME
from elastic.api.owners import is_owned_by
from elastic.kube.client import Kube, Patch
from elastic.kube.errors import KubeError
from elastic.kube.following import FollowedJob, resource_of
from elastic.kube.resources import NAMESPACES, PODS, Object, Resource

FIELD_MANAGER = "elastic-run"
Waits = Callable[[str], None]
HowToDefine = Callable[[Kube], Awaitable[str]]
GONE_S = 90.0
LOOK_EVERY_S = 0.2
MOST_NUMBERED = 100
"""Names that are tried for a job whose own name is taken."""


def _in_silence(words: str) -> None:
    pass


class SubmissionRefused(Exception):
    """The cluster did not take a document; the text says which and why."""


@dataclass(frozen=True, slots=True)
class _Made:
    resource: Resource
    namespace: str | None
    name: str
    uid: str

    @property
    def title(self) -> str:
        return f"{self.resource.kind} {self.name}"


class Submission:
    """Creates jobs. With `replace`, a job of the same name is deleted first; with `replace_over`, only a finished one.

    With `numbers`, a job whose name an unfinished one has gets the next free name of NAME-2, NAME-3 and so on.
    `waits` hears again and again which deletion is not done yet. `how_to_define` says how to define kinds of jobs that a cluster does not
    know.
    """

    def __init__(
        self,
        kube: Kube,
        *,
        namespace: str,
        replace: bool = False,
        replace_over: bool = False,
        numbers: bool = False,
        how_to_define: HowToDefine | None = None,
    ) -> None:
        self._kube, self._namespace, self._replace, self._replace_over = kube, namespace, replace, replace_over
        self._numbers = numbers
        self._how_to_define = how_to_define
        self._made: list[_Made] = []
        self._resources: dict[str, dict[str, Resource]] = {}

    async def make_namespaces(self, documents: Iterable[Object]) -> None:
        """Make the namespaces that these documents name, and ours for documents that name none.

        A namespace that was made here stays, because more than this run may use it.
        """
        for name in dict.fromkeys((document.get("metadata") or {}).get("namespace") or self._namespace for document in documents):
            await self._make_namespace(name)

    async def _make_namespace(self, name: str) -> None:
        try:
            await self._kube.create(NAMESPACES, {"metadata": {"name": name}})
        except KubeError as error:
            if error.code != 409:
                raise SubmissionRefused(f"namespace {name} cannot be made: {error.words}") from error

    async def apply(self, document: Object) -> None:
        """Server-side apply of an object that is no job."""
        metadata = document.get("metadata") or {}
        name = metadata.get("name")
        if not name:
            raise SubmissionRefused(f"{document.get('kind', 'an object')} has no metadata.name; give it one")
        resource = await self._resource(str(document.get("apiVersion", "")), str(document.get("kind", "")))
        namespace = (metadata.get("namespace") or self._namespace) if resource.namespaced else None
        try:
            was_there = await self._kube.find(resource, name, namespace=namespace)
            made = await self._kube.patch(
                resource, name, document, namespace=namespace, kind=Patch.APPLY, field_manager=FIELD_MANAGER, force=True
            )
        except KubeError as error:
            raise SubmissionRefused(f"{resource.kind} {name}: {error.words}{_of_namespace(error)}") from error
        if was_there is None:
            self._made.append(_Made(resource, namespace, name, made["metadata"]["uid"]))

    async def create(self, document: Object, waits: Waits = _in_silence) -> FollowedJob:
        """Create a job. An existing job of the name is in the way, unless it is to be replaced."""
        kind = KINDS[document["kind"]]
        resource = resource_of(kind)
        metadata = document["metadata"]
        namespace = metadata.get("namespace") or self._namespace
        try:
            if self._numbers and not self._replace:
                metadata = {**metadata, "name": await self._unused_name(resource, metadata["name"], namespace=namespace)}
            if "name" in metadata:
                await self._clear(resource, metadata["name"], namespace=namespace, waits=waits)
            made = (await self._kube.create(resource, {**document, "metadata": metadata}, namespace=namespace))["metadata"]
        except KubeError as error:
            raise SubmissionRefused(
                f"{kind.name} {metadata.get('name', '')}: {error.words}{await self._remedy(error, kind.name)}"
            ) from error
        self._made.append(_Made(resource, namespace, made["name"], made["uid"]))
        return FollowedJob(kind, namespace, made["name"], made["uid"])

    async def undo(self, waits: Waits = _in_silence) -> list[str]:
        """Delete the objects made here, the newest first, and wait until they are gone with their pods. Return those not gone in time."""
        left: list[str] = []
        for made in reversed(self._made):
            try:
                async with asyncio.timeout(GONE_S):
                    await self._delete(made, waits)
            except TimeoutError:
                left.append(f"{made.title}: not gone after {GONE_S:.0f} s")
            except KubeError as error:
                left.append(f"{made.title}: {error.words}")
        return left

    async def _unused_name(self, resource: Resource, name: str, *, namespace: str) -> str:
        """Return the name if no unfinished job has it, or the first numbered one that no job has.

        A finished job of a numbered name may be another script's, and stays.
        """
        for number in range(1, MOST_NUMBERED + 1):
            numbered = name if number == 1 else f"{name}-{number}"
            found = await self._kube.find(resource, numbered, namespace=namespace)
            if found is None or (number == 1 and _is_over(found)):
                return numbered
        raise SubmissionRefused(f"{name} and {MOST_NUMBERED - 1} numbered names belong to unfinished jobs; give this one a --name")

    async def _clear(self, resource: Resource, name: str, *, namespace: str, waits: Waits) -> None:
        found = await self._kube.find(resource, name, namespace=namespace)
        if found is None:
            return
        if not self._replace and not (self._replace_over and _is_over(found)):
            raise SubmissionRefused(
                f"{resource.kind} {name} is there already in namespace {namespace}; give the job another name, "
                "or delete the one that is there first with --replace"
            )
        try:
            async with asyncio.timeout(GONE_S):
                await self._delete(_Made(resource, namespace, name, found["metadata"]["uid"]), waits)
        except TimeoutError:
            raise SubmissionRefused(f"{resource.kind} {name} was to be replaced, but is not gone after {GONE_S:.0f} s") from None

    async def _delete(self, made: _Made, waits: Waits) -> None:
        try:
            await self._kube.delete(made.resource, made.name, namespace=made.namespace, propagation="Background", uid=made.uid)
        except KubeError as error:
            if error.code not in (404, 409):  # gone, or another object has the name by now
                raise
        while True:  # the callers' time-outs bound it
            if not await self._is_there(made):
                return
            waits(f"{made.title} and its pods to be gone" if made.resource.kind in KINDS else f"{made.title} to be gone")
            await asyncio.sleep(LOOK_EVERY_S)

    async def _is_there(self, made: _Made) -> bool:
        found = await self._kube.find(made.resource, made.name, namespace=made.namespace)
        if found is not None and found["metadata"]["uid"] == made.uid:
            return True
        if made.resource.kind not in KINDS:
            return False
        pods = await self._kube.list(PODS, namespace=made.namespace, labels=f"{JOB_NAME}={made.name}")
        return any(is_owned_by(pod["metadata"], made.uid) for pod in pods.items)

    async def _remedy(self, error: KubeError, kind: str) -> str:
        """Return the remedy for a job that was refused."""
        if error.code != 404 or (error.body.get("details") or {}).get("kind"):
            return _of_namespace(error)
        how = f"; {await self._how_to_define(self._kube)}" if self._how_to_define is not None else ""
        return f"; the cluster does not know {kind}{how}"

    async def _resource(self, api_version: str, kind: str) -> Resource:
        """Return the path under which the server keeps objects of a kind."""
        if api_version not in self._resources:
            self._resources[api_version] = await self._discover(api_version)
        found = self._resources[api_version].get(kind)
        if found is None:
            raise SubmissionRefused(f"the server knows no kind {kind or '(none given)'} in apiVersion {api_version or '(none given)'}")
        return found

    async def _discover(self, api_version: str) -> dict[str, Resource]:
        group, _, version = api_version.rpartition("/")
        try:
            answer = await self._kube.request("GET", f"/apis/{group}/{version}" if group else f"/api/{version}")
        except KubeError as error:
            if error.code == 404:
                return {}
            raise SubmissionRefused(f"apiVersion {api_version}: {error.words}") from error
        known = [entry for entry in answer.get("resources") or () if "/" not in entry["name"]]
        return {entry["kind"]: Resource(group, version, entry["name"], entry["namespaced"], entry["kind"]) for entry in known}


def _is_over(job: Object) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(condition.get("type") in ("Succeeded", "Failed") and condition.get("status") == "True" for condition in conditions)


def _of_namespace(error: KubeError) -> str:
    """Return how to create the missing namespace, or nothing if the error is another."""
    details = error.body.get("details") or {}
    if error.code != 404 or details.get("kind") != "namespaces":
        return ""
    name = details.get("name", "")
    return f"; make it with `kubectl create namespace {name}`, or with `elastic run --create-namespace`"
