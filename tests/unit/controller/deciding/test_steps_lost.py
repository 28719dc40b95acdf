"""The server, the status, Events, `elastic explain` and the dashboard say at which step training goes on after a change.

A job fell from step 10,722 to 0. Everything that told of the change said: training paused 1.1 s.
"""

from datetime import UTC, datetime
from typing import Any

import pytest
from cli_api import PYTORCH, running
from cli_api import job as raw_job
from job_builders import OURS, Cluster, elastic_job
from msgspec import structs
from rendezvous_group import Group, group_of

from elastic.api.counting import continued
from elastic.client.explanation import explained
from elastic.client.summary import summary
from elastic.membership import wire
from elastic_training.controller.acting.link import _rescale
from elastic_training.controller.deciding.actions import JobEvent
from elastic_training.controller.facts.snapshot import WorldSeen
from elastic_training.dashboard.watching.seen import job_seen
from elastic_training.rendezvous.engine.events import Stepped
from elastic_training.rendezvous.engine.views import summary as seen

NOW = datetime(2026, 1, 1, 2, 0, tzinfo=UTC)
LOST = "continues at step 0 after step 10,722: no worker had the state"
WAS_LOST = {"stepBefore": 10722, "stepAfter": 0, "stepsLost": 10723, "stateLost": True}


def report(group: Group, step: int) -> None:
    assert group.job.membership.world is not None
    group.apply(Stepped(group.job.membership.world.generation, step))


def rescale(group: Group) -> wire.RescaleReport:
    found = seen(group.job).rescale
    assert found is not None
    return found


def lose_all(group: Group, *newcomers: str) -> None:
    """Lose every member, and let others take their places."""
    for name in list(group.agents):
        group.kill(name)
    group.advance(20)
    group.expect(*newcomers, newcomers=newcomers, min=len(newcomers))
    for name in newcomers:
        group.start(name)
    group.advance(20)
    assert set(group.world()) == set(newcomers)


def test_the_first_world_continues_nothing() -> None:
    group = group_of(2)
    report(group, 1)
    assert (rescale(group).step_before, rescale(group).step_after, rescale(group).state_lost) == (None, 1, False)


def test_a_world_of_survivors_goes_on_where_training_was() -> None:
    group = group_of(3, min=1)
    report(group, 163)
    group.kill("w2")
    group.advance(3)
    group.come_all()
    group.advance(3)
    assert (rescale(group).step_before, rescale(group).step_after) == (163, None), "its first step is yet to be reported"
    report(group, 164)
    report(group, 170)
    assert (rescale(group).step_before, rescale(group).step_after, rescale(group).state_lost) == (163, 164, False)


def test_a_world_without_any_worker_that_had_the_state_begins_again() -> None:
    group = group_of(2)
    report(group, 10722)
    lose_all(group, "w2", "w3")
    assert (rescale(group).step_before, rescale(group).step_after, rescale(group).state_lost) == (10722, None, True)
    report(group, 0)
    assert (rescale(group).step_before, rescale(group).step_after, rescale(group).state_lost) == (10722, 0, True)


def in_process(*, reported: int, trained: int) -> Group:
    """Make a group whose processes live on. Reports are samples: the newest one is older than the newest step."""
    group = group_of(3, is_able=True, min=1)
    group.train(step=1)
    report(group, reported)
    for agent in group.agents.values():
        agent.trained = trained
    return group


def words(group: Group) -> str:
    return continued(rescale(group).step_before, rescale(group).step_after, state_lost=rescale(group).state_lost)


def test_steps_after_the_last_report_do_not_look_lost_when_the_processes_live_on() -> None:
    """The Event said "continues at step 170 after step 160", which looked like nine lost steps. The state had them all."""
    group = in_process(reported=160, trained=163)
    group.expect("w0", "w1", min=1)
    group.advance(1.1)
    group.obey_all()
    assert set(group.world()) == {"w0", "w1"}
    assert (rescale(group).step_before, rescale(group).step_after) == (164, None), "all stopped after the step that was under way"
    report(group, 170)
    assert words(group) == "continues at step 165 after step 164", "the first step, although a later one was reported first"
    report(group, 171)
    assert words(group) == "continues at step 165 after step 164"


