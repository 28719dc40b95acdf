"""Observe the cluster through one cache per kind of object, and put together what a reconcile needs to know about one job.

It shows nothing before every cache is complete, and calls back with the key of each job to which something happened.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from elastic.api.names import OPERATOR_NAME, REPLICA_TYPE
from elastic.api.owners import controller_uid
from elastic.api.rights import MPI
from elastic.kube.cache import Cache, ViewChange
from elastic.kube.client import Kube
from elastic.kube.resources import (
    CONFIG_MAPS,
    NODES,
    PLUGIN_POD_GROUPS,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    VOLCANO_POD_GROUPS,
    Object,
    Resource,
)
from elastic.kube.view import uid_of
from elastic.signals.seen import on_job
from elastic.signals.signal import DisruptionSignal
from elastic.signals.table import BUILT_IN
from elastic_training.controller.facts.keys import JOBS, Key, key_of_labels, key_of_owner
from elastic_training.controller.facts.owned import OWNED_LABEL, RESOURCES, UNMARKED
from elastic_training.controller.facts.settings import Settings
from elastic_training.controller.facts.snapshot import Node, Owned, Pod, Service, Snapshot, WorldSeen, node_from, pod_from, service_from
from elastic_training.controller.watching.fed_view import FedView

STARVED = "CreateContainerConfigError"
BY_JOB, BY_UID, BY_NODE, BY_DOOM = "job", "uid", "node", "doom"
DOOMED = "doomed"


@dataclass(frozen=True, slots=True)
class _Mine:
    """An object that belongs to a job, and which job that is."""

    key: Key | None
    owner: str
    what: Pod | Service | Owned


class WatchScope(NamedTuple):
    """The watch that shows an object. The pods of replicas and other pods of a job have a watch each."""

    resource: Resource
    is_beside: bool


class Observer:
    def __init__(
        self,
        kube: Kube,
        *,
        kinds: Iterable[str],
        resources: Iterable[Resource],
        namespace: str | None = None,
        signals: Sequence[DisruptionSignal] = BUILT_IN,
    ) -> None:
        """`signals` is the table by which nodes, pods and jobs are read."""
        self._table = signals
        self.jobs: dict[str, FedView] = {
            kind: FedView(kube, JOBS[kind], project=_without_bulk, namespace=namespace, indexes={BY_UID: _uid}) for kind in kinds
        }
        self._pods = _cache(kube, PODS, partial(_pod, table=signals), namespace=namespace, labels=OPERATOR_NAME)
        # Nodes belong to no namespace: a controller that may see one namespace only does without their warnings.
        self._nodes = Cache(kube, NODES, project=partial(node_from, table=signals), indexes=OF_NODES) if namespace is None else None
        self._services = _cache(kube, SERVICES, _service, namespace=namespace, labels=OPERATOR_NAME)
        self._others = {r: _cache(kube, r, _owned, namespace=namespace, labels=None if r in UNMARKED else OWNED_LABEL) for r in resources}

    @property
    def sees_all(self) -> bool:
        """Could any job of the cluster be seen? With a view of one namespace, a job that is not seen may well be there."""
        return self._nodes is not None

    @property
    def _mine(self) -> list[Cache[_Mine]]:
        return [self._pods, self._services, *self._others.values()]

    @property
    def _all(self) -> list[Cache[Any] | FedView]:
        nodes = [self._nodes] if self._nodes is not None else []
        return [*self.jobs.values(), *self._mine, *nodes]

    async def run(self, changed: Callable[[Key], None]) -> None:
        """Keep the caches until cancelled. Call `changed` for every job that an object's change concerns."""
        changed = self._of_own_kinds(changed)
        for kind, jobs in self.jobs.items():
            jobs.subscribe(_telling(kind, changed))
        for cache in self._mine:
            cache.subscribe(lambda change: _tell(change, changed))
        if self._nodes is not None:
            self._nodes.subscribe(lambda change: self._tell_of_node(change, changed))
        async with asyncio.TaskGroup() as tasks:
            for each in self._all:
                tasks.create_task(each.run())

    def _of_own_kinds(self, changed: Callable[[Key], None]) -> Callable[[Key], None]:
        """Labels and owners also name jobs of kinds that are left to another operator."""

        def tell(key: Key) -> None:
            if key.kind in self.jobs:
                changed(key)

        return tell

    def _tell_of_node(self, change: ViewChange[Node], changed: Callable[[Key], None]) -> None:
        """Heartbeats change a node all the time; only what decides about its pods is passed on."""
        if change.old != change.new:
            for cache in (self._pods, self._others[PODS]):
                for mine in cache.by(BY_NODE, change.key[1]):
                    if mine.key is not None:
                        changed(mine.key)

    async def wait_synced(self) -> None:
        for cache in self._all:
            await cache.wait_synced()

    def lacking(self) -> list[str]:
        """Return the names of definitions whose objects have not been seen yet."""
        return [".".join(filter(None, (c.resource.plural, c.resource.group))) for c in self._all if not c.synced]

    def job_keys(self) -> list[Key]:
        return [Key(kind, *key) for kind, jobs in self.jobs.items() for key in tuple(jobs.keys())]

    def job(self, key: Key) -> Object | None:
        return self.jobs[key.kind].get(key.namespace, key.name)

    def key_of_uid(self, uid: str) -> Key | None:
        for kind, jobs in self.jobs.items():
            for job in jobs.by(BY_UID, uid):
                return Key(kind, job["metadata"].get("namespace", ""), job["metadata"]["name"])
        return None

    def is_starved(self, key: Key) -> bool:
        """Return whether a container of the job waits for something that it needs to start, such as a Secret."""
        pods = (mine.what for mine in self._pods.by(BY_JOB, str(key)))
        return any(c.waiting == STARVED for pod in pods if isinstance(pod, Pod) for c in pod.containers)

    def has_reached(self, scope: WatchScope, version: str, *, key: Key) -> bool:
        """Return whether our write is in view, so that the next reconcile does not repeat it."""
        if scope.resource == JOBS[key.kind]:
            return self.jobs[key.kind].shows((key.namespace, key.name), version)
        cache = self._cache_in(scope)
        return cache is None or cache.has_reached(version)

    def when_reached(self, scope: WatchScope, version: str, *, key: Key, call: Callable[[], None]) -> None:
        """Call back once when the scope has reached the version.

        Only the last version of a job and scope counts. Changes of the job itself are reported anyway.
        """
        cache = self._cache_in(scope)
        if cache is not None:
            cache.when_reached(version, waiter=key, call=call)

    def stop_waiting(self, key: Key) -> None:
        for cache in self._all:
            cache.stop_waiting(key)

    def _cache_in(self, scope: WatchScope) -> Cache[_Mine] | None:
        return self._others.get(scope.resource) if scope.is_beside else self._cache_of(scope.resource)

    def snapshot(
        self,
        key: Key,
        job: Object,
        *,
        now: datetime,
        settings: Settings,
        world: WorldSeen | None = None,
        is_forgotten: bool = False,
        last_step: int | None = None,
        token: str = "",
        launcher_token: str = "",
        etcd_password: str = "",
        term: int = 0,
    ) -> Snapshot:
        uid = job["metadata"]["uid"]

        def mine(cache: Cache[_Mine]) -> Iterable[Any]:
            return (m.what for m in cache.by(BY_JOB, str(key)) if m.owner == uid)

        pods: tuple[Pod, ...] = tuple(sorted(mine(self._pods), key=lambda pod: (pod.type, pod.index)))
        left = tuple(self._left_behind(key, uid))
        owned: tuple[Owned, ...] = tuple(item for cache in self._others.values() for item in mine(cache))
        bound: tuple[Pod | Owned, ...] = (*pods, *left, *owned)
        return Snapshot(
            now=now,
            settings=settings,
            pods=pods,
            left_behind=left,
            nodes={node.name: node for what in bound if (node := self._node_of(what)) is not None},
            doomed=tuple(node.name for node in self._nodes.by(BY_DOOM, DOOMED)) if self._nodes is not None else (),
            sees_nodes=self._nodes is not None,
            sights=on_job(self._table, job),
            services=tuple(mine(self._services)),
            owned=owned,
            world=world,
            is_forgotten=is_forgotten,
            last_step=last_step,
            token=token,
            launcher_token=launcher_token,
            etcd_password=etcd_password,
            term=term,
        )

    def _left_behind(self, key: Key, uid: str) -> Iterator[Pod]:
        """Yield the pods of an earlier job of that name: its replicas and its other pods."""
        for cache in (self._pods, self._others[PODS]):
            for mine in cache.by(BY_JOB, str(key)):
                if mine.owner != uid and isinstance(mine.what, Pod):
                    yield mine.what
                elif mine.owner != uid and isinstance(mine.what, Owned):
                    yield pod_from(mine.what.raw)

    def _node_of(self, what: Pod | Owned) -> Node | None:
        name = _node_name(what)
        return self._nodes.get("", name) if self._nodes is not None and name else None

    def _cache_of(self, resource: Resource) -> Cache[_Mine] | None:
        return next((cache for cache in (self._pods, self._services, *self._others.values()) if cache.resource == resource), None)


