"""Every message on the rendezvous wire names its version; none means a release before the header existed.

A side refuses an unknown major version in words, and sends the fields of a minor version only to a peer that named it.
"""

import asyncio
import logging
from dataclasses import replace

import pytest
from job_builders import NOW, OURS, Cluster, elastic_job
from test_rendezvous_limits import Served, agents_exchange, served

from elastic.membership import protocol, wire
from elastic.membership.client import RendezvousClient
from elastic.membership.protocol import UnknownVersion
from elastic.membership.tokens import job_token
from elastic_training.controller.acting.link import RendezvousLink
from elastic_training.controller.deciding.actions import SetExpectation
from elastic_worker import settings
from elastic_worker.agent.presence import Presence
from elastic_worker.agent.websocket import Denied

__all__ = ["served"]
JOIN = ['{"t":"join","incarnation":"a"}']
REFUSAL = r"speaks version 2\.0 of the messages, and this rendezvous server knows versions 1\.x only \(its own is 1\.5\)"


def test_the_worker_library_names_the_version_of_this_release() -> None:
    mine = (settings.PROTOCOL_HEADER, settings.PROTOCOL_MAJOR, settings.PROTOCOL_VERSION)
    assert mine == (protocol.HEADER, protocol.MAJOR, protocol.VERSION)


@pytest.mark.parametrize("named", [None, "1.0", "1.1", "1.2", "1.9999"])
def test_every_minor_version_and_none_at_all_are_read(named: str | None) -> None:
    assert protocol.obstacle(named, peer="it", here="this") == ""
    assert settings.unknown_version(named) == ""


@pytest.mark.parametrize("named", ["2.0", "0.1", "", "1", "1.1.1", "1.1 ", "one", "9" * 5000 + ".0", "١.0"])
def test_other_versions_are_refused_in_a_short_sentence(named: str) -> None:
    for why in (protocol.obstacle(named, peer="it", here="this"), settings.unknown_version(named)):
        assert 0 < len(why) < 400


async def test_peers_of_the_release_before_name_no_version_and_are_served(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "PROTOCOL_HEADER", "Something-Else")
    assert await asyncio.to_thread(agents_exchange, served, JOIN)

    async def headers(client: RendezvousClient) -> dict[str, str]:
        return {"Authorization": f"Bearer {await client._token()}"}

    monkeypatch.setattr(RendezvousClient, "_headers", headers)
    async with served.client() as client:
        await client.expect("job", wire.Expectation())


async def test_an_agent_of_an_unknown_version_is_refused_and_both_sides_say_so(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settings, "PROTOCOL_VERSION", "2.0")
    for _ in range(3):
        with pytest.raises(Denied, match="426: this agent " + REFUSAL):
            await asyncio.to_thread(agents_exchange, served, JOIN)
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "this agent speaks version 2.0" in record.__dict__["why"], "once, however often it comes"


