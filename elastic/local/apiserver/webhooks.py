"""Call admission webhooks: choose the registered webhooks for a request, send them a review, and act on their answers.

Mutating webhooks are called one after the other, before the defaults of the server's own admission, and never for a subresource of another
form. Validating ones are called all at once, after the object was found valid. hooktargets knows how to reach a webhook.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Iterator
from uuid import uuid4

import aiohttp
import jsonpatch
import orjson
from jsonpointer import JsonPointerException

from elastic.local.apiserver import rules
from elastic.local.apiserver.calls import Call
from elastic.local.apiserver.errors import Json, StatusError, bad_request, forbidden, not_found
from elastic.local.apiserver.hooktargets import Targets, url_of
from elastic.local.apiserver.resources import Registry, ResourceType
from elastic.local.apiserver.reviews import user_info
from elastic.local.apiserver.routes import Routes, Unreachable
from elastic.local.apiserver.store import Store
from elastic.local.dialled import reason
from elastic.local.selectors import matches

GROUP = "admissionregistration.k8s.io"
MUTATING, VALIDATING = "mutatingwebhookconfigurations", "validatingwebhookconfigurations"
OPERATIONS = {"create": "CREATE", "update": "UPDATE", "patch": "UPDATE", "delete": "DELETE", "deletecollection": "DELETE"}
OPTIONS = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}


class Webhooks:
    def __init__(self, store: Store, registry: Registry, routes: Routes) -> None:
        self._store, self._registry = store, registry
        self._targets = Targets(routes)

    async def close(self) -> None:
        await self._targets.close()

    async def mutate(self, call: Call, new: Json, old: Json | None) -> None:
        """Let mutating webhooks change the object in place."""
        if call.shown is not None:
            return
        for hook, review in self._concerned(MUTATING, call, new, old):
            answer = await self._ask(hook, review, call)
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
        concerned = list(self._concerned(VALIDATING, call, new, old))
        answers = await asyncio.gather(*(self._ask(*asked, call) for asked in concerned), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    # ------------------------------------------------------------------ matching
    def _concerned(self, plural: str, call: Call, new: Json | None, old: Json | None) -> Iterator[tuple[Json, Json]]:
        """Yield the webhooks to call, each with its review, which shows the changes of the webhooks before it."""
        operation = OPERATIONS.get(call.verb)
        if operation is None or call.kind.group == GROUP or call.is_admitted:
            return
        for entry in self._store.entries(f"{plural}.{GROUP}"):
            for hook in entry.load().get("webhooks") or ():
                kind = self._matched(hook, call, operation)
                if kind and self._selected(hook, call, new, old):
                    request = _request(kind, call, new, old)
                    if _conditions_hold(hook, call, request):
                        yield hook, {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}

    def _matched(self, hook: Json, call: Call, operation: str) -> ResourceType | None:
        """Return the type in whose version the webhook wants to see the object, or None if it does not want to see it."""
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
        if selector:
            labels = self._namespace_labels(call, new if new is not None else old)
            if labels is not None and not matches(selector, labels):
                return False
        selector = hook.get("objectSelector") or {}
        return any(matches(selector, (o.get("metadata") or {}).get("labels") or {}) for o in (new, old) if o is not None)

    def _namespace_labels(self, call: Call, obj: Json | None) -> dict[str, str] | None:
        """Return the labels of the object's namespace, or its own if it is a namespace; None for a cluster-wide object."""
        if call.kind.stored_in == "namespaces":
            return dict((obj or {}).get("metadata", {}).get("labels") or {})
        if not call.kind.namespaced:
            return None
        entry = self._store.get("namespaces", "", call.namespace)
        if entry is None:
            raise not_found("", "namespaces", call.namespace)
        return entry.labels

    # ------------------------------------------------------------------ asking
    async def _ask(self, hook: Json, review: Json, call: Call) -> Json:
        """Return the webhook's answer if it allows the request. Raise if it refuses, or if it fails and its policy is not Ignore."""
        if call.dry_run and hook.get("sideEffects") not in ("None", "NoneOnDryRun"):
            raise bad_request(f'admission webhook "{hook["name"]}" does not support dry run')
        seconds = hook.get("timeoutSeconds", 10)
        try:
            answer = await self._targets.ask(hook.get("clientConfig") or {}, review, seconds=seconds)
        except (aiohttp.ClientError, TimeoutError, Unreachable, ValueError, OSError) as e:
            if hook.get("failurePolicy") == "Ignore":
                return {}
            target = f"{url_of(hook.get('clientConfig') or {})}?timeout={seconds}s"
            words = "context deadline exceeded" if isinstance(e, TimeoutError) else reason(e)
            why = f'failed calling webhook "{hook["name"]}": failed to call webhook: Post "{target}": {words}'
            raise StatusError(500, "InternalError", f"Internal error occurred: {why}", details={"causes": [{"message": why}]}) from None
        call.warnings += [str(w) for w in answer.get("warnings") or ()]
        if not answer.get("allowed"):
            raise _denied(hook["name"], answer.get("status") or {})
        return answer


