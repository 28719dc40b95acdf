"""Admission webhooks: which of the registered ones a request concerns, how they are asked, and what their answers mean.

Mutating ones are asked before defaults of the server's own admission, one after the other; validating ones after the object was found
valid, all at once. A service as target cannot be reached from here: the laptop's webhooks name a URL.
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from collections.abc import Iterator
from functools import lru_cache
from typing import Any
from uuid import uuid4

import aiohttp
import jsonpatch
import orjson
from jsonpointer import JsonPointerException

from elastic.local.apiserver import rules
from elastic.local.apiserver.calls import Call
from elastic.local.apiserver.errors import Json, StatusError, bad_request
from elastic.local.apiserver.resources import Registry, ResourceType
from elastic.local.apiserver.reviews import user_info
from elastic.local.apiserver.store import Store
from elastic.local.selectors import matches

GROUP = "admissionregistration.k8s.io"
MUTATING, VALIDATING = "mutatingwebhookconfigurations", "validatingwebhookconfigurations"
OPERATIONS = {"create": "CREATE", "update": "UPDATE", "patch": "UPDATE", "delete": "DELETE", "deletecollection": "DELETE"}


@lru_cache(maxsize=32)
def _trusting(ca_bundle: str) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=base64.b64decode(ca_bundle).decode() if ca_bundle else None)


class Webhooks:
    def __init__(self, store: Store, registry: Registry) -> None:
        self._store, self._registry = store, registry
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def mutate(self, call: Call, new: Json, old: Json | None) -> None:
        """Lets mutating webhooks change the object in place."""
        for hook, kind in self._concerned(MUTATING, call, new, old):
            answer = await self._ask(hook, kind, call, new, old)
            patch = answer.get("patch")
            if not patch:
                continue
            try:
                changed = jsonpatch.apply_patch(new, orjson.loads(base64.b64decode(patch)))
            except (jsonpatch.JsonPatchException, JsonPointerException, ValueError) as e:
                raise StatusError(
                    500, "InternalError", f'Internal error occurred: webhook "{hook["name"]}" answered a bad patch: {e}'
                ) from None
            new.clear()
            new.update(changed)

    async def validate(self, call: Call, new: Json | None, old: Json | None) -> None:
        asked = [self._ask(hook, kind, call, new, old) for hook, kind in self._concerned(VALIDATING, call, new, old)]
        if asked:
            await asyncio.gather(*asked)

    # ------------------------------------------------------------------ matching
    def _concerned(self, plural: str, call: Call, new: Json | None, old: Json | None) -> Iterator[tuple[Json, ResourceType]]:
        operation = OPERATIONS.get(call.verb)
        if operation is None or call.kind.group == GROUP:
            return
        for entry in self._store.entries(f"{plural}.{GROUP}"):
            for hook in entry.load().get("webhooks") or ():
                kind = self._matched(hook, call, operation)
                if kind and self._selected(hook, call, new, old) and _conditions_hold(hook, call, operation, new, old):
                    yield hook, kind

    def _matched(self, hook: Json, call: Call, operation: str) -> ResourceType | None:
        """The type in whose version the webhook wants to see the object."""
        candidates = [call.kind]
        if hook.get("matchPolicy") != "Exact":
            candidates += [t for t in self._registry if t is not call.kind and t.stored_in == call.kind.stored_in]
        wanted = f"{call.kind.plural}/{call.subresource}" if call.subresource else call.kind.plural
        for kind in candidates:
            for rule in hook.get("rules") or ():
                scope = rule.get("scope", "*")
                if (
                    _listed(operation, rule["operations"])
                    and _listed(kind.group, rule["apiGroups"])
                    and _listed(kind.version, rule["apiVersions"])
                    and any(_resource_matches(r, wanted) for r in rule["resources"])
                    and (scope == "*" or (scope == "Namespaced") == kind.namespaced)
                ):
                    return kind
        return None

    def _selected(self, hook: Json, call: Call, new: Json | None, old: Json | None) -> bool:
        selector = hook.get("namespaceSelector") or {}
        if selector and call.kind.namespaced:
            entry = self._store.get("namespaces", "", call.namespace)
            if entry is None or not matches(selector, entry.labels):
                return False
        selector = hook.get("objectSelector") or {}
        return any(matches(selector, o["metadata"].get("labels") or {}) for o in (new, old) if o is not None)

    # ------------------------------------------------------------------ asking
    async def _ask(self, hook: Json, kind: ResourceType, call: Call, new: Json | None, old: Json | None) -> Json:
        """The webhook's answer when it allows the request; raises when it does not, or fails and must not."""
        if call.dry_run and hook.get("sideEffects") not in ("None", "NoneOnDryRun"):
            raise bad_request(f'admission webhook "{hook["name"]}" does not support dry run')
        review = _review(hook, kind, call, new, old)
        try:
            answer = await self._post(hook, review)
        except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as e:
            if hook.get("failurePolicy") == "Ignore":
                return {}
            url = (hook.get("clientConfig") or {}).get("url", "")
            target = f"{url}?timeout={hook.get('timeoutSeconds', 10)}s"
            why = f'failed calling webhook "{hook["name"]}": failed to call webhook: Post "{target}": {e or type(e).__name__}'
            raise StatusError(500, "InternalError", f"Internal error occurred: {why}", details={"causes": [{"message": why}]}) from None
        call.warnings += [str(w) for w in answer.get("warnings") or ()]
        if not answer.get("allowed"):
            raise _denied(hook["name"], answer.get("status") or {})
        return answer

    async def _post(self, hook: Json, review: Json) -> Json:
        client, seconds = hook.get("clientConfig") or {}, hook.get("timeoutSeconds", 10)
        url = client.get("url")
        if not url:
            raise ValueError("services cannot be reached from the laptop's API server; name a clientConfig.url")
        if self._session is None:
            self._session = aiohttp.ClientSession()
        async with self._session.post(
            url,
            params={"timeout": f"{seconds}s"},
            data=orjson.dumps(review),
            headers={"Content-Type": "application/json"},
            ssl=_trusting(client.get("caBundle", "")),
            timeout=aiohttp.ClientTimeout(total=seconds),
        ) as answer:
            if answer.status != 200:
                raise ValueError(f"the webhook answered {answer.status}")
            read = orjson.loads(await answer.read())
            response = read.get("response") if isinstance(read, dict) else None
            if not isinstance(response, dict) or response.get("uid") != review["request"]["uid"]:
                raise ValueError("expected an AdmissionReview whose response has the request's uid")
            return response


