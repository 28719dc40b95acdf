"""Each feature of Kubeflow Trainer that is missing here is refused with one message, by the webhook and in a condition."""

import pytest
from job_builders import NOW
from test_trainjob_gangs import gang
from test_trainjob_mpi import runtime as of_mpi
from train_job_builders import runtime, train_job
from train_job_reviews import fields, said

from elastic.api.job import Object
from elastic_training.controller.deciding.trainjobs.admission import RuntimeSight
from elastic_training.controller.deciding.trainjobs.plan import TrainJobView, plan

AT = "ClusterTrainingRuntime.torch-distributed.spec"
BOUNDS = {"elastic-training/max-nodes": "4"}
INJECTION = {"torch": {"envInjection": {"targets": [{"jobName": "node", "containerNames": ["check"]}]}}}
CHECK = {"initContainers": [{"name": "check", "image": "any"}]}
TOPOLOGY = {"volcano": {"networkTopology": {"mode": "hard", "highestTierAllowed": 2}}}


@pytest.mark.parametrize(
    ("job", "found", "field", "words"),
    [
        (
            train_job(trainer={"command": ["tune", "run"]}),
            runtime(),
            "spec.trainer.command",
            "tune run, but torchtune is not supported; use torchrun",
        ),
        (train_job(), runtime({"flux": {}}), f"{AT}.mlPolicy.flux", "Flux is not supported; use a runtime with the policy mpi"),
        (
            train_job(annotations=BOUNDS),
            runtime(INJECTION, pod=CHECK),
            f"{AT}.mlPolicy.torch.envInjection",
            "may have 2 to 4; remove envInjection",
        ),
        (train_job(), runtime(INJECTION), "spec.runtimeRef", 'container "check" not found in runtime template; add it'),
        (
            train_job(),
            gang(TOPOLOGY),
            f"{AT}.podGroupPolicy.volcano.networkTopology",
            "is set (mode hard, tier 2), but pod groups here have none",
        ),
        (train_job(), gang({"coscheduling": {}}), f"{AT}.podGroupPolicy.coscheduling", "runs without --gang-scheduler-name of a scheduler"),
        (train_job(), of_mpi(), "spec.runtimeRef", "the controller does not serve MPIJobs, which the policy mpi needs; start it with"),
    ],
    ids=["torchtune", "flux", "injection-bounds", "injection-target", "topology", "coscheduling", "mpi"],
)
def test_webhook_and_condition_say_the_same_about_what_is_missing(job: Object, found: Object, field: str, words: str) -> None:
    sight = RuntimeSight(found, is_known=True, gang_scheduler="volcano", serves_mpi=False)
    refused = fields(said(job, sight=sight))
    assert list(refused) == [field]
    assert words in refused[field]
    made = plan(TrainJobView(job, found, None, NOW, gang_scheduler="volcano", serves_mpi=False))
    assert made.create == ()
    assert made.status is not None
    (condition,) = made.status["conditions"]
    assert (condition["type"], condition["reason"]) == ("Failed", "TrainingRuntimeNotSupported")
    assert condition["message"] == f"{field}: {refused[field]}"
