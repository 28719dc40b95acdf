"""TrainJobs use the runtimes of Kubeflow Trainer, as recorded, except those that are refused as a whole."""

import json
from pathlib import Path

import pytest
from train_job_builders import all_owned, train_job

from elastic.api.job import Object
from elastic_training.controller.deciding.trainjobs.lowering import lower

RUNTIMES: list[Object] = json.loads((Path(__file__).parents[3] / "trainer" / "recordings" / "runtimes.json").read_text())
BY_NAME = {runtime["metadata"]["name"]: runtime for runtime in RUNTIMES}


def plain_job() -> Object:
    """Return a TrainJob that leaves the command to its runtime."""
    job = train_job()
    del job["spec"]["trainer"]["command"]
    return job


@pytest.mark.parametrize(
    ("runtime", "wanted"),
    [
        ("torch-distributed", ["PyTorchJob fit"]),
        ("jax-distributed", ["PyTorchJob fit"]),
        ("xgboost-distributed", ["PyTorchJob fit"]),
        ("deepspeed-distributed", ["MPIJob fit"]),
        ("mlx-distributed", ["MPIJob fit"]),
        ("torch-distributed-with-cache", ["PyTorchJob fit", "PyTorchJob fit-dataset-initializer"]),
    ],
)
def test_a_runtime_of_kubeflow_trainer_is_accepted(runtime: str, wanted: list[str]) -> None:
    assert [f"{made['kind']} {made['metadata']['name']}" for made in all_owned(plain_job(), BY_NAME[runtime])] == wanted


def test_a_runtime_of_torchtune_is_refused_for_torchtune_alone() -> None:
    made, problems = lower(plain_job(), BY_NAME["torchtune-llama3.2-1b"])
    assert made == []
    (problem,) = problems
    assert "tune run, but torchtune is not supported" in problem.message


def test_every_recorded_runtime_is_tried() -> None:
    assert len(BY_NAME) == 7