def _listed(value: str, allowed: list[str]) -> bool:
    return "*" in allowed or value in allowed


def _resource_matches(pattern: str, wanted: str) -> bool:
    if pattern in ("*/*", wanted):
        return True
    expression = re.escape(pattern).replace(r"\*", "[^/]+")
    return re.fullmatch(expression, wanted) is not None


def _review(hook: Json, kind: ResourceType, call: Call, new: Json | None, old: Json | None) -> Json:
    def shown(obj: Json | None) -> Json | None:
        return {**obj, "apiVersion": kind.api_version} if obj is not None else None

    def gvk(t: ResourceType) -> Json:
        return {"group": t.group, "version": t.version, "kind": t.kind}

    def gvr(t: ResourceType) -> Json:
        return {"group": t.group, "version": t.version, "resource": t.plural}

    request: Json = {
        "uid": str(uuid4()), "kind": gvk(kind), "resource": gvr(kind), "requestKind": gvk(call.kind), "requestResource": gvr(call.kind),
        "name": call.name, "operation": OPERATIONS[call.verb], "userInfo": user_info(call.user),
        "object": shown(new), "oldObject": shown(old), "dryRun": call.dry_run, "options": None,
    }  # fmt: skip
    if call.namespace:
        request["namespace"] = call.namespace
    if call.subresource:
        request |= {"subResource": call.subresource, "requestSubResource": call.subresource}
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


def _conditions_hold(hook: Json, call: Call, operation: str, new: Json | None, old: Json | None) -> bool:
    """matchConditions: all must hold for the webhook to be asked."""
    given: dict[str, Any] = {
        "object": new,
        "oldObject": old,
        "request": {"operation": operation, "name": call.name, "namespace": call.namespace},
    }
    return all(rules.holds(c["expression"], given) for c in hook.get("matchConditions") or ())


def _denied(name: str, status: Json) -> StatusError:
    by = f'admission webhook "{name}" denied the request'
    explained = status.get("message") or status.get("reason")
    code = status.get("code") or 400
    message = f"{by}: {explained}" if explained else f"{by} without explanation"
    return StatusError(code if code >= 400 else 400, status.get("reason", ""), message, details=status.get("details"))
