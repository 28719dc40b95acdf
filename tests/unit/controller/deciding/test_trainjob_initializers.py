"""Initializers of a TrainJob load data and model before its nodes start: which jobs they become, and how these follow the TrainJob."""

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from job_builders import NOW as STARTED
from job_builders import snapshot
from train_job_builders import all_owned, initializer, runtime, train_job

from elastic.api import parse
from elastic.api.job import Object
from elastic.api.names import INITIALIZER_FAILED, STOPPED, WAITS_FOR
from elastic.kube.resources import PODS
from elastic_training.controller.deciding.actions import Create, Plan
from elastic_training.controller.deciding.plan import plan as plan_job
from elastic_training.controller.deciding.trainjobs.lowering import lower
from elastic_training.controller.deciding.trainjobs.plan import TrainJobPlan, TrainJobView, plan
from elastic_training.controller.facts.settings import Rendezvous, Settings

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DATA, MODEL = "dataset-initializer", "model-initializer"
BOTH = runtime(initializers=[initializer(DATA), initializer(MODEL)])
SUCCEEDED = {"conditions": [{"type": "Succeeded", "status": "True", "reason": "x", "message": "m"}]}
FAILED = {"conditions": [{"type": "Failed", "status": "True", "reason": "x", "message": "it broke: No such bucket"}]}


class Jobs:
    """The jobs of a TrainJob, which change as a plan says."""

    def __init__(self, job: Object | None = None, found: Object = BOTH) -> None:
        self.train_job, self.runtime = job or train_job(), found
        self.nodes, *rest = all_owned(self.train_job, found)
        self.steps = {one["metadata"]["name"].removeprefix("fit-"): one for one in rest}

    def planned(self, *, status: Object | None = None, **spec: Any) -> TrainJobPlan:
        now = copy.deepcopy(self.train_job)
        now["spec"] |= spec
        now["status"] = status or {}
        return plan(TrainJobView(now, self.runtime, self.nodes, NOW, initializers=self.steps))

    def end(self, step: str, status: Object) -> None:
        self.steps[step]["status"] = status

    def waits_for(self, words: str | None) -> None:
        self.nodes["metadata"]["annotations"] |= {WAITS_FOR: words or ""}


def container(job: Object) -> Object:
    (found,) = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    return dict(found)


def names(objects: Any) -> list[str]:
    return [one["metadata"]["name"] for one in objects]


def test_each_initializer_becomes_a_job_of_one_pod_next_to_the_nodes() -> None:
    nodes, data, model = all_owned(train_job(), BOTH)
    assert names([nodes, data, model]) == ["fit", "fit-dataset-initializer", "fit-model-initializer"]
    assert nodes["metadata"]["annotations"][WAITS_FOR] == f"{DATA},{MODEL}"
    assert data["metadata"]["ownerReferences"] == nodes["metadata"]["ownerReferences"]
    assert data["spec"]["runPolicy"] == {"cleanPodPolicy": "Running", "suspend": False, "backoffLimit": 6}
    worker = data["spec"]["pytorchReplicaSpecs"]["Worker"]
    assert (worker["replicas"], worker["restartPolicy"]) == (1, "OnFailure")
    labels = worker["template"]["metadata"]["labels"]
    assert labels["jobset.sigs.k8s.io/jobset-name"] == "fit"
    assert labels["jobset.sigs.k8s.io/replicatedjob-name"] == labels["trainer.kubeflow.org/trainjob-ancestor-step"] == DATA


def test_the_metadata_of_an_initializer_in_the_runtime_is_that_of_its_job() -> None:
    found = initializer(DATA)
    found["template"]["metadata"] |= {"annotations": {"team": "a"}}
    metadata = all_owned(train_job(), runtime(initializers=[found]))[1]["metadata"]
    assert metadata["annotations"]["team"] == "a"
    assert metadata["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"] == DATA


def test_the_pod_of_an_initializer_gets_neither_variables_nor_services_of_training() -> None:
    job, _ = parse(all_owned(train_job(), BOTH)[1])
    made = plan_job(job, snapshot(settings=Settings(rendezvous=Rendezvous(endpoint="rdzv:8443", ca="CA"))))
    (created,) = made.actions
    assert isinstance(created, Create)
    assert created.resource == PODS
    assert created.object["spec"]["containers"][0]["env"] == [{"name": "STORAGE_URI", "value": "hf://default"}]


