"""Play an etcd in memory, with a virtual clock, and the controller's connection to it.

It answers calls as etcd's JSON gateway does.
"""

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from elastic.etcd.store import Away, Compacted, Entry, Listing, Store
from elastic.etcd.store import StoreRefused as Denied
from elastic_worker.etcd.fields import Unusable
from elastic_worker.etcd.gateway import Refused
from elastic_worker.etcd.records import EXPECTED, WORLD, Expected, Seal, World

JOB, TOKEN = "job", "a token"
PREFIX = f"/elastic-training/{JOB}/"
Body = dict[str, Any]


def text(value: str) -> str:
    return base64.b64decode(value).decode()


def coded(value: str) -> str:
    return base64.b64encode(value.encode()).decode()


@dataclass
class Key:
    value: str
    created: int
    written: int
    lease: int

    def pair(self, name: str) -> Body:
        return {"key": coded(name), "value": self.value, "create_revision": str(self.created), "mod_revision": str(self.written)}


@dataclass
class Lease:
    ttl: int
    until: float


class FakeEtcd:
    """The calls that a rendezvous makes: ranges, puts, comparing transactions, leases and watches. `worlds` has every sealed world."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.revision = 1
        self.compacted = 0
        self.keys: dict[str, Key] = {}
        self.leases: dict[int, Lease] = {}
        self.events: list[tuple[int, Body]] = []
        self.worlds: list[tuple[World, Expected | None]] = []
        self.seal = Seal(TOKEN, JOB)
        self.writes = 0

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for id in [id for id, lease in self.leases.items() if lease.until <= self.now]:
            self._end_lease(id)

    def call(self, path: str, body: Body) -> Body:
        answer = {
            "kv/range": self._range,
            "kv/put": self._put,
            "kv/txn": self._txn,
            "lease/grant": self._grant,
            "lease/keepalive": self._keep,
            "lease/revoke": self._revoke,
        }[path](body)
        return {"header": {"revision": str(self.revision)}, **answer}

    def changes(self, since: int) -> list[Body]:
        return [event for revision, event in self.events if revision >= since]

    def open(self, name: str) -> Any:
        """Return the record under a key, or None if the key holds no record of ours."""
        key = self.keys.get(PREFIX + name)
        try:
            return self.seal.open(name, base64.b64decode(key.value)) if key is not None else None
        except Unusable:
            return None

    def write(self, name: str, value: bytes) -> None:
        """Write a key as another client than an agent does."""
        self._put({"key": coded(PREFIX + name), "value": base64.b64encode(value).decode()})

    def remove(self, name: str) -> None:
        self._delete(PREFIX + name)

    def _range(self, body: Body) -> Body:
        first, last = text(body["key"]), text(body["range_end"])
        found = {name: key for name, key in self.keys.items() if first <= name < last}
        pairs = [key.pair(name) for name, key in found.items()]
        if body.get("sort_target") == "MOD":
            pairs.sort(key=lambda pair: -int(pair["mod_revision"]))
        return {"kvs": pairs[: int(body["limit"])], "count": str(len(found))}

    def _put(self, body: Body) -> Body:
        lease = int(body.get("lease", "0"))
        if lease and lease not in self.leases:
            raise Refused("etcdserver: requested lease not found", 5)
        self.revision += 1
        name, before = text(body["key"]), self.keys.get(text(body["key"]))
        key = self.keys[name] = Key(body["value"], before.created if before else self.revision, self.revision, lease)
        self.events.append((self.revision, {"kv": key.pair(name)}))
        self.writes += 1
        world = self.open(WORLD) if name == PREFIX + WORLD else None
        former = self.worlds[-1][0] if self.worlds else None
        is_new = not isinstance(world, World) or former is None or (world.generation, world.seats) != (former.generation, former.seats)
        if isinstance(world, World) and is_new and world.round is None and not world.closed:
            self.worlds.append((world, self.open(EXPECTED)))
        return {}

    def _txn(self, body: Body) -> Body:
        assert len(body["compare"]) <= 128, "etcd refuses more"
        assert len(body["success"]) <= 128
        if not all(self._holds(compare) for compare in body["compare"]):
            return {}
        for operation in body["success"]:
            if "request_put" in operation:
                self._put(operation["request_put"])
            else:
                self._delete(text(operation["request_delete_range"]["key"]))
        return {"succeeded": True}

    def _holds(self, compare: Body) -> bool:
        name, revision = text(compare["key"]), int(compare["mod_revision"])
        if compare["result"] == "LESS":
            last = text(compare["range_end"])
            return all(key.written < revision for other, key in self.keys.items() if name <= other < last)
        return (self.keys[name].written if name in self.keys else 0) == revision

    def _delete(self, name: str) -> None:
        if name in self.keys:
            self.revision += 1
            del self.keys[name]
            self.events.append((self.revision, {"type": "DELETE", "kv": {"key": coded(name), "mod_revision": str(self.revision)}}))

    def _grant(self, body: Body) -> Body:
        id = int(body.get("ID", "0")) or 7000 + len(self.events) + len(self.leases) + int(self.now * 1000)
        while "ID" not in body and id in self.leases:
            id += 1
        if id in self.leases:
            raise Refused("etcdserver: lease already exists", 9)
        self.leases[id] = Lease(int(body["TTL"]), self.now + int(body["TTL"]))
        return {"ID": str(id), "TTL": body["TTL"]}

    def _keep(self, body: Body) -> Body:
        lease = self.leases.get(int(body["ID"]))
        if lease is None:
            return {"result": {"ID": body["ID"]}}
        lease.until = self.now + lease.ttl
        return {"result": {"ID": body["ID"], "TTL": str(lease.ttl)}}

    def _revoke(self, body: Body) -> Body:
        if int(body["ID"]) not in self.leases:
            raise Refused("etcdserver: requested lease not found", 5)
        self._end_lease(int(body["ID"]))
        return {}

    def _end_lease(self, id: int) -> None:
        del self.leases[id]
        for name in [name for name, key in self.keys.items() if key.lease == id]:
            self._delete(name)


class InMemory:
    """The controller's connection to a FakeEtcd."""

    def __init__(self, etcd: FakeEtcd) -> None:
        self.etcd = etcd
        self.is_cut = self.is_deaf = self.is_closed_for_us = self.is_cancelled = self.has_alarm = False

    def _call(self, path: str, body: Body) -> Body:
        if self.is_cut:
            raise Away("it does not answer")
        if self.is_closed_for_us:
            raise Denied("etcdserver: permission denied")
        return self.etcd.call(path, body)

    async def list(self, prefix: str) -> Listing:
        answer = self._call("kv/range", {"key": coded(prefix), "range_end": coded(prefix[:-1] + "0"), "limit": "9999"})
        return Listing(int(answer["header"]["revision"]), tuple(entry(pair, prefix) for pair in answer["kvs"]))

    async def pages(self, prefix: str) -> AsyncIterator[Listing]:
        yield await self.list(prefix)

    async def newest(self, prefix: str) -> tuple[int, int]:
        listing = await self.list(prefix)
        return max((found.written for found in listing.entries), default=0), len(listing.entries)

    async def watch(self, prefix: str, since: int) -> AsyncIterator[tuple[Entry, ...]]:
        while True:
            await self.wait(since)
            if self.is_cut:
                raise Away("the watch ended")
            if self.is_cancelled:
                self.is_cancelled = False
                raise asyncio.CancelledError
            if since <= self.etcd.compacted:
                raise Compacted
            events = [] if self.is_deaf else self.etcd.changes(since)
            since = self.etcd.revision + 1 if not self.is_deaf else since
            if events:
                yield tuple(entry(e["kv"], prefix)._replace(**({"value": None} if e.get("type") == "DELETE" else {})) for e in events)

    async def wait(self, since: int) -> None:
        """Wait until the watch may have news."""
        await asyncio.sleep(0.02)

    async def put(self, key: str, value: bytes, *, lease: int, unchanged: int) -> int:
        put = {"key": coded(key), "value": base64.b64encode(value).decode(), "lease": str(lease)}
        compare = {"key": coded(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(unchanged)}
        answer = self._call("kv/txn", {"compare": [compare], "success": [{"request_put": put}]})
        return self.etcd.revision if answer.get("succeeded") else 0

    async def remove(self, prefix: str) -> None:
        for key in [key for key in self.etcd.keys if key.startswith(prefix)]:
            self.etcd._delete(key)

    async def grant(self, ttl_s: int) -> int:
        return int(self._call("lease/grant", {"TTL": str(ttl_s)})["ID"])

    async def keep(self, lease: int) -> bool:
        return bool(self._call("lease/keepalive", {"ID": str(lease)})["result"].get("TTL"))

    async def revoke(self, lease: int) -> None: ...

    async def is_full(self) -> bool:
        return self.has_alarm

    async def close(self) -> None: ...


async def keys_under(store: Store, prefix: str) -> list[str]:
    """Return the keys under the prefix, without it."""
    return [found.key async for page in store.pages(prefix) for found in page.entries]


def entry(pair: Body, prefix: str) -> Entry:
    key = base64.b64decode(pair["key"]).decode().removeprefix(prefix)
    return Entry(key, base64.b64decode(pair.get("value", "")), int(pair["mod_revision"]))
