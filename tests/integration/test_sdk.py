"""The unmodified package kubeflow-training, in an environment of its own, creates, follows and deletes jobs of each kind it knows."""

import json
import subprocess
from pathlib import Path

import pytest
from example_jobs import environment, laptop
from grounds import Ground

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(600)]
CLIENT = Path(__file__).with_name("sdk_client.py")
WITHIN_S = 500
LEADERS = {
    "PyTorchJob": ("master-0", "sum of ranks"),
    "TFJob": ("worker-0", "cluster of ['worker']"),
    "XGBoostJob": ("master-0", "I am sdk-xgboostjob-master-0"),
    "PaddleJob": ("worker-0", "I am sdk-paddlejob-worker-0"),
    "JAXJob": ("worker-0", "I am sdk-jaxjob-worker-0"),
    "MPIJob": ("launcher", "I am sdk-mpijob-launcher"),
}


def test_the_training_client_leads_a_job_of_each_kind_from_creation_to_deletion(ground: Ground) -> None:
    python = environment("kubeflow-training") / "bin" / "python"
    with laptop(ground) as cluster:
        done = subprocess.run([python, CLIENT, cluster.kubeconfig], capture_output=True, text=True, timeout=WITHIN_S)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    seen = {answer["kind"]: answer for answer in map(json.loads, done.stdout.splitlines())}
    assert list(seen) == list(LEADERS)
    for kind, (suffix, words) in LEADERS.items():
        answer, name = seen[kind], f"sdk-{kind.lower()}"
        assert answer["succeeded"] is True
        assert answer["conditions"][-1] == "Succeeded"
        assert answer["conditions"][0] == "Created"
        leader = f"{name}-{suffix}"
        assert leader in answer["pods"]
        assert words in answer["logs"][leader]
        assert f"{kind.lower()}/{name}" in answer["events"]
        assert (answer["listed"], answer["left"]) == ([name], [])
