"""Check the node agent's next action for a pod."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pod_builder import container, pod, run, seen

from elastic.local.agent.lifecycle import Decision, Stop, decide
from elastic.local.agent.runs import BackOff, Ending, Health, Phase

BACK_OFF = BackOff(first_s=10.0)


def look(subject, at=100.0, **what) -> Decision:
    return decide(subject, seen(**what), now=at, back_off=BACK_OFF)


def test_a_new_pod_starts_all_its_containers():
    assert look(pod(container("a"), container("b"))).start == ("a", "b")


def test_init_containers_run_one_after_the_other_and_before_the_others():
    subject = pod(container("main"), init=(container("first"), container("second")))
    assert look(subject).start == ("first",)
    assert look(subject, runs={"first": run()}).start == ()
    assert look(subject, runs={"first": run(finished=1.0)}).start == ("second",)
    assert look(subject, runs={"first": run(finished=1.0), "second": run(finished=2.0)}).start == ("main",)


def test_a_failed_init_container_fails_a_pod_that_never_restarts():
    decision = look(pod(init=(container("prepare"),)), runs={"prepare": run(finished=1.0, code=3)})
    assert (decision.phase, decision.over) == (Phase.FAILED, True)


def test_a_failed_init_container_is_tried_again_if_the_pod_restarts():
    subject = pod(init=(container("prepare"),), restartPolicy="Always")
    assert look(subject, runs={"prepare": run(finished=1.0, code=3)}).start == ("prepare",)
    assert look(subject, runs={"prepare": run(finished=1.0)}).start == ("main",)


def test_a_sidecar_runs_next_to_the_main_container_and_ends_after_it():
    subject = pod(container("main"), init=(container("proxy", restartPolicy="Always"),))
    assert look(subject).start == ("proxy",)
    assert look(subject, runs={"proxy": run()}).start == ("main",)
    ended = look(subject, runs={"proxy": run(), "main": run(finished=1.0)})
    assert [stop.container for stop in ended.stop] == ["proxy"]
    assert not ended.over
    over = look(subject, runs={"proxy": run(finished=2.0, code=143), "main": run(finished=1.0)})
    assert (over.phase, over.over) == (Phase.SUCCEEDED, True)


def test_main_waits_for_a_sidecar_that_has_not_started():
    subject = pod(container("main"), init=(container("proxy", restartPolicy="Always"),))
    assert look(subject, runs={"proxy": run()}, health={"proxy": Health(started=False, ready=False)}).start == ()


def test_a_pod_succeeds_when_every_container_has_ended_with_zero():
    subject = pod(container("a"), container("b"))
    assert look(subject, runs={"a": run(finished=1.0), "b": run()}).phase is Phase.RUNNING
    done = look(subject, runs={"a": run(finished=1.0), "b": run(finished=1.0)})
    assert (done.phase, done.over) == (Phase.SUCCEEDED, True)


def test_a_container_that_failed_fails_the_pod_once_all_have_ended():
    subject = pod(container("a"), container("b"))
    assert look(subject, runs={"a": run(finished=1.0, code=1), "b": run()}).phase is Phase.RUNNING
    assert look(subject, runs={"a": run(finished=1.0, code=1), "b": run(finished=1.0)}).phase is Phase.FAILED


def test_the_first_restart_is_at_once_and_later_ones_wait_longer_and_longer():
    subject = pod(restartPolicy="OnFailure")
    failed = [run(0, started=0, finished=1, code=1)]
    assert look(subject, at=1.0, runs={"main": failed}).start == ("main",)
    failed.append(run(1, started=1, finished=2, code=1))
    waiting = look(subject, at=3.0, runs={"main": failed})
    assert (waiting.start, waiting.look_again_at, waiting.back_off) == ((), 12.0, (("main", 10.0),))
    failed.append(run(2, started=12, finished=13, code=1))
    assert look(subject, at=14.0, runs={"main": failed}).look_again_at == 33.0


def test_a_run_that_lasted_is_forgiven():
    runs = [run(0, finished=1, code=1), run(1, started=2, finished=3, code=1), run(2, started=20, finished=700, code=1)]
    assert look(pod(restartPolicy="Always"), at=700.0, runs={"main": runs}).start == ("main",)


def test_a_deleted_pod_is_asked_to_end_and_killed_after_its_grace():
    ending = Ending(kill_at=130.0)
    asked = look(pod(), runs={"main": run()}, ending=ending)
    assert asked.stop == (Stop("main", 130.0),)
    waiting = look(pod(), at=120.0, runs={"main": run()}, ending=ending, terminating={"main": 130.0})
    assert (waiting.stop, waiting.look_again_at) == ((), 130.0)
    killed = look(pod(), at=130.0, runs={"main": run()}, ending=ending, terminating={"main": 130.0})
    assert killed.stop == (Stop("main", None),)


def test_a_second_deletion_with_less_grace_kills_sooner():
    late = look(pod(), at=105.0, runs={"main": run()}, ending=Ending(kill_at=104.0), terminating={"main": 130.0})
    assert late.stop[0].kill_at is None


def test_a_pod_deleted_before_it_began_ends_at_once():
    assert look(pod(), ending=Ending(kill_at=130.0)).over


def test_nothing_is_started_in_a_pod_that_is_to_end():
    subject = pod(container("a"), container("b"), restartPolicy="Always")
    decision = look(subject, runs={"a": run(finished=1.0, code=1), "b": run()}, ending=Ending(kill_at=130.0))
    assert decision.start == ()


def test_a_pod_past_its_deadline_fails_with_the_reason():
    decision = look(pod(), runs={"main": run(finished=90.0, code=143)}, ending=Ending(80.0, "DeadlineExceeded", "too long"))
    assert (decision.phase, decision.over) == (Phase.FAILED, True)


def test_a_finished_pod_is_never_started_again():
    for phase in ("Succeeded", "Failed"):
        decision = look(pod(status={"phase": phase}, restartPolicy="Always"))
        assert (decision.start, decision.over, decision.phase.value) == ((), True, phase)


def test_a_container_whose_probe_gave_up_is_stopped_and_runs_again():
    subject = pod(restartPolicy="Always", terminationGracePeriodSeconds=5)
    sick = look(subject, runs={"main": run()}, health={"main": Health(ready=False, unhealthy="liveness probe failed")})
    assert sick.stop == (Stop("main", 105.0, "liveness probe failed"),)
    assert look(subject, runs={"main": run(finished=99.0, code=143)}).start == ("main",)


def test_a_pod_whose_volumes_cannot_be_made_waits():
    assert look(pod(), problem="no such volume") == Decision(Phase.PENDING)


RUNS = st.one_of(
    st.just(()),
    st.builds(lambda code: (run(finished=50.0, code=code),), st.integers(0, 255)),
    st.just((run(),)),
)


@given(
    first=RUNS,
    second=RUNS,
    prepare=RUNS,
    policy=st.sampled_from(["Always", "OnFailure", "Never"]),
    ending=st.sampled_from([None, Ending(kill_at=90.0), Ending(kill_at=200.0)]),
)
def test_after_any_history_no_running_container_is_started_and_no_ended_one_is_stopped(first, second, prepare, policy, ending):
    runs = {"a": first, "b": second, "prepare": prepare}
    decision = look(pod(container("a"), container("b"), init=(container("prepare"),), restartPolicy=policy), runs=runs, ending=ending)
    running = {name for name, of in runs.items() if of and of[-1].running}
    assert not running & set(decision.start)
    assert {stop.container for stop in decision.stop} <= running
    if decision.over:
        assert not running
        assert not decision.start