def test_an_initializer_that_the_train_job_does_not_configure_runs_as_the_runtime_has_it() -> None:
    _, data, model = all_owned(train_job(initializer={"model": {"storageUri": "s3://mine"}}), BOTH)
    assert container(data)["env"] == [{"name": "STORAGE_URI", "value": "hf://default"}]
    assert container(model)["env"] == [{"name": "STORAGE_URI", "value": "s3://mine"}]


def test_the_train_jobs_source_wins_over_the_runtimes_and_its_secret_comes_with_it() -> None:
    source = {"storageUri": "s3://mine", "env": [{"name": "A", "value": "1"}], "secretRef": {"name": "token"}}
    data = all_owned(train_job(initializer={"dataset": source}), BOTH)[1]
    assert container(data)["env"] == [{"name": "STORAGE_URI", "value": "s3://mine"}, {"name": "A", "value": "1"}]
    assert container(data)["envFrom"] == [{"secretRef": {"name": "token"}}]


def refused(job: Object, found: Object) -> str:
    objects, problems = lower(job, found)
    assert objects == []
    return "\n".join(map(str, problems))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (runtime(initializers=[initializer(MODEL)]), "must have dataset-initializer job when trainJob is configured"),
        (
            runtime(initializers=[initializer(DATA, pod={"containers": [{"name": DATA, "image": "any"}]})]),
            "must have volumeMount with name - i",
        ),
        (
            runtime(initializers=[initializer(DATA, pod={"containers": [{"name": "x", "image": "any"}]})]),
            f"has no container {DATA}; add it",
        ),
        (runtime(initializers=[initializer(DATA, parallelism=2)]), "parallelism is 2; an initializer has one pod"),
        (runtime(initializers=[initializer(DATA, pod={"restartPolicy": "Never"})]), 'restartPolicy is "Never"'),
        (runtime(initializers=[initializer(DATA) | {"dependsOn": []}, initializer(DATA)]), f'replicatedJob "{DATA}" is not supported'),
        (runtime(initializers=[initializer("other")]), 'replicatedJob "other" is not supported'),
        (runtime(initializers=[initializer(DATA, pod={"containers": []})]), f"has no container {DATA}"),
    ],
)
def test_a_runtime_that_cannot_initialize_is_refused_with_what_it_lacks(found: Object, words: str) -> None:
    assert words in refused(train_job(initializer={"dataset": {"storageUri": "hf://x"}}), found)


def test_nodes_must_depend_on_the_initializers_and_on_nothing_else() -> None:
    found = copy.deepcopy(BOTH)
    jobs = found["spec"]["template"]["spec"]["replicatedJobs"]
    jobs[2]["dependsOn"] = [{"name": DATA, "status": "Ready"}, {"name": "launcher", "status": "Complete"}]
    said = refused(train_job(), found)
    assert f"found {DATA}: Ready" in said
    assert "found launcher: Complete" in said
    assert f"the nodes start once {MODEL} has completed; add it to dependsOn" in said


def test_a_name_that_is_too_long_for_the_pod_of_an_initializer_is_refused() -> None:
    job = train_job()
    job["metadata"]["name"] = "n" * 45
    assert "the pod of dataset-initializer would not be valid" in refused(job, BOTH)


def test_the_nodes_wait_until_the_last_initializer_has_completed() -> None:
    jobs = Jobs()
    assert jobs.planned().change is None
    jobs.end(DATA, SUCCEEDED)
    assert jobs.planned().change == {"metadata": {"annotations": {WAITS_FOR: MODEL}}}
    jobs.waits_for(MODEL)
    assert jobs.planned().change is None
    jobs.end(MODEL, SUCCEEDED)
    assert jobs.planned().change == {"metadata": {"annotations": {WAITS_FOR: None}}}


def test_a_completed_initializer_whose_job_is_gone_does_not_run_again() -> None:
    jobs = Jobs()
    jobs.end(DATA, SUCCEEDED)
    before = jobs.planned().status
    jobs.waits_for(MODEL)
    del jobs.steps[DATA]
    made = jobs.planned(status=before)
    assert made.create == ()
    assert made.status is None, "the status keeps what it knew of the initializer"


def test_an_initializer_that_was_deleted_before_it_completed_is_created_again() -> None:
    jobs = Jobs()
    del jobs.steps[MODEL]
    assert names(jobs.planned().create) == ["fit-model-initializer"]


