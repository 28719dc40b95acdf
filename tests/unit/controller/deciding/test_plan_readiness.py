"""Check that workers are Ready if they are in the world and have the job's state, and not because a container runs."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from job_builders import NOW, OURS, PLAIN, elastic_job, job, pod, pod_for, replica, snapshot

from elastic.api.book import Leaving
from elastic.api.job import ElasticStatus, Job, JobStatus
from elastic.api.words import HOLDER, IN_WORLD, Cause
from elastic.kube.resources import SERVICES
from elastic_training.controller.deciding.actions import Create, SetCondition, SetExpectation
from elastic_training.controller.deciding.derivation import derive
from elastic_training.controller.deciding.plan import plan
from elastic_training.controller.deciding.rendezvous.readiness import Readiness, of_workers
from elastic_training.controller.facts.settings import Settings
from elastic_training.controller.facts.snapshot import Container, InWorld, Pod, PodPhase, WorldSeen, pod_from
from elastic_worker.agent.presence_thread import process_id

STANDS = NOW - timedelta(seconds=10)


def begun(workers: int = 2, **more: Any) -> Job:
    return elastic_job(workers, status=JobStatus(start_time=NOW, elastic=ElasticStatus(backend="elastic")), **more)


def worker(
    index: int, gate: InWorld | None = None, *, run: int = 0, is_running: bool = True, began: datetime | None = None, **changes: Any
) -> Pod:
    """Return a worker with the gate; `run` is its container's restart count, `began` the start of that run."""
    container = Container(name="pytorch", restarts=run, is_running=is_running, exit_code=None if is_running else 1, started_at=began)
    return pod(index=index, in_world=gate or InWorld(), containers=(container,), **changes)


def world(*indexes: int, generation: int = 2, size: int | None = -1, starts: str = "a", **more: Any) -> WorldSeen:
    """Return a world of these workers, each with the start `a` of its agent. Size -1 stands for their number."""
    names = [f"train-worker-{index}" for index in indexes]
    fields: dict[str, Any] = {"phase": "running", "since": STANDS} | more
    return WorldSeen(
        generation=generation,
        members=frozenset(names),
        size=len(names) if size == -1 else size,
        incarnations={} if size is None else {name: f"uid-{name}/{starts}" for name in names},
        **fields,
    )


def decided(one: Job, *pods: Pod, of: WorldSeen | None, after_s: float = 0) -> Readiness:
    return of_workers(derive(one, snapshot(*pods, settings=OURS, world=of, after_s=after_s)))


def applied(pods: list[Pod], found: Readiness) -> list[Pod]:
    """Return the pods as they are when the changes have been written."""
    said = {change.uid: change for change in found.changes}
    return [replace(one, in_world=_written(said[one.uid])) if one.uid in said else one for one in pods]


def _written(change: SetCondition) -> InWorld:
    condition = change.condition
    return InWorld(condition["status"] == "True", condition["reason"], condition["message"], change.annotations[HOLDER])


def told(found: Readiness) -> dict[str, str]:
    """Return the reason of each written condition, by the worker's index."""
    return {change.pod.rpartition("-")[2]: change.condition["reason"] for change in found.changes}


def ready(*indexes: int, **more: Any) -> list[Pod]:
    """Return workers of a world in which a step was reported."""
    pods = [worker(index, **more) for index in indexes]
    return applied(pods, decided(begun(len(pods)), *pods, of=world(*indexes, generation=1, has_stepped=True)))


def test_a_worker_is_in_the_world_once_a_step_was_reported_there_by_anybody() -> None:
    pods = [worker(0), worker(1)]
    assert decided(begun(), *pods, of=world(0, 1)).changes == ()
    found = decided(begun(), *pods, of=world(0, 1, has_stepped=True))
    assert told(found) == {"0": "StepReported", "1": "StepReported"}
    assert found.changes[0].condition == {
        "type": IN_WORLD,
        "status": "True",
        "reason": "StepReported",
        "message": "Training reported a step in world 2 (container run 0, agent a)",
        "lastTransitionTime": "2026-01-01T12:00:00Z",
    }
    assert decided(begun(), *applied(pods, found), of=world(0, 1, has_stepped=True)) == Readiness()


