"""An object's owners are read from references that anybody may have written."""

import pytest

from elastic.api.owners import Owner, controller_of, controller_uid, is_owned_by, owners_of

JOB = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "train", "uid": "u1", "controller": True, "blockOwnerDeletion": True}
QUEUE = {"apiVersion": "v1", "kind": "ConfigMap", "name": "queue", "uid": "u2"}


def test_an_owner_is_known_by_its_version_kind_namespace_and_uid() -> None:
    metadata = {"namespace": "team", "ownerReferences": [QUEUE, JOB]}
    job = Owner("kubeflow.org/v1", "PyTorchJob", "team", "train", "u1", is_controller=True, blocks=True)
    assert owners_of(metadata) == (Owner("v1", "ConfigMap", "team", "queue", "u2"), job)
    assert (controller_of(metadata), controller_uid(metadata), job.group) == (job, "u1", "kubeflow.org")
    assert is_owned_by(metadata, "u1")
    assert is_owned_by(metadata, "u2")
    assert not is_owned_by(metadata, "u3")


@pytest.mark.parametrize(
    "metadata",
    [None, "metadata", {}, {"ownerReferences": None}, {"ownerReferences": "u1"}, {"ownerReferences": [None, 3, "u1"]}],
)
def test_metadata_without_references_has_no_owner(metadata: object) -> None:
    assert owners_of(metadata) == ()
    assert controller_of(metadata) is None
    assert controller_uid(metadata) == ""


def test_an_owner_that_does_not_control_the_object_is_not_its_controller() -> None:
    odd = {**JOB, "controller": "true"}
    assert controller_uid({"ownerReferences": [QUEUE, odd]}) == ""
    assert not is_owned_by({"ownerReferences": [{**QUEUE, "uid": None}]}, "None")