def test_after_a_loss_the_step_that_was_under_way_is_not_called_lost() -> None:
    """The lost worker had reported a step that the others had not finished. They make it again."""
    group = in_process(reported=164, trained=163)
    group.kill("w0")
    group.advance(1.1)
    group.obey_all()
    assert set(group.world()) == {"w1", "w2"}
    group.train(step=164)
    assert words(group) == "continues at step 164 after step 164"
    assert _rescale(rescale(group)).steps_lost == 0


def test_a_world_whose_processes_restart_after_one_in_process_counts_from_its_reports_again() -> None:
    group = in_process(reported=160, trained=163)
    group.kill("w2")
    group.advance(1.1)
    group.obey_all()
    report(group, 170)
    lose_all(group, "w3", "w4")
    report(group, 20)
    assert words(group) == "continues at step 20 after step 170: no worker had the state"


def test_the_second_change_counts_from_the_steps_of_the_world_before_it() -> None:
    """A script without a checkpoint reached step 291, then 97. The second change was said to have lost 291 steps."""
    group = group_of(2)
    report(group, 291)
    lose_all(group, "w2", "w3")
    report(group, 1)
    report(group, 97)
    lose_all(group, "w4", "w5")
    report(group, 1)
    assert _rescale(rescale(group)).steps_lost == 97
    assert words(group) == "continues at step 1 after step 97: no worker had the state"


def test_a_world_that_reported_no_step_keeps_the_steps_before_it() -> None:
    group = group_of(2)
    report(group, 291)
    lose_all(group, "w2", "w3")
    lose_all(group, "w4", "w5")
    assert rescale(group).step_before == 291


def test_the_reached_step_survives_the_server() -> None:
    """The server was lost together with all workers: the controller had stored the highest step."""
    group = group_of(2)
    report(group, 10722)
    for name in list(group.agents):
        group.kill(name)
    group.start_server(up_for_s=100.0)
    group.expect("w2", "w3", step=10722, min=2)
    for name in ("w2", "w3"):
        group.start(name)
    group.advance(20)
    report(group, 0)
    assert (rescale(group).step_before, rescale(group).step_after) == (10722, 0)


def test_a_server_that_was_started_after_training_had_stopped_does_not_know_for_how_long() -> None:
    """Training stood still for 53 s, until a new server had replaced the lost one: the change was said to have cost 0.2 s."""
    group = group_of(2, min=1)
    report(group, 347)
    group.start_server()
    group.expect("w0", "w1", step=163, min=1)
    group.link("w0")
    group.advance(20)
    group.come_all()
    group.advance(5)
    assert set(group.world()) == {"w0"}
    report(group, 348)
    assert rescale(group).began_unseen
    assert (rescale(group).step_before, rescale(group).step_after) == (163, 348), "the newest step that anybody stored"


def test_a_server_that_saw_the_former_world_step_knows_what_a_change_cost() -> None:
    group = group_of(2, min=1)
    report(group, 347)
    group.start_server()
    group.expect("w0", "w1", step=163, min=1)
    group.link("w0")
    group.link("w1")
    report(group, 400)
    group.kill("w1")
    group.advance(20)
    group.come_all()
    group.advance(5)
    assert (rescale(group).step_before, rescale(group).began_unseen) == (400, False)


def test_the_controller_counts_what_was_lost() -> None:
    told = wire.RescaleReport(id="2-s", cause="disruption", reason="lost", step_before=10722, step_after=22, state_lost=True)
    assert _rescale(told).steps_lost == 10701
    assert _rescale(wire.RescaleReport(id="2-s", cause="plan", reason="w2 joined", step_before=5, step_after=6)).steps_lost == 0
    assert _rescale(wire.RescaleReport(id="2-s", cause="plan", reason="an older server")).step_before is None


