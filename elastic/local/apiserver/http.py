"""Serve HTTP: read a request, find out who asks for what, let the other modules answer, and write the answer."""

from __future__ import annotations

import asyncio
import logging
import time

import orjson
import yaml
from aiohttp import web

from elastic.local.apiserver import discovery, lists, negotiation, paths, streams, tables
from elastic.local.apiserver.aggregation.passing import Passing
from elastic.local.apiserver.aggregation.remotes import Remotes
from elastic.local.apiserver.answers import json_response, not_served, raw_response, warning_headers
from elastic.local.apiserver.audit import Audit
from elastic.local.apiserver.auth import Tokens
from elastic.local.apiserver.calls import ANONYMOUS, Call, User
from elastic.local.apiserver.custom import Custom
from elastic.local.apiserver.documents import Documents
from elastic.local.apiserver.errors import (
    Json,
    StatusError,
    expired,
    forbidden,
    method_not_allowed,
    no_such_resource,
    not_found,
    unauthorized,
)
from elastic.local.apiserver.faults import Fault, Faults
from elastic.local.apiserver.kubelet import Kubelets
from elastic.local.apiserver.negotiation import Form
from elastic.local.apiserver.objects import Objects, whole
from elastic.local.apiserver.proxying import Proxy
from elastic.local.apiserver.rbac import Rbac
from elastic.local.apiserver.resources import Registry, ResourceType
from elastic.local.apiserver.reviews import Reviews
from elastic.local.apiserver.store import Entry, Store, Unwritable
from elastic.local.apiserver.subresources import Subresources
from elastic.local.apiserver.usage import Measured, Usages
from elastic.local.apiserver.watch import Shared, Watcher, duration_s, error_line
from elastic.local.apiserver.writes import Writes

log = logging.getLogger("elastic.local.apiserver")
OPEN_PATHS = ("/healthz", "/livez", "/readyz", "/version")
VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.1",
    "gitCommit": "none",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "CPython",
    "platform": "linux/amd64",
}
MAX_BODY = 3 << 20


