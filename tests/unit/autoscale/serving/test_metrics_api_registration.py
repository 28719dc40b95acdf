"""Check which API services of the metrics groups we register while other adapters come and go.

The laptop's API server runs in this process.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from api_in_process import served

from elastic.api.rights import AUTOSCALER, MANAGED_BY
from elastic.kube import connect
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import API_SERVICES, Object
from elastic.runtime.cert_rotation import CertificateName
from elastic_training.autoscale.serving.answers import CUSTOM, EXTERNAL
from elastic_training.autoscale.serving.registration import CLUSTER_ROLES, Registration

PLACE = CertificateName(namespace="elastic-system", name="elastic-autoscaler-metrics")
OURS, ADAPTER = f"{PLACE.namespace}/{PLACE.name}", "monitoring/adapter"
OLD, NEW, ONLY = f"v1beta1.{CUSTOM}", f"v1beta2.{CUSTOM}", f"v1beta1.{EXTERNAL}"
pytestmark = pytest.mark.timeout(60)


@pytest_asyncio.fixture
async def kube(tmp_path: Path) -> AsyncIterator[Kube]:
    async with served(tmp_path) as kubeconfig, connect(kubeconfig) as client:
        await client.create(CLUSTER_ROLES, {"metadata": {"name": PLACE.name}, "rules": []})
        yield client


def replica(kube: Any) -> Registration:
    return Registration(kube, PLACE, owner=PLACE.name)


async def of_another(kube: Kube, name: str, **metadata: object) -> Object:
    version, _, group = name.partition(".")
    spec = {"group": group, "version": version, "groupPriorityMinimum": 100, "versionPriority": 100}
    spec |= {"service": {"name": "adapter", "namespace": "monitoring"}, "insecureSkipTLSVerify": True}
    return await kube.create(API_SERVICES, {"metadata": {"name": name} | metadata, "spec": spec})


async def of_another_at(kube: Kube, name: str) -> None:
    """Let another adapter take over an API service that we have registered."""
    taken = {"service": {"name": "adapter", "namespace": "monitoring"}, "caBundle": None, "insecureSkipTLSVerify": True}
    await kube.patch(API_SERVICES, name, {"spec": taken})


async def services(kube: Kube) -> dict[str, str]:
    """Return the service behind each API service of the two groups."""
    found = {item["metadata"]["name"]: item["spec"].get("service") for item in (await kube.list(API_SERVICES)).items}
    return {name: f"{service['namespace']}/{service['name']}" for name, service in found.items() if name in (OLD, NEW, ONLY)}


async def test_a_group_is_left_as_a_whole_to_an_adapter_that_was_there_first(kube: Kube) -> None:
    """HorizontalPodAutoscalers ask the newest version. With our v1beta2 next to prometheus-adapter's v1beta1 they missed its metrics."""
    await of_another(kube, OLD)
    registration = replica(kube)
    for _ in range(2):
        await registration.trust(b"ca")
        assert await services(kube) == {OLD: ADAPTER, ONLY: OURS}
    assert registration.others == {OLD: ADAPTER}


async def test_a_group_that_an_adapter_takes_over_is_given_up_and_does_not_go_with_us(kube: Kube) -> None:
    registration = replica(kube)
    await registration.trust(b"ca")
    assert await services(kube) == {OLD: OURS, NEW: OURS, ONLY: OURS}
    await of_another_at(kube, OLD)
    await registration.trust(b"ca")
    assert await services(kube) == {OLD: ADAPTER, ONLY: OURS}
    left = (await kube.get(API_SERVICES, OLD))["metadata"]
    assert (left.get("labels") or {}, left.get("ownerReferences") or []) == ({}, [])
    kept = (await kube.get(API_SERVICES, ONLY))["metadata"]
    assert kept["labels"] == {MANAGED_BY: AUTOSCALER}
    assert [owner["name"] for owner in kept["ownerReferences"]] == [PLACE.name]


async def test_ours_go_once_an_adapter_makes_the_version_that_was_missing(kube: Kube) -> None:
    registration = replica(kube)
    await registration.trust(b"ca")
    await kube.delete(API_SERVICES, OLD)
    await of_another(kube, OLD)
    await registration.trust(b"ca")
    assert await services(kube) == {OLD: ADAPTER, ONLY: OURS}


