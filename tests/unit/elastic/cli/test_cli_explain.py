"""In which words a job's size, waits and costs are explained."""

from datetime import UTC, datetime
from typing import Any

import pytest
from cli_api import PYTORCH, job, pod, running

from elastic.client.explanation import POD_DELETION, explained, waits_for
from elastic.client.summary import summary
from elastic.signals.table import BUILT_IN

NOW = datetime(2026, 1, 1, 2, 0, tzinfo=UTC)
BOUNDS = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 4, "maxRestarts": 5}}
RESCALE = {
    "at": "2026-01-01T01:56:00Z",
    "fromSize": 3,
    "toSize": 2,
    "cause": "disruption",
    "reason": "train-worker-2 was evicted",
    "phases": {"drain": 1500, "round": 300, "notice": 0},
}
NO_ROOM = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}

UNREPORTED = (
    "reports no steps: a change starts its processes again, and they go on where they were only if the script saves its state and loads it "
    "at its start (docs/own-script.md)"
)
READY = pod(0, conditions=[{"type": "elastic-training/in-world", "status": "True", "reason": "WorldStands"}])
STEPPED = pod(1, conditions=[{"type": "elastic-training/in-world", "status": "True", "reason": "StepReported"}])
CREATED = {"conditions": [{"type": "Created", "status": "True"}]}


def waits(*pods: dict[str, Any], status: dict[str, Any] | None = None, **spec: Any) -> str:
    return waits_for(summary(PYTORCH, job(status=status or running(), **(spec or BOUNDS))), pods)


def container(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "pytorch", "image": "train:1", "state": state}]}


def test_size_change_cost_and_restarts_are_in_words() -> None:
    status = running(worldSize=2, lastRescale=RESCALE, restarts={"user": 1, "disruption": 2, "plan": 9})
    status["replicaStatuses"]["Worker"]["active"] = 2
    of = job(status=status, **BOUNDS)
    assert list(explained(summary(PYTORCH, of), [READY, pod(1)], of["spec"], NOW)) == [
        "PyTorchJob train is running with 2 of 3 wanted workers; 2 of them train together. Between 1 and 4 are allowed.",
        "The last change of its size was 4m ago, from 3 to 2: train-worker-2 was evicted (cause disruption).",
        "The last change cost 1.8 s: 1.5 s for the workers to stop, 300 ms at the rendezvous.",
        f"It {UNREPORTED}.",
        "Workers failed or were lost 3 times: 2 disruption, 1 user; 1 of them counts against the job. "
        "1 of the 5 that maxRestarts allows is used up.",
    ]


def test_the_parts_of_a_cost_add_up() -> None:
    """Phases that were left out made 669 of 805 ms."""
    phases = {"notice": 40, "drain": 600, "round": 45, "start": 7, "firstStep": 308}
    of = job(status=running(lastRescale={**RESCALE, "phases": phases}), **BOUNDS)
    cost = next(words for words in explained(summary(PYTORCH, of), [], of["spec"], NOW) if "cost" in words)
    assert cost == "The last change cost 1.0 s: 600 ms for the workers to stop, 308 ms until the first step, 92 ms for the rest."


def test_a_job_of_fixed_size_that_reports_no_steps_is_told_so() -> None:
    start = {"at": RESCALE["at"], "toSize": 3, "cause": "start", "phases": {"start": 500}}
    of = job(status=running(worldSize=3, lastRescale=start), elasticPolicy={"minReplicas": 3, "maxReplicas": 3})
    words = "It reports no steps, so nobody sees whether it gets on (docs/own-script.md)."
    assert words in explained(summary(PYTORCH, of), [READY], of["spec"], NOW)
    for change in ({"firstStep": 9}, {}):
        start["phases"] = start["phases"] | change
        told = list(explained(summary(PYTORCH, of), [READY if change else STEPPED], of["spec"], NOW))
        assert words not in told, "it has reported a step"


def test_the_start_of_a_job_is_no_change() -> None:
    """It said that its size had changed, and how long its workers had taken to stop."""
    phases = {"detect": 0, "notice": 3, "drain": 77, "round": 20, "start": 500, "firstStep": 400}
    start = {"at": RESCALE["at"], "toSize": 3, "cause": "start", "reason": "the first members have come", "phases": phases}
    of = job(status=running(lastRescale=start), **BOUNDS)
    said = list(explained(summary(PYTORCH, of), [], of["spec"], NOW))
    assert said[1] == "Its group was formed 4m ago, with 3: the first members have come (cause start)."
    assert said[2] == (
        "Its start took 1.0 s: 80 ms until enough workers had come, 500 ms until all processes ran, "
        "400 ms until the first step, 20 ms for the rest."
    )


