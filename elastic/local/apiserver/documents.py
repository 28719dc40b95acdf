"""All that is asked for but is no object: discovery, OpenAPI, the root and metrics."""

from __future__ import annotations

import hashlib

import orjson
from aiohttp import web

from elastic.local.apiserver import discovery, negotiation, openapi
from elastic.local.apiserver.aggregation.remotes import Remotes
from elastic.local.apiserver.answers import json_response, not_served, raw_response
from elastic.local.apiserver.calls import User
from elastic.local.apiserver.errors import Json, StatusError, no_such_resource
from elastic.local.apiserver.rbac import Rbac
from elastic.local.apiserver.resources import Registry
from elastic.local.apiserver.store import Store

_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_METRICS = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
_VERBS = {"GET": "get", "HEAD": "head", "PUT": "put", "PATCH": "patch", "DELETE": "delete"}


class Documents:
    def __init__(self, registry: Registry, store: Store, rbac: Rbac, remotes: Remotes) -> None:
        self._registry, self._store, self._rbac, self._remotes = registry, store, rbac, remotes

    def answer(self, request: web.Request, path: str, user: User) -> web.Response:
        verb = _VERBS.get(request.method, "post")
        if not self._rbac.allows(user, {"verb": verb, "path": path})[0]:
            why = f'forbidden: User "{user.name}" cannot {verb} path "{path}"'
            raise StatusError(403, "Forbidden", why, details={})
        if path in ("/api", "/apis") and negotiation.wants_aggregated(request.headers.get("Accept", "")):
            made = discovery.aggregated(self._registry, self._remotes, core=path == "/api")
            etag = f'"{hashlib.sha256(orjson.dumps(made)).hexdigest().upper()}"'
            return json_response(made, headers={"ETag": etag, "Vary": "Accept"}, content_type=_AGGREGATED)
        if path.startswith("/openapi/"):
            return self._openapi(request, path.split("/")[2:])
        if path == "/metrics":
            return web.Response(body=self._metrics().encode(), headers={"Content-Type": _METRICS})
        found = self._discovery(path, request.host)
        return json_response(found) if found is not None else not_served()

    def _discovery(self, path: str, host: str) -> Json | None:
        match path.strip("/").split("/"):
            case [""]:
                return {"paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]}
            case ["api"]:
                address = {"clientCIDR": "0.0.0.0/0", "serverAddress": host}
                return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [address]}
            case ["apis"]:
                return discovery.groups(self._registry, self._remotes)
            case ["api", version]:
                return discovery.resources(self._registry, "", version)
            case ["apis", group]:
                return discovery.group(self._registry, self._remotes, group)
            case ["apis", group, version]:
                found = discovery.resources(self._registry, group, version)
                if found is None and group in discovery.GROUP_ORDER:
                    raise no_such_resource()
                return found
        return None

    def _metrics(self) -> str:
        lines = [f"apiserver_storage_revision {self._store.revision}", f"apiserver_watchers {self._store.listeners()}"]
        lines += [f'apiserver_storage_objects{{resource="{r}"}} {len(self._store.entries(r))}' for r in self._store.resources()]
        return "\n".join(lines) + "\n"

    def _openapi(self, request: web.Request, parts: list[str]) -> web.Response:
        match parts:
            case ["v3"]:
                return json_response(openapi.index(self._registry), content_type="text/plain; charset=utf-8")
            case ["v2"] if "json" in request.headers.get("Accept", "json"):
                return raw_response(openapi.whole_v2(self._registry))
            case ["v2"] if openapi.BINARY_V2 in request.headers.get("Accept", ""):
                return web.Response(body=openapi.NOTHING_V2, content_type=openapi.BINARY_V2.replace("@", "."))
            case ["v3", "api", version]:
                return self._openapi_v3(request, "", version)
            case ["v3", "apis", group, version]:
                return self._openapi_v3(request, group, version)
        return web.Response(status=404)

    def _openapi_v3(self, request: web.Request, group: str, version: str) -> web.Response:
        made = openapi.document(self._registry, group, version)
        if made is None:
            return web.Response(status=404)
        current, asked = openapi.digest(self._registry, group, version), request.query.get("hash", "")
        if asked and asked != current:
            return web.Response(status=301, headers={"Location": f"/openapi/v3/{openapi.base(group, version)}?hash={current}"})
        return json_response(made, headers={"ETag": f'"{current}"'})
