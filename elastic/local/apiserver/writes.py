"""Serve the writing verbs: turn a request's body into the change of an object."""

from __future__ import annotations

import copy
from typing import Any

import orjson

from elastic.local.apiserver import decoding, lists, managed, patches, protobuf, schemas
from elastic.local.apiserver.calls import Call
from elastic.local.apiserver.custom import Custom
from elastic.local.apiserver.errors import (
    Json,
    StatusError,
    bad,
    bad_request,
    conflict,
    invalid,
    not_found,
    unnamed,
    unsupported,
    unsupported_media,
)
from elastic.local.apiserver.objects import Mutate, Objects, Part
from elastic.local.apiserver.store import Store
from elastic.nesting import TOO_DEEP, is_too_deep

MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
JSON_PATCH, APPLY = "application/json-patch+json", "application/apply-patch+yaml"
PATCH_TYPES = (JSON_PATCH, MERGE, STRATEGIC, APPLY)


class Writes:
    def __init__(self, objects: Objects, store: Store) -> None:
        self._objects, self._store = objects, store

    def read(self, call: Call) -> Json:
        """Return the object in a request's body."""
        if call.media == protobuf.MEDIA:
            obj, unknown = self._shaped(call, decoding.expect_kind(protobuf.decode(call.body, call.kind.kind), call.kind, body=b""))
            return obj
        if call.media not in (*decoding.JSON_TYPES, *decoding.YAML_TYPES):
            raise unsupported_media(decoding.SUPPORTED)
        raw = decoding.parse(call.body, call.media)
        policy = decoding.FieldPolicy(call.query.get("fieldValidation", ""))
        repeated = decoding.repeated_keys(call.body) if policy.mode != "Ignore" and call.media in decoding.JSON_TYPES else []
        obj, unknown = self._shaped(call, decoding.expect_kind(raw, call.kind, body=call.body))
        policy.note(unknown, repeated)
        call.warnings += policy.settle("")
        return obj

    def _shaped(self, call: Call, obj: Json, known: Json | None = None) -> tuple[Json, list[str]]:
        strategy = call.kind.strategy
        if isinstance(strategy, Custom):
            unknown: list[str] = []
            return strategy.shape(obj, call.kind.kind, unknown), unknown
        return decoding.typed(obj, call.kind, known)

    async def create(self, call: Call) -> Json:
        call.check_options("CreateOptions")
        obj = self.read(call)
        call.warnings += [call.kind.remark] if call.kind.remark else []
        return await self._objects.create(call, obj)

    async def update(self, call: Call) -> tuple[Json, bool]:
        """Replace an object. Return it, and whether the replacement created it."""
        call.check_options("UpdateOptions")
        obj = self.read(call)
        given = obj["metadata"].get("name", "")
        if given != call.name:
            if not given:
                raise bad_request("resource name may not be empty")
            raise bad_request(f"the name of the object ({given}) does not match the name on the URL ({call.name})")
        exists = self._store.get(call.kind.stored_in, call.namespace, call.name) is not None
        if not exists and call.kind.strategy.creates_on_update:
            return await self._objects.create(call, obj), True
        return await self._objects.update(call, lambda _: copy.deepcopy(obj), _part(call)), False

    async def patch(self, call: Call) -> tuple[Json, bool]:
        call.check_options("PatchOptions")
        if call.media not in PATCH_TYPES:
            raise unsupported_media(PATCH_TYPES)
        if call.media == APPLY:
            return await self._apply(call)
        if call.media == STRATEGIC and call.kind.custom:
            raise unsupported_media((JSON_PATCH, MERGE, APPLY))
        operations = decoding.parse(call.body, call.media)
        return await self._objects.update(call, self._patching(call, operations), _part(call)), False

    def _patching(self, call: Call, patch: Any) -> Mutate:
        def mutate(current: Json) -> Json:
            policy = decoding.FieldPolicy(call.query.get("fieldValidation", ""))
            raw = patched(call, current, patch)
            try:
                obj, unknown = self._shaped(call, raw, current)
                policy.note(unknown, [])
                call.warnings[:] = policy.settle("")
            except StatusError as e:
                shown = patch if call.media == STRATEGIC else raw
                raise invalid("", "", "", [bad("patch", orjson.dumps(shown).decode(), e.message)]) from None
            obj.setdefault("metadata", {})
            return obj

        return mutate

    async def _apply(self, call: Call) -> tuple[Json, bool]:
        parsed = decoding.parse(call.body, call.media)
        written = dict(parsed) if isinstance(parsed, dict) else {}
        config = managed.check_config(call, parsed)
        meta = config["metadata"]
        if self._store.get(call.kind.stored_in, call.namespace, call.name) is None:
            if call.subresource:
                raise not_found(call.kind.group, call.kind.plural, call.name)
            if meta.get("uid"):
                why = f"uid mismatch: the provided object specified uid {meta['uid']}, and no existing object was found"
                raise conflict(call.kind.group, call.kind.plural, call.name, why)
            if not (written.get("metadata") or {}).get("name"):
                raise unnamed(call.name)
            return await self._objects.create(call, self._applied(call, None, config)), True

        def mutate(live: Json) -> Json:
            return self._applied(call, live, config)

        return await self._objects.update(call, mutate, _part(call)), False

    def _applied(self, call: Call, live: Json | None, config: Json) -> Json:
        """Apply a configuration to the live object. Fields that the kind does not know are refused or dropped."""
        policy = decoding.FieldPolicy(call.query.get("fieldValidation", ""))
        merged, unknown = self._shaped(call, managed.apply(call, live, config))
        policy.note(unknown, [])
        call.warnings[:] = policy.settle("")
        for key in ("resourceVersion", "uid"):
            if config["metadata"].get(key):
                merged["metadata"][key] = config["metadata"][key]
        return merged

    async def delete(self, call: Call) -> tuple[Json, bool]:
        return await self._objects.delete(call, self.delete_options(call))

    def delete_options(self, call: Call) -> Json:
        options = decoding.body_as(call, "DeleteOptions", schemas.META + "DeleteOptions")
        if options.get("kind") not in (None, "DeleteOptions"):
            raise bad_request(f'no kind "{options["kind"]}" is registered for version "{options.get("apiVersion", "")}"')
        if call.query.get("propagationPolicy"):
            options["propagationPolicy"] = call.query["propagationPolicy"]
        if call.query.get("gracePeriodSeconds"):
            options["gracePeriodSeconds"] = call.integer("gracePeriodSeconds")
        if call.query.get("orphanDependents"):
            options["orphanDependents"] = call.flag("orphanDependents")
        causes = []
        dry = options.get("dryRun") or ([call.query["dryRun"]] if call.query.get("dryRun") else [])
        if dry and dry != ["All"]:
            causes.append(unsupported("dryRun", dry, ["All"]))
        elif dry:
            call.query = {**call.query, "dryRun": "All"}
        policy = options.get("propagationPolicy")
        if policy is not None and policy not in ("Orphan", "Background", "Foreground"):
            causes.append(unsupported("propagationPolicy", policy, ["Foreground", "Background", "Orphan", "nil"]))
        if policy is not None and options.get("orphanDependents") is not None:
            causes.append(bad("propagationPolicy", policy, "orphanDependents and deletionPropagation cannot be both set"))
        if causes:
            raise invalid("meta.k8s.io", "DeleteOptions", "", causes)
        return options

    async def delete_collection(self, call: Call) -> list[Json]:
        options = self.delete_options(call)
        deleted = []
        for entry in lists.page(self._store, call).entries:
            one = Call(
                call.verb, call.kind, entry.namespace, entry.name, "", call.query, call.user, agent=call.agent, warnings=call.warnings
            )
            try:
                deleted.append((await self._objects.delete(one, dict(options)))[0])
            except StatusError as e:
                if e.code != 404:
                    raise
        return deleted


def _part(call: Call) -> Part:
    return Part.STATUS if call.subresource == "status" else Part.MAIN


def patched(call: Call, current: Json, patch: Any) -> Json:
    """Return the object after a merge, strategic or JSON patch."""
    if call.media == JSON_PATCH:
        out = patches.json_patch(current, patch)
    elif not isinstance(patch, dict):
        raise bad_request("error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}")
    elif call.media == STRATEGIC:
        out = patches.strategic(current, patch, call.kind.schema)
    else:
        out = patches.merge(current, patch)
    if not isinstance(out, dict):
        raise bad_request("the patch leaves no object")
    if is_too_deep(out):
        raise bad_request(f"the patch makes an object that cannot be stored: {TOO_DEEP}")
    return {**out, "apiVersion": out.get("apiVersion", call.kind.api_version), "kind": out.get("kind", call.kind.kind)}
