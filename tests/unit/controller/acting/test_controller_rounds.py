"""Check failing requests while a plan is carried out, and the order of the work queue. The simulation found most of these cases."""

import asyncio
from datetime import timedelta

import pytest
from round_job import JOB, KEY, NOW

from elastic.api.job import Condition, JobStatus
from elastic.kube.errors import KubeError
from elastic.kube.resources import EVENTS, PODS, VOLCANO_POD_GROUPS, Object, Resource
from elastic.runtime.workqueue import LONGEST_BACK_OFF_S, WorkQueue
from elastic_training.controller.acting.apply import Applier
from elastic_training.controller.acting.event_recorder import AT_ONCE, EVERY_S, EventRecorder
from elastic_training.controller.deciding.actions import Create, Delete, DeleteJob, Plan, SeenVersion, normal
from elastic_training.controller.facts.keys import Key

DONE = JobStatus(conditions=(Condition(type="Succeeded", status="True"),))


class Kube:
    """Simulates an API server that stores Events. It refuses status patches while `refuses`, and deletions while `conflicts`."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.messages: list[str] = []
        self.deleted: list[str] = []
        self.refuses = True
        self.conflicts = False
        self.generation = 1
        self.lacks: list[str] = []

    async def get(self, resource: Resource, name: str, *, namespace: str) -> Object:
        if name in self.lacks:
            raise KubeError(code=404, reason="NotFound", message=f"{resource.plural} {name} not found")
        return {**JOB, "metadata": {**JOB["metadata"], "generation": self.generation}}

    async def create(self, resource: Resource, body: Object, *, namespace: str) -> Object:
        assert resource == EVENTS
        self.events.append(body["reason"])
        self.messages.append(body["message"])
        return body

    async def delete(self, resource: Resource, name: str, **_: object) -> Object:
        if self.conflicts:
            raise KubeError(code=409, reason="Conflict", message="please try again")
        self.deleted.append(name)
        return {}

    async def patch(self, resource: Resource, name: str, body: Object, *, namespace: str, subresource: str) -> Object:
        if self.refuses:
            raise KubeError(code=409, reason="Conflict", message="the object has been modified")
        return {**JOB, **body}


async def test_an_event_about_a_new_status_is_written_only_after_the_status_is_stored() -> None:
    kube = Kube()
    applier = Applier(kube, EventRecorder(kube), None)  # type: ignore[arg-type]
    plan = Plan(status=DONE, news=(normal("PyTorchJobSucceeded", "done"),))
    await applier.carry_out(KEY, JOB, plan, old=JobStatus(), now=NOW)
    assert kube.events == []
    kube.refuses = False
    await applier.carry_out(KEY, JOB, plan, old=JobStatus(), now=NOW)
    assert kube.events == ["PyTorchJobSucceeded"]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def failed_round(queue: WorkQueue[str], *, meanwhile: bool = False) -> None:
    await queue.take()
    if meanwhile:
        queue.add("job")
    queue.done("job", failed=True)


async def test_a_job_whose_reconcile_fails_for_days_is_still_retried() -> None:
    clock = Clock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    queue.add("job")
    for _ in range(1100):
        await failed_round(queue)
        clock.now += LONGEST_BACK_OFF_S
    assert (await queue.take())[0] == "job"


async def test_a_failing_job_that_changed_is_reconciled_within_a_second() -> None:
    clock = Clock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    queue.add("job")
    for _ in range(20):
        await failed_round(queue)
        clock.now += LONGEST_BACK_OFF_S
    await failed_round(queue, meanwhile=True)
    clock.now += 1.0
    async with asyncio.timeout(5.0):
        assert (await queue.take())[0] == "job"


async def test_the_queue_remembers_nothing_about_deleted_jobs() -> None:
    """Before the fix, if `forget` was called during the work on a key, the following `done` stored the key again for ever."""
    queue: WorkQueue[str] = WorkQueue(clock=Clock())
    fresh = {name: len(value) for name, value in vars(queue).items() if isinstance(value, dict | set | list)}
    for number in range(1000):
        queue.add(f"job-{number}")
        queue.add_at(f"job-{number}", 1e6)
        key, _ = await queue.take()
        queue.forget(key)
        queue.done(key)
    assert {name: len(value) for name, value in vars(queue).items() if isinstance(value, dict | set | list)} == fresh


async def test_a_key_that_is_added_again_after_it_was_forgotten_is_processed() -> None:
    queue: WorkQueue[str] = WorkQueue(clock=Clock())
    queue.add("job")
    key, _ = await queue.take()
    queue.forget(key)
    queue.add(key)
    queue.done(key)
    async with asyncio.timeout(5):
        assert (await queue.take())[0] == "job"


async def test_a_job_that_asks_for_earlier_and_earlier_times_does_not_collect_timers() -> None:
    queue: WorkQueue[str] = WorkQueue(clock=Clock())
    for number in range(5000):
        queue.add_at("job", 1e6 - number)
    assert len(queue._timers) <= 2


async def test_a_running_job_waits_for_at_most_one_of_a_thousand_new_jobs() -> None:
    queue: WorkQueue[str] = WorkQueue(clock=Clock())
    queue.add("running")
    queue.done((await queue.take())[0])
    for number in range(1000):
        queue.add(f"new-{number}")
    queue.done((await queue.take())[0])
    queue.add("running")
    taken = [(await queue.take())[0] for _ in range(2)]
    assert "running" in taken


async def test_running_jobs_that_change_all_the_time_do_not_block_new_jobs() -> None:
    queue: WorkQueue[str] = WorkQueue(clock=Clock())
    for name in ("a", "b"):
        queue.add(name)
        queue.done((await queue.take())[0])
    queue.add("new")
    taken = []
    for _ in range(4):
        for name in ("a", "b"):
            queue.add(name)
        taken.append((await queue.take())[0])
        queue.done(taken[-1])
    assert "new" in taken


async def test_news_of_several_pods_in_one_reconcile_becomes_one_event_and_is_not_repeated() -> None:
    kube = Kube()
    teller = EventRecorder(kube)  # type: ignore[arg-type]
    ended = [normal("ExitedWithCode", f"Pod: team.train-worker-{n} exited with code 0", about=f"uid-{n}/0") for n in range(3)]
    await teller.tell(JOB, ended[:2], now=NOW)
    await teller.tell(JOB, ended, now=NOW)
    await teller.tell(JOB, ended, now=NOW)
    assert kube.messages == [
        "Pod: team.train-worker-0 exited with code 0, team.train-worker-1 exited with code 0",
        "Pod: team.train-worker-2 exited with code 0",
    ]


async def test_news_with_different_words_before_the_colon_shares_no_event() -> None:
    kube = Kube()
    waits = [normal("ErrImagePull", f"Error pod train-worker-{n} container pytorch waiting message: no such image") for n in range(2)]
    await EventRecorder(kube).tell(JOB, waits, now=NOW)  # type: ignore[arg-type]
    assert len(kube.messages) == 2


async def test_a_worker_that_makes_news_all_the_time_costs_a_bounded_number_of_events() -> None:
    """A save that fails and succeeds in turns is news each time."""
    kube = Kube()
    teller = EventRecorder(kube)  # type: ignore[arg-type]
    for step in range(1000):
        await teller.tell(JOB, [normal("SaveFailed", f"step {step}")], now=NOW + timedelta(seconds=step / 10))
    assert len(kube.messages) == AT_ONCE + 99.9 // EVERY_S
    await teller.tell(JOB, [normal("Rescaled", "train trains")], now=NOW)
    assert kube.messages[-1] == "train trains", "other news is told"
    await teller.tell(JOB, [normal("SaveFailed", "later")], now=NOW + timedelta(hours=1))
    assert kube.messages[-1] == "later"


async def test_events_that_the_api_server_refused_use_up_nothing() -> None:
    """After a while of refusals, later news of the same reason waited for ten seconds each, though none had been written."""
    kube, at = Kube(), NOW
    teller = EventRecorder(kube)  # type: ignore[arg-type]
    create = kube.create

    async def refused(*arguments: object, **more: object) -> Object:
        raise KubeError(code=403, reason="Forbidden", message="exceeded quota")

    kube.create = refused  # type: ignore[method-assign]
    for step in range(2 * AT_ONCE):
        await teller.tell(JOB, [normal("SaveFailed", f"step {step}")], now=at)
    kube.create = create  # type: ignore[method-assign]
    await teller.tell(JOB, [normal("SaveFailed", "the newest")], now=at)
    assert kube.messages == ["the newest"]


@pytest.mark.parametrize(("generation", "goes"), [(1, True), (2, False)])
async def test_no_pod_is_deleted_if_the_spec_changed_after_the_plan(generation: int, goes: bool) -> None:
    """An outdated view of the job must not cost a worker, because the user may have reverted the change that the view still shows."""
    kube = Kube()
    kube.generation = generation
    applier = Applier(kube, EventRecorder(kube), None)  # type: ignore[arg-type]
    plan = Plan((Delete(PODS, "train-worker-1", "uid-1"),), status=DONE)
    kube.refuses = False
    outcome = await applier.carry_out(KEY, JOB, plan, old=JobStatus(), now=NOW)
    assert kube.deleted == (["train-worker-1"] if goes else [])
    assert bool(outcome.errors) is not goes
    assert (outcome.status == DONE) is goes


@pytest.mark.parametrize(("version", "lacks", "holds"), [("1", [], True), ("0", [], False), ("1", ["train-rdzv"], False)])
async def test_a_plan_does_nothing_if_a_pod_that_it_rests_on_changed_after_the_plan(version: str, lacks: list[str], holds: bool) -> None:
    """The view of a job's store may be older than the view of its workers.

    Workers that ended because the store was deleted then look like failures.
    """
    kube = Kube()
    kube.refuses, kube.lacks = False, lacks
    applier = Applier(kube, EventRecorder(kube), None)  # type: ignore[arg-type]
    plan = Plan((Delete(PODS, "train-worker-1", "uid-1"),), status=DONE, rests_on=(SeenVersion(PODS, "train-rdzv", version),))
    outcome = await applier.carry_out(KEY, JOB, plan, old=JobStatus(), now=NOW)
    assert (outcome.status == DONE, bool(kube.deleted), not outcome.errors) == (holds, holds, holds)


@pytest.mark.parametrize(("kind", "reason"), [("PyTorchJob", "SuccessfulDeletePod"), ("TFJob", "SuccessfulDeleteJob")])
async def test_the_deletion_of_a_finished_job_writes_an_event(kind: str, reason: str) -> None:
    kube = Kube()
    applier = Applier(kube, EventRecorder(kube), None)  # type: ignore[arg-type]
    job = {**JOB, "kind": kind}
    await applier.carry_out(Key(kind, "team", "train"), job, Plan((DeleteJob(),)), old=JobStatus(), now=NOW)
    assert kube.deleted == ["train"]
    assert (kube.events, kube.messages) == ([reason], ["Deleted job: train"])


async def test_the_deletion_of_a_pod_group_writes_the_event_of_upstream() -> None:
    kube = Kube()
    applier = Applier(kube, EventRecorder(kube), None)  # type: ignore[arg-type]
    await applier.carry_out(KEY, JOB, Plan((Delete(VOLCANO_POD_GROUPS, "train", "uid-group"),)), old=JobStatus(), now=NOW)
    assert (kube.events, kube.messages) == (["SuccessfulDeletePodGroup"], ["Deleted PodGroup: train"])


async def test_a_deletion_that_fails_with_a_conflict_is_an_error_without_an_event() -> None:
    """Another object may have the name by now, or the server may only want us to try again. The next reconcile finds out."""
    kube = Kube()
    kube.conflicts = True
    applier = Applier(kube, EventRecorder(kube), None)  # type: ignore[arg-type]
    outcome = await applier.carry_out(KEY, JOB, Plan((Delete(PODS, "train-worker-1", "uid-1"),)), old=JobStatus(), now=NOW)
    assert [str(error) for error in outcome.errors] == ["409 Conflict: please try again"]
    assert kube.events == [], "a conflict needs no Event"


@pytest.mark.parametrize(
    ("code", "is_there", "is_ours"), [(0, True, True), (500, True, True), (409, True, True), (0, False, True), (0, True, False)]
)
async def test_a_pod_whose_creation_got_no_answer_is_read_from_the_api_server(code: int, is_there: bool, is_ours: bool) -> None:
    """Before the fix, the answer to a creation was lost.

    The next reconcile did not see the pod yet, and created a second one under another free name.
    """
    owner = {"uid": "u" if is_ours else "another", "controller": True, "kind": "PyTorchJob", "name": "train"}
    pod: Object = {"metadata": {"name": "train-worker-4", "labels": {}, "ownerReferences": [owner], "resourceVersion": "7"}}

    class Silent(Kube):
        async def create(self, resource: Resource, body: Object, *, namespace: str) -> Object:
            if resource == EVENTS:
                return await super().create(resource, body, namespace=namespace)
            raise KubeError(code=code, reason="AlreadyExists" if code == 409 else "Unreachable", message="no answer")

        async def get(self, resource: Resource, name: str, *, namespace: str) -> Object:
            if not is_there:
                raise KubeError(code=404, reason="NotFound", message="not found")
            return pod

    kube = Silent()
    applier = Applier(kube, EventRecorder(kube), None)  # type: ignore[arg-type]
    outcome = await applier.carry_out(KEY, JOB, Plan((Create(PODS, {"metadata": {"name": "train-worker-4"}}),)), old=JobStatus(), now=NOW)
    is_found = is_there and is_ours
    assert list(outcome.written.values()) == (["7"] if is_found else [])
    assert bool(outcome.errors) is not is_found