def changed(**steps: Any) -> tuple[Cluster, list[JobEvent]]:
    """Form the world of a job again, and return the job and its Events about that, before and after the first step."""
    cluster = Cluster(elastic_job(1, most=1), settings=OURS)
    cluster.settle()
    cluster.run_all()
    told = _rescale(wire.RescaleReport(id="2-s", cause="disruption", reason="w0 was lost", **steps))
    news: list[JobEvent] = []
    for rescaled in (replace_step(told, None), told):
        cluster.world = WorldSeen(generation=2, members=frozenset(cluster.pods), phase="running", rescale=rescaled)
        told_of = [event for planned in cluster.settle() for event in planned.news]
        news += [event for event in told_of if event.reason in ("Rescaled", "StepsLost", "WorkersKilled")]
    return cluster, news


def replace_step(told: Any, step: int | None) -> Any:
    return structs.replace(told, step_after=step, steps_lost=0)


def test_a_suspended_job_keeps_the_step_that_it_had_reached() -> None:
    """Its Event after it was resumed said `it had reached step 239`, which was that of an earlier restart, 300 steps before."""
    cluster, _ = changed(step_before=10, step_after=11)
    policy = cluster.job.run_policy
    cluster.job = structs.replace(cluster.job, run_policy=structs.replace(policy, suspend=True))
    cluster.settle()
    cluster.last_step = 540  # the rendezvous server's answer when it forgets the run
    cluster.settle()
    cluster.last_step = None
    cluster.settle()
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.step == 540


def test_status_and_events_tell_what_was_lost() -> None:
    cluster, news = changed(step_before=10722, step_after=0, state_lost=True)
    assert cluster.job.status.elastic is not None
    last = cluster.job.status.elastic.last_rescale
    assert last is not None
    assert (last.step_before, last.step_after, last.steps_lost, last.state_lost) == (10722, 0, 10723, True)
    assert [(event.reason, event.type) for event in news] == [("Rescaled", "Normal"), ("StepsLost", "Warning")]
    assert news[0].message.endswith("(cause disruption, rescale 2-s); it begins again after step 10,722: no worker had the state")
    assert news[1].message == f"PyTorchJob train {LOST} (rescale 2-s)"


def test_workers_that_were_killed_while_they_saved_are_told_of() -> None:
    _, news = changed(step_before=163, step_after=164, killed=2)
    (event,) = [event for event in news if event.reason == "WorkersKilled"]
    assert event.message == (
        "PyTorchJob train: 2 workers did not stop within the grace and were killed: a save under way is cut off; "
        "raise scaleInGraceSeconds (rescale 2-s)"
    )


def test_if_nothing_is_lost_no_warning_is_given() -> None:
    _, news = changed(step_before=163, step_after=164)
    assert [event.reason for event in news] == ["Rescaled"]
    assert news[0].message.endswith("; it had reached step 163")


def test_nothing_is_said_about_steps_of_a_job_that_reports_none() -> None:
    _, news = changed(state_lost=True)
    assert [event.reason for event in news] == ["Rescaled"]
    assert "step" not in news[0].message


@pytest.mark.parametrize(
    ("before", "after", "is_lost", "words"),
    [
        (10722, 0, True, LOST),
        (10722, 10700, False, "continues at step 10,700 after step 10,722: 23 steps must be repeated"),
        (99, 0, False, "begins again at step 0 after step 99: its script loaded no checkpoint"),
        (99, 1, False, "begins again at step 1 after step 99: its script loaded no checkpoint"),
        (1, 1, False, "continues at step 1 after step 1"),
        (8, 7, False, "continues at step 7 after step 8: 2 steps must be repeated"),
        (163, 164, False, "continues at step 164 after step 163"),
        (163, 163, False, "continues at step 163 after step 163"),
        (10722, None, True, "begins again after step 10,722: no worker had the state"),
        (10722, 11000, True, "continues at step 11,000 after step 10,722"),
        (163, None, False, ""),
        (None, 1, False, ""),
        (None, None, True, ""),
    ],
)
def test_the_words(before: int | None, after: int | None, is_lost: bool, words: str) -> None:
    assert continued(before, after, state_lost=is_lost) == words