def test_without_reported_steps_a_world_must_have_stood_for_a_while() -> None:
    pods = [worker(0), worker(1)]
    early = decided(begun(), *pods, of=world(0, 1))
    assert early == Readiness((), STANDS + timedelta(seconds=30))
    found = decided(begun(), *pods, of=world(0, 1), after_s=20)
    assert told(found) == {"0": "WorldStands", "1": "WorldStands"}
    assert "has existed for 30 s" in found.changes[0].condition["message"]
    assert decided(begun(), *applied(pods, found), of=world(0, 1), after_s=20) == Readiness()


def test_how_long_a_world_must_stand_is_the_job_s_to_say() -> None:
    assert told(decided(begun(elastic={"readyAfterSeconds": 10}), worker(0), of=world(0))) == {"0": "WorldStands"}
    assert decided(begun(elastic={"readyAfterSeconds": 11}), worker(0), of=world(0)).look_again_at == STANDS + timedelta(seconds=11)


def test_time_alone_makes_no_worker_ready_if_training_reports_steps() -> None:
    (old,) = ready(0)
    for one, known in ((old, None), (worker(0, InWorld(is_true=True)), 7)):
        found = decided(begun(), one, worker(1), of=world(0, 1, step=known), after_s=600)
        assert "1" not in told(found), "the report of a step is yet to come"
        assert found.look_again_at is None


def test_survivors_stay_ready_while_a_world_forms_again_and_before_its_first_step() -> None:
    pods = ready(0, 1)
    for now in (None, WorldSeen(generation=1, members=frozenset(), phase="re-forming"), world(0, 1), world(0, 1, 2)):
        assert decided(begun(), *pods, of=now) == Readiness()


def test_a_worker_that_the_world_goes_on_without_is_not_ready() -> None:
    pods = ready(0, 1)
    found = decided(begun(), *pods, of=world(0, has_stepped=True))
    assert told(found) == {"1": "NotInWorld"}
    assert found.changes[0].condition["status"] == "False"
    again = applied(pods, found)
    assert decided(begun(), *again, of=world(0, has_stepped=True)) == Readiness()
    assert decided(begun(), *again, of=world(0, 1, generation=3)) == Readiness(), "it is back, and has yet to be given the state"
    assert told(decided(begun(), *again, of=world(0, 1, generation=3, has_stepped=True))) == {"1": "StepReported"}


def test_members_that_a_restarted_server_has_yet_to_hear_from_stay_ready() -> None:
    assert decided(begun(), *ready(0, 1), of=world(0, size=2)) == Readiness()


@pytest.mark.parametrize("run", [1, 4])
def test_a_container_that_was_restarted_in_place_is_ready_again_with_a_world_of_its_own(run: int) -> None:
    before = ready(0, 1)
    ended = [before[0], worker(1, before[1].in_world, is_running=False)]
    lost = decided(begun(), *ended, of=world(0, 1, has_stepped=True))
    assert told(lost) == {"1": "StartedAnew"}
    for pods in (applied(ended, lost), [before[0], worker(1, before[1].in_world, run=run)]):
        # The second: nobody saw the container while it was down.
        again = [pods[0], worker(1, pods[1].in_world, run=run)]
        pods = applied(again, decided(begun(), *again, of=world(0, 1, has_stepped=True)))
        assert [one.in_world is not None and one.in_world.is_true for one in pods] == [True, False]
        assert decided(begun(), *pods, of=world(0, 1, has_stepped=True)) == Readiness(), "the server has yet to notice the end"
        back = replace(
            world(0, 1, generation=3), incarnations={"train-worker-0": "uid-train-worker-0/a", "train-worker-1": f"{pods[1].uid}/b"}
        )
        assert decided(begun(), *pods, of=back) == Readiness()
        assert told(decided(begun(), *pods, of=replace(back, has_stepped=True))) == {"1": "StepReported"}


