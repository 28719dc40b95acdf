"""Answer lists: apply selectors, make pages at the revision of the first page, show past states, and join stored bytes if possible."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from elastic.local.apiserver import selectors
from elastic.local.apiserver.calls import Call
from elastic.local.apiserver.errors import Json, StatusError, bad_request, expired, forbidden_field, invalid, unsupported
from elastic.local.apiserver.objects import whole
from elastic.local.apiserver.resources import ResourceType
from elastic.local.apiserver.store import Entry, Store, is_version

Match = Callable[[Entry], bool]


def matcher(call: Call) -> Match | None:
    """Return a predicate for the selectors of a request, or None if they select everything."""
    label = selectors.label_selector(call.query.get("labelSelector", ""))
    known = ("metadata.name", "metadata.namespace", *call.kind.strategy.selectable())
    field = selectors.field_selector(call.query.get("fieldSelector", ""), known)
    if call.name:
        name, inner = call.name, field
        field = lambda f: f["metadata.name"] == name and (inner is None or inner(f))  # noqa: E731
    if label is None and field is None:
        return None

    def match(entry: Entry) -> bool:
        if label is not None and not label(entry.labels):
            return False
        return field is None or field({**entry.fields, "metadata.name": entry.name, "metadata.namespace": entry.namespace})

    return match


@dataclass(frozen=True, slots=True)
class Page:
    entries: list[Entry]
    revision: int
    token: str = ""
    remaining: int | None = None


def page(store: Store, call: Call) -> Page:
    check_version_options(call)
    version_number(call)
    limit = call.integer("limit") or 0
    token, version = call.query.get("continue", ""), call.query.get("resourceVersion", "")
    after: tuple[str, str] | None = None
    if token:
        if version not in ("", "0"):
            raise bad_request("specifying resource version is not allowed when using continue")
        revision, after = read_token(token)
        entries = store.entries_at(call.kind.stored_in, revision, call.namespace)
        if entries is None:
            raise expired("The provided continue parameter is too old to display a consistent list result; start a new list without it.")
    elif version not in ("", "0") and (
        call.query.get("resourceVersionMatch") == "Exact" or (limit and not call.query.get("resourceVersionMatch"))
    ):
        revision = int(version)
        entries = store.entries_at(call.kind.stored_in, revision, call.namespace)
        if entries is None:
            raise expired("The resourceVersion for the provided list is too old.")
    else:
        revision, entries = store.revision, store.entries(call.kind.stored_in, call.namespace)
    match = matcher(call)
    if after is not None:
        entries = [e for e in entries if e.key > after]
    if match is not None:
        entries = [e for e in entries if match(e)]
    if limit <= 0 or len(entries) <= limit:
        return Page(entries, revision)
    rest = len(entries) - limit
    return Page(entries[:limit], revision, make_token(revision, entries[limit - 1]), None if match else rest)


def make_token(revision: int, last: Entry) -> str:
    return (
        base64.urlsafe_b64encode(orjson.dumps({"v": "meta.k8s.io/v1", "rv": revision, "start": [last.namespace, last.name]}))
        .rstrip(b"=")
        .decode()
    )


def read_token(token: str) -> tuple[int, tuple[str, str]]:
    try:
        read = orjson.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        namespace, name = read["start"]
        return int(read["rv"]), (str(namespace), str(name))
    except (ValueError, KeyError, TypeError) as e:
        raise bad_request(f"invalid continue token: continue key is not valid: {e}") from None


def check_version_options(call: Call) -> None:
    """Check resourceVersion and resourceVersionMatch of a list, whose combinations are restricted."""
    version, match = call.query.get("resourceVersion", ""), call.query.get("resourceVersionMatch", "")
    causes = []
    if match:
        if not version:
            causes.append(forbidden_field("resourceVersionMatch", "resourceVersionMatch is forbidden unless resourceVersion is provided"))
        if call.query.get("continue"):
            causes.append(forbidden_field("resourceVersionMatch", "resourceVersionMatch is forbidden when continue is provided"))
        if match not in ("Exact", "NotOlderThan"):
            causes.append(unsupported("resourceVersionMatch", match, ["Exact", "NotOlderThan", ""]))
        if match == "Exact" and version == "0":
            causes.append(forbidden_field("resourceVersionMatch", 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'))
    if call.flag("sendInitialEvents") or "sendInitialEvents" in call.query:
        causes.append(forbidden_field("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    if causes:
        raise invalid("meta.k8s.io", "ListOptions", "", causes)


def version_number(call: Call) -> int:
    """Return the requested resourceVersion, or 0 if there is no request for one."""
    text = call.query.get("resourceVersion", "")
    if text and not is_version(text):
        if call.verb == "list":
            raise bad_request(
                f'invalid resource version: resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
            )
        raise StatusError(500, "", f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax')
    return int(text or 0)


async def wait_for(store: Store, call: Call) -> None:
    """Wait a short time for a version that does not exist yet."""
    wanted = version_number(call)
    for _ in range(30):
        if store.revision >= wanted:
            return
        await asyncio.sleep(0.1)
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    message = f"Timeout: Too large resource version: {wanted}, current: {store.revision}"
    raise StatusError(504, "Timeout", message, details={"causes": [cause], "retryAfterSeconds": 1}, headers={"Retry-After": "1"})


def check_watch_options(call: Call) -> None:
    match, streaming = call.query.get("resourceVersionMatch", ""), call.query.get("sendInitialEvents")
    causes = []
    if streaming is None:
        if match:
            causes.append(
                forbidden_field("resourceVersionMatch", "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
            )
    elif match != "NotOlderThan":
        causes.append(forbidden_field("resourceVersionMatch", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"))
        if match:
            causes.append(unsupported("resourceVersionMatch", match, ["NotOlderThan"]))
    if causes:
        raise invalid("meta.k8s.io", "ListOptions", "", causes)


def list_meta(found: Page, kind: ResourceType) -> Json:
    meta: Json = {"resourceVersion": str(found.revision)}
    if found.token:
        meta["continue"] = found.token
    elif kind.custom:
        meta["continue"] = ""
    if found.token and found.remaining is not None:
        meta["remainingItemCount"] = found.remaining
    return meta


def encode(found: Page, kind: ResourceType) -> bytes:
    """Return the list as JSON. Items of built-in kinds have no apiVersion and kind, but items of custom resources have."""
    head = orjson.dumps({"kind": kind.list_of, "apiVersion": kind.api_version, "metadata": list_meta(found, kind)})[:-1]
    items = b",".join(_item(e, kind) for e in found.entries)
    return head + b',"items":[' + items + b"]}"


def _item(entry: Entry, kind: ResourceType) -> bytes:
    if kind.custom:
        return encode_one(entry, kind)
    if kind.strategy.same_form(entry.revision):
        return entry.data
    return orjson.dumps({k: v for k, v in whole(kind, entry).items() if k not in ("kind", "apiVersion")})


def encode_one(entry: Entry, kind: ResourceType) -> bytes:
    if kind.strategy.same_form(entry.revision):
        return kind.prefix() + entry.data[1:]
    return orjson.dumps(whole(kind, entry))
