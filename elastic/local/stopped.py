"""Jobs that were under way when the laptop cluster ended.

`elastic down` suspends them and lets their programs save. After any other end they are suspended before a pod of theirs can start. They
wait until a user resumes them, and each keeps the working directory that it was applied with. Other pods that ran have failed, like those
of a node that was shut down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from elastic.api.kinds import KINDS, Kind
from elastic.api.names import STOPPED
from elastic.api.owners import controller_of, owners_of
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.following import resource_of
from elastic.kube.resources import PODS, Object
from elastic.local.agent.launch import WORKING_DIR
from elastic.local.agent.lifecycle import grace_s

log = logging.getLogger(__name__)

OVER = ("Succeeded", "Failed")
SPARE_S, QUIET_S, LOOK_S = 10.0, 2.0, 0.1
"""Seconds that the cluster may take besides the pods' grace, until the user is told of the wait, and between two looks."""
MESSAGE = "The laptop cluster was stopped while this pod ran."


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job as the API has it. Only the few fields that are read here must be valid."""

    kind: Kind
    object: Object

    @property
    def namespace(self) -> str:
        return str(self.object["metadata"]["namespace"])

    @property
    def name(self) -> str:
        return str(self.object["metadata"]["name"])

    @property
    def title(self) -> str:
        return f"{self.kind.name} {self.namespace}/{self.name}"

    @property
    def is_over(self) -> bool:
        conditions = (self.object.get("status") or {}).get("conditions") or ()
        return any(condition.get("type") in OVER and condition.get("status") == "True" for condition in conditions)

    @property
    def is_suspended(self) -> bool:
        return bool((self._spec.get("runPolicy") or {}).get("suspend"))

    @property
    def was_stopped(self) -> bool:
        return self.is_suspended and STOPPED in (self.object["metadata"].get("annotations") or {})

    @property
    def working_dirs(self) -> dict[str, str]:
        """The known working directories by replica type."""
        found = {}
        for type, template in self._templates.items():
            annotations = (template.get("metadata") or {}).get("annotations") or {}
            if annotations.get(WORKING_DIR):
                found[type] = str(annotations[WORKING_DIR])
        return found

    def without_working_dir(self) -> list[str]:
        """Replica types whose folder to start in is unknown."""
        known = self.working_dirs
        return [type for type, template in self._templates.items() if type not in known and not _all_say_where(template)]

    def patch(self, *, annotations: dict[str, str | None], suspend: bool | None, working_dir: str, types: Iterable[str]) -> Object:
        """Return a merge patch; `working_dir` goes into the templates of these types."""
        placed = {type: {"template": {"metadata": {"annotations": {WORKING_DIR: working_dir}}}} for type in types}
        spec: Object = {self.kind.replica_key: placed} if placed else {}
        return {"metadata": {"annotations": annotations}, "spec": {**spec, "runPolicy": {"suspend": suspend}}}

    @property
    def _spec(self) -> Object:
        return self.object.get("spec") or {}

    @property
    def _templates(self) -> dict[str, Object]:
        replicas = self._spec.get(self.kind.replica_key) or {}
        return {type: (spec or {}).get("template") or {} for type, spec in replicas.items()}


def _all_say_where(template: Object) -> bool:
    containers = (template.get("spec") or {}).get("containers") or ()
    return all(container.get("workingDir") for container in containers)


async def stored_jobs(kube: Kube) -> list[StoredJob]:
    """Return the jobs that have not ended."""
    lists = await asyncio.gather(*(_list(kube, kind) for kind in KINDS.values()))
    return [job for found in lists for job in found if not job.is_over]


async def _list(kube: Kube, kind: Kind) -> list[StoredJob]:
    try:
        return [StoredJob(kind, item) for item in (await kube.list(resource_of(kind))).items]
    except KubeError as error:
        if error.code == 404:  # the definition is not there
            return []
        raise


async def suspend_all(kube: Kube, *, working_dir: str, say: Callable[[str], None]) -> None:
    """Suspend the jobs, and wait until their pods have ended within their grace, because programs save their state meanwhile."""
    jobs = [job for job in await stored_jobs(kube) if not job.is_suspended]
    await asyncio.gather(*(_suspend(kube, job, working_dir) for job in jobs))
    uids = {job.object["metadata"]["uid"] for job in jobs}
    loop = asyncio.get_running_loop()
    began = loop.time()
    until: float | None = None
    has_said = False
    while pods := [pod for pod in (await kube.list(PODS)).items if _is_of(pod, uids)]:
        if until is None:
            until = began + SPARE_S + max(map(grace_s, pods))
        if loop.time() > until:
            say(f"{len(pods)} pods of jobs have not ended in time, and are killed")
            return
        if not has_said and loop.time() > began + QUIET_S:
            has_said = True
            say(f"waits for {len(pods)} pods of jobs to save their state and end, at most {until - loop.time():.0f} s more")
        await asyncio.sleep(LOOK_S)


def _is_of(pod: Object, jobs: Collection[str]) -> bool:
    """Return whether a pod of these jobs has not ended."""
    is_over = (pod.get("status") or {}).get("phase") in OVER
    return not is_over and bool(pod["spec"].get("nodeName")) and any(owner.uid in jobs for owner in owners_of(pod["metadata"]))


async def stop_all(kube: Kube, *, working_dir: str) -> None:
    """Stop the jobs and pods that the cluster held when it ended. `working_dir` is where it was started; empty if unknown."""
    await asyncio.gather(*(_suspend(kube, job, working_dir) for job in await stored_jobs(kube)))
    pods = (await kube.list(PODS)).items
    await asyncio.gather(*(_end(kube, pod) for pod in pods if (pod.get("status") or {}).get("phase") not in OVER))


async def _suspend(kube: Kube, job: StoredJob, working_dir: str) -> None:
    types = job.without_working_dir() if working_dir else []
    ran = not job.is_suspended
    if not ran and not types:
        return
    stamp: dict[str, str | None] = {STOPPED: datetime.now(UTC).isoformat(timespec="seconds")} if ran else {}
    body = job.patch(annotations=stamp, suspend=True, working_dir=working_dir, types=types)
    try:
        await kube.patch(resource_of(job.kind), job.name, body, namespace=job.namespace)
    except KubeError as error:
        log.warning("%s cannot be suspended and will start again: %s", job.title, error.message)


async def _end(kube: Kube, pod: Object) -> None:
    """Delete a job's pod, which is created again when the job resumes. Mark any other pod as failed: nothing creates it again."""
    metadata = pod["metadata"]
    owner = controller_of(metadata)
    try:
        if (owner is not None and owner.kind in KINDS) or "deletionTimestamp" in metadata:
            await kube.delete(PODS, metadata["name"], namespace=metadata["namespace"], grace_s=0, uid=metadata["uid"])
        elif pod["spec"].get("nodeName"):
            body = {"status": {"phase": "Failed", "reason": "Terminated", "message": MESSAGE}}
            await kube.patch(PODS, metadata["name"], body, namespace=metadata["namespace"], subresource="status")
    except KubeError as error:
        if error.code != 404:
            log.warning(
                "pod %s/%s of the earlier cluster was not ended and may start again: %s",
                metadata["namespace"],
                metadata["name"],
                error.message,
            )


async def resume(kube: Kube, job: StoredJob, *, working_dir: str = "") -> None:
    """Let a stopped job start; `working_dir` replaces the one that it has."""
    types = list(job.object["spec"][job.kind.replica_key]) if working_dir else []
    body = job.patch(annotations={STOPPED: None}, suspend=None, working_dir=working_dir, types=types)
    await kube.patch(resource_of(job.kind), job.name, body, namespace=job.namespace)