def test_an_agent_that_was_restarted_within_its_container_counts_from_its_own_first_step() -> None:
    pods = ready(0)
    found = decided(begun(1), *pods, of=world(0, generation=3, starts="b"))
    assert told(found) == {"0": "StartedAnew"}
    assert told(decided(begun(1), *applied(pods, found), of=world(0, generation=3, starts="b", has_stepped=True))) == {"0": "StepReported"}
    assert told(decided(begun(1), *pods, of=world(0, generation=3, starts="b", has_stepped=True))) == {"0": "StepReported"}


def test_an_agent_counts_with_the_container_that_started_it_for_any_run_in_the_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    """The container was restarted, and its new agent joined while the watch of pods stalled.

    The condition named the new agent next to the old run. Once the pod was seen as it is, the agent was taken for one that had ended, and
    the worker stayed unready for ever.
    """
    monkeypatch.setattr("elastic_worker.agent.presence_thread.time.time", lambda: NOW.timestamp() + 0.4)
    agent = process_id("uid-train-worker-0").partition("/")[2]
    stands = world(0, has_stepped=True, starts=agent)
    stale = applied([worker(0)], decided(begun(1), worker(0), of=stands))[0].in_world
    for began, reasons in ((NOW, {"0": "StepReported"}), (NOW + timedelta(seconds=1), {})):
        seen = worker(0, stale, run=1, began=began)
        anew = decided(begun(1), seen, of=stands)
        assert told(anew) == {"0": "StartedAnew"}
        assert told(decided(begun(1), *applied([seen], anew), of=stands)) == reasons, (
            "it ended with a container that ran before, or did not"
        )


def test_a_namesake_in_the_world_makes_nobody_ready() -> None:
    assert decided(begun(1), worker(0, uid="another"), of=world(0, has_stepped=True)) == Readiness()


def test_an_older_server_tells_nothing_of_steps_so_time_counts() -> None:
    (old,) = ready(0)
    pods = [old, worker(1)]
    assert told(decided(begun(), *pods, of=world(0, 1, size=None, step=3), after_s=30)) == {"1": "WorldStands"}
    assert decided(begun(), *pods, of=world(1, size=None)).changes == (), "nor does it tell whether all members are known"


@pytest.mark.parametrize("pods", [[pod(index=0)], [worker(0, phase=PodPhase.FAILED)], [worker(0, is_deleting=True)]])
def test_pods_without_the_gate_and_those_that_are_over_or_go_are_left_alone(pods: list[Pod]) -> None:
    assert decided(begun(1), *pods, of=world(0, has_stepped=True)) == Readiness()


def test_a_condition_of_another_writer_is_taken_back() -> None:
    forged = worker(0, InWorld(is_true=True, reason="Mine", message="because"), is_running=False)
    assert told(decided(begun(1), forged, of=None)) == {"0": "StartedAnew"}


def spare_room(least: int, pods: list[Pod], members: tuple[int, ...], **sizes: Any) -> dict[str, str]:
    one = begun(least, least=least, most=least, elastic=sizes or {"allowedSizes": [least]})
    waiting = frozenset(each.name for each in pods[len(members) :])
    return told(decided(one, *pods, of=world(*members, waiting=waiting, has_stepped=True)))


def test_enough_workers_without_a_place_in_the_sizes_are_ready_that_one_with_the_state_stays() -> None:
    new = [worker(index) for index in range(4, 8)]
    assert spare_room(4, [*ready(0, 1, 2, 3), *new], (0, 1, 2, 3)) == {"4": "SpareWorker", "5": "SpareWorker", "6": "SpareWorker"}
    assert spare_room(2, [*ready(0, 1), *new], (0, 1)) == {"4": "SpareWorker"}
    assert spare_room(1, [*ready(0), *new], (0,)) == {"4": "SpareWorker"}, "of a world of one no state can be had, and a drain must end"
    assert spare_room(1, [*ready(0), *new], (0,), sizeStep=1) == {}, "there is a place for all"


