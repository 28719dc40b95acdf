"""Read the Secrets of jobs one by one by name, because the right to list or watch Secrets is the right to read all of them.

A Secret is read when this process first needs it, and again before pods are created or while a pod waits for it. In between, the last
answer counts.
"""

import base64
import contextlib
from collections.abc import Iterable, Iterator
from typing import Protocol

from elastic.api.owners import controller_uid
from elastic.kube.resources import PODS, SECRETS, Object, Resource
from elastic_training.controller.deciding.actions import Create, Plan
from elastic_training.controller.facts.keys import Key
from elastic_training.controller.facts.snapshot import Owned


class Reader(Protocol):
    async def find(self, resource: Resource, name: str, *, namespace: str | None = None) -> Object | None: ...


class Secrets:
    def __init__(self, kube: Reader) -> None:
        self._kube = kube
        self._known: dict[Key, dict[str, Owned]] = {}

    def of(self, key: Key, uid: str) -> tuple[Owned, ...]:
        """Return the known Secrets of this job, without Secrets of such a name that another object owns."""
        return tuple(owned for owned in self._known.get(key, {}).values() if controller_uid(owned.raw["metadata"]) == uid)

    def remember(self, key: Key, written: Iterable[Object]) -> None:
        for item in written:
            metadata = item["metadata"]
            metadata.pop("managedFields", None)
            owned = Owned(kind=SECRETS.kind, name=metadata["name"], uid=metadata.get("uid", ""), raw=item)
            self._known.setdefault(key, {})[owned.name] = owned

    def forget(self, key: Key) -> None:
        self._known.pop(key, None)

    async def look(self, key: Key, job: Object, planned: Plan, *, is_starved: bool) -> bool:
        """Read the Secrets that the plan rests on or a pod may wait for. Return True if one of them is not as the plan took it to be."""
        before = self.of(key, uid := job["metadata"]["uid"])
        doubted = before if is_starved or _makes_pods(planned) else ()
        for name in sorted({*_missed(job, planned), *(owned.name for owned in doubted)}):
            if (secret := await self._kube.find(SECRETS, name, namespace=key.namespace)) is not None:
                self.remember(key, [secret])
            else:
                self._known.get(key, {}).pop(name, None)
        return self.of(key, uid) != before


def data_of(secret: Object) -> dict[str, str]:
    """Return the values of a Secret that are text."""
    held = {}
    for key, value in (secret.get("data") or {}).items():
        with contextlib.suppress(ValueError):
            held[key] = base64.b64decode(value).decode()
    return held


def _missed(job: Object, planned: Plan) -> Iterator[str]:
    """Yield the Secrets that the plan would create. A job without any condition has none yet, so there is nothing to look for."""
    if (job.get("status") or {}).get("conditions"):
        yield from (action.name for action in planned.actions if isinstance(action, Create) and action.resource == SECRETS)


def _makes_pods(planned: Plan) -> bool:
    return any(isinstance(action, Create) and action.resource == PODS for action in planned.actions)
