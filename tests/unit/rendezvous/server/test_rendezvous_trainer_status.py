"""Reports of training programs in the form of Kubeflow Trainer: who may send them, what is refused, and what the others hear of them."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from elastic.membership.hosts import MAX_VALUES
from elastic.membership.tokens import Role, autoscaler_token, control_token, job_token
from elastic.membership.training import Report, TrainingProgress
from elastic.membership.wire import Expectation, Join
from elastic_training.rendezvous.server import trainer_status
from elastic_training.rendezvous.server.access import Gate
from elastic_training.rendezvous.server.http import Face
from elastic_training.rendezvous.server.hub import Hub
from elastic_training.rendezvous.server.other_jobs import KEPT_S
from elastic_training.rendezvous.server.trainer_status import AT_ONCE, LONGEST_BODY, MOST_METRICS, PATH

KEY = b"k" * 32
STATUS, AGENT = job_token(KEY, "job", Role.STATUS), job_token(KEY, "job", Role.AGENT)


class Wire:
    def send(self, view: object) -> None: ...

    def end(self, reason: str) -> None: ...

    def close(self) -> None: ...

    def give(self, exchange: object) -> None: ...


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Site:
    hub: Hub
    client: "TestClient[Any, Any]"
    clock: Clock = field(default_factory=Clock)

    async def post(self, body: object, *, token: str = STATUS, job: str = "job") -> ClientResponse:
        raw = body if isinstance(body, bytes) else json.dumps(body)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        return await self.client.post(f"/v1/jobs/{job}/trainer-status", headers=headers, data=raw)

    async def tell(self, percent: int | None = None, *, left_s: int | None = None, **metrics: object) -> None:
        """Report as the KubeflowCallback does."""
        status: dict[str, object] = {"lastUpdatedTime": "2026-11-28T07:00:00.123456+00:00"}
        status |= {"progressPercentage": percent} if percent is not None else {}
        status |= {"estimatedRemainingSeconds": left_s} if left_s is not None else {}
        status |= {"metrics": [{"name": name, "value": str(value)} for name, value in metrics.items()]} if metrics else {}
        answer = await self.post({"trainerStatus": status})
        assert answer.status == 200, await answer.text()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def progress(self) -> TrainingProgress:
        (progress,) = self.hub.progress_since(-1)
        return progress


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """Return a server with one job whose world has one member."""
    clock = Clock()
    hub = Hub(instance="s1", clock=clock)
    gate = Gate(keys=lambda: [KEY], reviewer=None, accounts=())
    face = Face(hub=hub, gate=gate, clock=clock, metrics=lambda: (b"", ""))
    hub.expect("job", Expectation(members=("w0",), min=1, max=8))
    hub.attach("job", name="w0", link=Wire(), message=Join(incarnation="w0/1", store="w0:1"))
    async with TestClient(TestServer(face.application())) as client:
        yield Site(hub, client, clock)
        hub.forget("job")


async def test_a_report_becomes_the_jobs_progress(site: Site) -> None:
    await site.tell(47, left_s=120, loss=0.5, learning_rate=1e-5, current_step=94, total_steps=200, current_epoch=1.88)
    site.clock.now += 2
    told = site.progress()
    assert (told.step, told.highest, told.age_s, told.percent, told.remaining_s) == (94, 94, 2.0, 47, 120.0)
    assert told.values == {"loss": 0.5, "learning_rate": 1e-5, "total_steps": 200.0, "current_epoch": 1.88}


async def test_the_values_of_a_program_without_a_world_are_heard(site: Site) -> None:
    """A TrainJob that runs plain `python` is expected here, but its nodes never meet. Its metrics were dropped."""
    site.hub.forget("job")
    site.hub.expect("job", Expectation(members=("w0",), min=1, max=8))
    await site.tell(42, left_s=120, loss=0.123, current_step=3)
    told = site.progress()
    assert (told.step, told.percent, told.values) == (3, 42, {"loss": 0.123})


async def test_the_last_report_is_news_at_once_and_keeps_the_step(site: Site) -> None:
    """The callback sends its last report without a step, perhaps a moment after the one before it."""
    await site.tell(99, left_s=1, loss=0.5, current_step=199)
    heard = site.hub.progress.version
    await site.tell(100, left_s=0, loss=0.4, train_runtime=12.5)
    assert [(one.percent, one.step, one.values) for one in site.hub.progress_since(heard)] == [
        (100, 199, {"loss": 0.4, "train_runtime": 12.5})
    ]


async def test_the_last_report_of_a_job_is_heard_although_the_job_is_forgotten_at_once(site: Site) -> None:
    """The controller forgets a finished job, perhaps before the stream has sent the last report."""
    await site.tell(99, left_s=1, loss=0.5, current_step=199)
    heard = site.hub.progress.version
    await site.tell(100, left_s=0, train_loss=0.4)
    site.hub.forget("job")
    last = {"step": 199, "values": {"train_loss": 0.4}, "percent": 100, "remaining_s": 0.0}
    assert site.hub.progress_since(heard) == [TrainingProgress(job="job", forgotten=True, **last)]


async def test_a_program_that_starts_again_at_its_checkpoint_has_not_lost_its_progress(site: Site) -> None:
    await site.tell(47, loss=0.5, current_step=94)
    await site.tell(0, total_steps=200)
    assert site.progress().percent == 47
    await site.tell(0, current_step=1, total_steps=200)
    assert site.progress().percent == 0


async def test_the_remaining_time_is_measured_in_the_world_that_stands(site: Site) -> None:
    """After a restart at step 5,000, transformers took 10 s for 10 steps as 10 s for 5,010 steps."""
    await site.tell(49, left_s=5100, current_step=4900, total_steps=10_000)
    site.clock.now += 50
    await site.tell(49, left_s=4000, current_step=4950, total_steps=10_000)
    assert site.progress().remaining_s == 5050.0
    join_again(site.hub, "w0/2")
    await site.tell(0, total_steps=10_000)
    await site.tell(50, left_s=1, current_step=5000, total_steps=10_000)
    assert site.progress().remaining_s == 5050.0
    site.clock.now += 5
    await site.tell(50, left_s=10, current_step=5010, total_steps=10_000)
    assert site.progress().remaining_s == 2495.0
    await site.tell(100, left_s=0)
    assert site.progress().remaining_s == 0.0


def join_again(hub: Hub, incarnation: str) -> None:
    hub.attach("job", name="w0", link=Wire(), message=Join(incarnation=incarnation, store="w0:1"))


async def test_steps_of_workers_go_before_the_programs(site: Site) -> None:
    """A policy measures samples, which only workers report. The values of both are shown."""
    await site.tell(10, current_step=7, loss=0.5, accuracy=0.25)
    site.hub.report("job", Report(member="w0", generation=1, step=9, values={"samples": 90.0, "loss": 0.4}))
    told = site.progress()
    assert (told.step, told.percent) == (9, 10)
    assert told.values == {"samples": 90.0, "loss": 0.4, "accuracy": 0.25}


async def test_a_step_of_a_former_world_says_nothing_of_this_one(site: Site) -> None:
    await site.tell(47, current_step=94)
    site.hub.expect("job", Expectation(members=("w0", "w1"), min=1, max=8))
    site.hub.attach("job", name="w1", link=Wire(), message=Join(incarnation="w1/1", store="w1:1"))
    await asyncio.sleep(0)
    site.hub.attach("job", name="w0", link=Wire(), message=Join(incarnation="w0/2", store="w0:2"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    told = site.progress()
    assert (told.step, told.highest, told.percent) == (None, 94, 47)


async def test_metrics_that_do_not_fit_are_left_out(site: Site) -> None:
    many = {f"m{i}": i for i in range(MAX_VALUES + 8)}
    await site.tell(1, note="good", loss="nan", worst="inf", **{"n" * 65: 1}, **many, current_step="12")
    told = site.progress()
    assert told.step == 12
    assert told.values == {f"m{i}": float(i) for i in range(MAX_VALUES)}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", "truncated"),
        (b"[" * 20_000, ""),
        ({}, "`trainerStatus`"),
        ({"trainerStatus": {"progressPercentage": 101}}, "$.trainerStatus.progressPercentage"),
        ({"trainerStatus": {"progressPercentage": "50"}}, "$.trainerStatus.progressPercentage"),
        ({"trainerStatus": {"estimatedRemainingSeconds": -1}}, "$.trainerStatus.estimatedRemainingSeconds"),
        ({"trainerStatus": {"lastUpdatedTime": "yesterday"}}, "$.trainerStatus.lastUpdatedTime"),
        ({"trainerStatus": {"metrics": [{"name": "loss", "value": 0.5}]}}, "$.trainerStatus.metrics[0].value"),
        ({"trainerStatus": {"metrics": [{"name": "a", "value": "1"}] * (MOST_METRICS + 1)}}, "$.trainerStatus.metrics"),
    ],
)
async def test_a_bad_report_is_refused_by_its_field(site: Site, body: object, field: str) -> None:
    answer = await site.post(body)
    assert answer.status in (400, 413)
    assert field in (await answer.json())["error"]


async def test_a_job_without_members_here_is_heard_until_it_is_silent_for_long(site: Site) -> None:
    """A PyTorchJob without elasticPolicy, or a job of another kind, has no world."""
    site.hub.forget("job")
    await site.tell(47, left_s=120, loss=0.5, current_step=94)
    site.clock.now += 2
    told = {"step": 94, "highest": 94, "age_s": 2.0, "values": {"loss": 0.5}, "percent": 47, "remaining_s": 120.0}
    assert site.progress() == TrainingProgress(job="job", **told)
    heard = site.hub.progress.version
    await site.tell(100, train_loss=0.4)
    assert [one.percent for one in site.hub.progress_since(heard)] == [100]
    heard = site.hub.progress.version
    site.clock.now += KEPT_S + 1
    await site.post({"trainerStatus": {}}, token=job_token(KEY, "other", Role.STATUS), job="other")
    assert {one.job: one.forgotten for one in site.hub.progress_since(heard)} == {"other": False, "job": True}


async def test_a_job_whose_members_come_is_no_longer_one_without(site: Site) -> None:
    """The server was restarted, and the program reported before the members and the controller came back."""
    site.hub.forget("job")
    await site.tell(47, loss=0.5, current_step=94)
    site.hub.expect("job", Expectation(members=("w0",), min=1, max=8))
    site.hub.attach("job", name="w0", link=Wire(), message=Join(incarnation="w0/1", store="w0:1"))
    await site.tell(48, current_step=96)
    told = site.progress()
    assert (told.size, told.step, told.percent) == (1, 96, 48)


@pytest.mark.parametrize("has_members", [True, False])
async def test_a_report_is_bounded(site: Site, has_members: bool) -> None:
    if not has_members:
        site.hub.forget("job")
        assert (await site.post({"trainerStatus": {}})).status == 200
    assert (await site.post(b" " * (LONGEST_BODY + 1))).status == 413
    unbounded = await site.client.post(PATH.format(uid="job"), headers={"Authorization": f"Bearer {STATUS}"}, data=without_length())
    assert unbounded.status == 413
    answers = [(await site.post({"trainerStatus": {}})).status for _ in range(int(AT_ONCE))]
    assert answers.count(429) == 2
    site.clock.now += 1
    assert (await site.post({"trainerStatus": {}})).status == 200


async def test_a_body_that_does_not_come_is_not_waited_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_status, "BODY_S", 0.05)
    head = {"Authorization": f"Bearer {STATUS}", "Content-Length": "10"}
    answer = await site.client.post(PATH.format(uid="job"), headers=head, data=silence())
    assert answer.status == 408


async def silence() -> AsyncIterator[bytes]:
    yield b"{"
    await asyncio.Event().wait()


async def without_length() -> AsyncIterator[bytes]:
    yield b"{}"


async def test_only_the_jobs_status_token_reports_and_it_may_do_nothing_else(site: Site) -> None:
    other = job_token(KEY, "other", Role.STATUS)
    launcher = job_token(KEY, "job", Role.LAUNCHER)
    for token in ("", AGENT, launcher, other, control_token(KEY), autoscaler_token(KEY)):
        assert (await site.post({"trainerStatus": {}}, token=token)).status == 401
    refused = []
    for method, path in (
        ("GET", "/v1/jobs/job/members/w0"),
        ("GET", "/v1/jobs/job/world"),
        ("POST", "/v1/jobs/job/report"),
        ("GET", "/v1/jobs/job/signals"),
        ("PUT", "/v1/jobs/job/expectation"),
        ("DELETE", "/v1/jobs/job"),
        ("GET", "/v1/worlds"),
        ("PUT", "/v1/leader/1"),
        ("GET", "/v1/progress"),
        ("GET", "/v1/jobs/job/hosts"),
        ("POST", "/v1/jobs/job/hosts"),
        ("POST", "/v1/jobs/job/hosts/proofs/uid"),
    ):
        answer = await site.client.request(method, path, headers={"Authorization": f"Bearer {STATUS}"}, data=b"{}")
        refused.append((path, answer.status in (401, 403)))
    assert refused == [(path, True) for path, _ in refused]