@pytest.mark.parametrize(
    ("restarts", "policy", "words"),
    [
        ({"user": 4}, {"maxRestarts": 3}, "4 times: 4 user; 4 of them count against the job. All 3 that maxRestarts allows are used up."),
        ({"user": 2}, {"maxRestarts": 1}, "2 times: 2 user; 2 of them count against the job. The one that maxRestarts allows is used up."),
        ({"user": 1}, {"maxRestarts": 0}, "once: 1 user; 1 of them counts against the job. maxRestarts allows none."),
        ({"disruption": 1, "user": 0}, {"maxRestarts": 3}, "once: 1 disruption; none of them counts against the job. 0 of the 3 that"),
        ({"hang": 2, "user": 1}, {"maxRestarts": 3, "restartBudget": {"hang": 9}}, "; 3 of them count against the job. 1 of the 3 that"),
        ({"user": 2}, {"maxRestarts": 3, "restartBudget": {"windowSeconds": 60}}, "; 2 of them count against the job."),
        ({"user": 2}, {}, "2 times: 2 user; 2 of them count against the job."),
    ],
)
def test_restarts_are_counted_in_words(restarts: dict[str, int], policy: dict[str, Any], words: str) -> None:
    of = job(status=running(restarts=restarts), elasticPolicy={"minReplicas": 1, "maxReplicas": 4, **policy})
    last = list(explained(summary(PYTORCH, of), [], of["spec"], NOW))[-1]
    assert last.startswith("Workers failed or were lost ")
    assert words in last
    assert last.endswith(words) or words.endswith("that")


def test_a_restart_at_the_same_size_is_called_so() -> None:
    again = RESCALE | {"fromSize": 2, "cause": "user", "reason": "a worker of train-worker-0 ended with status 2", "phases": {"round": 20}}
    of = job(status=running(lastRescale=again), **BOUNDS)
    lines = list(explained(summary(PYTORCH, of), [pod(0)], of["spec"], NOW))
    assert lines[1] == "Its last restart was 4m ago, with 2: a worker of train-worker-0 ended with status 2 (cause user)."
    assert lines[2] == "The last change cost 20 ms: 20 ms at the rendezvous."


def test_a_job_of_which_nothing_is_to_be_said_has_no_empty_sentences() -> None:
    """It waited for nothing, and its last change cost 0.0 s."""
    of = job(status=running(lastRescale=RESCALE | {"phases": {"round": 0}}), **BOUNDS)
    text = " ".join(explained(summary(PYTORCH, of), [pod(0)], of["spec"], NOW))
    assert "wait" not in text
    assert "cost" not in text


@pytest.mark.parametrize(
    ("elastic", "is_told"),
    [
        ({}, True),
        ({"step": 40}, False),
        ({"lastRescale": RESCALE | {"phases": {"round": 20, "firstStep": 300}}}, False),
        ({"lastRescale": RESCALE | {"fromSize": 0, "cause": "start"}}, False),
        ({"worldSize": 0}, False),
    ],
)
def test_a_script_whose_steps_nobody_knows_is_told_what_it_must_do(elastic: dict[str, Any], is_told: bool) -> None:
    of = job(status=running(**{"worldSize": 2, "lastRescale": RESCALE} | elastic), **BOUNDS)
    told = summary(PYTORCH, of)
    assert (f"It {UNREPORTED}." in explained(told, [READY], of["spec"], NOW)) is is_told


def test_a_job_of_which_any_sign_of_steps_is_seen_is_not_said_to_report_none() -> None:
    """The status has the highest step of the last restart: after a change that was asked for, and until the next step, it knows of none."""
    of = job(status=running(worldSize=2, lastRescale=RESCALE), **BOUNDS)
    told = summary(PYTORCH, of)
    for pods, progress in (([READY, STEPPED], ""), ([], ""), ([pod(0)], ""), ([READY], "step 41")):
        assert not any("reports no steps" in line for line in explained(told, pods, of["spec"], NOW, progress=progress))


