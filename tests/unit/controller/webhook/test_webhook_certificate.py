"""The webhook's certificate: when it is renewed, who may renew it, and that its CA is in the caBundle before it is shown."""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from served_api import refusal, served

from elastic.api.webhook import PATH
from elastic.certificates import TEN_YEARS, Pair, issue, make_ca
from elastic.kube.client import Kube
from elastic.runtime.cert_rotation import CertificateName, Keeping, load
from elastic.runtime.certificate import AUTHORITY_RENEWED_BEFORE_END, LIFE, Credentials, Due, due, renewed
from elastic_training.controller.webhook.configuration import Configurations
from elastic_training.controller.webhook.door import Door

NAMES = ("elastic-webhook.n.svc", "localhost", "127.0.0.1")
PLACE = CertificateName(namespace="n", name="elastic-webhook")
NOW = datetime.now(UTC)
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def fresh() -> Credentials:
    return renewed(None, NAMES, name="elastic-webhook", what=Due.ALL)


def trusts(bundle: bytes, shown: Pair) -> bool:
    """Return whether a client that trusts the bundle takes the certificate."""
    client = ssl.create_default_context(cadata=bundle.decode())
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load(server, shown)
    here, there = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(here, there, server_hostname=NAMES[0])
    theirs = server.wrap_bio(there, here, server_side=True)
    try:
        for _ in range(4):
            for side in (ours, theirs):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLCertVerificationError:
        return False
    return True


@pytest.mark.parametrize(
    ("age", "what"),
    [
        (0 * DAY, Due.NOTHING),
        (LIFE * 2 / 3 - DAY, Due.NOTHING),
        (LIFE * 2 / 3 + DAY, Due.CERTIFICATE),
        (LIFE * 3, Due.CERTIFICATE),
        (TEN_YEARS - AUTHORITY_RENEWED_BEFORE_END + DAY, Due.AUTHORITY),
        (TEN_YEARS + DAY, Due.ALL),
    ],
)
def test_each_is_renewed_well_before_its_end(fresh: Credentials, age: timedelta, what: Due):
    assert due(fresh, NAMES, now=NOW + age) is what


def test_a_certificate_for_other_names_is_renewed(fresh: Credentials):
    assert due(fresh, ("elsewhere.n.svc",), now=NOW) is Due.CERTIFICATE


@pytest.mark.parametrize("broken", ["trusted", "authority_key", "certificate", "key", "strange certificate"])
def test_a_certificate_and_key_that_do_not_fit_are_replaced(fresh: Credentials, broken: str):
    stranger = issue(make_ca("stranger"), "s", names=NAMES)
    changed = {
        "trusted": replace(fresh, trusted=b"-----BEGIN CERTIFICATE-----\nrubbish\n-----END CERTIFICATE-----\n"),
        "authority_key": replace(fresh, authority_key=stranger.key),
        "certificate": replace(fresh, served=replace(fresh.served, certificate=b"rubbish")),
        "key": replace(fresh, served=replace(fresh.served, key=stranger.key)),
        "strange certificate": replace(fresh, served=stranger),
    }[broken]
    assert due(changed, NAMES, now=NOW) is Due.ALL


def test_credentials_that_somebody_else_renews_are_left_to_him(fresh: Credentials):
    assert due(replace(fresh, authority_key=b""), NAMES, now=NOW + TEN_YEARS) is Due.NOTHING


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from([[Due.CERTIFICATE], [Due.AUTHORITY, Due.CERTIFICATE]]), max_size=3))
def test_clients_of_the_old_and_the_new_bundle_trust_the_certificate_after_a_renewal(renewals: list[list[Due]]):
    """Replicas and API servers hear of a renewal at different times. Between two authorities there are forty certificates."""
    last = renewed(None, NAMES, name="elastic-webhook", what=Due.ALL)
    for what in itertools.chain.from_iterable(renewals):
        new = renewed(last, NAMES, name="elastic-webhook", what=what)
        assert due(new, NAMES, now=NOW) is Due.NOTHING
        assert all(trusts(bundle, shown) for bundle in (last.trusted, new.trusted) for shown in (last.served, new.served))
        last = new


