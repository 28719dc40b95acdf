"""Lives of jobs whose number of workers is the autoscaler's.

It hears of their steps, and writes /scale or has a HorizontalPodAutoscaler do so. `make sim` draws them among all others.
"""

from typing import Any

import pytest
from sim_client import CALM
from sim_jobs import scaling_of
from sim_scene import Options
from sim_storm import play

from elastic.api.kinds import WORKER

REPORTING = 4
"""A seed whose training programs report their steps."""


def growing(policy: str, *, least: int = 1, most: int = 4, **more: Any) -> Any:
    container = {"name": "pytorch", "image": "example/train:1", "command": ["torchrun", "train.py"]}
    worker = {"replicas": least, "restartPolicy": "OnFailure", "template": {"spec": {"containers": [container]}}}
    scaling = {"policy": policy, "cooldownSeconds": 10, **more}
    spec = {"pytorchReplicaSpecs": {WORKER: worker}, "runPolicy": {}}
    spec["elasticPolicy"] = {"minReplicas": least, "maxReplicas": most, "scalingPolicy": scaling}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "train", "namespace": "team"}, "spec": spec}


@pytest.mark.parametrize("seed", [159, 179])
def test_an_autoscaled_job_keeps_every_law_through_faults_and_becomes_right(seed: int) -> None:
    storm = play(seed)
    assert scaling_of(storm.manifest) is not None
    assert storm.laws.scaled


@pytest.mark.parametrize(("policy", "more"), [("throughput", {}), ("capacity", {"through": "hpa"})])
def test_a_job_that_is_left_alone_grows_to_its_maximum_and_stays_there(policy: str, more: Any) -> None:
    storm = play(REPORTING, Options(steps=0, kills=False, weather=CALM), growing(policy, **more))
    changes = [change for _, change in storm.laws.scaled]
    assert sum(changes) == 3
    assert min(changes) > 0