@pytest.mark.parametrize(
    ("disruption", "words"),
    [
        ({}, "30s ago a notice came for node-1 (gke-termination): 2 workers must leave."),
        (
            {"endedAt": "2026-01-01T01:59:45Z", "outcome": "Left", "pauseMilliseconds": 340, "workers": 1},
            "30s ago a notice came for node-1 (gke-termination): 1 worker had to leave, for which training paused 340 ms.",
        ),
        (
            {"endedAt": "2026-01-01T01:59:45Z", "outcome": "TakenBack"},
            "The notice for node-1 (gke-termination) of 30s ago was taken back.",
        ),
        (
            {"signal": "pod-deletion", "endedAt": "2026-01-01T01:59:45Z", "workers": 1, "pauseMilliseconds": 340},
            "30s ago 1 worker was deleted on node-1, for which training paused 340 ms.",
        ),
    ],
)
def test_a_notice_is_told_together_with_the_return_of_a_worker_after_it(disruption: dict[str, Any], words: str) -> None:
    """The explanation of a reclaim told only that the replacement had come."""
    seen = {"signal": "gke-termination", "node": "node-1", "workers": 2, "noticedAt": "2026-01-01T01:59:30Z"} | disruption
    of = job(status=running(worldSize=3, disruptions=[seen]), **BOUNDS)
    assert list(explained(summary(PYTORCH, of), [], of["spec"], NOW))[2] == words


def test_the_signal_of_a_deleted_pod_is_in_the_table() -> None:
    assert POD_DELETION in {signal.name for signal in BUILT_IN}


def test_a_disruption_that_nobody_can_read_ends_no_explanation() -> None:
    """A cluster whose definition is not ours takes any status."""
    of = job(status=running(worldSize=3, disruptions=[{"signal": "aws-spot", "workers": "many"}, "nonsense"]), **BOUNDS)
    assert len(list(explained(summary(PYTORCH, of), [], of["spec"], NOW))) == 2


@pytest.mark.parametrize(("scaling", "is_told"), [({}, True), ({"scalingPolicy": {"policy": "hpa"}}, True), ({"scalingPolicy": {}}, False)])
def test_the_autoscaler_that_scales_a_job_by_its_metrics_is_told(scaling: dict[str, Any], is_told: bool) -> None:
    of = job(status=running(), elasticPolicy={"minReplicas": 1, "maxReplicas": 4, "metrics": [{"type": "Object"}], **scaling})
    words = "A HorizontalPodAutoscaler chooses its size by elasticPolicy.metrics; its events and conditions say why: "
    assert any(line.startswith(words) for line in explained(summary(PYTORCH, of), [], of["spec"], NOW)) is is_told


def test_the_autoscalers_decision_is_quoted() -> None:
    decision = {"workers": 4, "reason": "a further worker brings 80 percent", "at": "2026-01-01T01:59:30Z"}
    of = job(status=running(autoscaler=decision), **BOUNDS)
    lines = list(explained(summary(PYTORCH, of), [pod(0)], of["spec"], NOW))
    assert "The autoscaler decided 30s ago on 4 workers: a further worker brings 80 percent." in lines


@pytest.mark.parametrize(
    ("least", "most", "words"),
    [(1, 4, "Between 1 and 4 are allowed."), (2, 2, "minReplicas and maxReplicas are both 2.")],
)
def test_the_allowed_sizes_are_in_words(least: int, most: int, words: str) -> None:
    of = job(status=running(), workers=least, elasticPolicy={"minReplicas": least, "maxReplicas": most})
    assert next(explained(summary(PYTORCH, of), [], of["spec"], NOW)).endswith(words)


def test_a_failed_job_is_explained_by_its_condition() -> None:
    status = {"conditions": [{"type": "Failed", "status": "True", "message": "rank 1: ValueError: bad"}]}
    lines = list(explained(summary(PYTORCH, job(status=status)), [], {}, NOW))
    assert lines[0] == "PyTorchJob train has failed. It asked for 3 workers. Its size is fixed: it has no elasticPolicy."
    assert lines[1] == "It failed: rank 1: ValueError: bad"


