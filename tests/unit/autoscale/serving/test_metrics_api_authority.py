"""Check that the metrics APIs believe a client about users only if the present authority has signed its certificate."""

from __future__ import annotations

import asyncio
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from elastic.certificates import Pair, issue, make_ca
from elastic.runtime.cert_rotation import load
from elastic.runtime.listener import Bounds, Listener
from elastic.runtime.served import served
from elastic_training.autoscale.serving.identity import Identity

OWN, FORMER, PRESENT = make_ca("own"), make_ca("former"), make_ca("present")
PROXY = "front-proxy-client"
ASKS = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Remote-User: admin\r\nX-Remote-Group: system:masters\r\n\r\n"
VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


class Api:
    """An API server with the config map that says which clients may speak for users."""

    authority = FORMER.certificate.decode()

    async def get(self, *_: Any, **__: Any) -> Any:
        data = {"requestheader-client-ca-file": self.authority, "requestheader-allowed-names": f'["{PROXY}"]'}
        return {"data": data | {"requestheader-username-headers": '["X-Remote-User"]'}}


@pytest_asyncio.fixture
async def serving() -> AsyncIterator[Any]:
    api, tls, pair = Api(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), issue(OWN, "metrics", names=("localhost",))
    load(tls, pair)
    identity = Identity(api, tls)  # type: ignore[arg-type]
    identity.show(pair)
    await identity.look()

    async def answer(request: web.Request) -> web.Response:
        caller = identity.told(request)
        return web.Response(text="nobody" if caller is None else caller.name)

    listener, opened = Listener(Bounds(most=16, strangers=16, of_one_address=16)), socket.create_server(("127.0.0.1", 0))
    app = web.Application(middlewares=[listener.middleware])
    app.router.add_get("/", answer)
    async with served(web.AppRunner(app), listener, opened, tls=tls, backlog=16):
        yield SimpleNamespace(api=api, identity=identity, pair=pair, port=opened.getsockname()[1])


def client(version: ssl.TLSVersion, pair: Pair | None) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.load_verify_locations(cadata=OWN.certificate.decode())
    made.minimum_version = made.maximum_version = version
    if pair is not None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(pair.certificate + pair.key)
            file.flush()
            made.load_cert_chain(file.name)
    return made


def connected(port: int, tls: ssl.SSLContext, session: ssl.SSLSession | None = None) -> ssl.SSLSocket:
    return tls.wrap_socket(socket.create_connection(("127.0.0.1", port), 30), server_hostname="localhost", session=session)


def asked(connection: ssl.SSLSocket) -> str:
    """Return our user as the server knows it, or an empty string if it broke the connection off."""
    try:
        connection.sendall(ASKS)
        return connection.recv(4096).decode().rpartition("\r\n")[2]
    except (ssl.SSLError, ConnectionError):
        return ""


def told(port: int, tls: ssl.SSLContext, session: ssl.SSLSession | None = None) -> str:
    try:
        with connected(port, tls, session) as connection:
            return asked(connection)
    except (ssl.SSLError, ConnectionError):
        return ""


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_authority_that_is_taken_away_is_trusted_no_longer(serving: Any, version: ssl.TLSVersion) -> None:
    """A client resumed its TLS session, or kept its connection.

    No certificate is checked then. The client could speak for any user, although the cluster had changed its authority because the former
    one's key was lost.
    """
    tls = client(version, issue(FORMER, PROXY))
    with await asyncio.to_thread(connected, serving.port, tls) as open_one:
        assert await asyncio.to_thread(asked, open_one) == "admin"
        session = open_one.session
        serving.api.authority = PRESENT.certificate.decode()
        await serving.identity.look()
        assert await asyncio.to_thread(told, serving.port, tls, session) in ("", "nobody")
        assert await asyncio.to_thread(told, serving.port, client(version, issue(FORMER, PROXY))) == ""
        assert await asyncio.to_thread(asked, open_one) == "nobody"
    assert await asyncio.to_thread(told, serving.port, client(version, issue(PRESENT, PROXY))) == "admin"


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_renewed_certificate_of_ours_leaves_api_servers_connected(serving: Any, version: ssl.TLSVersion) -> None:
    with await asyncio.to_thread(connected, serving.port, client(version, issue(FORMER, PROXY))) as open_one:
        serving.identity.show(issue(OWN, "metrics", names=("localhost",)))
        assert await asyncio.to_thread(asked, open_one) == "admin"
    assert await asyncio.to_thread(told, serving.port, client(version, issue(FORMER, PROXY))) == "admin"


@pytest.mark.parametrize("certificate", [None, issue(FORMER, "somebody"), issue(make_ca("former"), PROXY)], ids=["none", "name", "signer"])
async def test_the_headers_of_others_are_not_believed(serving: Any, certificate: Pair | None) -> None:
    assert await asyncio.to_thread(told, serving.port, client(ssl.TLSVersion.TLSv1_3, certificate)) in ("", "nobody")


async def test_an_authority_that_cannot_be_read_leaves_the_former_one(serving: Any) -> None:
    serving.api.authority = "-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n"
    await serving.identity.look()
    await serving.identity.look()
    assert await asyncio.to_thread(told, serving.port, client(ssl.TLSVersion.TLSv1_3, issue(FORMER, PROXY))) == "admin"
