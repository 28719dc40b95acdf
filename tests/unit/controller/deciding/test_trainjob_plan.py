"""A TrainJob and its job follow each other: creation, changes, status, and what blocks it."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from train_job_builders import owned, runtime, train_job

from elastic.api.job import Object
from elastic.api.names import REPORT, STOPPED
from elastic.membership.training import TrainingProgress
from elastic_training.controller.deciding.trainjobs.plan import TrainJobPlan, TrainJobView, plan

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BOUNDS = {"elastic-training/min-nodes": "1", "elastic-training/max-nodes": "4"}


def planned(job: Object, named: Object | None = None, found: Object | None = None, *, now: datetime = NOW) -> TrainJobPlan:
    return plan(TrainJobView(job, runtime() if found is None else found, named, now))


def condition(type: str, reason: str, *, status: str = "True") -> Object:
    return {"type": type, "status": status, "reason": reason, "message": "m", "lastTransitionTime": "2025-12-31T00:00:00Z"}


def conditions(made: TrainJobPlan) -> list[tuple[str, str, str]]:
    assert made.status is not None
    return [(c["type"], c["status"], c["reason"]) for c in made.status.get("conditions", ())]


def test_a_new_train_job_gets_a_job_and_no_condition() -> None:
    made = planned(train_job())
    assert [item["kind"] for item in made.create] == ["PyTorchJob"]
    assert made.status is None


def test_a_refused_train_job_names_the_field_and_starts_once_it_is_gone() -> None:
    made = planned(train_job(initializer={"model": {}}))
    assert made.create == ()
    assert conditions(made) == [("Failed", "True", "TrainingRuntimeNotSupported")]
    mended = planned(train_job(status=made.status))
    assert [item["kind"] for item in mended.create] == ["PyTorchJob"]
    assert conditions(mended) == []
    assert mended.status == {"conditions": []}, "a merge patch must name the list to empty it"


def test_a_job_of_this_name_that_somebody_else_made_blocks_the_train_job() -> None:
    other = owned(train_job())
    other["metadata"] |= {"ownerReferences": []}
    made = planned(train_job(), other)
    assert (made.create, made.change) == ((), None)
    assert conditions(made) == [("Failed", "True", "TrainingRuntimeNotSupported")]
    assert made.status is not None
    assert "PyTorchJob fit exists" in made.status["conditions"][0]["message"]


def test_the_job_of_a_former_train_job_of_this_name_is_waited_for() -> None:
    former = owned(train_job())
    job = train_job()
    job["metadata"]["uid"] = "t-2"
    assert planned(job, former) == TrainJobPlan()


@pytest.mark.parametrize("change", [{"managedBy": "kueue.x-k8s.io/multikueue"}, None])
def test_a_train_job_of_another_controller_or_one_that_goes_is_left_alone(change: Object | None) -> None:
    job = train_job(**(change or {}))
    if change is None:
        job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert planned(job) == TrainJobPlan()


def test_suspending_and_resuming_reach_the_job() -> None:
    job = train_job()
    there = owned(job)
    suspended = planned(train_job(suspend=True), there)
    assert suspended.change == {"spec": {"runPolicy": {"suspend": True}}}
    assert conditions(suspended) == [("Suspended", "True", "Suspended")]
    there["spec"]["runPolicy"]["suspend"] = True
    resumed = planned(train_job(status=suspended.status), there, now=NOW + timedelta(minutes=1))
    assert resumed.change == {"spec": {"runPolicy": {"suspend": False}}}
    assert conditions(resumed) == [("Suspended", "False", "Resumed")]
    assert resumed.status is not None
    assert resumed.status["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:01:00Z"


def test_a_job_that_the_laptop_stopped_waits_until_it_is_resumed() -> None:
    there = owned(train_job())
    there["spec"]["runPolicy"]["suspend"] = True
    there["metadata"]["annotations"][STOPPED] = "2026-01-01T00:00:00Z"
    made = planned(train_job(), there)
    assert made.change is None
    assert made.status is not None
    assert made.status["jobsStatus"][0]["suspended"] == 1


def test_the_number_of_nodes_follows_its_annotation_only_when_that_changes() -> None:
    there = owned(train_job(annotations=BOUNDS))
    grown = planned(train_job(annotations=BOUNDS | {"elastic-training/nodes": "3"}), there)
    assert grown.change == {
        "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 3}}},
        "metadata": {"annotations": {"elastic-training/nodes": "3"}},
    }
    there["metadata"]["annotations"]["elastic-training/nodes"] = "3"
    there["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 4  # by an autoscaler, since
    assert planned(train_job(annotations=BOUNDS | {"elastic-training/nodes": "3"}), there).change is None


def test_new_bounds_reach_the_job_and_move_a_size_outside_of_them() -> None:
    there = owned(train_job(annotations=BOUNDS | {"elastic-training/nodes": "4"}))
    job = train_job(annotations={"elastic-training/min-nodes": "1", "elastic-training/max-nodes": "3"})
    change = planned(job, there).change
    assert change == {
        "spec": {
            "elasticPolicy": {"minReplicas": 1, "maxReplicas": 3},
            "pytorchReplicaSpecs": {"Worker": {"replicas": 3}},
        },
        "metadata": {"annotations": {"elastic-training/nodes": None}},
    }


def test_a_wrong_annotation_changes_nothing_and_is_reported() -> None:
    there = owned(train_job(annotations=BOUNDS))
    made = planned(train_job(annotations=BOUNDS | {"elastic-training/nodes": "9"}), there)
    assert made.change is None
    assert ["elastic-training/nodes is 9" in event.message for event in made.news] == [True]


def test_a_runtime_that_changes_or_goes_changes_no_job() -> None:
    there = owned(train_job())
    changed = runtime({"numNodes": 7, "torch": {}}, annotations={"elastic-training/max-nodes": "9"})
    assert planned(train_job(), there, changed).change is None
    assert plan(TrainJobView(train_job(), None, there, NOW)).change is None


ENDS: list[tuple[Object, list[tuple[str, str, str]]]] = [
    ({"conditions": [condition("Succeeded", "PyTorchJobSucceeded")]}, [("Complete", "True", "AllJobsCompleted")]),
    ({"conditions": [condition("Failed", "PyTorchJobFailed")]}, [("Failed", "True", "FailedJobs")]),
    (
        {"conditions": [condition("Failed", "X")], "elastic": {"closed": "it was active longer than specified deadline"}},
        [("Failed", "True", "DeadlineExceeded")],
    ),
]


@pytest.mark.parametrize(("status", "wanted"), ENDS)
def test_the_end_of_the_job_is_the_end_of_the_train_job(status: Object, wanted: list[tuple[str, str, str]]) -> None:
    made = planned(train_job(), owned(train_job(), status=status))
    assert conditions(made) == wanted
    again = planned(train_job(status=made.status))
    assert again == TrainJobPlan(), "no job is created for a TrainJob that has ended"


@pytest.mark.parametrize(
    ("active", "suspend", "wanted"),
    [(0, False, {"active": 1}), (1, False, {"active": 1}), (2, False, {"active": 1, "ready": 1}), (0, True, {"suspended": 1})],
)
def test_the_nodes_have_the_status_of_one_job(active: int, suspend: bool, wanted: dict[str, Any]) -> None:
    job = train_job(suspend=suspend)
    made = planned(job, owned(job, status={"replicaStatuses": {"Worker": {"active": active}}}))
    assert made.status is not None
    (nodes,) = made.status["jobsStatus"]
    zero = dict.fromkeys(("active", "failed", "ready", "succeeded", "suspended"), 0)
    assert nodes == {"name": "node"} | zero | wanted


def test_a_train_job_that_ended_stays_so_although_its_status_has_unknown_fields() -> None:
    """A later version of Kubeflow Trainer may have written it."""
    status = {"conditions": [condition("Complete", "AllJobsCompleted") | {"new": 1}], "new": {}}
    assert planned(train_job(status=status)) == TrainJobPlan()


def test_a_status_that_says_the_same_is_not_written_again() -> None:
    there = owned(train_job())
    first = planned(train_job(), there)
    assert planned(train_job(status=first.status), there, now=NOW + timedelta(hours=1)).status is None


def patched(pool: str, **more: Any) -> Object:
    spec = {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": {"spec": {"nodeSelector": {"pool": pool}}}}}}]}
    return {"manager": "kueue.x-k8s.io/manager", "trainingRuntimeSpec": {"template": {"spec": spec}}, **more}


def pods(change: Object | None) -> Object:
    assert change is not None
    return change["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]


def test_patches_of_a_suspended_train_job_change_its_pods_also_as_it_resumes() -> None:
    suspended = owned(train_job(suspend=True, runtimePatches=[patched("a")]))
    change = planned(train_job(suspend=False, runtimePatches=[patched("b")]), suspended).change
    assert pods(change) == {"spec": {"nodeSelector": {"pool": "b"}}}
    assert change is not None
    assert change["spec"]["runPolicy"] == {"suspend": False}
    removed = planned(train_job(suspend=True), suspended).change
    assert pods(removed) == {"spec": {"nodeSelector": None}}
    assert removed is not None
    assert removed["metadata"]["annotations"]["elastic-training/runtime-patches"] is None


def test_patches_of_a_running_train_job_are_refused_until_it_is_suspended() -> None:
    running = owned(train_job(runtimePatches=[patched("a")]))
    made = planned(train_job(runtimePatches=[patched("b")]), running)
    assert made.change is None
    assert ["runtimePatches have changed while the TrainJob runs; suspend it" in one.message for one in made.news] == [True]
    same = planned(train_job(runtimePatches=[patched("a", time="2026-01-01T00:00:00Z")]), running)
    assert (same.change, same.news) == (None, ())


def reported(progress: TrainingProgress, *, known: Object | None = None, now: datetime = NOW, status: Object | None = None) -> TrainJobPlan:
    """Return the plan of a TrainJob whose nodes have been seen, after this progress."""
    nodes = planned(train_job(), owned(train_job(), status=status)).status
    assert nodes is not None
    job = train_job(status=nodes | ({"trainerStatus": known} if known else {}))
    return plan(TrainJobView(job, runtime(), owned(job, status=status), now, progress))


TRAINING = TrainingProgress(job="p-1", size=2, step=94, values={"loss": 0.5, "total_steps": 200.0}, percent=47, remaining_s=120.7)
TOLD = {
    "progressPercentage": 47,
    "estimatedRemainingSeconds": 120,
    "metrics": [{"name": "loss", "value": "0.5"}, {"name": "total_steps", "value": "200"}, {"name": "current_step", "value": "94"}],
    "lastUpdatedTime": "2026-01-01T00:00:00Z",
}


def trainer_status(made: TrainJobPlan) -> Object:
    assert made.status is not None
    told: Object = json.loads(json.dumps(made.status["trainerStatus"]))
    return told


def test_the_progress_of_the_job_is_its_trainer_status() -> None:
    assert trainer_status(reported(TRAINING)) == TOLD
    assert reported(TRAINING, known=TOLD).status is None


def test_a_job_that_reports_nothing_has_no_trainer_status() -> None:
    assert reported(TrainingProgress(job="p-1", size=2)) == TrainJobPlan()


def test_steps_that_workers_report_are_shown_without_a_percentage() -> None:
    made = reported(TrainingProgress(job="p-1", size=2, step=7, values={"samples": 70.0}))
    metrics = [{"name": "samples", "value": "70"}, {"name": "current_step", "value": "7"}]
    assert trainer_status(made) == {"metrics": metrics, "lastUpdatedTime": TOLD["lastUpdatedTime"]}


def test_progress_is_written_now_and_then() -> None:
    further = replace(TRAINING, step=95)
    early = reported(further, known=TOLD, now=NOW + timedelta(seconds=4))
    assert early == TrainJobPlan(look_again_at=NOW + timedelta(seconds=10))
    late = reported(further, known=TOLD, now=NOW + timedelta(seconds=10))
    assert late.look_again_at is None
    assert late.status is not None
    assert late.status["trainerStatus"]["metrics"][-1] == {"name": "current_step", "value": "95"}


@pytest.mark.parametrize("time", ["", "yesterday", "2026-01-01T00:00:04.000001+00:00", "2027-01-01T00:00:00Z"])
def test_a_time_that_another_controller_wrote_delays_nothing(time: str) -> None:
    assert reported(replace(TRAINING, step=95), known=TOLD | {"lastUpdatedTime": time}).status is not None


def test_the_last_progress_is_written_with_the_end() -> None:
    done = replace(TRAINING, step=200, percent=100, remaining_s=0.0)
    ended = {"conditions": [{"type": "Succeeded", "status": "True", "reason": "r", "message": "m"}]}
    made = reported(done, known=TOLD, now=NOW + timedelta(seconds=1), status=ended)
    assert conditions(made) == [("Complete", "True", "AllJobsCompleted")]
    assert made.status is not None
    assert made.status["trainerStatus"]["progressPercentage"] == 100


def test_a_new_world_without_a_step_keeps_the_last_metrics() -> None:
    assert reported(TrainingProgress(job="p-1", size=3, percent=47, remaining_s=120.0), known=TOLD).status is None


def test_the_annotation_about_reports_goes_to_the_job_and_a_wrong_one_is_refused() -> None:
    (job,) = planned(train_job(annotations={REPORT: "off"})).create
    assert job["metadata"]["annotations"][REPORT] == "off"
    made = planned(train_job(annotations={REPORT: "never"}))
    assert made.create == ()
    assert made.status is not None
    assert f'{REPORT} is "never"; write on or off' in made.status["conditions"][0]["message"]
    later = planned(train_job(annotations={REPORT: "off"}), owned(train_job()))
    assert later.change == {"metadata": {"annotations": {REPORT: "off"}}}