class Api:
    """One Secret and one configuration, with versions, as an API server keeps them."""

    def __init__(self) -> None:
        self.secret: dict[str, Any] | None = None
        self.configuration: dict[str, Any] | None = {"webhooks": [{"name": "a", "clientConfig": {}}, {"name": "b", "clientConfig": {}}]}
        self.writes: list[str] = []
        self.version = 0
        self.conflicts = 0
        self.refuses = False
        self.looks = 0
        """Number of times that the Secret was read."""

    async def answer(self, request: web.Request) -> web.Response:
        if self.refuses:
            return refusal(403, "Forbidden")
        if "validatingwebhookconfigurations" in request.path:
            return await self._configuration(request)
        if request.method == "GET":
            self.looks += 1
            return web.json_response(self.secret) if self.secret is not None else refusal(404, "NotFound")
        body = json.loads(await request.read())
        if self.conflicts:
            self.conflicts -= 1
            return refusal(409, "Conflict")
        if request.method == "POST" and self.secret is not None:
            return refusal(409, "AlreadyExists")
        if self.secret is not None and body["metadata"]["resourceVersion"] != self.secret["metadata"]["resourceVersion"]:
            return refusal(409, "Conflict")
        self.version += 1
        self.writes.append(f"{request.method} secret")
        self.secret = {"metadata": {"resourceVersion": str(self.version)}, "data": body["data"]}
        return web.json_response(self.secret)

    async def _configuration(self, request: web.Request) -> web.Response:
        if self.configuration is None:
            return refusal(404, "NotFound")
        if request.method == "PATCH":
            assert request.content_type == "application/strategic-merge-patch+json"
            self.writes.append("PATCH configuration")
            changes = {hook["name"]: hook["clientConfig"] for hook in json.loads(await request.read())["webhooks"]}
            for hook in self.configuration["webhooks"]:
                hook["clientConfig"] |= changes.get(hook["name"], {})
        return web.json_response(self.configuration)

    @property
    def bundles(self) -> list[str]:
        assert self.configuration is not None
        return [hook["clientConfig"].get("caBundle", "") for hook in self.configuration["webhooks"]]

    def store(self, credentials: Credentials) -> None:
        parts = {
            "ca.crt": credentials.trusted,
            "ca.key": credentials.authority_key,
            "tls.crt": credentials.served.certificate,
            "tls.key": credentials.served.key,
        }
        self.version += 1
        data = {name: base64.b64encode(part).decode() for name, part in parts.items()}
        self.secret = {"metadata": {"resourceVersion": str(self.version)}, "data": data}


def keeping(kube: Kube, *, later: timedelta = timedelta()) -> Keeping:
    return Keeping(kube, PLACE, Configurations(kube, [PLACE.name]).trust, clock=lambda: NOW + later, every_s=0.01)


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await is_so():
            return
        await asyncio.sleep(0.01)


async def shows_what_is_stored(running: Keeping, api: Api) -> bool:
    return await shown(running.tls, api) == base64.b64decode(api.secret["data"]["tls.crt"])