def _listed(value: str, allowed: list[str]) -> bool:
    return "*" in allowed or value in allowed


def _resource_matches(pattern: str, wanted: str) -> bool:
    if pattern in ("*/*", wanted):
        return True
    expression = re.escape(pattern).replace(r"\*", "[^/]+")
    return re.fullmatch(expression, wanted) is not None


def _request(kind: ResourceType, call: Call, new: Json | None, old: Json | None) -> Json:
    """Return the request part of the review for a webhook, in the version that it asked for."""
    operation = OPERATIONS[call.verb]

    def shown(obj: Json | None) -> Json | None:
        if obj is None:
            return None
        return call.shown(obj) if call.shown is not None else {"kind": kind.kind, **obj, "apiVersion": kind.api_version}

    def gvk(t: ResourceType) -> Json:
        sub = t.sub(call.subresource)
        if sub is None or sub.group is None:
            return {"group": t.group, "version": t.version, "kind": sub.kind if sub else t.kind}
        return {"group": sub.group, "version": sub.version, "kind": sub.kind}

    def gvr(t: ResourceType) -> Json:
        return {"group": t.group, "version": t.version, "resource": t.plural}

    options = {"kind": OPTIONS[operation], "apiVersion": "meta.k8s.io/v1", **_options(call, operation)}
    request: Json = {
        "uid": str(uuid4()), "kind": gvk(kind), "resource": gvr(kind), "requestKind": gvk(call.kind), "requestResource": gvr(call.kind),
        "name": call.name, "operation": operation, "userInfo": user_info(call.user),
        "object": shown(new), "oldObject": shown(old), "dryRun": call.dry_run, "options": options,
    }  # fmt: skip
    if call.namespace:
        request["namespace"] = call.namespace
    if call.subresource:
        request |= {"subResource": call.subresource, "requestSubResource": call.subresource}
    return request


def _options(call: Call, operation: str) -> Json:
    given: Json = {"dryRun": ["All"]} if call.dry_run else {}
    if operation != "DELETE":
        given |= {k: call.query[k] for k in ("fieldManager", "fieldValidation") if call.query.get(k)}
    return given


def _conditions_hold(hook: Json, call: Call, request: Json) -> bool:
    """Return whether all matchConditions hold. A false condition decides before a condition that cannot be evaluated."""
    conditions = hook.get("matchConditions") or ()
    if not conditions:
        return True
    given = {"object": request["object"], "oldObject": request["oldObject"], "request": request}
    failed = ""
    for condition in conditions:
        found = rules.judged(condition["expression"], given)
        if found is False:
            return False
        if found is not True:
            failed = failed or found
    if failed and hook.get("failurePolicy") != "Ignore":
        raise forbidden(call.kind.group, call.kind.plural, call.name, failed)
    return not failed


def _denied(name: str, status: Json) -> StatusError:
    by = f'admission webhook "{name}" denied the request'
    explained = status.get("message") or status.get("reason")
    code = status.get("code") or 400
    message = f"{by}: {explained}" if explained else f"{by} without explanation"
    return StatusError(code if code >= 400 else 400, status.get("reason", ""), message, details=status.get("details"))
