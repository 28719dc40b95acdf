"""How a command that shows a job goes through a server that is away, a job that is gone, and silent times."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cli_api import PYTORCH, job, pod, running

from elastic.cli import silence
from elastic.cli.jobs import change, following
from elastic.cli.jobs.following import followed
from elastic.cli.jobs.milestone import Milestone
from elastic.cli.jobs.wait import _until
from elastic.client import verbs
from elastic.client.sample import Sample
from elastic.client.verbs import Found
from elastic.kube.errors import KubeError
from elastic.kube.following import ConditionNews, FollowedJob, Happening, Line, Outcome
from elastic.kube.paging import Listing

JOB = FollowedJob(PYTORCH, "default", "train", "uid-train")
AWAY = KubeError(code=0, reason="Unreachable", message="connection refused")


class Server:
    """Answers as an API server does, or not at all."""

    def __init__(self, *pods: dict[str, Any], status: dict[str, Any] | None = None) -> None:
        self.job = job(status=status if status is not None else running())
        self.pods = list(pods)
        self.trouble: KubeError | None = None
        self.prints_every_s: float | None = None

    async def get(self, resource: Any, name: str, *, namespace: str) -> dict[str, Any]:
        if self.trouble is not None:
            raise self.trouble
        return self.job

    async def find(self, resource: Any, name: str, *, namespace: str) -> dict[str, Any] | None:
        return await self.get(resource, name, namespace=namespace)

    async def list(self, resource: Any, **options: Any) -> Listing:
        if self.trouble is not None:
            raise self.trouble
        return Listing({"pytorchjobs": [self.job], "pods": self.pods}.get(resource.plural, []), "1")

    async def logs(self, name: str, **options: Any) -> AsyncIterator[bytes]:
        if self.prints_every_s is None:
            await asyncio.Event().wait()
        while True:
            yield b"a line\n"
            await asyncio.sleep(self.prints_every_s or 0)

    async def watch(self, resource: Any, **options: Any) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, seconds in ((following, "LOOK_EVERY_S", 0.01), (following, "AWAY_S", 0.3), (silence, "QUIET_S", 0.02)):
        monkeypatch.setattr(module, name, seconds)


async def follow(server: Server, said: list[str]) -> tuple[Outcome, list[Happening]]:
    told: list[Happening] = []

    def tell(happening: Happening) -> bool:
        told.append(happening)
        return True

    async with asyncio.timeout(20):
        return await followed(server, JOB, tell=tell, say=said.append), told  # type: ignore[arg-type]


async def until(said: list[str], word: str) -> None:
    async with asyncio.timeout(20):
        while not any(word in line for line in said):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_server_that_stays_away_ends_it_and_meanwhile_it_says_so() -> None:
    server, said = Server(), list[str]()
    task = asyncio.create_task(follow(server, said))
    await asyncio.sleep(0.05)
    server.trouble = AWAY
    with pytest.raises(KubeError, match="connection refused"):
        await task
    assert set(said) == {"waits for the API server, which cannot be reached; gives up after 0 s"}


async def test_a_server_that_comes_back_is_waited_for() -> None:
    server, said = Server(), list[str]()
    server.trouble = AWAY
    task = asyncio.create_task(follow(server, said))
    await until(said, "cannot be reached")
    server.trouble = None
    await asyncio.sleep(0.4)
    assert not task.done()
    server.job["metadata"]["uid"] = "another"
    assert (await task)[0] is Outcome.DELETED


@pytest.mark.parametrize(("code", "outcome"), [(404, Outcome.DELETED), (403, None)])
async def test_a_job_that_is_gone_and_a_right_that_is_missing_end_it(code: int, outcome: Outcome | None) -> None:
    server = Server()
    server.trouble = KubeError(code=code, reason="x", message="no")
    if outcome is None:
        with pytest.raises(KubeError):
            await follow(server, [])
    else:
        assert (await follow(server, []))[0] is outcome


async def test_silent_times_say_what_the_job_waits_for() -> None:
    no_room = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available."}
    server, said = Server(pod(2, conditions=[no_room])), list[str]()
    task = asyncio.create_task(follow(server, said))
    await until(said, "room")
    assert set(said) == {"waits for room for train-worker-2: 0/1 nodes are available"}
    task.cancel()


async def test_a_script_that_may_begin_again_at_each_change_is_told_once() -> None:
    """A script without checkpoints began again after each change, and nothing said why."""
    rescale = {"fromSize": 3, "toSize": 2, "cause": "plan", "reason": "r", "phases": {"round": 20}}
    stands = {"type": "elastic-training/in-world", "status": "True", "reason": "WorldStands"}
    server, said = Server(pod(0, conditions=[stands])), list[str]()
    server.job = job(status=running(worldSize=2, backend="elastic", lastRescale=rescale))
    task = asyncio.create_task(follow(server, said))
    await until(said, "reports no steps")
    await asyncio.sleep(0.2)
    task.cancel()
    assert sum("only if the script saves its state and loads it" in line for line in said) == 1


async def test_a_wait_for_the_end_of_a_job_that_trains_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """It was silent while nothing kept the job, and as long as its workers printed: it does not show what they print."""
    server = Server(pod(0))
    server.prints_every_s = 0.005
    task = asyncio.create_task(_until(server, Found(PYTORCH, server.job), "over", Milestone(None)))  # type: ignore[arg-type]
    await printed(capsys, "runs on; 3 of 3 workers run")
    task.cancel()


async def test_a_job_is_said_to_train_once_it_has_reported_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    met = Found(PYTORCH, job(status=running(backend="elastic", worldSize=3)))
    milestone = Milestone(None)
    assert str(await milestone.ahead(met)) == "has reported no step yet; 3 of 3 workers run"
    milestone.hear(ConditionNews("Running", "r", "it runs"))
    assert (await milestone.ahead(met)).words == "has reported no step yet"
    milestone.hear(Line("train-worker-0", "hello"))
    assert str(await milestone.ahead(met)) == "runs on; 3 of 3 workers run"

    async def sample(self: Milestone, uid: str) -> Sample | None:
        return Sample(uid=uid, step=12, rate=3.0, loss=0.25) if uid == "uid-train" else None

    monkeypatch.setattr(Milestone, "_sample", sample)
    assert str(await Milestone(None).ahead(met)) == "trains on; step 12, 3 steps/s, loss 0.25", "a reported step has been done"


async def test_a_job_whose_steps_stop_is_not_said_to_train_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was, with the last step and speed, in the first half minute of a hang."""
    now = datetime.now(UTC)

    async def sample(self: Milestone, uid: str) -> Sample | None:
        stopped = Sample(uid=uid, step=35, rate=3.0, loss=0.25, stepped_at=(now - timedelta(seconds=25)).isoformat(), step_due_s=15.0)
        return stopped.at(now)

    monkeypatch.setattr(Milestone, "_sample", sample)
    met = Found(PYTORCH, job(status=running(backend="elastic", worldSize=3)))
    assert str(await Milestone(None).ahead(met)) == "runs on; step 35, 25s ago, loss 0.25"