def explain(last: dict[str, Any], *disruptions: dict[str, Any]) -> list[str]:
    change = {"id": "2-s", "at": "2026-01-01T01:56:00Z", "fromSize": 2, "toSize": 2, "cause": "disruption", "reason": "lost", **last}
    of = raw_job(
        status=running(worldSize=2, step=10722, lastRescale=change, disruptions=list(disruptions)), elasticPolicy={"minReplicas": 2}
    )
    return list(explained(summary(PYTORCH, of), [], of["spec"], NOW))


NOTICE = {"signal": "node-unreachable", "node": "n2", "workers": 2, "noticedAt": "2026-01-01T01:56:00Z", "endedAt": "2026-01-01T01:57:00Z"}


def test_explain_tells_what_was_lost() -> None:
    lines = explain({**WAS_LOST, "phases": {"drain": 1100}})
    assert f"After it, training {LOST.replace('continues', 'continued')}." in lines


def test_explain_tells_what_an_earlier_disruption_lost() -> None:
    """The change that stands above is the return of a worker after it."""
    seen = NOTICE | {"rescale": "1-s", "pauseMilliseconds": 1100, **WAS_LOST}
    lines = explain({"stepBefore": 50, "stepAfter": 51, "phases": {"drain": 300}}, seen)
    assert "After it, training continued at step 51 after step 50." in lines
    assert "After it, training continued at step 0 after step 10,722: no worker had the state." in lines


def test_explain_gives_one_figure_for_one_change() -> None:
    """It said `training paused 0.4 s` and two lines later `the last change cost 69.3 s`."""
    cluster, _ = changed(phases={"detect": 68_800, "drain": 500}, step_before=5, step_after=6)
    assert cluster.job.status.elastic is not None
    seen = NOTICE | {"rescale": "2-s", "pauseMilliseconds": 69_300}
    lines = explain({"phases": {"detect": 68_800, "drain": 500}}, seen)
    assert any(line.endswith("2 workers had to leave, for which training paused 69.3 s.") for line in lines)
    assert "The last change cost 69.3 s: 68.8 s until the loss was noticed, 500 ms for the workers to stop." in lines


def test_explain_claims_no_exact_figure_if_the_server_missed_a_part() -> None:
    seen = NOTICE | {"rescale": "2-s", "pauseMilliseconds": 200}
    lines = explain({"phases": {"drain": 200}, "beganUnseen": True}, seen)
    assert any(line.endswith("2 workers had to leave, for which training paused at least 200 ms.") for line in lines)
    cost = "The last change cost at least 200 ms: 200 ms for the workers to stop. "
    unseen = "The rendezvous server was started during it, and does not know for how long training had stood still."
    assert f"{cost}{unseen}" in lines


def test_explain_tells_that_the_workers_were_asked_to_save() -> None:
    saved = {"by": "2026-01-01T01:56:15Z", "askedToSaveAt": "2026-01-01T01:56:00Z"}
    words = "15 s before the loss no replacement could have the state of training in time, so the workers were asked to save."
    assert words in explain({}, NOTICE | saved)


def test_the_dashboard_tells_what_was_lost() -> None:
    change = {"id": "2-s", "at": "2026-01-01T01:56:00Z", "fromSize": 2, "toSize": 2, "beganUnseen": True, **WAS_LOST}
    rescaled = job_seen(PYTORCH, raw_job(status=running(lastRescale=change))).rescale
    assert rescaled is not None
    assert (rescaled.steps, rescaled.began_unseen) == (LOST, True)
