"""Subresources with a behaviour of their own: scale, binding, eviction, finalize and tokens of service accounts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from elastic.local.apiserver import decoding, schemas
from elastic.local.apiserver.auth import ISSUER, Tokens
from elastic.local.apiserver.calls import Call
from elastic.local.apiserver.custom import Custom, path_value
from elastic.local.apiserver.errors import (
    MODIFIED,
    Json,
    StatusError,
    bad,
    bad_request,
    conflict,
    invalid,
    no_such_resource,
    not_found,
    unsupported_media,
)
from elastic.local.apiserver.objects import Objects, Part, now_text, whole
from elastic.local.apiserver.resources import Registry
from elastic.local.apiserver.store import Store
from elastic.local.apiserver.writes import PATCH_TYPES, Writes, patched
from elastic.local.selectors import matches

SCALE = "io.k8s.api.autoscaling.v1.Scale"
LONGEST_TOKEN_S = 365 * 24 * 3600
"""A token cannot be taken back while its account lives."""


class Subresources:
    def __init__(self, objects: Objects, writes: Writes, store: Store, registry: Registry, tokens: Tokens) -> None:
        self._objects, self._writes, self._store, self._registry, self._tokens = objects, writes, store, registry, tokens

    async def answer(self, call: Call) -> tuple[int, Json]:
        kind, sub = call.kind.plural, call.subresource
        if sub == "scale":
            return 200, await self._scale(call)
        if (kind, sub) == ("pods", "binding") or (kind, sub) == ("bindings", ""):
            return 201, await self._bind(call)
        if (kind, sub) == ("pods", "eviction"):
            return 201, await self._evict(call)
        if (kind, sub) == ("serviceaccounts", "token"):
            return 201, self._token(call)
        if (kind, sub) == ("namespaces", "finalize"):
            return 200, await self._finalize(call)
        raise no_such_resource()

    # ------------------------------------------------------------------ scale
    def _scale_paths(self, call: Call) -> tuple[str, str, str]:
        strategy = call.kind.strategy
        assert isinstance(strategy, Custom), "no object of a built-in kind with this subresource can exist"
        declared = strategy.subresources["scale"]
        return declared["specReplicasPath"], declared["statusReplicasPath"], declared.get("labelSelectorPath", "")

    def _as_scale(self, call: Call, obj: Json) -> Json:
        wanted, current, selector = self._scale_paths(call)
        replicas = path_value(obj, wanted)
        if replicas is None:
            raise StatusError(
                500,
                "InternalError",
                f"Internal error occurred: the spec replicas field {wanted!r} does not exist".replace("'", '"'),
                details={"causes": [{"message": f'the spec replicas field "{wanted}" does not exist'}]},
            )
        meta = {k: v for k, v in obj["metadata"].items() if k in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")}
        status: Json = {"replicas": path_value(obj, current) or 0}
        text = path_value(obj, selector) if selector else _selector_text((obj.get("spec") or {}).get("selector"))
        if text:
            status["selector"] = text
        return {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": meta,
            "spec": {"replicas": replicas} if replicas else {},
            "status": status,
        }

    async def _scale(self, call: Call) -> Json:
        if call.verb == "get":
            return self._as_scale(call, whole(call.kind, self._objects.find(call)))
        call.check_options("PatchOptions" if call.verb == "patch" else "UpdateOptions")
        if call.verb == "patch" and call.media not in PATCH_TYPES:
            raise unsupported_media(PATCH_TYPES)
        body = decoding.parse(call.body, call.media)

        def mutate(obj: Json) -> Json:
            scale = self._as_scale(call, obj)
            new = decoding.as_type(patched(call, scale, body) if call.verb == "patch" else body, "Scale", SCALE)
            given = new.get("metadata", {}).get("name")
            if given and given != call.name:
                raise bad_request(f"the name of the object ({given}) does not match the name on the URL ({call.name})")
            version = new.get("metadata", {}).get("resourceVersion")
            if version and version != obj["metadata"]["resourceVersion"]:
                raise conflict(call.kind.group, call.kind.plural, call.name, MODIFIED)
            uid, own = new.get("metadata", {}).get("uid"), obj["metadata"]["uid"]
            if uid and uid != own:
                why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {own}"
                raise conflict(call.kind.group, call.kind.plural, call.name, why)
            replicas = new.get("spec", {}).get("replicas", 0)
            if replicas < 0:
                raise invalid(
                    call.kind.group, call.kind.kind, call.name, [bad("spec.replicas", replicas, "must be greater than or equal to 0")]
                )
            _set(obj, self._scale_paths(call)[0], replicas)
            return obj

        inner = Call(
            "patch", call.kind, call.namespace, call.name, "scale", call.query, call.user, agent=call.agent, warnings=call.warnings
        )
        inner.shown = lambda obj: self._as_scale(call, obj)
        return self._as_scale(call, await self._objects.update(inner, mutate))

    # ------------------------------------------------------------------ pods
    async def _bind(self, call: Call) -> Json:
        body = decoding.body_as(call, "Binding", schemas.schema_name("", "v1", "Binding"))
        target = body.get("target") or {}
        name = call.name or (body.get("metadata") or {}).get("name", "")
        node = target.get("name", "")
        if not node:
            raise StatusError(500, "", "target.name: Required value")
        if target.get("kind") not in (None, "", "Node"):
            raise StatusError(500, "", f'target.kind: Unsupported value: "{target["kind"]}": supported values: "Node", "<empty>"')
        pods = self._registry.find("", "v1", "pods")
        assert pods is not None
        await self._objects.review(call, body)
        inner = Call("update", pods, call.namespace, name, "binding", call.query, call.user, agent=call.agent, is_admitted=True)
        uid = (body.get("metadata") or {}).get("uid")

        def mutate(pod: Json) -> Json:
            if uid and uid != pod["metadata"]["uid"]:
                why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {pod['metadata']['uid']}"
                raise conflict("", "pods", name, why)
            if pod["metadata"].get("deletionTimestamp"):
                raise conflict("", "pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
            if pod["spec"].get("nodeName"):
                raise conflict("", "pods/binding", name, f'pod {name} is already assigned to node "{pod["spec"]["nodeName"]}"')
            if pod["spec"].get("schedulingGates"):
                raise conflict("", "pods/binding", name, f"pod {name} has non-empty .spec.schedulingGates")
            pod["spec"]["nodeName"] = node
            annotations = (body.get("metadata") or {}).get("annotations")
            if annotations:
                pod["metadata"].setdefault("annotations", {}).update(annotations)
            set_condition(pod, {"type": "PodScheduled", "status": "True"})
            return pod

        await self._objects.update(inner, mutate, Part.WHOLE)
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    async def _evict(self, call: Call) -> Json:
        """Delete the pod if every budget that covers it allows one more disruption, and take that from the budget."""
        body = decoding.body_as(call, "Eviction", schemas.schema_name("policy", "v1", "Eviction"))
        given = (body.get("metadata") or {}).get("name")
        if given and given != call.name:
            raise bad_request("name in URL does not match name in Eviction object")
        options = dict(body.get("deleteOptions") or {})
        if "All" in (options.get("dryRun") or ()):
            call.query = {**call.query, "dryRun": "All"}
        pod = whole(call.kind, self._objects.find(call))
        await self._objects.review(call, body)
        if not self._free_to_go(pod):
            await self._charge_budget(call, pod)
        inner = Call("delete", call.kind, call.namespace, call.name, "eviction", call.query, call.user, agent=call.agent, is_admitted=True)
        if not call.dry_run:
            await self._mark_disrupted(call)
        await self._objects.delete(inner, options)
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    @staticmethod
    def _free_to_go(pod: Json) -> bool:
        phase = (pod.get("status") or {}).get("phase")
        return phase in ("Succeeded", "Failed", "Pending") or bool(pod["metadata"].get("deletionTimestamp"))

    async def _mark_disrupted(self, call: Call) -> None:
        inner = Call("patch", call.kind, call.namespace, call.name, "status", {}, call.user, agent=call.agent, is_admitted=True)
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}

        def mutate(pod: Json) -> Json:
            set_condition(pod, condition)
            return pod

        await self._objects.update(inner, mutate, Part.STATUS)

    async def _charge_budget(self, call: Call, pod: Json) -> None:
        kind = self._registry.find("policy", "v1", "poddisruptionbudgets")
        assert kind is not None
        labels = pod["metadata"].get("labels") or {}
        covering = []
        for entry in self._store.entries(kind.stored_in, call.namespace):
            selector = (entry.load().get("spec") or {}).get("selector")
            if matches(selector, labels):
                covering.append(entry)
        if len(covering) > 1:
            raise StatusError(500, "", "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")
        if not covering or _may_go_unready(pod, covering[0].load()):
            return
        budget = Call("patch", kind, call.namespace, covering[0].name, "status", call.query, call.user, agent=call.agent, is_admitted=True)

        def mutate(obj: Json) -> Json:
            spend(obj, pod)
            return obj

        await self._objects.update(budget, mutate, Part.STATUS)

    # ------------------------------------------------------------------ others
    async def _finalize(self, call: Call) -> Json:
        body = self._writes.read(call)

        def mutate(obj: Json) -> Json:
            obj["spec"] = {"finalizers": (body.get("spec") or {}).get("finalizers") or []}
            return obj

        return await self._objects.finalize(call, mutate)

    def _token(self, call: Call) -> Json:
        account = self._objects.find(call).load()
        spec: Json = decoding.body_as(call, "TokenRequest", schemas.schema_name("authentication.k8s.io", "v1", "TokenRequest")).get(
            "spec", {}
        )
        seconds = spec.setdefault("expirationSeconds", 3600)
        if not isinstance(seconds, int) or seconds < 600:
            cause = bad("spec.expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
            raise invalid("authentication.k8s.io", "TokenRequest", "", [cause])
        if seconds > 2**32:
            cause = bad("spec.expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds")
            raise invalid("authentication.k8s.io", "TokenRequest", "", [cause])
        if seconds > LONGEST_TOKEN_S:
            call.warnings.append(f"requested expiration of {seconds} seconds shortened to {LONGEST_TOKEN_S} seconds")
            seconds = spec["expirationSeconds"] = LONGEST_TOKEN_S
        bound = self._bound(call, spec.get("boundObjectRef"))
        meta = account["metadata"]
        token, expires = self._tokens.account_token(
            call.namespace, call.name, meta["uid"], seconds=seconds, audiences=spec.get("audiences") or (), bound=bound
        )
        spec.setdefault("audiences", [ISSUER])
        spec.setdefault("boundObjectRef", None)
        status = {"token": token, "expirationTimestamp": now_text(datetime.fromtimestamp(expires, UTC))}
        answer_meta = {"name": call.name, "namespace": call.namespace, "uid": meta["uid"], "creationTimestamp": now_text()}
        return {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": answer_meta, "spec": spec, "status": status}

    def _bound(self, call: Call, ref: Any) -> Json | None:
        if not ref:
            return None
        plural = {"Pod": "pods", "Secret": "secrets"}.get(ref.get("kind"))
        if plural is None:
            raise bad_request(f"cannot bind token for serviceaccount {call.name!r} to object of type {ref.get('kind')!r}")
        entry = self._store.get(plural, call.namespace, ref.get("name", ""))
        if entry is None:
            raise not_found("", plural, ref.get("name", ""))
        uid = entry.load()["metadata"]["uid"]
        if ref.get("uid") and ref["uid"] != uid:
            raise conflict(
                "",
                plural,
                entry.name,
                f"the UID in the bound object reference ({ref['uid']}) does not match the UID in record",
            )
        return {"kind": ref["kind"], "name": entry.name, "uid": uid}


def _may_go_unready(pod: Json, budget: Json) -> bool:
    """Evicting a pod that is not ready disrupts nothing: it is not counted, if the others are enough or the budget says always."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    if any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
        return False
    status = budget.get("status") or {}
    enough = 0 < status.get("desiredHealthy", 0) <= status.get("currentHealthy", 0)
    return enough or (budget.get("spec") or {}).get("unhealthyPodEvictionPolicy") == "AlwaysAllow"