def test_once_the_nodes_may_start_nothing_that_happens_to_initializers_matters() -> None:
    jobs = Jobs()
    jobs.waits_for(None)
    jobs.steps.clear()
    assert jobs.planned().create == ()


def test_a_failed_initializer_fails_the_job_of_the_nodes_and_stops_the_other_one() -> None:
    jobs = Jobs()
    jobs.end(DATA, FAILED)
    assert jobs.planned().change == {"metadata": {"annotations": {INITIALIZER_FAILED: f"{DATA}: it broke: No such bucket"}}}
    jobs.nodes["metadata"]["annotations"][INITIALIZER_FAILED] = f"{DATA}: it broke: No such bucket"
    assert jobs.planned().change is None
    jobs.nodes["status"] = {
        "conditions": [{"type": "Failed", "status": "True", "reason": "x", "message": "TrainJob fit failed: No such bucket"}]
    }
    made = jobs.planned()
    assert made.status is not None
    (failed,) = made.status["conditions"]
    assert (failed["reason"], "No such bucket" in failed["message"]) == ("FailedJobs", True)
    over = jobs.planned(status=made.status)
    assert (names(over.delete), over.initializers, over.status) == (["fit-model-initializer"], (), None)
    del jobs.steps[MODEL]
    last = jobs.planned(status=made.status).status
    assert last is not None
    assert [(job["name"], job["active"], job["failed"]) for job in last["jobsStatus"]] == [(DATA, 0, 1), (MODEL, 0, 0), ("node", 0, 0)]


def test_initializers_are_suspended_and_resumed_with_the_nodes() -> None:
    jobs = Jobs()
    jobs.end(DATA, SUCCEEDED)
    suspended = jobs.planned(suspend=True)
    assert suspended.change is not None
    assert [change for _, change in suspended.initializers] == [{"spec": {"runPolicy": {"suspend": True}}}], "the completed one stays"
    jobs.steps[MODEL]["spec"]["runPolicy"]["suspend"] = jobs.nodes["spec"]["runPolicy"]["suspend"] = True
    assert [change for _, change in jobs.planned().initializers] == [{"spec": {"runPolicy": {"suspend": False}}}]


def test_initializers_that_the_laptop_stopped_are_resumed_with_the_nodes() -> None:
    jobs = Jobs()
    for one in (jobs.nodes, jobs.steps[DATA], jobs.steps[MODEL]):
        one["spec"]["runPolicy"]["suspend"] = True
        one["metadata"]["annotations"][STOPPED] = "2026-01-01T00:00:00Z"
    assert jobs.planned().initializers == ()
    jobs.nodes["spec"]["runPolicy"]["suspend"] = False
    del jobs.nodes["metadata"]["annotations"][STOPPED]
    resumed = {"spec": {"runPolicy": {"suspend": False}}, "metadata": {"annotations": {STOPPED: None}}}
    assert [change for _, change in jobs.planned().initializers] == [resumed, resumed]


def patched(pool: str, name: str = DATA, **pod: Any) -> Object:
    spec = {"replicatedJobs": [{"name": name, "template": {"spec": {"template": {"spec": {"nodeSelector": {"pool": pool}} | pod}}}}]}
    return {"manager": "kueue.x-k8s.io/manager", "trainingRuntimeSpec": {"template": {"spec": spec}}}


def test_patches_reach_the_pods_of_initializers_while_they_are_suspended() -> None:
    jobs = Jobs(train_job(suspend=True, runtimePatches=[patched("a")]))
    template = jobs.steps[DATA]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    assert template["spec"]["nodeSelector"] == {"pool": "a"}
    (changed, other) = (change for _, change in jobs.planned(suspend=False, runtimePatches=[patched("b")]).initializers)
    assert changed["spec"]["pytorchReplicaSpecs"]["Worker"]["template"] == {"spec": {"nodeSelector": {"pool": "b"}}}
    assert changed["spec"]["runPolicy"] == other["spec"]["runPolicy"] == {"suspend": False}


def test_patches_may_not_set_the_environment_of_an_initializer() -> None:
    one = patched("a", containers=[{"name": DATA, "env": [{"name": "A", "value": "1"}]}])
    assert "must not have envs for the dataset-initializer container; use spec.initializer.dataset.env" in refused(
        train_job(runtimePatches=[one]), BOTH
    )