def _cache(
    kube: Kube, resource: Resource, project: Callable[[Object], _Mine], *, namespace: str | None, labels: str | None
) -> Cache[_Mine]:
    indexes = {BY_JOB: lambda mine: [str(mine.key)], BY_NODE: lambda mine: list(filter(None, [_node_name(mine.what)]))}
    return Cache(kube, resource, project=project, namespace=namespace, labels=labels, indexes=indexes)


OF_NODES: Mapping[str, Callable[[Node], Iterable[str]]] = {BY_DOOM: lambda node: [DOOMED] if node.is_doomed else []}


def _node_name(what: Pod | Service | Owned) -> str:
    if isinstance(what, Owned) and what.kind == "Pod":
        return str((what.raw.get("spec") or {}).get("nodeName") or "")
    return what.node if isinstance(what, Pod) else ""


def _telling(kind: str, changed: Callable[[Key], None]) -> Callable[[ViewChange[Object]], None]:
    return lambda change: changed(Key(kind, *change.key))


def _tell(change: ViewChange[_Mine], changed: Callable[[Key], None]) -> None:
    for mine in (change.old, change.new):
        if mine is not None and mine.key is not None:
            changed(mine.key)
            return


def _pod(raw: Object, *, table: Sequence[DisruptionSignal]) -> _Mine:
    return _Mine(key_of_labels(raw["metadata"]), controller_uid(raw["metadata"]), pod_from(raw, table))


