"""Create nothing in a namespace that is being deleted, once the API server has refused it there.

A namespace with many jobs takes minutes to go, and each of their reconciles would try to create pods, services and Events again.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from elastic.api.owners import controller_uid
from elastic.kube.errors import KubeError
from elastic.kube.resources import Object, Resource
from elastic.runtime.writers import PassingWriter, Writer

log = logging.getLogger(__name__)
CAUSE = "NamespaceTerminating"
PAUSE_S = 60.0
"""One request for each namespace asks again after this time: the namespace may be a new one."""
MOST_REMEMBERED = 1000
"""Namespaces to remember; beyond it the oldest are forgotten."""


def is_terminating(error: KubeError) -> bool:
    """Return whether the API server refused to create an object because its namespace is being deleted."""
    details = error.body.get("details")
    causes = details.get("causes") if isinstance(details, Mapping) else None
    found = causes if isinstance(causes, list) else ()
    return error.code == 403 and any(isinstance(cause, Mapping) and cause.get("reason") == CAUSE for cause in found)


@dataclass(slots=True)
class _Refusal:
    """Until when nothing is created in a namespace, and for which jobs this is known."""

    until: float
    owners: set[str] = field(default_factory=set)


class TerminatingNamespaces:
    """Remembers in which namespaces nothing can be created."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refusals: dict[str, _Refusal] = {}

    async def create(self, body: Object, send: Callable[[], Awaitable[Object]], *, namespace: str | None) -> Object:
        """Send a request that creates this object, unless its namespace is known to be going."""
        if namespace is None:
            return await send()
        owner = _owner(body)
        if not self._may_ask(namespace, owner):
            raise _refused(namespace)
        try:
            made = await send()
        except KubeError as error:
            if is_terminating(error):
                self._remember(namespace, owner)
            raise
        self._refusals.pop(namespace, None)
        return made

    def _may_ask(self, namespace: str, owner: str) -> bool:
        """Return whether this request may be sent: the first one of a job that is new, or the one that asks again after the pause."""
        known = self._refusals.get(namespace)
        if known is None:
            return True
        if owner in known.owners and self._clock() < known.until:
            return False
        # Requests that begin before this one is answered wait for its answer.
        known.owners.add(owner)
        known.until = max(known.until, self._clock() + PAUSE_S)
        return True

    def _remember(self, namespace: str, owner: str) -> None:
        known = self._refusals.get(namespace)
        if known is None:
            log.info("the namespace is being deleted, so nothing is created there", extra={"namespace": namespace})
            while len(self._refusals) >= MOST_REMEMBERED:
                del self._refusals[next(iter(self._refusals))]
            known = self._refusals[namespace] = _Refusal(0.0)
        known.owners.add(owner)
        known.until = self._clock() + PAUSE_S


class ConsiderateWriter(PassingWriter):
    """A writer that creates nothing in a namespace that is being deleted. It changes and deletes objects there as ever."""

    def __init__(self, writer: Writer, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(writer)
        self._namespaces = TerminatingNamespaces(clock=clock)

    async def create(self, resource: Resource, body: Object, *, namespace: str | None = None) -> Object:
        """Create an object unless its namespace is known to be going."""
        create = super().create
        return await self._namespaces.create(body, lambda: create(resource, body, namespace=namespace), namespace=namespace)


def _owner(body: Object) -> str:
    """Return the uid of the job that this object belongs to or, if it is an Event, is about."""
    about = body.get("involvedObject")
    if isinstance(about, Mapping):
        return str(about.get("uid") or "")
    return controller_uid(body.get("metadata"))


def _refused(namespace: str) -> KubeError:
    cause = {"reason": CAUSE, "message": f"namespace {namespace} is being terminated", "field": "metadata.namespace"}
    message = f"not sent: namespace {namespace} is being deleted"
    return KubeError(code=403, reason="Forbidden", message=message, body={"details": {"causes": [cause]}})