class Edge:
    def __init__(
        self,
        *,
        store: Store,
        registry: Registry,
        objects: Objects,
        tokens: Tokens,
        rbac: Rbac,
        reviews: Reviews,
        writes: Writes,
        subresources: Subresources,
        kubelets: Kubelets,
        proxy: Proxy,
        usage: Usages,
        remotes: Remotes,
        passing: Passing,
        faults: Faults | None,
        audit: Audit | None,
    ) -> None:
        self._store, self._registry, self._objects, self._tokens, self._rbac = store, registry, objects, tokens, rbac
        self._reviews, self._writes, self._subresources, self._kubelets = reviews, writes, subresources, kubelets
        self._proxy, self._usage, self._remotes, self._passing = proxy, usage, remotes, passing
        self._faults = faults
        self._audit = audit
        self._documents = Documents(registry, store, rbac, remotes)
        self._watchers: set[tuple[str, Watcher]] = set()
        self._shared = Shared()

    def end_watches(self, storage: str = "") -> None:
        """End the watches of one resource that is no longer served, or all of them."""
        for stored_in, watcher in self._watchers:
            if storage in ("", stored_in):
                watcher.end()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_route("*", "/{tail:.*}", self.handle)
        return app

    async def handle(self, request: web.Request) -> web.StreamResponse:
        warnings: list[str] = []
        try:
            if self._faults is not None and (met := await self._fault(self._faults, request)) is not None:
                return met
            answer = await self._answer(request, warnings)
        except StatusError as e:
            answer = json_response(e.status(), status=e.code, headers=e.headers)
        except web.HTTPRequestEntityTooLarge:
            too_large = StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {MAX_BODY}")
            answer = json_response(too_large.status(), status=413)
        except Unwritable as e:
            log.error("a change could not be stored: %s", e)
            message = f"the change could not be stored: {e}; make room on the disk, or delete objects, which is possible for a while"
            answer = json_response(StatusError(507, "InsufficientStorage", message).status(), status=507)
        except Exception as e:  # one broken request must not end the server
            log.exception("request failed: %s %s", request.method, request.path)
            failed = StatusError(500, "InternalError", f"Internal error occurred: {type(e).__name__}: {e}")
            answer = json_response(failed.status(), status=500)
        if warnings and not answer.prepared:
            for header in warning_headers(warnings):
                answer.headers.add("Warning", header)
        return answer

    async def _fault(self, faults: Faults, request: web.Request) -> web.StreamResponse | None:
        """Serve /faults, and let requests meet the faults that were asked for there."""
        if request.path == "/faults":
            if "system:masters" not in self._authenticate(request).groups:
                raise StatusError(403, "Forbidden", "only an administrator may make faults", details={})
            if request.method == "PUT":
                faults.replace(await request.read())
            return raw_response(faults.shown())
        fault = faults.meet(request.method, request.path, request.headers.get("User-Agent", ""))
        await asyncio.sleep(fault.latency_s)
        if fault.drop:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()  # the client has gone
        if fault.error is not None:
            raise fault.error
        request["fault"] = fault
        return None

    async def _answer(self, request: web.Request, warnings: list[str]) -> web.StreamResponse:
        path = request.path
        user = self._authenticate(request)
        if path.rstrip("/") in OPEN_PATHS or path.startswith(("/readyz/", "/livez/", "/healthz/")):
            return self._open(path.rstrip("/"))
        remote = self._remotes.of_path(path)
        if remote is not None:
            return await self._passing.serve(request, remote, user)
        target = paths.parse(path)
        if target is None:
            return self._documents.answer(request, path.rstrip("/") or "/", user)
        kind = self._registry.find(target.group, target.version, target.plural)
        if kind is None or (kind.custom and not self._in_scope(kind, target, request.method)):
            if target.group and target.group not in discovery.GROUP_ORDER:
                return not_served()
            raise no_such_resource()
        call = await self._call(request, target, kind, user, warnings)
        self._authorize(call)
        form_of(request)
        if isinstance(kind.strategy, Custom):
            warnings += [w for w in (kind.strategy.deprecation(kind.plural, kind.api_version),) if w]
        return await self._serve(request, call)

    @staticmethod
    def _in_scope(kind: ResourceType, target: paths.Target, method: str) -> bool:
        """Return whether a path fits the scope of its kind. A namespaced kind can also be listed across namespaces."""
        across = kind.namespaced and not target.name and method == "GET"
        return bool(target.namespace) == kind.namespaced or across

    def _authenticate(self, request: web.Request) -> User:
        """Return the user of a request. A wrong token is refused; a request without a token has a user without rights."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return ANONYMOUS
        found = self._tokens.user(token.strip())
        if found is None:
            raise unauthorized()
        return self._impersonated(request, found[0])

    def _impersonated(self, request: web.Request, user: User) -> User:
        """Return the user that this user acts as, if that is allowed."""
        name = request.headers.get("Impersonate-User")
        if not name:
            return user
        groups = tuple(request.headers.getall("Impersonate-Group", ()))
        for resource, value in (("users", name), *(("groups", g) for g in groups)):
            attributes = {"verb": "impersonate", "group": "", "resource": resource, "name": value}
            if not self._rbac.allows(user, attributes)[0]:
                why = f'User "{user.name}" cannot impersonate resource "{resource}" in API group "" at the cluster scope'
                raise forbidden("", resource, value, why)
        return User(name, (*groups, "system:authenticated"))

    @staticmethod
    def _open(path: str) -> web.Response:
        if path == "/version":
            return json_response(VERSION)
        return web.Response(text="ok", headers={"X-Content-Type-Options": "nosniff"})

    async def _call(self, request: web.Request, target: paths.Target, kind: ResourceType, user: User, warnings: list[str]) -> Call:
        query = request.query
        watching = target.watching or (query.get("watch", "false").lower() not in ("false", "0") and not target.name)
        verb = paths.verb_of(request.method, named=bool(target.name), watching=watching)
        if target.subresource and kind.sub(target.subresource) is None:
            raise not_found(kind.group, kind.plural, target.name) if kind.custom else no_such_resource()
        offered = kind.verbs if not target.subresource else getattr(kind.sub(target.subresource), "verbs", ())
        on_collection = verb in ("create", "list", "deletecollection") and not target.subresource
        if verb not in offered or (verb != "watch" and on_collection == bool(target.name)):
            raise method_not_allowed()
        if kind.namespaced and not target.namespace and verb not in ("list", "watch"):
            raise method_not_allowed()
        media = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        body = await request.read() if request.method != "GET" else b""
        return Call(
            verb, kind, target.namespace, target.name, target.subresource, query, user,
            body=body, media=media, agent=request.headers.get("User-Agent", ""), warnings=warnings,
        )  # fmt: skip

    def _authorize(self, call: Call) -> None:
        attributes: Json = {
            "verb": call.verb,
            "group": call.kind.group,
            "resource": call.kind.plural,
            "subresource": call.subresource,
            "namespace": call.namespace,
            "name": call.name or _named_alone(call),
        }
        allowed, _ = self._rbac.allows(call.user, attributes)
        if self._audit is not None:
            self._audit.note(call, allowed=allowed)
        if allowed:
            return
        what = f"{call.kind.plural}/{call.subresource}" if call.subresource else call.kind.plural
        where = f' in the namespace "{call.namespace}"' if call.namespace else " at the cluster scope"
        why = f'User "{call.user.name}" cannot {call.verb} resource "{what}" in API group "{call.kind.group}"{where}'
        raise forbidden(call.kind.group, call.kind.plural, call.name, why)

    # ------------------------------------------------------------------ objects
    async def _serve(self, request: web.Request, call: Call) -> web.StreamResponse:
        if call.verb == "watch":
            return await self._watch(request, call)
        if isinstance(call.kind.strategy, Measured):
            return await self._measured(request, call)
        if call.verb == "list":
            await lists.wait_for(self._store, call)
            return self._list(request, call)
        if call.kind.plural.endswith("reviews") and call.kind.verbs == ("create",):
            return json_response(self._reviews.answer(call, self._writes.read(call)), status=201)
        if call.kind.plural == "pods" and call.subresource in ("log", "exec", "attach", "portforward"):
            return await self._kubelets.serve(request, call)
        if call.subresource == "proxy":
            return await self._proxy.serve(request, call)
        if (call.subresource and call.subresource != "status") or call.kind.plural == "bindings":
            status, obj = await self._subresources.answer(call)
            return json_response(obj, status=status)
        if call.verb == "get":
            return self._get(request, call)
        if call.verb == "create":
            return self._object(request, call, await self._writes.create(call), status=201)
        if call.verb == "update":
            obj, made = await self._writes.update(call)
            return self._object(request, call, obj, status=201 if made else 200)
        if call.verb == "patch":
            obj, made = await self._writes.patch(call)
            return self._object(request, call, obj, status=201 if made else 200)
        if call.verb == "delete":
            obj, gone = await self._writes.delete(call)
            return self._object(request, call, obj if not gone or call.kind.strategy.answers_deleted else success(call, obj))
        deleted = await self._writes.delete_collection(call)
        meta = {"resourceVersion": str(self._store.revision)}
        return json_response({"kind": call.kind.list_of, "apiVersion": call.kind.api_version, "metadata": meta, "items": deleted})

    async def _measured(self, request: web.Request, call: Call) -> web.Response:
        if call.verb == "get":
            return self._object(request, call, await self._usage.get(call))
        items = await self._usage.chosen(call)
        if form_of(request) is Form.TABLE:
            return json_response(self._table(request, call, items, {}))
        return json_response({"kind": call.kind.list_of, "apiVersion": call.kind.api_version, "metadata": {}, "items": items})

    def _get(self, request: web.Request, call: Call) -> web.Response:
        lists.version_number(call)
        entry = self._objects.find(call)
        if form_of(request) is Form.JSON:
            return raw_response(lists.encode_one(entry, call.kind))
        return self._object(request, call, whole(call.kind, entry))

    def _object(self, request: web.Request, call: Call, obj: Json, *, status: int = 200) -> web.Response:
        form = form_of(request)
        if form is Form.TABLE and obj.get("kind") != "Status":
            meta = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
            return json_response(self._table(request, call, [obj], meta), status=status)
        if form is Form.PARTIAL and obj.get("kind") != "Status":
            return json_response(tables.partial(obj), status=status)
        if form is Form.YAML:
            return web.Response(text=yaml.safe_dump(obj, sort_keys=False), status=status, content_type="application/yaml")
        return json_response(obj, status=status)

    def _list(self, request: web.Request, call: Call) -> web.Response:
        fault: Fault | None = request.get("fault")
        if fault is not None and fault.stale_by:
            call.query = {
                **call.query,
                "resourceVersion": str(max(self._store.revision - fault.stale_by, 1)),
                "resourceVersionMatch": "Exact",
            }
        found, form = lists.page(self._store, call), form_of(request)
        if form in (Form.JSON, Form.YAML):
            return raw_response(lists.encode(found, call.kind))
        objects = [whole(call.kind, e) for e in found.entries]
        meta = lists.list_meta(found, call.kind)
        if form is Form.TABLE:
            return json_response(self._table(request, call, objects, {k: v for k, v in meta.items() if v != ""}))
        items = [tables.partial(o) for o in objects]
        return json_response({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta, "items": items})

    def _table(self, request: web.Request, call: Call, objects: list[Json], meta: Json, *, columns: bool = True) -> Json:
        strategy = call.kind.strategy
        rows = ((strategy.cells(o), o) for o in objects)
        return tables.table(strategy.columns() if columns else [], rows, include=request.query.get("includeObject", ""), list_meta=meta)

    async def _watch(self, request: web.Request, call: Call) -> web.StreamResponse:
        form, first = form_of(request), True

        def encode(entry: Entry) -> bytes:
            nonlocal first
            obj = whole(call.kind, entry)
            if form is Form.PARTIAL:
                return orjson.dumps(tables.partial(obj))
            made = self._table(request, call, [obj], {"resourceVersion": str(entry.revision)}, columns=first)
            first = False
            return orjson.dumps(made)

        lists.version_number(call)
        lists.check_watch_options(call)
        lasting = duration_s(call)
        fault: Fault | None = request.get("fault")
        if fault is not None and fault.end_watch_after_s is not None:
            lasting = min(lasting, fault.end_watch_after_s)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        try:
            if fault is not None and fault.gone:
                raise expired("too old resource version: a fault on purpose")
            abort = request.transport.abort if request.transport else lambda: None
            plain = form in (Form.JSON, Form.YAML)
            watcher = Watcher(self._store, call, encode=None if plain else encode, shared=self._shared, abort=abort)
        except StatusError as e:
            if e.code != 410:
                raise
            await response.prepare(request)
            await response.write(error_line(e))
            await response.write_eof()
            return response
        watched = (call.kind.stored_in, watcher)
        self._watchers.add(watched)
        try:
            await streams.send(request, response, watcher, until=time.monotonic() + lasting)
        finally:
            self._watchers.discard(watched)
            watcher.close()
        return response


def form_of(request: web.Request) -> Form:
    return negotiation.chosen(request.headers.get("Accept", ""))


def _named_alone(call: Call) -> str:
    """Return the name that a list or watch asks for by its field selector. As in Kubernetes, a rule with resourceNames allows it."""
    if call.verb not in ("list", "watch", "deletecollection"):
        return ""
    terms = (term.replace("==", "=").partition("=") for term in call.query.get("fieldSelector", "").split(","))
    return next((value.strip() for key, _, value in terms if key.strip() == "metadata.name"), "")


def success(call: Call, obj: Json) -> Json:
    details = {"name": obj["metadata"]["name"], "group": call.kind.group, "kind": call.kind.plural, "uid": obj["metadata"]["uid"]}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": {k: v for k, v in details.items() if v}}