async def shown(tls: ssl.SSLContext, api: Api) -> bytes:
    """Return the certificate that a client sees if it trusts the CA in the configuration."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=tls)
    async with server:
        client = ssl.create_default_context(cadata=base64.b64decode(api.bundles[0]).decode())
        host, port = server.sockets[0].getsockname()[:2]
        _, writer = await asyncio.open_connection(host, port, ssl=client, server_hostname=NAMES[0])
        seen = ssl.DER_cert_to_PEM_cert(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
        writer.close()
        await writer.wait_closed()
        return seen.encode()


async def test_the_first_replica_makes_a_certificate_and_the_second_shows_the_same():
    api = Api()
    async with served(api.answer) as kube:
        first, second = keeping(kube), keeping(kube)
        await asyncio.gather(first.begin(), second.begin())
        assert api.writes.count("POST secret") == 1
        assert len(set(api.bundles)) == 1
        assert api.bundles[0] == api.secret["data"]["ca.crt"]
        assert await shown(first.tls, api) == await shown(second.tls, api) == base64.b64decode(api.secret["data"]["tls.crt"])


async def test_a_certificate_that_another_program_makes_is_awaited_and_never_written():
    """The controllers made one of their own while cert-manager was still making its first one, and both then renewed the same Secret."""
    api = Api()
    place = replace(PLACE, is_external=True)

    async def looked() -> bool:
        return api.looks > 1

    async with served(api.answer) as kube:
        running = Keeping(kube, place, Configurations(kube, [PLACE.name]).trust, clock=lambda: NOW, every_s=0.01)
        starting = asyncio.create_task(running.begin())
        await until(looked)
        assert (starting.done(), api.writes) == (False, [])
        api.store(renewed(None, NAMES, name="another", what=Due.ALL))
        await starting
        assert await shows_what_is_stored(running, api)
        assert not [write for write in api.writes if "secret" in write]


async def test_a_look_at_what_is_right_writes_nothing():
    api = Api()
    async with served(api.answer) as kube:
        await keeping(kube).begin()
        before = list(api.writes)
        await keeping(kube).begin()
        assert api.writes == before


@pytest.mark.parametrize("age", [LIFE, TEN_YEARS - DAY * 30])
async def test_a_renewal_is_shown_by_a_running_replica_that_did_not_make_it(age: timedelta):
    api = Api()
    async with served(api.answer) as kube:
        running = keeping(kube)
        await running.begin()
        old = api.secret["data"] | {}
        task = asyncio.create_task(running.run())
        await keeping(kube, later=age).begin()
        assert api.secret["data"] != old
        async with asyncio.timeout(60):
            await until(lambda: shows_what_is_stored(running, api))
        task.cancel()


async def test_a_configuration_that_was_applied_again_is_told_again_whom_to_trust():
    api = Api()
    async with served(api.answer) as kube:
        running = keeping(kube)
        await running.begin()
        task = asyncio.create_task(running.run())
        api.configuration = Api().configuration
        async with asyncio.timeout(60):
            await until(lambda: asyncio.sleep(0, api.bundles[0] == api.secret["data"]["ca.crt"]))
        task.cancel()


async def test_the_server_is_ready_also_if_no_configuration_asks_us():
    api = Api()
    api.configuration = None
    async with served(api.answer) as kube, asyncio.timeout(60):
        await keeping(kube).begin()


async def test_a_refusal_is_told_once_and_tried_again(caplog: pytest.LogCaptureFixture):
    api = Api()
    api.refuses = True
    async with served(api.answer) as kube:
        task = asyncio.create_task(keeping(kube).begin())
        async with asyncio.timeout(60):
            await until(lambda: asyncio.sleep(0, kube.sent["GET"] >= 5))
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        api.refuses = False
        async with asyncio.timeout(60):
            await task


async def test_a_lost_race_takes_what_the_other_wrote():
    api = Api()
    api.conflicts = 2
    async with served(api.answer) as kube, asyncio.timeout(60):
        await keeping(kube).begin()
    assert api.writes == ["POST secret", "PATCH configuration"]


@asynccontextmanager
async def open_door(kube: Kube) -> AsyncIterator[tuple[Door, str]]:
    listening = socket.create_server(("127.0.0.1", 0))
    door = Door(kube, PLACE, listening, kinds=["PyTorchJob"], namespace=None)
    task = asyncio.create_task(door.run(lambda kind, *, allowed: None))
    try:
        async with asyncio.timeout(60):
            await door.wait_open()
        yield door, f"https://localhost:{listening.getsockname()[1]}{PATH}"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", 400),
        (b"[" * 100_000, 400),
        (b"{}", 400),
        (b'{"request":{"uid":"u","kind":{"group":"g","version":"v","kind":"k"},"operation":"CREATE"}}', 200),
        (b'"' + b" " * 9_000_000 + b'"', 413),
    ],
)
async def test_only_reviews_of_bounded_size_are_answered(body: bytes, code: int):
    api = Api()
    async with served(api.answer) as kube, open_door(kube) as (door, url):
        assert door.is_open
        trusting = ssl.create_default_context(cadata=base64.b64decode(api.bundles[0]).decode())
        async with aiohttp.ClientSession(headers={"Connection": "close"}) as session, asyncio.timeout(60):
            status, answer = 503, b""
            while status == 503:  # no process was free to judge for a second, as on a loaded machine
                async with session.post(url, data=io.BytesIO(body), ssl=trusting) as response:
                    status, answer = response.status, await response.read()
        assert status == code
        if code == 200:
            assert json.loads(answer)["response"] == {"uid": "u", "allowed": True}
