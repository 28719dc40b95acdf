"""No legal message is too long for the way it goes.

The largest instance of every type, built from the type's own bounds, through the real HTTPS server, the agents' own channel and the
controller's own client.
"""

import asyncio
import json
import select
import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, get_args

import aiohttp
import msgspec
import pytest
import yarl
from aiohttp import web
from msgspec import inspect

from elastic.local.installation import ensure_installation
from elastic.membership import hosts, training, wire, world_changes
from elastic.membership.client import RendezvousClient
from elastic.membership.codec import struct_of
from elastic.membership.limits import MEMBER_VIEW, WORLD_LINE, Unbounded, longest_json
from elastic.membership.tokens import control_token, job_token, load_keys
from elastic.membership.world_changes import WorldChange
from elastic_training.rendezvous.engine.messages import controller, doing, in_place, member, pace, saves
from elastic_training.rendezvous.engine.messages.bounds import Bound
from elastic_training.rendezvous.server.access import Gate
from elastic_training.rendezvous.server.credentials import Credentials
from elastic_training.rendezvous.server.http import Face
from elastic_training.rendezvous.server.signs import Signs
from elastic_worker.agent import websocket

FROM_MEMBER = get_args(wire.FromMember)
ROOTS = (
    *FROM_MEMBER,
    wire.View,
    wire.Keys,
    wire.Refused,
    wire.Expectation,
    wire.WorldReport,
    WorldChange,
    training.Report,
    training.ReportAnswer,
    training.TrainingSignal,
    training.TrainingProgress,
    training.Forgotten,
    hosts.LauncherReport,
)
"""The types that are sent. All other types are parts of these."""
ESCAPED_TWICE, CONTROL = "\U0001f600", "\x01"
"""The longest characters in JSON: as an agent writes it with Python's json, and as msgspec writes it."""


def largest(type: Any, *, filler: str = CONTROL) -> Any:
    """Return the largest value of a type, by its own bounds, with plain values as JSON has them."""
    return _largest(inspect.type_info(struct_of(type)), filler)


def _largest(type: inspect.Type, filler: str) -> Any:
    match type:
        case inspect.StructType(fields=fields, tag_field=tag_field, tag=tag):
            values = {one.encode_name: _largest(one.type, filler) for one in fields}
            return values if tag_field is None else {tag_field: tag, **values}
        case inspect.StrType(max_length=int(length), pattern=pattern):
            return ("x" if pattern else filler) * length
        case inspect.VarTupleType(item_type=item, max_length=int(length)):
            return [_largest(item, filler)] * length
        case inspect.DictType(key_type=key, value_type=value, max_length=int(length)):
            longest = _largest(key, filler)
            return {f"{number:04}" + longest[4:]: _largest(value, filler) for number in range(length)}
        case inspect.UnionType(types=types):
            return max((_largest(one, filler) for one in types), key=lambda value: len(json.dumps(value)))
        case inspect.IntType(le=most, lt=less):
            return most if most is not None else less - 1  # type: ignore[operator]
        case inspect.FloatType(le=most):
            return -1.7976931348623157e308 if most is None and type.gt is None and type.ge is None else 31622399.999999996
        case inspect.EnumType(cls=choices):
            return max((str(choice.value) for choice in choices), key=len)
        case inspect.BoolType():
            return False
        case inspect.NoneType():
            return None
    raise AssertionError(f"no largest {type}")


@dataclass
class LargeHub:
    """Sends the largest that a server can send, and keeps what it receives."""

    view: wire.View | None = None
    refusal: str = ""
    told: wire.WorldReport | None = None
    heard: list[Any] = field(default_factory=list)
    version: int = 1
    links: list[Any] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    hosts: None = None
    signs: Signs = field(default_factory=lambda: Signs(time.monotonic))

    async def has_heard(self, count: int) -> None:
        while len(self.heard) < count:
            self.came.clear()
            await self.came.wait()

    def job(self, uid: str) -> None: ...

    def attach(self, uid: str, *, name: str, link: Any, message: wire.Join) -> None:
        self.heard.append(message)
        self.links.append(link)
        self.came.set()
        if self.refusal:
            link.end(self.refusal)
        else:
            link.send(self.view or wire.View())

    def said(self, uid: str, *, name: str, incarnation: str, message: wire.FromMember) -> None:
        self.heard.append(message)
        self.came.set()

    def detach(self, uid: str, *, name: str, incarnation: str, link: object) -> None: ...

    def expect(self, uid: str, expectation: wire.Expectation) -> bool:
        self.heard.append(expectation)
        return True

    def report(self, uid: str, report: training.Report) -> training.ReportAnswer:
        self.heard.append(report)
        return msgspec.convert(largest(training.ReportAnswer), training.ReportAnswer)

    def signals(self, uid: str) -> list[training.TrainingSignal]:
        return [msgspec.convert(largest(training.TrainingSignal), training.TrainingSignal)]

    def changed_since(self, version: int) -> tuple[list[str], list[str]]:
        return ([] if self.told is None or version >= self.version else [self.told.job], [])

    def world(self, uid: str) -> wire.WorldReport | None:
        return self.told

    async def wait_newer(self, version: int) -> int:
        await asyncio.sleep(3600)
        return version