def test_a_job_of_somebody_else_with_an_initializers_name_blocks_the_train_job() -> None:
    jobs = Jobs()
    jobs.steps[DATA]["metadata"]["ownerReferences"] = []
    jobs.steps[DATA]["metadata"]["annotations"] = {}
    made = plan(TrainJobView(jobs.train_job, BOTH, None, NOW, initializers=jobs.steps))
    assert made.create == ()
    assert made.status is not None
    assert "PyTorchJob fit-dataset-initializer exists and does not belong" in made.status["conditions"][0]["message"]
    later = jobs.planned()
    assert (later.create, later.initializers) == ((), ())
    assert ["PyTorchJob fit-dataset-initializer exists" in event.message for event in later.news] == [True]


def test_the_initializer_of_a_former_train_job_of_this_name_is_waited_for() -> None:
    jobs = Jobs()
    again = copy.deepcopy(jobs.train_job)
    again["metadata"]["uid"] = "t-2"
    assert plan(TrainJobView(again, BOTH, None, NOW, initializers=jobs.steps)) == TrainJobPlan()


def test_initializers_go_with_the_nodes_job_of_a_train_job_that_has_ended() -> None:
    jobs = Jobs()
    ended = [
        {"type": "Complete", "status": "True", "reason": "AllJobsCompleted", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    ]
    job = train_job(status={"conditions": ended})
    made = plan(TrainJobView(job, BOTH, None, NOW, initializers=jobs.steps))
    assert (names(made.delete), made.create) == (["fit-dataset-initializer", "fit-model-initializer"], ())


def test_the_status_lists_initializers_before_the_nodes_which_have_no_job_yet() -> None:
    jobs = Jobs()
    jobs.end(DATA, SUCCEEDED)
    jobs.end(MODEL, {"replicaStatuses": {"Worker": {"active": 1}}})
    status = jobs.planned().status
    assert status is not None
    zero = dict.fromkeys(("active", "failed", "ready", "succeeded", "suspended"), 0)
    assert list(status["jobsStatus"]) == [
        zero | {"name": DATA, "succeeded": 1},
        zero | {"name": MODEL, "active": 1, "ready": 1},
        zero | {"name": "node"},
    ]
    assert status.get("conditions", []) == []


def of_nodes(jobs: Jobs, *, after_s: float = 0, status: Object | None = None, settings: Settings | None = None) -> Plan:
    """Return the plan for the job of the nodes, which has no pods."""
    job, _ = parse(jobs.nodes | {"status": status or {}}, stored=True)
    return plan_job(job, snapshot(after_s=after_s, settings=settings or Settings()))


def test_the_job_of_the_nodes_has_no_pods_while_it_waits_and_says_for_what() -> None:
    made = of_nodes(Jobs(), settings=Settings(gang_scheduler="volcano"))
    assert made.actions == ()
    assert made.status is not None
    assert made.status.elastic is not None
    assert made.status.elastic.waits_for == "dataset-initializer, model-initializer"
    assert made.status.start_time == STARTED


def test_the_deadline_of_a_train_job_counts_from_its_initializers() -> None:
    jobs = Jobs(train_job(activeDeadlineSeconds=60))
    first = of_nodes(jobs)
    assert first.status is not None
    assert first.look_again_at == STARTED + timedelta(seconds=60)
    late = of_nodes(jobs, after_s=61, status={"startTime": STARTED.strftime("%Y-%m-%dT%H:%M:%SZ")})
    assert late.status is not None
    assert late.status.elastic is not None
    assert late.status.elastic.closed == "it was active longer than specified deadline"


def test_the_job_of_the_nodes_fails_with_the_reason_of_the_initializer() -> None:
    jobs = Jobs()
    jobs.nodes["metadata"]["annotations"][INITIALIZER_FAILED] = f"{DATA}: No such bucket"
    made = of_nodes(jobs)
    assert made.actions == ()
    assert made.status is not None
    end = made.status.condition("Failed")
    assert end is not None
    assert end.message == "TrainJob fit failed because an initializer failed. dataset-initializer: No such bucket"


def test_only_the_nodes_of_a_train_job_wait() -> None:
    jobs = Jobs()
    assert of_nodes(jobs).actions == ()
    jobs.nodes["metadata"]["ownerReferences"] = []
    jobs.nodes["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["name"] = "pytorch"
    assert of_nodes(jobs).actions != ()