async def test_a_hang_is_said_once_and_with_the_times_of_now() -> None:
    """Its words have times, and would have been news each second."""
    hang = {
        "state": "SuspectedHang",
        "since": (datetime.now(UTC) - timedelta(seconds=100)).isoformat(),
        "reportsSteps": True,
        "message": "no step comes: rank 1 sleeps",
        "ranks": [{"ranks": "1", "kind": "other", "does": "sleeps"}],
    }
    wait = await following._waits(
        Server(), Found(PYTORCH, job(status=running(backend="elastic", worldSize=3, hang=hang), elasticPolicy={}))
    )  # type: ignore[arg-type]
    assert wait is not None
    assert wait.words == "waits for its next step, and may hang: no step comes: rank 1 sleeps"
    assert re.fullmatch(r"waits for its next step, and may hang: no step has come for 1\d\d s: rank 1 sleeps", str(wait))


async def test_steps_alone_are_no_news_and_the_pauses_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    server, said, asked = Server(), list[str](), list[int]()

    async def ahead(of: Found) -> following.Wait:
        asked.append(1)
        return following.Wait("trains on", progress=f"step {len(asked)}")

    task = asyncio.create_task(followed(server, JOB, tell=lambda happening: False, say=said.append, ahead=ahead))  # type: ignore[arg-type]
    await until(said, "trains on")
    while len(asked) < 20:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    task.cancel()
    assert said[0] == "trains on; step 1"
    assert len(said) < 10


async def test_a_deletion_names_what_it_waits_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It was silent for as long as pods took to end, half a minute by default."""
    monkeypatch.setattr(verbs, "LOOK_EVERY_S", 0.01)
    server = Server(*(pod(index) for index in range(5)))
    task = asyncio.create_task(change.until_gone(server, Found(PYTORCH, server.job), and_pods=True))  # type: ignore[arg-type]
    await printed(capsys, "waits for PyTorchJob train to be gone")
    server.job = job("train")
    server.job["metadata"]["uid"] = "another"
    await printed(capsys, "waits for train-worker-0, train-worker-1, train-worker-2 and 2 more to be gone")
    server.pods.clear()
    await task


async def printed(capsys: pytest.CaptureFixture[str], words: str) -> None:
    text = ""
    async with asyncio.timeout(20):
        while words not in (text := text + capsys.readouterr().err):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_finished_job_is_followed_to_its_end() -> None:
    status = {"conditions": [{"type": "Failed", "status": "True", "reason": "r", "message": "it failed"}]}
    assert await follow(Server(status=status), []) == (Outcome.FAILED, [ConditionNews("Failed", "r", "it failed")])