def test_a_spare_worker_that_has_come_into_the_world_makes_room_for_the_next_with_its_first_step() -> None:
    pods = [*ready(0, 1), worker(2), worker(3)]
    one = begun(2, least=2, most=2, elastic={"allowedSizes": [2]})
    waiting = frozenset({"train-worker-2", "train-worker-3"})
    pods = applied(pods, decided(one, *pods, of=world(0, 1, waiting=waiting, has_stepped=True)))
    went = pods[1:]
    swapped = world(1, 2, generation=3, waiting=frozenset({"train-worker-3"}))
    assert decided(one, *went, of=swapped).changes == ()
    assert told(decided(one, *went, of=replace(swapped, has_stepped=True))) == {"2": "StepReported"}
    proven = applied(went, decided(one, *went, of=replace(swapped, has_stepped=True)))
    assert told(decided(one, *proven, of=replace(swapped, has_stepped=True))) == {"3": "SpareWorker"}


def test_the_gate_is_in_pods_that_meet_at_our_rendezvous_and_in_no_others() -> None:
    gates = [{"conditionType": "example.com/mine"}]
    own = job(Worker=replica(2, readinessGates=gates), elasticPolicy={"minReplicas": 1, "maxReplicas": 2})
    assert pod_for(own, "Worker", 0, snapshot(settings=OURS))["spec"]["readinessGates"] == [*gates, {"conditionType": IN_WORLD}]
    for one, settings in (
        (own, PLAIN),
        (elastic_job(elastic={"rdzvBackend": "c10d"}), OURS),
        (job(Worker=replica(2)), OURS),
    ):
        assert {"conditionType": IN_WORLD} not in pod_for(one, "Worker", 0, snapshot(settings=settings))["spec"].get("readinessGates", [])


def test_workers_find_each_other_by_name_before_they_are_ready() -> None:
    def services(settings: Settings) -> list[Any]:
        made = [action for action in plan(elastic_job(1), snapshot(settings=settings)).actions if isinstance(action, Create)]
        return [action.object["spec"].get("publishNotReadyAddresses") for action in made if action.resource == SERVICES]

    assert services(OURS) == [True]
    assert services(PLAIN) == [None]


def test_a_plan_writes_conditions_but_for_pods_that_it_deletes() -> None:
    one = begun(1)
    pods = [worker(0), worker(1)]
    made = plan(one, snapshot(*pods, settings=OURS, world=world(0, 1, has_stepped=True))).actions
    assert {action.pod for action in made if isinstance(action, SetCondition)} == {"train-worker-0", "train-worker-1"}
    failed = worker(1, phase=PodPhase.FAILED, reason="Evicted", is_running=False)
    made = plan(one, snapshot(worker(0), failed, settings=OURS, world=world(0, has_stepped=True))).actions
    assert {action.pod for action in made if isinstance(action, SetCondition)} == {"train-worker-0"}


def test_a_pod_tells_its_gate_and_the_condition_that_it_waits_for() -> None:
    raw: dict[str, Any] = {"metadata": {"name": "p"}, "spec": {"readinessGates": [{"conditionType": IN_WORLD}]}}
    assert pod_from(raw).in_world == InWorld()
    raw["status"] = {"conditions": [{"type": IN_WORLD, "status": "True", "reason": "StepReported", "message": "words"}]}
    assert pod_from(raw).in_world == InWorld(is_true=True, reason="StepReported", message="words")
    raw["metadata"]["annotations"] = {HOLDER: "1/a"}
    assert pod_from(raw).in_world == InWorld(is_true=True, reason="StepReported", message="words", holder="1/a")
    assert pod_from({"metadata": {"name": "p"}, "spec": {}}).in_world is None


def test_only_the_end_of_a_long_condition_is_kept() -> None:
    """A condition of 1.4 MB, which a tenant wrote on his own pod, cost the controller 90 ms each time it looked for the holder in it."""
    long = "(container run 1, agent " + "(" * 299 + " "
    raw: dict[str, Any] = {"metadata": {"name": "p"}, "spec": {"readinessGates": [{"conditionType": IN_WORLD}]}}
    raw["status"] = {"conditions": [{"type": IN_WORLD, "status": "True", "message": long * 1000 + "(container run 2, agent a)"}]}
    kept = pod_from(raw).in_world
    assert kept is not None
    assert len(kept.message) <= 1024
    assert kept.message.endswith("(container run 2, agent a)")


