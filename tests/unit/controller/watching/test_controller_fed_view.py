"""The view of jobs that kopf feeds: whole after a list of our own, right in whatever order events and lists come."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from elastic.kube.errors import KubeError
from elastic.kube.paging import Listing
from elastic.kube.resources import Object, Resource
from elastic_training.controller.facts.keys import JOBS
from elastic_training.controller.watching.fed_view import FedView


def job(version: int, *, uid: str = "u", name: str = "train") -> Object:
    return {"metadata": {"namespace": "n", "name": name, "uid": uid, "resourceVersion": str(version)}}


class Kube:
    """Answers a list when it is let."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Listing | KubeError] = asyncio.Queue()
        self.asked = asyncio.Event()

    async def list(self, resource: Resource, *, namespace: str | None) -> Listing:
        self.asked.set()
        answer = await self.answers.get()
        if isinstance(answer, KubeError):
            raise answer
        return answer


@pytest.fixture
async def fed() -> AsyncIterator[tuple[FedView, Kube]]:
    kube = Kube()
    view = FedView(kube, JOBS["PyTorchJob"], project=lambda raw: raw, namespace=None, indexes={})  # type: ignore[arg-type]
    running = asyncio.create_task(view.run())
    yield view, kube
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def listed(view: FedView, kube: Kube, answer: Listing, *meanwhile: tuple[str | None, Object]) -> None:
    kube.asked.clear()
    view.listed()
    await kube.asked.wait()
    for event in meanwhile:
        view.take(*event)
    kube.answers.put_nowait(answer)
    for _ in range(5):
        await asyncio.sleep(0)


async def test_nothing_is_whole_before_a_list_even_if_there_are_no_jobs(fed: tuple[FedView, Kube]) -> None:
    view, kube = fed
    view.take(None, job(5))
    assert not view.synced
    await listed(view, kube, Listing([], "9"))
    assert view.synced
    assert not list(view.keys()), "older than the list and not in it: deleted"


async def test_objects_that_were_deleted_in_a_gap_go_when_kopf_has_listed_again(fed: tuple[FedView, Kube]) -> None:
    view, kube = fed
    await listed(view, kube, Listing([job(5)], "9"))
    told = []
    view.subscribe(told.append)
    await listed(view, kube, Listing([], "20"))
    assert [(change.key, change.new) for change in told] == [(("n", "train"), None)]
    view.take("MODIFIED", job(15))
    assert not list(view.keys()), "kopf hands it on late"


async def test_the_newer_one_of_a_list_and_an_event_counts(fed: tuple[FedView, Kube]) -> None:
    view, kube = fed
    await listed(view, kube, Listing([job(5)], "9"), ("MODIFIED", job(12)))
    assert view.shows(("n", "train"), "12")
    view.take("MODIFIED", job(11))
    assert view.shows(("n", "train"), "12")
    assert not view.shows(("n", "train"), "13")
    await listed(view, kube, Listing([], "10"), ("ADDED", job(14, uid="v")))
    assert view.shows(("n", "train"), "14"), "made anew after the list"


async def test_a_list_does_not_bring_back_what_was_deleted_while_it_was_under_way(fed: tuple[FedView, Kube]) -> None:
    view, kube = fed
    await listed(view, kube, Listing([job(5)], "9"), ("DELETED", job(10)))
    assert not list(view.keys())
    assert view.shows(("n", "train"), "99"), "what is gone needs no newer version"


async def test_the_end_of_a_namesake_before_it_takes_nothing_from_the_job_that_is_there(fed: tuple[FedView, Kube]) -> None:
    """Kopf keeps the order of one object's events, and of no others."""
    view, kube = fed
    await listed(view, kube, Listing([job(5)], "9"))
    view.take("ADDED", job(12, uid="v"))
    view.take("DELETED", job(11))
    assert view.get("n", "train") == job(12, uid="v")


async def test_a_list_that_fails_is_tried_again(fed: tuple[FedView, Kube]) -> None:
    view, kube = fed
    await listed(view, kube, KubeError(code=500, reason="InternalError", message="not now"))  # type: ignore[arg-type]
    assert not view.synced
    kube.answers.put_nowait(Listing([job(5)], "9"))
    async with asyncio.timeout(10):
        await view.wait_synced()
