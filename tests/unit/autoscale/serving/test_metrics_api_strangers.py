"""Check which clients may make the metrics APIs send requests: API servers, and a few at a time of all other clients."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from elastic.kube.client import Kube
from elastic.runtime.cert_rotation import CertificateName
from elastic_training.autoscale.running.book import Book
from elastic_training.autoscale.serving import server
from elastic_training.autoscale.serving.identity import Headers
from elastic_training.autoscale.serving.server import MetricsApi

PATH = "/apis/external.metrics.k8s.io/v1beta1/namespaces/a/desired_workers"


class Slow:
    """An API server that answers reviews once a test lets it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.let = asyncio.Event()

    async def create(self, resource: Any, body: Any, **_: Any) -> Any:
        self.asked.append(body["kind"])
        await self.let.wait()
        return {"status": {"authenticated": True, "user": {"username": "somebody"}, "allowed": True}}


class Request(SimpleNamespace):
    def get_extra_info(self, name: str) -> Any:
        return {"peercert": self.certificate, "ssl_object": SimpleNamespace(context=None, session_reused=False)}[name]


def request(*, certificate: Any = None, path: str = PATH, **headers: str) -> Any:
    return Request(path=path, method="GET", query={}, certificate=certificate, headers=headers)


@pytest.fixture
def kube() -> Slow:
    return Slow()


@pytest.fixture
def serving(kube: Slow) -> Iterator[MetricsApi]:
    opened, client, place = socket.socket(), cast("Kube", kube), CertificateName(namespace="n", name="s")
    with opened:
        made = MetricsApi(client, Book(is_ready=lambda: True), lambda uid: (), opened, place, owner="o", namespace=None)
        made._identity._headers = Headers("ca", ("front-proxy",), ("X-Remote-User",), (), (), ())
        yield made


async def test_a_client_without_credentials_is_refused_without_a_question(kube: Slow, serving: MetricsApi) -> None:
    assert (await serving._reply(request())).status == 401
    assert (await serving._reply(request(**{"X-Remote-User": "system:admin"}))).status == 401
    assert kube.asked == []


async def test_an_api_server_that_is_not_believed_any_more_must_connect_again(serving: MetricsApi) -> None:
    """A connection made before the authority changed would be refused for as long as the API server keeps it."""
    assert (await serving._handle(request())).keep_alive is False
    assert (await serving._handle(request(path="/apis"))).keep_alive is None


async def test_a_flood_of_tokens_costs_few_requests_at_a_time_and_holds_up_no_api_server(kube: Slow, serving: MetricsApi) -> None:
    """The requests took all connections of the process, also those on which it renews its Lease."""
    flood = [asyncio.create_task(serving._reply(request(Authorization=f"Bearer {number}"))) for number in range(200)]
    await asyncio.sleep(0.01)
    assert len(kube.asked) == server.STRANGERS_AT_ONCE
    certificate = {"subject": ((("commonName", "front-proxy"),),)}
    proxied = asyncio.create_task(serving._reply(request(certificate=certificate, **{"X-Remote-User": "hpa"})))
    await asyncio.sleep(0.01)
    assert kube.asked[server.STRANGERS_AT_ONCE :] == ["SubjectAccessReview"]
    kube.let.set()
    assert (await proxied).status == 200
    assert {(await one).status for one in flood} == {200}