def test_the_server_learns_which_workers_have_not_been_in_a_world() -> None:
    """A new server then does not take them for members of the world that it finds."""
    without_gate = replace(pod(index=3), in_world=None)
    pods = [*ready(0, 1), worker(2), without_gate]
    planned = plan(begun(4), snapshot(*pods, settings=OURS, world=world(0, 1)))
    expected = next(action for action in planned.actions if isinstance(action, SetExpectation))
    assert expected.newcomers == ("train-worker-2",)


def test_workers_that_leave_before_any_has_been_ready_are_newcomers_like_those_that_stay() -> None:
    """Scaled from four to two before anybody was Ready.

    As the two that left were no newcomers, the server took them for the only ones with the state, and kept one of them for its whole grace:
    two changes, 30 s apart.
    """
    pods = [worker(index) for index in range(4)]
    leaving = ElasticStatus(backend="elastic", leaving=tuple(_asked(pod) for pod in pods[2:]))
    planned = plan(
        elastic_job(2, status=JobStatus(start_time=NOW, elastic=leaving)), snapshot(*pods, settings=OURS, world=world(0, 1, 2, 3))
    )
    expected = next(action for action in planned.actions if isinstance(action, SetExpectation))
    assert expected.newcomers == tuple(pod.name for pod in pods)


def _asked(pod: Pod) -> Leaving:
    return Leaving(member=pod.name, uid=pod.uid, cause=Cause.PLAN.value, by=NOW + timedelta(seconds=30))


def in_form_of(one: Pod, form: str) -> Pod:
    """Return the pod as another release left it: 0.4.0 without the annotation, or a later one without the end of the message."""
    said = one.in_world
    assert said is not None
    words = said.message if form == "0.4.0" else "words of a translator"
    return replace(one, in_world=replace(said, message=words, holder="" if form == "0.4.0" else said.holder))


@pytest.mark.parametrize("form", ["0.4.0", "later"])
def test_the_holder_is_known_from_the_annotation_and_from_what_the_former_release_wrote(form: str) -> None:
    """A message was translated, and each worker counted as started again."""
    before = [in_form_of(one, form) for one in ready(0, 1)]
    found = decided(begun(), *before, of=world(0, 1, has_stepped=True))
    assert {change.condition["reason"] for change in found.changes} <= {"StepReported"}
    assert {change.condition["status"] for change in found.changes} <= {"True"}
    after = applied(before, found)
    assert all(one.in_world is not None and one.in_world.holder == "0/a" for one in after), "the next release reads the annotation alone"
    assert decided(begun(), *after, of=world(0, 1, has_stepped=True)) == Readiness()
    again = [replace(one, containers=(replace(one.containers[0], restarts=1),)) for one in after]
    assert told(decided(begun(), *again, of=world(0, 1, has_stepped=True))) == {"0": "StartedAnew", "1": "StartedAnew"}


def test_a_condition_of_the_former_release_after_a_rollback_counts_more_than_an_old_annotation() -> None:
    (one,) = ready(0, run=1)
    assert one.in_world is not None
    back = replace(one, in_world=replace(one.in_world, holder="0/a"))
    found = decided(begun(1), back, of=world(0, has_stepped=True))
    assert [(change.condition["status"], change.annotations) for change in found.changes] == [("True", {HOLDER: "1/a"})]


@pytest.mark.parametrize("mark", ["", "x", "1", "-1/a", "1/a b", "9999999999/a", "1/" + "a" * 400])
def test_an_annotation_that_is_none_of_ours_names_no_holder(mark: str) -> None:
    (one,) = ready(0)
    forged = replace(one, in_world=InWorld(is_true=True, reason="StepReported", message="words", holder=mark))
    assert told(decided(begun(1), forged, of=world(0, has_stepped=True))) == {"0": "StartedAnew"}