async def test_a_controller_of_an_unknown_version_is_refused_and_both_sides_say_so(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def headers(client: RendezvousClient) -> dict[str, str]:
        return {"Authorization": f"Bearer {await client._token()}", protocol.HEADER: "2.0"}

    monkeypatch.setattr(RendezvousClient, "_headers", headers)
    async with served.client() as client:
        with pytest.raises(UnknownVersion, match="this controller " + REFUSAL):
            await client.expect("job", wire.Expectation())
        with pytest.raises(UnknownVersion, match="this controller " + REFUSAL):
            await anext(client._opened("worlds", 1024, None))
    assert [record for record in caplog.records if "this controller speaks version 2.0" in record.__dict__.get("why", "")]
    assert served.hub.heard == []


async def test_a_server_of_an_unknown_version_is_refused_by_agents_and_controller(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "VERSION", "2.0")
    with pytest.raises(Denied, match=r"version '2\.0' of the messages, and this worker library knows versions 1\.x only"):
        await asyncio.to_thread(agents_exchange, served, JOIN)
    monkeypatch.setattr(RendezvousClient, "_headers", _headers_of_this_release)
    async with served.client() as client:
        with pytest.raises(UnknownVersion, match=r"the rendezvous server speaks version 2\.0 .* this controller knows versions 1\.x"):
            await client.world("job")


async def _headers_of_this_release(client: RendezvousClient) -> dict[str, str]:
    return {"Authorization": f"Bearer {await client._token()}", protocol.HEADER: "1.1"}


class Refusing:
    """A server that does not know this controller's version."""

    async def expect(self, job_uid: str, expectation: wire.Expectation) -> None:
        raise UnknownVersion("the server speaks version 2.0")

    forget = expect


async def test_the_conditions_of_jobs_say_that_server_and_controller_do_not_understand_each_other() -> None:
    cluster = Cluster(elastic_job(2), settings=OURS)
    planned = cluster.round()
    word = next(action for action in planned.actions if isinstance(action, SetExpectation))
    link = RendezvousLink(Refusing(), errors=(UnknownVersion,), clock=lambda: NOW)  # type: ignore[arg-type]
    changed = asyncio.Event()
    link._changed = lambda uid: changed.set()
    assert not link.tell("job-uid", word, is_awaited=True)
    async with asyncio.timeout(10):
        await changed.wait()
    await link._outbox.close()
    cluster.world = link.worlds["job-uid"]
    cluster.run_all()
    cluster.settle()
    assert "The members of the job's world are unknown: the server speaks version 2.0." in cluster.job.status.conditions[-1].message
    cluster.world = replace(cluster.world, trouble="")
    cluster.settle()
    assert "unknown" not in cluster.job.status.conditions[-1].message


@pytest.mark.parametrize(
    ("named", "living"), [("1.2", {"alive": True, "step": 7}), ("1.10", {"alive": True, "step": 7}), ("1.1", {}), (None, {})]
)
async def test_a_member_says_what_its_processes_hold_only_to_a_server_that_knows_it(
    served: Served, monkeypatch: pytest.MonkeyPatch, named: str | None, living: dict[str, object]
) -> None:
    """A server of 0.4.0 (1.1) gets `join` and `ready` as from an agent of 0.4.0, on the first connection as on the next."""
    monkeypatch.setattr(protocol, "VERSION" if named else "HEADER", named or "Something-Else")
    token = job_token(served.key, "job")
    told = settings.Settings(
        host="127.0.0.1", port=served.port, job="job", member="w0", pod_uid="u", address="a", token=token, ca=served.ca
    )
    agent = Presence(told, on_signal=lambda number: None)
    # An older server must not get a message that it does not know.
    agent.introduce = lambda: ({"workers": 1}, [] if living else [{"t": "able", "generation": 0, "workers": 1}])
    able = {"workers": 1} if living else {}
    agent.start()
    try:
        async with asyncio.timeout(30):
            await served.hub.has_heard(1)
            agent.announce_ready(after=0, store="a:1")
            await served.hub.has_heard(2)
            agent.stand_by(round=0, step=7)
            await served.hub.has_heard(3)
            for link in served.hub.links:
                link.close()
            await served.hub.has_heard(4)
    finally:
        await asyncio.to_thread(agent.close)
    first, waits, lives, again = served.hub.heard[:4]
    assert first == wire.Join(incarnation=first.incarnation, ready=False, **able)
    assert waits == wire.Ready(after=0, store="a:1")
    assert lives == wire.Ready(after=0, store="a:1", **living)
    assert again == wire.Join(incarnation=first.incarnation, store="a:1", **living, **able)
    assert all(isinstance(said, wire.Leave | wire.Beat) for said in served.hub.heard[4:])


async def test_a_member_of_0_4_0_is_understood_as_before(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "PROTOCOL_VERSION", "1.1")
    said = ['{"t":"join","incarnation":"a","ready":false,"store":""}', '{"t":"ready","after":3,"store":"a:1"}']
    await asyncio.to_thread(agents_exchange, served, said)
    async with asyncio.timeout(30):
        await served.hub.has_heard(2)
    assert served.hub.heard == [wire.Join(incarnation="a", ready=False), wire.Ready(after=3, store="a:1")]


async def test_a_server_of_the_release_before_names_no_version_and_is_understood(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEADER", "Something-Else")
    assert await asyncio.to_thread(agents_exchange, served, JOIN)
    async with served.client() as client:
        await client.expect("job", wire.Expectation())
