"""A controller sends nothing once its Lease may be another's, whatever was under way when it stood still."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from elastic.api.job import JobStatus
from elastic.kube.client import Patch
from elastic.kube.errors import KubeError
from elastic.kube.resources import PODS, Object
from elastic.runtime.fence import FencedWriter, Lapsed
from elastic.runtime.terminating import ConsiderateWriter
from elastic_training.controller.acting.apply import Applier
from elastic_training.controller.acting.event_recorder import EventRecorder
from elastic_training.controller.acting.fenced_link import FencedServer
from elastic_training.controller.acting.link import RendezvousLink
from elastic_training.controller.deciding.actions import Plan, normal
from elastic_training.controller.facts.keys import Key

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LAPSED, HELD = (lambda: 0.0), (lambda: 60.0)


class Kube:
    """Remembers what was sent, and answers when it is let."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def get(self, *_: object, **__: object) -> Object:
        return {"metadata": {}}

    async def create(self, *_: object, **__: object) -> Object:
        return await self._send("create")

    async def patch(self, *_: object, **__: object) -> Object:
        return await self._send("patch")

    async def delete(self, *_: object, **__: object) -> Object:
        return await self._send("delete")

    async def expect(self, *_: object) -> None:
        await self._send("expect")

    async def forget(self, *_: object) -> int | None:
        await self._send("forget")
        return 70

    async def _send(self, verb: str) -> Object:
        await self.may_answer.wait()
        self.sent.append(verb)
        return {"metadata": {}}


async def test_nothing_is_written_once_the_lease_has_lapsed_and_reading_goes_on() -> None:
    kube = Kube()
    writer = FencedWriter(kube, LAPSED)
    for write in (writer.create(PODS, {}), writer.patch(PODS, "a", {}), writer.delete(PODS, "a", uid="u")):
        with pytest.raises(KubeError) as refused:
            await write
        assert refused.value.reason == "LeaseLapsed"
    assert await writer.get(PODS, "a") == {"metadata": {}}
    assert kube.sent == []


async def test_the_rendezvous_server_hears_nothing_either() -> None:
    kube = Kube()
    server = FencedServer(kube, LAPSED)  # type: ignore[arg-type]
    with pytest.raises(Lapsed):
        await server.expect("uid", None)  # type: ignore[arg-type]
    with pytest.raises(Lapsed):
        await server.forget("uid")
    assert kube.sent == []


async def test_while_the_lease_is_held_the_answer_with_a_jobs_last_step_comes_through() -> None:
    assert await FencedServer(Kube(), HELD).forget("uid") == 70  # type: ignore[arg-type]


async def test_a_request_that_waits_for_its_turn_is_given_up_when_the_lease_lapses() -> None:
    """The client pauses after a 429 and tries again. That try must not come after the end."""
    kube = Kube()
    kube.may_answer.clear()
    with pytest.raises(KubeError) as refused:
        await FencedWriter(kube, lambda: 0.01).create(PODS, {})
    assert refused.value.reason == "LeaseLapsed"
    kube.may_answer.set()
    await asyncio.sleep(0)
    assert kube.sent == []


async def test_while_the_lease_is_held_everything_goes_through_with_its_own_errors() -> None:
    kube = Kube()
    await FencedWriter(kube, HELD).create(PODS, {})
    assert kube.sent == ["create"]

    async def times_out(*_: object, **__: object) -> Object:
        raise TimeoutError("the request's own")

    kube.create = times_out  # type: ignore[method-assign]
    with pytest.raises(TimeoutError, match="the request's own"):
        await FencedWriter(kube, HELD).create(PODS, {})


async def test_every_option_of_a_request_passes_through_the_writers() -> None:
    """A writer names each option again, and one that it forgets is lost without a word."""
    told: list[dict[str, object]] = []

    class Options(Kube):
        async def patch(self, *_: object, **options: object) -> Object:
            told.append(options)
            return {}

        delete = patch

    writer = ConsiderateWriter(FencedWriter(Options(), HELD))
    patch: dict[str, Any] = {"namespace": "team", "kind": Patch.JSON, "subresource": "status"}
    delete: dict[str, Any] = {"namespace": "team", "grace_s": 3, "propagation": "Background", "uid": "u"}
    await writer.patch(PODS, "a", [], **patch)
    await writer.delete(PODS, "a", **delete)
    assert told == [patch, delete]


async def test_a_round_that_the_lapse_overtakes_ends_with_an_error_and_tells_nothing() -> None:
    kube = Kube()
    writer = FencedWriter(kube, LAPSED)
    job: Object = {"kind": "PyTorchJob", "metadata": {"name": "train", "namespace": "team", "uid": "u", "resourceVersion": "1"}}
    plan = Plan(status=JobStatus(start_time=NOW), news=(normal("PyTorchJobRunning", "it runs"),))
    link = RendezvousLink(FencedServer(kube, LAPSED), errors=())  # type: ignore[arg-type]
    applier = Applier(writer, EventRecorder(writer), link)
    outcome = await applier.carry_out(Key("PyTorchJob", "team", "train"), job, plan, old=JobStatus(), now=NOW)
    assert [str(error) for error in outcome.errors]
    assert kube.sent == []
