"""The host list over HTTP: who may read it and report, how a caller waits for the next one, and what it gets while nothing is known."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from elastic.membership.hosts import Host, HostFacts, LauncherReport
from elastic.membership.tokens import Role, control_token, job_token
from elastic.membership.wire import Expectation
from elastic_training.rendezvous.server.access import Gate
from elastic_training.rendezvous.server.host_lists import LAUNCHER_REPORT_BODY, MOST_WAITING, REPORTS_AT_ONCE
from elastic_training.rendezvous.server.http import Face
from elastic_training.rendezvous.server.hub import Hub

KEY = b"k" * 32
LAUNCHER, AGENT = job_token(KEY, "j1", Role.LAUNCHER), job_token(KEY, "j1", Role.AGENT)


@dataclass
class Site:
    hub: Hub
    client: "TestClient[Any, Any]"
    number: int = 0

    def expect(self, *hosts: Host, least: int = 1) -> None:
        self.number += 1
        told = Expectation(hosts=HostFacts(hosts=hosts, least=least), speaker="c", number=self.number)
        assert self.hub.expect("j1", told)

    async def get(self, path: str = "", *, token: str = LAUNCHER, accept: str = "text/plain") -> ClientResponse:
        return await self.client.get(f"/v1/jobs/j1/hosts{path}", headers={"Authorization": f"Bearer {token}", "Accept": accept})

    async def post(self, path: str = "", *, token: str = LAUNCHER, body: bytes | io.BytesIO = b"") -> ClientResponse:
        return await self.client.post(f"/v1/jobs/j1/hosts{path}", headers={"Authorization": f"Bearer {token}"}, data=body)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    clock = asyncio.get_running_loop().time
    hub = Hub(instance="s1", clock=clock)
    gate = Gate(keys=lambda: [KEY], reviewer=None, accounts=())
    face = Face(hub=hub, gate=gate, clock=clock, metrics=lambda: (b"", ""))
    async with TestClient(TestServer(face.application())) as client:
        yield Site(hub, client)
        hub.forget("j1")


def ready(name: str, *, slots: int = 1) -> Host:
    return Host(name=name, uid=f"uid-{name}", slots=slots, is_ready=True)


async def test_a_reader_with_a_wrong_token_hears_which_one_is_right(site: Site) -> None:
    """It heard that only the control plane may do this."""
    refused = await site.get(token="nonsense")
    assert (refused.status, "the launcher token of the job's Secret" in await refused.text()) == (403, True)


async def test_before_the_controller_has_spoken_the_answer_is_503(site: Site) -> None:
    response = await site.get()
    assert response.status == 503
    assert "controller has not said" in await response.text()


async def test_lines_are_what_horovod_reads_and_only_proven_hosts_stand_there(site: Site) -> None:
    site.expect(ready("w0", slots=2), ready("w1"))
    refused = await site.get()
    assert refused.status == 503
    assert "has not run a command there" in await refused.text()
    assert await (await site.get("?unproven")).text() == "# w0 uid-w0\n# w1 uid-w1\n"
    assert (await site.post("/proofs/uid-w0")).status == 204
    response = await site.get()
    assert (response.status, response.content_type, await response.text()) == (200, "text/plain", "w0:2\n")


async def test_json_gives_the_reason_of_every_host(site: Site) -> None:
    site.expect(ready("w0"), Host(name="w1", uid="uid-w1"))
    candidates = await site.get(accept="application/json")
    assert candidates.status == 503
    assert [one["listed"] for one in (await candidates.json())["hosts"]] == [False, False]
    await site.post("/proofs/uid-w0")
    found = await (await site.get(accept="application/json")).json()
    assert [(one["name"], one["listed"], one["reason"]) for one in found["hosts"]] == [
        ("w0", True, "it is ready, and the launcher reaches it"),
        ("w1", False, "its containers are not ready"),
    ]
    assert found["observed"] == "pods"


async def test_a_launchers_report_is_answered_with_the_list_and_reaches_the_controller(site: Site) -> None:
    site.expect(ready("w0"))
    report = {"launcher": "l1", "proven": ["uid-w0"], "assigned": ["w0"], "working": ["w0"], "assignment": 3, "size": 1}
    response = await site.post(body=json.dumps(report).encode())
    assert [one["name"] for one in (await response.json())["hosts"] if one["listed"]] == ["w0"]
    world = site.hub.world("j1")
    assert world is not None
    assert world.hosts is not None
    assert (world.hosts.listed, world.hosts.working, world.hosts.observed) == (("uid-w0",), ("uid-w0",), "driver")
    assert (world.hosts.assignment, world.hosts.size) == (3, 1)


async def test_progress_that_a_launcher_reports_is_the_jobs_signal(site: Site) -> None:
    site.expect(ready("w0"))
    assert site.hub.signals("j1") == []
    report = {"launcher": "l1", "assignment": 3, "step": 70, "values": {"loss": 0.5}}
    assert (await site.post(body=json.dumps(report).encode())).status == 503, "no host is listed, and the report is taken"
    (signal,) = site.hub.signals("j1")
    assert (signal.member, signal.generation, signal.step, signal.values) == ("rank-0", 3, 70, {"loss": 0.5})


async def test_the_autoscaler_hears_of_progress_that_a_launcher_reports(site: Site) -> None:
    site.expect(ready("w0"))
    site.hub.hosts.report("j1", LauncherReport(launcher="l1", assigned=("w0",), assignment=3, size=1, step=70))
    (told,) = site.hub.progress_since(-1)
    assert (told.job, told.generation, told.phase, told.size, told.step, told.highest) == ("j1", 3, "running", 1, 70, 70)
    site.hub.hosts.report("j1", LauncherReport(launcher="l2", assigned=("w0",), assignment=1, size=1, step=50))
    (told,) = site.hub.progress_since(-1)
    assert (told.step, told.highest) == (50, 70), "a new launcher went on from an earlier commit"
    assert site.hub.forget("j1") == 70


async def test_a_caller_that_sees_no_headers_may_ask_for_the_version_in_the_lines(site: Site) -> None:
    site.expect(ready("w0"))
    response = await site.get("?unproven&version")
    assert await response.text() == f"#@ {response.headers['Elastic-Version']}\n# w0 uid-w0\n"


async def test_a_host_that_leaves_is_shown_as_such(site: Site) -> None:
    site.expect(msgspec.structs.replace(ready("w0"), leaving=True), ready("w1"))
    found = await (await site.get(accept="application/json")).json()
    assert [(one["name"], one["leaving"]) for one in found["hosts"]] == [("w0", True), ("w1", False)]


async def test_a_caller_waits_for_another_version_and_is_woken_by_it(site: Site) -> None:
    site.expect(ready("w0"))
    await site.post("/proofs/uid-w0")
    version = (await site.get()).headers["Elastic-Version"]
    waiting = asyncio.create_task(site.get(f"?after={version}"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    site.expect(ready("w0"), ready("w1"))
    response = await asyncio.wait_for(waiting, 5)
    assert response.headers["Elastic-Version"] != version
    assert await asyncio.wait_for(site.get("?after=s0-7"), 1), "the version of another server is never waited on"


async def test_the_last_of_too_many_waiting_callers_is_answered_at_once(site: Site) -> None:
    site.expect(ready("w0"))
    await site.post("/proofs/uid-w0")
    version = (await site.get()).headers["Elastic-Version"]
    waiting = [asyncio.create_task(site.get(f"?after={version}")) for _ in range(MOST_WAITING)]
    await asyncio.sleep(0.1)
    assert (await asyncio.wait_for(site.get(f"?after={version}"), 2)).status == 200
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()


async def test_only_the_jobs_launcher_reports_and_it_may_do_nothing_else(site: Site) -> None:
    site.expect(ready("w0"))
    other = job_token(KEY, "j2", Role.LAUNCHER)
    for token in ("", AGENT, other, control_token(KEY)):
        assert (await site.post(token=token, body=b"{}")).status == 403
        assert (await site.post("/proofs/uid-w0", token=token)).status == 403
    for token in (AGENT, other):
        assert (await site.get(token=token)).status == 403
    assert (await site.get(token="")).status == 401
    assert (await site.get(token=control_token(KEY), accept="application/json")).status == 503
    headers = {"Authorization": f"Bearer {LAUNCHER}"}
    assert (await site.client.get("/v1/jobs/j1/members/w0", headers=headers)).status == 401
    assert (await site.client.post("/v1/jobs/j1/report", headers=headers, data=b"{}")).status == 401
    assert (await site.client.put("/v1/jobs/j1/expectation", headers=headers, data=b"{}")).status == 403


async def test_a_report_is_bounded_and_a_bad_one_is_refused_by_its_field(site: Site) -> None:
    site.expect(ready("w0"))
    bad = await site.post(body=b'{"launcher": "l1", "assigned": ["$(reboot)"]}')
    assert bad.status == 400
    assert "$.assigned[0]" in await bad.text()
    assert (await site.post(body=io.BytesIO(b" " * (LAUNCHER_REPORT_BODY + 1)))).status == 413
    assert (await site.post("/proofs/a%20b")).status == 400


async def test_a_flood_of_long_reports_is_not_read(site: Site) -> None:
    """All jobs share the thread that reads them."""
    site.expect(ready("w0"))
    answers = [await site.post(body=io.BytesIO(b" " * LAUNCHER_REPORT_BODY)) for _ in range(REPORTS_AT_ONCE + 2)]
    assert [answer.status for answer in answers] == [*[400] * REPORTS_AT_ONCE, 429, 429]
    lists = site.hub.hosts
    later = lists._clock() + 30.0
    lists._rates["j1"]._clock = lambda: later
    assert (await site.post(body=json.dumps({"launcher": "l1"}).encode())).status == 503, "no host is listed yet"


async def test_a_launcher_of_a_job_that_is_not_known_is_not_read(site: Site) -> None:
    assert (await site.post(body=b"{")).status == 503
    assert (await site.post("/proofs/uid-w0")).status == 503


async def test_a_forgotten_job_has_no_list(site: Site) -> None:
    site.expect(ready("w0"))
    await site.post("/proofs/uid-w0")
    site.hub.forget("j1")
    assert (await site.get()).status == 503


def test_the_name_of_a_host_can_be_written_into_a_shell_command() -> None:
    for name in ("a b", "a;b", "-o", "", "a\n"):
        with pytest.raises(ValueError):
            msgspec.json.decode(json.dumps({"hosts": [{"name": name, "uid": "u"}]}), type=HostFacts)