def _service(raw: Object) -> _Mine:
    return _Mine(key_of_labels(raw["metadata"]), controller_uid(raw["metadata"]), service_from(raw))


def _owned(raw: Object) -> _Mine:
    """Return the job that owns an object. A replica's pod or service is never one of the other objects, whatever its labels say."""
    metadata = raw["metadata"]
    owned = Owned(kind=raw["kind"], name=metadata["name"], uid=metadata.get("uid", ""), raw=_without_bulk(raw))
    is_replicas = REPLICA_TYPE in (metadata.get("labels") or {})
    return _Mine(None if is_replicas else key_of_owner(metadata), controller_uid(metadata), owned)


def _uid(job: Mapping[str, Any]) -> list[str]:
    return [uid_of(job)]


def _without_bulk(raw: Object) -> Object:
    """ManagedFields are half of an object, and nothing here reads them."""
    raw["metadata"].pop("managedFields", None)
    return raw


def resources_of(kinds: Iterable[str], *, gang_scheduler: str) -> list[Resource]:
    """Return the kinds of objects that jobs may have in addition to their replicas, pods and services among them.

    Pod groups are watched only with a gang scheduler, and objects that only MPIJobs have only if MPIJobs are enabled: otherwise the
    controller needs no right to watch them. Secrets are read one by one.
    """
    groups = {"": None, "volcano": VOLCANO_POD_GROUPS}.get(gang_scheduler, PLUGIN_POD_GROUPS)
    without = {SECRETS, VOLCANO_POD_GROUPS, PLUGIN_POD_GROUPS} - {groups}
    without |= set() if MPI in kinds else {CONFIG_MAPS, SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS}
    return [resource for resource in RESOURCES.values() if resource not in without]
