"""An etcd in memory with a virtual clock, which answers calls as etcd's JSON gateway does, and agents of a job that meet in it."""

import asyncio
import base64
import itertools
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from elastic.etcd.store import Away, Compacted, Entry, Listing
from elastic.etcd.store import Refused as Denied
from elastic_worker.agent.view import View
from elastic_worker.etcd.fields import Unusable
from elastic_worker.etcd.gateway import Refused, Unreachable
from elastic_worker.etcd.group import Rules
from elastic_worker.etcd.presence import EtcdPresence
from elastic_worker.etcd.records import EXPECTED, MEMBERS, WORLD, Expected, Seal, World
from elastic_worker.etcd.settings import Settings

JOB, TOKEN = "job", "a token"
PREFIX = f"/elastic-training/{JOB}/"
Body = dict[str, Any]
PORTS = itertools.count(1)


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
    """What a rendezvous uses: ranges, puts, comparing transactions, leases and watches. `worlds` are all that were sealed."""

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
        """The record under a key; None without one of ours."""
        key = self.keys.get(PREFIX + name)
        try:
            return self.seal.open(name, base64.b64decode(key.value)) if key is not None else None
        except Unusable:
            return None

    def write(self, name: str, value: bytes) -> None:
        """As somebody else than an agent does."""
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
        if isinstance(world, World) and world.round is None and not world.closed:
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
    """The controller's way into a FakeEtcd."""

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
        """Until the watch may have something to say."""
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


def entry(pair: Body, prefix: str) -> Entry:
    key = base64.b64decode(pair["key"]).decode().removeprefix(prefix)
    return Entry(key, base64.b64decode(pair.get("value", "")), int(pair["mod_revision"]))


class Watch:
    """Brings what happened since a revision; not while it is deaf."""

    def __init__(self, link: "Link", since: int) -> None:
        self._link = link
        self._since = since
        self.is_broken = False

    def changes(self) -> Iterator[Any]:
        etcd = self._link.etcd
        if self.is_broken or self._link.is_cut:
            yield Unreachable("etcd ended the watch")
        elif not self._link.is_deaf and self._since <= etcd.compacted:
            yield {"canceled": True, "compact_revision": str(etcd.compacted)}
        elif not self._link.is_deaf:
            events = etcd.changes(self._since)
            self._since = etcd.revision + 1
            if events:
                yield {"events": events}

    def close(self) -> None:
        self.is_broken = True


@dataclass
class Link:
    """One agent's way to etcd."""

    etcd: FakeEtcd
    is_cut: bool = False
    is_deaf: bool = False
    loses_answers: bool = False
    watches: list[Watch] = field(default_factory=list)

    def call(self, path: str, body: Body) -> Body:
        if self.is_cut:
            raise Unreachable("connection refused")
        answer = self.etcd.call(path, body)
        if self.loses_answers and path != "kv/range":
            self.loses_answers = False
            raise Unreachable("no whole answer within 2 s")
        return answer

    def watch(self, request: Body) -> Watch:
        if self.is_cut:
            raise Unreachable("connection refused")
        watch = Watch(self, int(request["create_request"]["start_revision"]))
        self.watches = [watch]
        return watch

    def hurry(self, call_s: float) -> None: ...

    def close(self) -> None: ...


class Hosts:
    """What the hosts of all agents say of processes: whose have ended. Where `are_there` is false, nobody answers."""

    def __init__(self) -> None:
        self.are_there = False
        self.ended: set[str] = set()

    def ask(self, addresses: Iterable[str]) -> None: ...

    def has_ended(self, address: str) -> bool:
        return self.are_there and address in self.ended

    def forget(self) -> None: ...


@dataclass
class Alive:
    """Where an agent listens."""

    address: str

    def close(self) -> None: ...


