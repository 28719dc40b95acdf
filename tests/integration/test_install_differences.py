"""`elastic install --diff` on a real API server: it shows what would change, keeps the fields of others, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from api_process import ApiProcess, running

from elastic.cli.installing import changing, differences, looking, manifests
from elastic.cli.installing.values import given
from elastic.kube import connect
from elastic.kube.client import Kube, Patch
from elastic.kube.resources import SERVICES, Object

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
SYSTEM = "elastic-system"
LEFT_OUT = (*manifests.WORKLOADS, "ValidatingWebhookConfiguration")
"""Workloads are refused by this API server, and the webhook would be asked about objects of this test."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiProcess]:
    with running(tmp_path) as started:
        yield started


def objects(values: given.Values) -> list[Object]:
    every = given.complete(given.joined({"image": "i:1"}, values))
    return [item for item in manifests.objects("standalone", every, namespace=SYSTEM) if item["kind"] not in LEFT_OUT]


async def differing(kube: Kube, items: list[Object], *, force: bool = False) -> list[str]:
    found = await differences.of(kube, items, force=force, has_kinds=False)
    return list(differences.in_words(found))


async def test_a_diff_names_only_what_differs_and_changes_nothing(server: ApiProcess) -> None:
    items = objects({})
    async with connect(server.kubeconfig) as kube:
        for item in items:
            await changing.apply(kube, item, force=False)
        assert await differing(kube, items) == []
        lines = await differing(kube, objects({"global": {"labels": {"team": "research"}}}))
        assert len([line for line in lines if line.endswith(" changes:")]) == len(items)
        assert "+    team: research" in lines
        assert await differing(kube, items) == [], "it was only tried"
        gone = [item for item in items if item["kind"] != "NetworkPolicy"]
        await kube.delete(SERVICES, "elastic-webhook", namespace=SYSTEM)
        assert await differing(kube, gone) == [f"+ Service {SYSTEM}/elastic-webhook is created"]


async def test_changes_of_others_stay_and_a_change_of_our_fields_is_named(server: ApiProcess) -> None:
    items = [item for item in objects({}) if item["kind"] in ("Namespace", "Service")]
    async with connect(server.kubeconfig) as kube:
        for item in items:
            await changing.apply(kube, item, force=False)
        theirs = {"metadata": {"labels": {"cost": "7"}}}
        await kube.patch(SERVICES, "elastic-rendezvous", theirs, namespace=SYSTEM, kind=Patch.MERGE, field_manager="kubectl-edit")
        assert await differing(kube, items) == []
        for item in items:
            await changing.apply(kube, item, force=False)
        (service,) = [item for item in items if item["metadata"]["name"] == "elastic-rendezvous"]
        there = await looking.there(kube, service)
        assert there is not None
        assert there["metadata"]["labels"] == {"app": "elastic-rendezvous", "cost": "7"}
        ours = {"metadata": {"labels": {"app": "mine"}}}
        await kube.patch(SERVICES, "elastic-rendezvous", ours, namespace=SYSTEM, kind=Patch.MERGE, field_manager="kubectl-edit")
        with pytest.raises(click.ClickException, match="--force-conflicts takes these fields over"):
            await differing(kube, items)
        assert "+    app: elastic-rendezvous" in await differing(kube, items, force=True)