def test_no_worker_of_a_finished_elastic_job_runs() -> None:
    """Its status keeps the counts of the moment in which it failed."""
    status = running(worldSize=3) | {"conditions": [{"type": "Failed", "status": "True", "message": "rank 1: ValueError: bad"}]}
    told = summary(PYTORCH, job(status=status, **BOUNDS))
    assert (told.running, told.world) == (0, None)
    assert next(explained(told, [], BOUNDS, NOW)) == "PyTorchJob train has failed. It asked for 3 workers. Between 1 and 4 are allowed."


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (waits(status={"conditions": []}), "the controller, which has not looked at it yet; see whether it runs with `elastic doctor`"),
        (
            waits(pod(2, conditions=[NO_ROOM])),
            "room for train-worker-2: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu; on the laptop, "
            "`elastic node add spare --gpus 1` adds a node that claims to have one, but it adds no GPU to the machine",
        ),
        (
            waits(pod(0, **container(waiting={"reason": "ErrImagePull", "message": "no such host"}))),
            "the image of train-worker-0: train:1: no such",
        ),
        (
            waits(
                pod(0, **container(waiting={"reason": "CreateContainerConfigError", "message": 'secret "key" not found'})), status=CREATED
            ),
            'the start of train-worker-0, which fails: secret "key" not found',
        ),
        (
            waits(pod(0, **container(waiting={"reason": "RunContainerError"})), status=CREATED),
            "the start of train-worker-0, which fails: RunContainerError",
        ),
        (
            waits(*(pod(n, **container(waiting={"reason": "ContainerCreating"})) for n in range(5))),
            "the set-up of train-worker-0, train-worker-1, train-worker-2 and 2 more (",
        ),
        (
            waits(pod(0, **container(waiting={"reason": "CrashLoopBackOff"}))),
            "the next start of train-worker-0, which ended again and again; see",
        ),
        (waits(pod(0), status=running(worldSize=0)), "the rendezvous of its 3 workers"),
        (waits(pod(0), status=running(worldSize=0) | {"replicaStatuses": {"Worker": {"active": 1}}}), "the rendezvous of its 1 worker"),
        (waits(pod(0), status=running(worldSize=2)), "the rendezvous: 2 of 3 running workers train together"),
        (waits(pod(0), status={"conditions": [{"type": "Suspended", "status": "True"}]}), "`elastic resume train`: it is suspended"),
        (waits(pod(0), status={"conditions": []}), "its pods to run"),
        (waits(pod(0), status=CREATED), "its pods to run"),
        (waits(pod(0)), ""),
    ],
)
def test_the_reason_why_a_job_waits_is_named(found: str, words: str) -> None:
    assert found.startswith(words)
    assert bool(found) == bool(words)


def test_one_worker_is_told_in_the_singular() -> None:
    status = running(worldSize=0)
    status["replicaStatuses"]["Worker"]["active"] = 1
    assert waits(pod(0), status=status) == "the rendezvous of its 1 worker"


def test_a_job_below_its_minimum_waits_for_workers() -> None:
    missing = {
        "type": "Running",
        "status": "False",
        "reason": "PyTorchJobWaiting",
        "message": "Waiting for workers: 1 of at least 2 running.",
    }
    status = {"conditions": [missing, {"type": "Created", "status": "True"}]}
    assert summary(PYTORCH, job(status=status)).state == "Waiting"
    assert waits(status=status) == "workers: 1 of at least 2 running"


@pytest.mark.parametrize(
    ("backend", "words"), [("elastic", "the rendezvous of its 3 workers"), ("etcd", "the rendezvous of its 3 workers"), ("c10d", "")]
)
def test_before_its_first_world_a_job_waits_for_the_rendezvous(backend: str, words: str) -> None:
    """Its pods run, and the status has no size of a world yet."""
    status = running(backend=backend)
    del status["elastic"]["worldSize"]
    assert waits(pod(0), status=status) == words


def test_a_job_whose_etcd_the_controller_does_not_reach_is_not_said_to_train_nobody() -> None:
    """It said `0 of them train together` and that it waits for the rendezvous, while all trained."""
    trouble = "The controller cannot follow the rendezvous in etcd, and counts pods: it does not answer."
    status = running(backend="etcd")
    status["conditions"][-1]["message"] = f"PyTorchJob default/train is running. {trouble}"
    told = "\n".join(explained(summary(PYTORCH, job(status=status)), [pod(0)], {}, NOW))
    assert "train together" not in told
    assert "It waits" not in told
    assert f"{trouble} Whether its workers have met, they say themselves: `elastic logs train`." in told


def test_the_controllers_reason_goes_before_a_containers_pause() -> None:
    crashing = pod(0, **container(waiting={"reason": "CrashLoopBackOff"}))
    assert "ended again and again" in waits(crashing)
    reason = "1 of 3 workers: train-worker-0 could not start: torchrun: error: unrecognized arguments: --nonsense"
    assert waits(crashing, status=running(waitsFor=reason)) == reason


def test_a_condition_about_a_missing_etcd_is_the_reason_why_the_job_waits() -> None:
    words = "elasticPolicy.rdzvBackend is etcd, rdzvHost names no etcd, and this installation has none: set rdzvHost"
    status = {**CREATED, "elastic": {"waitsFor": f"3 of 3 workers: {words}"}}
    assert waits(status=status) == f"3 of 3 workers: {words}"


def test_a_fault_of_the_rendezvous_server_is_told() -> None:
    status = running()
    status["conditions"][-1]["message"] = (
        "PyTorchJob train is running. RendezvousFault: the rendezvous server cannot decide. Another remark."
    )
    of = job(status=status, **BOUNDS)
    assert "RendezvousFault: the rendezvous server cannot decide." in list(explained(summary(PYTORCH, of), [], of["spec"], NOW))
