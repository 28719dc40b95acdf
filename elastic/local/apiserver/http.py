"""The HTTP edge: reads a request, finds out who asks for what, lets the other modules answer, and writes the answer."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping
from typing import Any

import orjson
import yaml
from aiohttp import web

from elastic.local.apiserver import discovery, lists, negotiation, openapi, paths, tables
from elastic.local.apiserver.auth import Tokens
from elastic.local.apiserver.calls import ANONYMOUS, Call, User
from elastic.local.apiserver.custom import Custom
from elastic.local.apiserver.errors import Json, StatusError, forbidden, method_not_allowed, no_such_resource, not_found, unauthorized
from elastic.local.apiserver.kubelet import Kubelets
from elastic.local.apiserver.negotiation import Form
from elastic.local.apiserver.objects import Objects, whole
from elastic.local.apiserver.rbac import Rbac
from elastic.local.apiserver.resources import Registry, ResourceType
from elastic.local.apiserver.reviews import Reviews
from elastic.local.apiserver.store import Entry, Store
from elastic.local.apiserver.subresources import Subresources
from elastic.local.apiserver.watch import BOOKMARK_EVERY_S, Ended, Watcher, duration_s, error_line
from elastic.local.apiserver.writes import Writes

log = logging.getLogger("elastic.local.apiserver")
OPEN_PATHS = ("/healthz", "/livez", "/readyz", "/version")
VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.1", "platform": "linux/amd64", "goVersion": "none", "compiler": "CPython"}
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
    ) -> None:
        self._store, self._registry, self._objects, self._tokens, self._rbac = store, registry, objects, tokens, rbac
        self._reviews, self._writes, self._subresources, self._kubelets = reviews, writes, subresources, kubelets
        self._watchers: set[tuple[str, Watcher]] = set()

    def end_watches(self, storage: str) -> None:
        for stored_in, watcher in self._watchers:
            if stored_in == storage:
                watcher.end()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_route("*", "/{tail:.*}", self.handle)
        return app

    async def handle(self, request: web.Request) -> web.StreamResponse:
        warnings: list[str] = []
        try:
            answer = await self._answer(request, warnings)
        except StatusError as e:
            answer = json_response(e.status(), status=e.code, headers=e.headers)
        except web.HTTPRequestEntityTooLarge:
            too_large = StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {MAX_BODY}")
            answer = json_response(too_large.status(), status=413)
        except Exception as e:  # one broken request must not end the server
            log.exception("request failed: %s %s", request.method, request.path)
            failed = StatusError(500, "InternalError", f"Internal error occurred: {type(e).__name__}: {e}")
            answer = json_response(failed.status(), status=500)
        if warnings and not answer.prepared:
            for w in dict.fromkeys(warnings):
                text = w.replace("\\", "\\\\").replace('"', '\\"')
                answer.headers.add("Warning", f'299 - "{text}"')
        return answer

    async def _answer(self, request: web.Request, warnings: list[str]) -> web.StreamResponse:
        path = request.path
        user = self._authenticate(request)
        if path.rstrip("/") in OPEN_PATHS or path.startswith(("/readyz/", "/livez/", "/healthz/")):
            return self._open(path.rstrip("/"))
        target = paths.parse(path)
        if target is None:
            return await self._document(request, path.rstrip("/") or "/", user)
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
        """A namespaced kind can be listed across namespaces; all else goes by its scope."""
        across = kind.namespaced and not target.name and method == "GET"
        return bool(target.namespace) == kind.namespaced or across

    def _authenticate(self, request: web.Request) -> User:
        """A wrong token is refused; no token makes a user without rights."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return ANONYMOUS
        found = self._tokens.user(token.strip())
        if found is None:
            raise unauthorized()
        return found[0]

    @staticmethod
    def _open(path: str) -> web.Response:
        if path == "/version":
            return json_response(VERSION)
        return web.Response(text="ok", headers={"X-Content-Type-Options": "nosniff"})

    async def _call(self, request: web.Request, target: paths.Target, kind: ResourceType, user: User, warnings: list[str]) -> Call:
        query = request.query
        watching = target.watching or (query.get("watch", "").lower() in ("true", "1") and not target.name)
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
            verb,
            kind,
            target.namespace,
            target.name,
            target.subresource,
            query,
            user,
            body,
            media,
            request.headers.get("User-Agent", ""),
            warnings,
        )

    def _authorize(self, call: Call) -> None:
        attributes: Json = {
            "verb": call.verb,
            "group": call.kind.group,
            "resource": call.kind.plural,
            "subresource": call.subresource,
            "namespace": call.namespace,
            "name": call.name,
        }
        allowed, _ = self._rbac.allows(call.user, attributes)
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
        if call.verb == "list":
            await lists.wait_for(self._store, call)
            return self._list(request, call)
        if call.kind.plural.endswith("reviews") and call.kind.verbs == ("create",):
            return json_response(self._reviews.answer(call, self._writes.read(call)), status=201)
        if call.kind.plural == "pods" and call.subresource in ("log", "exec", "attach"):
            return await self._kubelets.serve(request, call)
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
        return json_response(
            {
                "kind": call.kind.list_of,
                "apiVersion": call.kind.api_version,
                "metadata": {"resourceVersion": str(self._store.revision)},
                "items": deleted,
            }
        )

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
            if form in (Form.JSON, Form.YAML):
                return lists.encode_one(entry, call.kind)
            obj = whole(call.kind, entry)
            if form is Form.PARTIAL:
                return orjson.dumps(tables.partial(obj))
            made = self._table(request, call, [obj], {"resourceVersion": str(entry.revision)}, columns=first)
            first = False
            return orjson.dumps(made)

        lists.version_number(call)
        lists.check_watch_options(call)
        lasting = duration_s(call)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        try:
            watcher = Watcher(self._store, call, encode)
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
            await response.prepare(request)
            await self._stream(response, watcher, until=time.monotonic() + lasting)
            await response.write_eof()
        except ConnectionError:
            pass
        finally:
            self._watchers.discard(watched)
            watcher.close()
        return response

    @staticmethod
    async def _stream(response: web.StreamResponse, watcher: Watcher, *, until: float) -> None:
        bookmark_at = time.monotonic() + BOOKMARK_EVERY_S
        while (left := until - time.monotonic()) > 0:
            try:
                text = await watcher.next(min(left, max(bookmark_at - time.monotonic(), 0.0)))
            except Ended:
                return
            if text:
                await response.write(text)
            elif time.monotonic() >= bookmark_at:
                bookmark_at = time.monotonic() + BOOKMARK_EVERY_S
                if watcher.bookmarks:
                    await response.write(watcher.bookmark())

    # ------------------------------------------------------------------ documents
    async def _document(self, request: web.Request, path: str, user: User) -> web.StreamResponse:
        if not self._rbac.allows(user, {"verb": verb_of(request), "path": path})[0]:
            why = f'forbidden: User "{user.name}" cannot {verb_of(request)} path "{path}"'
            raise StatusError(403, "Forbidden", why, details={})
        parts = path.strip("/").split("/")
        registry = self._registry
        if path in ("/api", "/apis") and negotiation.wants_aggregated(request.headers.get("Accept", "")):
            made = discovery.aggregated(registry, core=path == "/api")
            etag = f'"{hashlib.sha256(orjson.dumps(made)).hexdigest().upper()}"'
            kind = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            return json_response(made, headers={"ETag": etag, "Vary": "Accept"}, content_type=kind)
        if parts[0] == "openapi":
            return self._openapi(request, parts[1:])
        if path == "/metrics":
            kind = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
            return web.Response(body=self._metrics().encode(), headers={"Content-Type": kind})
        found: Json | None = None
        if path == "/":
            found = {"paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]}
        elif path == "/api":
            address = {"clientCIDR": "0.0.0.0/0", "serverAddress": request.host}
            found = {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [address]}
        elif path == "/apis":
            found = discovery.groups(registry)
        elif parts[0] == "api" and len(parts) == 2:
            found = discovery.resources(registry, "", parts[1])
        elif parts[0] == "apis" and len(parts) == 2:
            found = discovery.group(registry, parts[1])
        elif parts[0] == "apis" and len(parts) == 3:
            found = discovery.resources(registry, parts[1], parts[2])
            if found is None and parts[1] in discovery.GROUP_ORDER:
                raise no_such_resource()
        return json_response(found) if found is not None else not_served()

    def _metrics(self) -> str:
        lines = [f"apiserver_storage_revision {self._store.revision}", f"apiserver_watchers {len(self._watchers)}"]
        lines += [f'apiserver_storage_objects{{resource="{r}"}} {len(self._store.list(r))}' for r in self._store.resources()]
        return "\n".join(lines) + "\n"

    def _openapi(self, request: web.Request, parts: list[str]) -> web.Response:
        if parts == ["v3"]:
            return json_response(openapi.index(self._registry), content_type="text/plain; charset=utf-8")
        if parts == ["v2"] and "json" in request.headers.get("Accept", "json"):
            return raw_response(openapi.whole_v2(self._registry))
        group, version = (
            ("", parts[2]) if parts[1:2] == ["api"] and len(parts) == 3 else (parts[2], parts[3]) if len(parts) == 4 else ("", "")
        )
        made = openapi.document(self._registry, group, version) if parts[0] == "v3" and version else None
        if made is None:
            return web.Response(status=404)
        current, asked = openapi.digest(self._registry, group, version), request.query.get("hash", "")
        if asked and asked != current:
            return web.Response(status=301, headers={"Location": f"/openapi/v3/{openapi.base(group, version)}?hash={current}"})
        return json_response(made, headers={"ETag": f'"{current}"'})


def verb_of(request: web.Request) -> str:
    return {"GET": "get", "HEAD": "head", "PUT": "put", "PATCH": "patch", "DELETE": "delete"}.get(request.method, "post")


def form_of(request: web.Request) -> Form:
    return negotiation.chosen(request.headers.get("Accept", ""))


def raw_response(body: bytes, *, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, headers={"Content-Type": "application/json"})


def json_response(
    obj: Any, *, status: int = 200, headers: Mapping[str, str] | None = None, content_type: str = "application/json"
) -> web.Response:
    return web.Response(body=orjson.dumps(obj), status=status, headers={**(headers or {}), "Content-Type": content_type})


def not_served() -> web.Response:
    return web.Response(text="404 page not found\n", status=404, headers={"X-Content-Type-Options": "nosniff"})


def success(call: Call, obj: Json) -> Json:
    details = {"name": obj["metadata"]["name"], "group": call.kind.group, "kind": call.kind.plural, "uid": obj["metadata"]["uid"]}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": {k: v for k, v in details.items() if v}}