async def test_once_the_other_adapter_is_gone_the_group_is_ours_again(kube: Kube) -> None:
    await of_another(kube, OLD)
    registration = replica(kube)
    await registration.trust(b"ca")
    await kube.delete(API_SERVICES, OLD)
    await registration.trust(b"ca")
    assert await services(kube) == {OLD: OURS, NEW: OURS, ONLY: OURS}
    assert registration.others == {}


async def test_a_group_that_the_api_server_serves_itself_is_left_to_it(kube: Kube) -> None:
    registration = replica(kube)
    await registration.trust(b"ca")
    await kube.patch(API_SERVICES, OLD, {"spec": {"service": None, "caBundle": None}})
    await registration.trust(b"ca")
    assert registration.others == {OLD: "the API server itself"}
    with pytest.raises(KubeError, match="not found"):
        await kube.get(API_SERVICES, NEW)


async def test_an_api_service_that_somebody_else_made_for_our_service_is_not_deleted(kube: Kube) -> None:
    registration = replica(kube)
    await registration.trust(b"ca")
    await kube.patch(API_SERVICES, NEW, {"metadata": {"labels": {MANAGED_BY: "gitops"}}})
    await kube.delete(API_SERVICES, OLD)
    await of_another(kube, OLD)
    await registration.trust(b"ca")
    assert await services(kube) == {OLD: ADAPTER, NEW: OURS, ONLY: OURS}


async def test_two_replicas_at_once_register_and_give_up_without_an_error(kube: Kube) -> None:
    both = replica(kube), replica(kube)
    await asyncio.gather(*(one.trust(b"ca") for one in both))
    assert set((await services(kube)).values()) == {OURS}
    await kube.delete(API_SERVICES, OLD)
    await of_another(kube, OLD)
    await asyncio.gather(*(one.trust(b"ca") for one in both))
    assert await services(kube) == {OLD: ADAPTER, ONLY: OURS}
    await kube.patch(API_SERVICES, ONLY, {"spec": {"service": {"name": "adapter", "namespace": "monitoring"}}})
    await asyncio.gather(*(one.trust(b"ca") for one in both))
    assert await services(kube) == {OLD: ADAPTER, ONLY: ADAPTER}
    assert not (await kube.get(API_SERVICES, ONLY))["metadata"].get("labels")


class Late:
    """The client of a replica that acts on an old look. Another server takes over the API service before the replica deletes it."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self.taken: Mapping[str, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kube, name)

    async def delete(self, *arguments: Any, **preconditions: Any) -> Any:
        if self.taken is None:
            self.taken = await self._kube.patch(API_SERVICES, NEW, {"spec": {"service": {"name": "adapter", "namespace": "monitoring"}}})
        return await self._kube.delete(*arguments, **preconditions)


async def test_an_api_service_that_another_took_over_since_the_look_is_not_deleted(kube: Kube) -> None:
    late = Late(kube)
    registration = replica(late)
    await registration.trust(b"ca")
    await kube.delete(API_SERVICES, OLD)
    await of_another(kube, OLD)
    await registration.trust(b"ca")
    assert late.taken is not None
    assert await services(kube) == {OLD: ADAPTER, NEW: ADAPTER, ONLY: OURS}


async def test_the_log_says_once_who_has_the_group(kube: Kube, caplog: pytest.LogCaptureFixture) -> None:
    await of_another(kube, OLD)
    registration = replica(kube)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await registration.trust(b"ca")
    (record,) = [one for one in caplog.records if "another server has this group" in one.message]
    assert vars(record)["service"] == ADAPTER


async def test_a_refusal_to_give_a_group_up_keeps_no_other_from_being_served(kube: Kube, caplog: pytest.LogCaptureFixture) -> None:
    """With an earlier release's role next to prometheus-adapter, nothing was registered or renewed, and a new process served nothing."""
    await replica(kube).trust(b"old ca")
    await of_another_at(kube, OLD)

    async def refused(*_: object, **__: object) -> Object:
        raise KubeError(code=403, reason="Forbidden", message="no delete for you")

    kube.delete = refused  # type: ignore[method-assign, assignment]
    registration = replica(kube)
    for _ in range(2):
        await registration.trust(b"new ca")
    bundles = {name: base64.b64decode((await kube.get(API_SERVICES, name))["spec"]["caBundle"]) for name in (NEW, ONLY)}
    assert bundles == {NEW: b"new ca", ONLY: b"new ca"}
    assert [line.message for line in caplog.records].count("an API service could not be given up; trying again") == 1