class Agent:
    """An agent that behaves as torchrun with our handler does; its presence is the real one, whose thread is played by `turn`."""

    def __init__(self, etcd: FakeEtcd, name: str, rules: Rules, hosts: Hosts) -> None:
        self.link = Link(etcd)
        self.hosts = hosts
        self.name = name
        settings = Settings(
            endpoints=(),
            tls=None,
            login=None,
            prefix=PREFIX,
            job=JOB,
            member=name,
            pod_uid="",
            address="10.0.0.1",
            rules=rules,
            lease_s=5,
            linger_s=300,
            away_s=600.0,
            token=TOKEN,
        )
        alive: Any = Alive(f"10.0.0.1:{next(PORTS)}")
        self.presence = EtcdPresence(settings, on_signal=lambda number: None, clock=lambda: etcd.now, etcd=self.link, alive=alive)
        self.alive_at, self.presence._asking = alive.address, hosts  # type: ignore[assignment]
        self.generation = 0
        self.entered: list[int] = []
        self.view = View({})
        self.is_ready = False
        self.has_failed = False
        self.is_frozen = False
        self.come()

    def come(self, trouble: str = "") -> None:
        """To the barrier."""
        self.is_ready, self.has_failed = True, False
        self.presence.announce_ready(after=self.generation, store=f"{self.name}:{self.generation}", trouble=trouble)

    @property
    def is_working(self) -> bool:
        return not self.is_ready and self.generation > 0

    def step(self, step: int) -> None:
        """A worker reports it."""
        self.presence.note_step(self.generation, step)

    def fail(self) -> None:
        self.has_failed = True
        self.presence.report_state("failed", generation=self.generation, status=1)

    def turn(self) -> None:
        """What the presence's thread and then the handler do once."""
        self.presence._try()
        self.view = view = self.presence.view
        if self.is_ready and view.generation > self.generation and not view.closed:
            self.is_ready, self.generation = False, view.generation
            self.entered.append(view.generation)
            self.presence.enter(view)
            self.held = view

    def end(self, *, politely: bool) -> None:
        self.hosts.ended.add(self.alive_at)
        if politely:
            self.presence._is_ending, self.presence._left = True, "received SIGTERM"
            self.presence._say_goodbye()
        self.presence.close()


class Job:
    """The agents of one job, and what they do together."""

    def __init__(self, **rules: Any) -> None:
        self.etcd = FakeEtcd()
        self.rules = Rules(**{"min": 1, "max": 3, **rules})
        self.agents: dict[str, Agent] = {}
        self.ended: list[Agent] = []
        self.hosts = Hosts()

    def start(self, *names: str) -> None:
        for name in names:
            self.agents[name] = Agent(self.etcd, name, self.rules, self.hosts)

    def expect(self, *names: str, **fields: Any) -> None:
        expected = Expected(**{"members": names, "min": self.rules.min, "max": self.rules.max, **fields})
        self.etcd.write(EXPECTED, self.etcd.seal.close(EXPECTED, expected))

    def end(self, name: str, *, politely: bool = False) -> None:
        agent = self.agents.pop(name)
        agent.end(politely=politely)
        self.ended.append(agent)

    def turn(self, times: int = 3) -> None:
        for _ in range(times):
            for agent in list(self.agents.values()):
                if not agent.is_frozen:
                    agent.turn()

    def come_all(self) -> None:
        """Those who are asked back, or whose workers failed, come to the barrier."""
        for agent in self.agents.values():
            if not agent.is_frozen and agent.is_working and (agent.view.reform or agent.has_failed):
                agent.come()

    def live(self, seconds: float = 30.0, step_s: float = 0.5) -> None:
        """Time passes, and everybody does what is asked."""
        for _ in range(int(seconds / step_s)):
            self.etcd.advance(step_s)
            self.turn(1)
            self.come_all()
        self.turn()

    def world(self) -> World | None:
        found = self.etcd.open(WORLD)
        return found if isinstance(found, World) else None

    def in_world(self) -> set[str]:
        return {agent.name for agent in self.agents.values() if agent.is_working and not agent.view.reform}

    def names(self) -> tuple[str, ...]:
        world = self.world()
        return tuple(seat.name for seat in world.seats) if world is not None else ()

    def member(self, name: str) -> Any:
        return self.etcd.open(MEMBERS + name)

    def close(self) -> None:
        for agent in self.agents.values():
            agent.presence.close()