@dataclass
class Served:
    hub: LargeHub
    port: int
    key: bytes
    ca: str

    def client(self) -> RendezvousClient:
        async def token() -> str:
            return control_token(self.key)

        return RendezvousClient(f"https://127.0.0.1:{self.port}", token, self.ca)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    ensure_installation(tmp_path, addresses=())
    credentials, hub = Credentials(tmp_path), LargeHub()
    gate = Gate(keys=lambda: credentials.keys, reviewer=None, accounts=())
    clock: Callable[[], float] = asyncio.get_running_loop().time
    face = Face(hub=hub, gate=gate, clock=clock, metrics=lambda: (b"", ""))  # type: ignore[arg-type]
    runner = web.AppRunner(face.application(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=credentials.tls)
    await site.start()
    port = runner.addresses[0][1]
    yield Served(hub, port, load_keys(tmp_path)[0], (tmp_path / "ca.crt").read_text())
    await face.close()
    await runner.cleanup()
    await asyncio.sleep(0.1)  # aiohttp does not wait for the good-byes of its TLS connections


def agents_exchange(served: Served, texts: list[str]) -> list[str]:
    """Send these texts as an agent does, and return what its channel hears."""
    tls = ssl.create_default_context(cadata=served.ca)
    path, token = "/v1/jobs/job/members/w0", job_token(served.key, "job")
    link = websocket.WebSocket.open(host="127.0.0.1", port=served.port, path=path, token=token, tls=tls, timeout_s=10)
    try:
        for text in texts:
            link.send(text)
        heard: list[str] = []
        while not heard:
            assert select.select([link.fileno()], [], [], 30)[0], "the server answers"
            heard = link.receive()
        return heard
    finally:
        link.drop()


@pytest.mark.parametrize("type", FROM_MEMBER)
async def test_the_largest_message_of_a_member_arrives(served: Served, type: Any) -> None:
    message = largest(type, filler=ESCAPED_TWICE)
    first = [] if type is wire.Join else ['{"t":"join","incarnation":"a"}']
    texts = [*first, json.dumps(message, separators=(",", ":"))]
    await asyncio.to_thread(agents_exchange, served, texts)
    async with asyncio.timeout(30):
        await served.hub.has_heard(len(texts))
    assert served.hub.heard[-1] == wire.convert(message, type)


@pytest.mark.parametrize("type", [wire.View, wire.Refused])
async def test_the_largest_message_to_a_member_arrives(served: Served, type: Any) -> None:
    message = largest(type)
    if type is wire.View:
        served.hub.view = wire.convert(message, wire.View)
    else:
        served.hub.refusal = message["refused"]
    (text,) = await asyncio.to_thread(agents_exchange, served, ['{"t":"join","incarnation":"a"}'])
    assert wire.Decoder[Any](type).decode(text) == wire.convert(message, type)
    assert websocket.LONGEST_FRAME >= MEMBER_VIEW, "the agents' channel takes what the wire allows"


async def test_the_largest_expectation_arrives(served: Served) -> None:
    message = wire.convert(largest(wire.Expectation), wire.Expectation)
    async with served.client() as client:
        await client.expect("job", message)
    assert served.hub.heard == [message]


async def test_the_largest_world_arrives_and_the_next_one_after_it(served: Served) -> None:
    served.hub.told = wire.convert(largest(wire.WorldReport), wire.WorldReport)
    async with served.client() as client:
        async for world in client.worlds():
            assert world == served.hub.told
            break


async def test_the_largest_report_arrives_and_so_do_its_answer_and_the_signal_made_of_it(served: Served) -> None:
    tls, url = ssl.create_default_context(cadata=served.ca), f"https://127.0.0.1:{served.port}/v1/jobs/job"
    message = largest(training.Report, filler=ESCAPED_TWICE)
    async with aiohttp.ClientSession() as session:
        headers = {"Authorization": f"Bearer {job_token(served.key, 'job')}"}
        async with session.post(f"{url}/report", data=json.dumps(message, separators=(",", ":")), headers=headers, ssl=tls) as answer:
            assert (answer.status, await answer.json()) == (200, largest(training.ReportAnswer))
        headers = {"Authorization": f"Bearer {control_token(served.key)}"}
        async with session.get(f"{url}/signals", headers=headers, ssl=tls) as answer:
            assert msgspec.json.decode(await answer.read(), type=list[training.TrainingSignal]) == served.hub.signals("job")
    assert served.hub.heard == [msgspec.convert(message, training.Report)]
    await asyncio.sleep(0.1)


async def test_a_bearer_token_that_is_no_ascii_is_a_wrong_token(served: Served) -> None:
    """It ended in an error of the server, without any credentials."""
    tls, url = ssl.create_default_context(cadata=served.ca), f"https://127.0.0.1:{served.port}/v1"
    async with aiohttp.ClientSession() as session:
        for path in ("jobs/job/members/w0", "jobs/job/world", "worlds", "jobs/job/signals"):
            async with session.get(f"{url}/{path}", headers={"Authorization": "Bearer t\u00f6ken"}, ssl=tls) as answer:
                assert answer.status in (401, 403), path
    await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    "path", ["jobs/jo%22b/members/w0", "jobs/job/members/w%0a0", f"jobs/job/members/{'w' * 254}", "jobs/%C3%B6/members/w0"]
)
async def test_a_name_that_no_message_could_carry_is_refused(served: Served, path: str) -> None:
    tls = ssl.create_default_context(cadata=served.ca)
    async with aiohttp.ClientSession() as session:
        url = yarl.URL(f"https://127.0.0.1:{served.port}/v1/{path}", encoded=True)
        async with session.get(url, headers={"Authorization": "Bearer t"}, ssl=tls) as answer:
            assert answer.status == 400
            assert "printable ASCII" in await answer.text()
    await asyncio.sleep(0.1)


