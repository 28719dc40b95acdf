"""Assemble the API server, and run it on its sockets until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import socket
import sqlite3
from uuid import uuid4

from aiohttp import web

from elastic.local.apiserver import kinds, usage
from elastic.local.apiserver.admission import BuiltInAdmission
from elastic.local.apiserver.aggregation.asking import Asking
from elastic.local.apiserver.aggregation.availability import Availability
from elastic.local.apiserver.aggregation.passing import Passing
from elastic.local.apiserver.aggregation.registered import Registered
from elastic.local.apiserver.aggregation.remotes import Remotes
from elastic.local.apiserver.audit import Audit
from elastic.local.apiserver.auth import Tokens
from elastic.local.apiserver.datadir import SERVICE_ADDRESS, DataDir
from elastic.local.apiserver.definitions import STORAGE, Definitions
from elastic.local.apiserver.delegation import Delegation
from elastic.local.apiserver.errors import Json
from elastic.local.apiserver.eventlife import EventLife
from elastic.local.apiserver.faults import Faults
from elastic.local.apiserver.http import Edge
from elastic.local.apiserver.kubelet import Kubelets
from elastic.local.apiserver.objects import Objects, now_text
from elastic.local.apiserver.policies import SYSTEM_PRIORITIES
from elastic.local.apiserver.proxying import Proxy
from elastic.local.apiserver.rbac import BOOTSTRAP_BINDINGS, BOOTSTRAP_ROLES, GROUP, Rbac
from elastic.local.apiserver.resources import Registry
from elastic.local.apiserver.reviews import Reviews
from elastic.local.apiserver.routes import Routes
from elastic.local.apiserver.store import Store
from elastic.local.apiserver.subresources import Subresources
from elastic.local.apiserver.webhooks import Webhooks
from elastic.local.apiserver.writes import Writes
from elastic.runtime.listener import Bounds, Listener

log = logging.getLogger("elastic.local.apiserver")
MOST_CONNECTIONS, MOST_STRANGERS = 8192, 512
NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease", "elastic-system")


class ApiServer:
    def __init__(self, data: DataDir, faults: Faults | None = None, audit: Audit | None = None, *, guards_owners: bool = False) -> None:
        self._data = data
        self.registry = Registry()
        self.registry.add(*kinds.built_in(), *usage.kinds())
        self.store = Store(data.database, self._fields)
        self.tokens = Tokens(data.signing_key, data.admin_token, self._alive)
        rbac = Rbac(self.store)
        self._kubelets = Kubelets(self.store, data.kubelet_context)
        routes = Routes(self.store, self._kubelets)
        self._webhooks = Webhooks(self.store, self.registry, routes)
        admission = BuiltInAdmission(self.store, self._webhooks, Delegation(rbac, self.registry, audit=audit, guards_owners=guards_owners))
        objects = Objects(self.store, admission)
        self.writes = writes = Writes(objects, self.store)
        self._remotes = Remotes(self.store, self.registry)
        self._asking = Asking(routes, data.root / "front-proxy-client.crt", data.root / "front-proxy-client.key")
        self._availability = Availability(self.store, self._remotes, routes, self._asking)
        self._registered = Registered(self.store, self._ensure)
        self._edge = Edge(
            store=self.store,
            registry=self.registry,
            objects=objects,
            tokens=self.tokens,
            rbac=rbac,
            reviews=Reviews(self.tokens, rbac),
            writes=writes,
            subresources=Subresources(objects, writes, self.store, self.registry, self.tokens),
            kubelets=self._kubelets,
            proxy=Proxy(self.store, routes, self._kubelets),
            usage=usage.Usages(self.store, self.registry, self._kubelets),
            remotes=self._remotes,
            passing=Passing(rbac, self._asking, audit),
            faults=faults,
            audit=audit,
        )
        self._definitions = Definitions(self.store, self.registry, self._edge.end_watches, self._registered)
        self._runner: web.AppRunner | None = None
        self._listener: Listener | None = None
        self._beside: list[asyncio.Task[None]] = []

    def _fields(self, resource: str, obj: Json) -> dict[str, str]:
        kind = self.registry.by_storage(resource)
        return kind.strategy.fields(obj) if kind else {}

    def _alive(self, resource: str, namespace: str, name: str, uid: str) -> bool:
        entry = self.store.get(resource, namespace, name)
        return entry is not None and entry.load()["metadata"]["uid"] == uid

    def load(self) -> None:
        """Read the stored objects, serve the definitions among them, and make the objects that every cluster has."""
        present = [entry for resource, entry in self.store.load() if resource == STORAGE]
        self._definitions.start(present)
        for name in NAMESPACES:
            labels = {"kubernetes.io/metadata.name": name}
            self._ensure("namespaces", "", name, labels=labels, spec={"finalizers": ["kubernetes"]}, status={"phase": "Active"})
        for name, (value, meaning) in SYSTEM_PRIORITIES.items():
            resource, policy = "priorityclasses.scheduling.k8s.io", "PreemptLowerPriority"
            self._ensure(resource, "", name, value=value, description=meaning, preemptionPolicy=policy)
        for name, rules in BOOTSTRAP_ROLES.items():
            self._ensure(f"clusterroles.{GROUP}", "", name, rules=rules)
        for name, group in BOOTSTRAP_BINDINGS.items():
            subjects = [{"kind": "Group", "apiGroup": GROUP, "name": group}]
            reference = {"apiGroup": GROUP, "kind": "ClusterRole", "name": name}
            self._ensure(f"clusterrolebindings.{GROUP}", "", name, subjects=subjects, roleRef=reference)
        self._registered.own((t.group, t.version) for t in self.registry if not t.custom)
        self._registered.authentication((self._data.root / "front-proxy-ca.crt").read_text())
        self._remotes.start()
        self.store.forget_history()

    def _ensure(self, resource: str, namespace: str, name: str, *, labels: dict[str, str] | None = None, **rest: object) -> None:
        """Make an object that every cluster has, unless it exists."""
        if self.store.get(resource, namespace, name) is not None:
            return
        meta: Json = {"name": name, "uid": str(uuid4()), "creationTimestamp": now_text()}
        kind = self.registry.by_storage(resource)
        meta |= {"generation": 1} if kind and kind.strategy.generation else {}
        meta |= ({"namespace": namespace} if namespace else {}) | ({"labels": labels} if labels else {})
        self.store.put(resource, namespace, name, obj={"metadata": meta, **rest}, expected=None)

    def publish(self, port: int) -> None:
        """Make the service by which pods find this server."""
        ports = [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": port}]
        spec = {
            "type": "ClusterIP",
            "clusterIP": SERVICE_ADDRESS,
            "clusterIPs": [SERVICE_ADDRESS],
            "ports": ports,
            "sessionAffinity": "None",
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster",
        }
        labels = {"component": "apiserver", "provider": "kubernetes"}
        self._ensure("services", "default", "kubernetes", labels=labels, spec=spec, status={"loadBalancer": {}})

    async def start(self, sockets: list[socket.socket]) -> None:
        application = self._edge.application()
        self._listener = Listener(Bounds.of_this_process(most=MOST_CONNECTIONS, strangers=MOST_STRANGERS))
        application.middlewares.append(self._listener.middleware)
        self._runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        assert self._runner.server is not None
        self._listener.open(sockets, self._runner.server, tls=self._data.server_context(), backlog=1024)
        self._beside = [asyncio.create_task(self._move_journal()), asyncio.create_task(EventLife(self.store).run())]
        self._beside.append(asyncio.create_task(self._availability.run()))

    async def _move_journal(self) -> None:
        """Move the journal when it is long, in a thread, because that waits for the disk."""
        due = asyncio.Event()
        self.store.journal_is_long = due.set
        while True:
            await due.wait()
            due.clear()
            try:
                await asyncio.to_thread(self.store.move_journal)
            except sqlite3.Error as error:
                log.warning("the database's journal was not shortened, trying again later: %s", error)

    async def stop(self) -> None:
        self._edge.end_watches()
        if self._listener is not None and self._runner is not None:
            await self._listener.close()
            await self._listener.cleanup(self._runner)
        for task in self._beside:
            task.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)
        await self._kubelets.close()
        await self._webhooks.close()
        await self._asking.close()
        self.store.close()
