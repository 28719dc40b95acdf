"""A runtime's volumeClaimPolicies become claims of the TrainJob, which its pods share."""

from typing import Any

import pytest
from job_builders import NOW
from train_job_builders import initializer, runtime, train_job

from elastic.api.job import Object
from elastic_training.controller.deciding.trainjobs.lowering import lower
from elastic_training.controller.deciding.trainjobs.plan import TrainJobView, plan

SPEC = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "20Gi"}}}
MOUNT = {"name": "initializer", "mountPath": "/workspace"}


def claiming(name: str = "initializer", *, pod: Object | None = None, **policy: Any) -> Object:
    """Return a runtime with a claim that the nodes and an initializer mount."""
    node = {"containers": [{"name": "node", "image": "any", "volumeMounts": [MOUNT]}]} | (pod or {})
    found = runtime(pod=node, initializers=[initializer(pod={"volumes": []})])
    template = {"metadata": {"name": name, "labels": {"cost": "disk"}}, "spec": SPEC}
    found["spec"]["template"]["spec"]["volumeClaimPolicies"] = [{"templates": [template], **policy}]
    return found


def made(found: Object) -> list[Object]:
    objects, problems = lower(train_job(), found)
    assert problems == []
    return objects


def volumes(job: Object) -> list[Object]:
    return list(job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["volumes"])


def test_a_claim_belongs_to_the_train_job_and_is_mounted_by_the_pods_that_name_it() -> None:
    nodes, loads, claim = made(claiming())
    assert (claim["kind"], claim["spec"]) == ("PersistentVolumeClaim", SPEC)
    assert (claim["metadata"]["name"], claim["metadata"]["namespace"]) == ("initializer-fit", "team")
    assert claim["metadata"]["labels"] == {"cost": "disk", "jobset.sigs.k8s.io/jobset-name": "fit"}
    assert claim["metadata"]["ownerReferences"] == nodes["metadata"]["ownerReferences"]
    wanted = [{"name": "initializer", "persistentVolumeClaim": {"claimName": "initializer-fit"}}]
    assert volumes(nodes) == volumes(loads) == wanted


def test_a_retained_claim_outlives_the_train_job() -> None:
    claim = made(claiming(retentionPolicy={"whenDeleted": "Retain"}))[-1]
    assert "ownerReferences" not in claim["metadata"]


def test_claims_are_created_before_the_jobs_that_mount_them() -> None:
    created = plan(TrainJobView(train_job(), claiming(), None, NOW)).create
    assert [item["kind"] for item in created] == ["PersistentVolumeClaim", "PyTorchJob", "PyTorchJob"]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (claiming("other"), "no container has a volumeMount of this name"),
        (claiming("A_B"), "needs a DNS name of at most 63 characters"),
        (claiming("n" * 61), "needs a DNS name of at most 63 characters"),
        (claiming(pod={"volumes": [{"name": "initializer", "emptyDir": {}}]}), "as that of a volume of a pod; rename one"),
    ],
)
def test_a_claim_that_a_job_set_would_refuse_is_refused(found: Object, words: str) -> None:
    objects, problems = lower(train_job(), found)
    assert objects == []
    assert words in "\n".join(map(str, problems))


def test_two_claims_of_one_name_are_refused() -> None:
    found = claiming()
    found["spec"]["template"]["spec"]["volumeClaimPolicies"] *= 2
    _, (problem,) = lower(train_job(), found)
    assert "as that of another template" in str(problem)