def test_every_type_of_the_wire_is_part_of_a_message_that_is_sent_here() -> None:
    """A type that is added must get its way into the tests above: by the union of what members say, or among the roots."""
    seen: set[type] = set()

    def visit(type: inspect.Type) -> None:
        if isinstance(type, inspect.StructType):
            seen.add(type.cls)
        for part in msgspec.structs.astuple(type):
            for one in part if isinstance(part, tuple) else (part,):
                visit(one.type) if isinstance(one, inspect.Field) else visit(one) if isinstance(one, inspect.Type) else None

    for root in ROOTS:
        visit(inspect.type_info(struct_of(root)))
    bases = (wire.Wire, hosts.Message, world_changes.Restarts)
    structs = {
        one
        for module in (wire, training, hosts, world_changes)
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, (*bases, wire.Values, wire.Keys))
    }
    messages = {
        struct_of(one)
        for module in (controller, member, doing, in_place, pace, saves)
        for one in vars(module).values()
        if is_dataclass(one) and one is not Bound
    }
    assert (structs | messages) - {*bases} == seen


@pytest.mark.parametrize("type", ROOTS)
def test_a_limit_is_never_below_the_largest_and_never_far_above_it(type: Any) -> None:
    text = len(json.dumps(largest(type, filler=ESCAPED_TWICE), separators=(",", ":")))
    assert text <= longest_json(type) <= 1.1 * text + 64


def test_a_type_without_a_bound_is_refused_by_name() -> None:
    class Open(wire.Wire, frozen=True):
        text: str

    with pytest.raises(Unbounded, match=r"Open\.text has no bound"):
        longest_json(Open)


async def test_a_world_that_cannot_be_read_costs_only_its_own_job(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """One member's claim of generation 2^53, and a job that had grown beyond the longest line, broke the stream of all jobs for ever."""

    async def lines(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(2):
            await response.write(b'{"job":"far","generation":9007199254740993,"phase":"running"}\n')
            await response.write(b'{"job":"long","generation":1,"phase":"' + b"x" * (WORLD_LINE + 1) + b'"}\n')
            await response.write(b"\xff\n[[[[\n")
            await response.write(b'{"job":"well","generation":2,"phase":"running"}\n')
        return response

    app = web.Application()
    app.router.add_get("/v1/worlds", lines)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()

    async def token() -> str:
        return ""

    heard: list[wire.WorldReport] = []
    async with RendezvousClient(f"http://127.0.0.1:{runner.addresses[0][1]}", token, served.ca) as client:
        async for world in client.worlds():
            heard.append(world)
            if len(heard) == 6:
                break
    await runner.cleanup()
    assert [(world.job, world.phase) for world in heard] == 2 * [("far", "unreadable"), ("long", "unreadable"), ("well", "running")]
    assert "9007199254740992" in heard[0].reason
    assert f"more than {WORLD_LINE} bytes" in heard[1].reason
    told = [record.uid for record in caplog.records if "cannot be read" in record.message]  # type: ignore[attr-defined]
    assert sorted(told) == ["?", "far", "long"], "once each"
