"""To which job an object belongs."""

import pytest

from elastic.api.kinds import API_VERSION
from elastic_training.controller.facts.keys import Key, key_of_owner


def owned(**reference: object) -> dict[str, object]:
    owner = {"apiVersion": API_VERSION, "kind": "MPIJob", "name": "train", "controller": True} | reference
    return {"namespace": "team", "ownerReferences": [owner]}


def test_an_object_belongs_to_the_job_that_controls_it() -> None:
    assert key_of_owner(owned()) == Key("MPIJob", "team", "train")


@pytest.mark.parametrize(
    "reference",
    [
        {"apiVersion": "kubeflow.org/v2beta1"},
        {"apiVersion": "example.com/v1"},
        {"apiVersion": None},
        {"controller": False},
        {"kind": "Job"},
    ],
)
def test_an_object_of_another_owner_wakes_no_job(reference: dict[str, object]) -> None:
    """A config map of the MPI Operator's MPIJob (v2beta1) woke our MPIJob of the same name each time it changed."""
    assert key_of_owner(owned(**reference)) is None