def spend(budget: Json, pod: Json) -> None:
    """Take one disruption from a budget's status, or refuse as a server does."""
    meta, status = budget["metadata"], budget.setdefault("status", {})
    name = pod["metadata"]["name"]
    if status.get("observedGeneration", 0) < meta.get("generation", 0):
        why = f"The disruption budget {meta['name']} is still being processed by the server."
        raise _too_many(why, meta["name"])
    allowed = status.get("disruptionsAllowed", 0)
    if allowed < 0:
        raise StatusError(
            403, "Forbidden", f'pods "{name}" is forbidden: pdb disruptions allowed is negative', details={"name": name, "kind": "pods"}
        )
    if allowed == 0:
        needed, present = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
        why = f"The disruption budget {meta['name']} needs {needed} healthy pods and has {present} currently"
        raise _too_many(why, meta["name"])
    status["disruptionsAllowed"] = allowed - 1
    status.setdefault("disruptedPods", {})[name] = now_text()


def _too_many(why: str, budget: str) -> StatusError:
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    details = {"causes": [{"reason": "DisruptionBudget", "message": why}]}
    return StatusError(429, "TooManyRequests", message, details=details, headers={"Retry-After": "10"} if "still" in why else {})


def set_condition(pod: Json, condition: Json) -> None:
    conditions = pod.setdefault("status", {}).setdefault("conditions", [])
    if conditions is None:
        conditions = pod["status"]["conditions"] = []
    made = {**condition, "lastProbeTime": None, "lastTransitionTime": now_text()}
    if pod["metadata"].get("generation"):
        made["observedGeneration"] = pod["metadata"]["generation"]
    pod["status"]["conditions"] = [c for c in conditions if c["type"] != condition["type"]] + [made]


def _set(obj: Json, path: str, value: Any) -> None:
    *way, last = path.strip(".").split(".")
    for name in way:
        obj = obj.setdefault(name, {})
    obj[last] = value


def _selector_text(selector: Json | None) -> str:
    return ",".join(f"{k}={v}" for k, v in sorted((selector or {}).get("matchLabels", {}).items()))
