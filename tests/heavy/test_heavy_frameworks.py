"""Frameworks that are slow to install or to start train for real on the laptop cluster. `make test-heavy` installs them first."""

import re

import pytest
from example_jobs import claim_volumes, laptop, read, run_to_end
from grounds import Ground

from elastic.kube.client import Kube

pytestmark = [pytest.mark.heavy, pytest.mark.integration, pytest.mark.timeout(600)]
WITHIN_S = 500.0
both_sandboxes = pytest.mark.parametrize("sandbox", ["netns", pytest.param("loopback", marks=pytest.mark.full)])


@pytest.mark.framework("paddle")
@both_sandboxes
def test_a_paddlejob_trains_over_its_workers(sandbox: str) -> None:
    with laptop(Ground(sandbox), "paddle") as cluster:
        outcome = run_to_end(cluster, read("paddle"), within_s=WITHIN_S, framework="paddle")
    assert outcome.state == "Succeeded", outcome.story
    ranks = {rank for log in outcome.logs.values() for rank in re.findall(r"^rank (\d) of 2$", log, re.MULTILINE)}
    assert ranks == {"0", "1"}, outcome.story
    trained = re.search(r"trained 200 steps on 2 ranks: loss ([\d.]+) -> ([\d.]+)", outcome.logs["paddle-worker-0"])
    assert trained, outcome.story
    assert float(trained[2]) < float(trained[1]) / 10


@pytest.mark.framework("tensorflow")
@both_sandboxes
def test_a_tfjob_of_mirrored_workers_trains_in_step(sandbox: str) -> None:
    with laptop(Ground(sandbox), "tensorflow") as cluster:
        outcome = run_to_end(cluster, read("tensorflow-multiworker"), within_s=WITHIN_S, framework="tensorflow")
    assert outcome.state == "Succeeded", outcome.story
    first = outcome.logs["tensorflow-multiworker-worker-0"]
    assert "worker 0 of 2" in first
    trained = re.search(r"trained 10 epochs: loss ([\d.]+) -> ([\d.]+)", first)
    assert trained, outcome.story
    assert float(trained[2]) < float(trained[1]) * 0.8


@pytest.mark.framework("tensorflow")
@both_sandboxes
def test_a_tfjob_with_a_parameter_server_keeps_its_variables_there(sandbox: str) -> None:
    with laptop(Ground(sandbox), "tensorflow") as cluster:
        outcome = run_to_end(cluster, read("tensorflow-ps"), within_s=WITHIN_S, framework="tensorflow")
    assert outcome.state == "Succeeded", outcome.story
    chief = outcome.logs["tensorflow-ps-chief-0"]
    assert "variables on /job:ps/replica:0/task:0" in chief, outcome.story
    slope, offset = (float(word) for word in re.search(r"slope ([-\d.]+) offset ([-\d.]+)", chief).groups())
    assert (slope, offset) == (pytest.approx(3.0, abs=0.2), pytest.approx(-1.0, abs=0.2))


@pytest.mark.framework("tensorflow")
@both_sandboxes
def test_a_tfjob_measures_its_checkpoints_in_an_evaluator(sandbox: str) -> None:
    with laptop(Ground(sandbox), "tensorflow") as cluster:

        async def meanwhile(kube: Kube) -> None:
            await claim_volumes(kube, "tensorflow-evaluator")

        outcome = run_to_end(cluster, read("tensorflow-evaluator"), within_s=WITHIN_S, framework="tensorflow", meanwhile=meanwhile)
    assert outcome.state == "Succeeded", outcome.story
    assert "chief 0 of 2 that train" in outcome.logs["tensorflow-evaluator-chief-0"], outcome.story
    measured = re.findall(r"epoch (\d+): accuracy ([\d.]+)", outcome.log_of_any("on new points"))
    assert measured, outcome.story
    assert measured[-1][0] == "30"
    assert float(measured[-1][1]) > 0.8


@pytest.mark.framework("mxnet")
def test_an_mxjob_trains_through_its_server() -> None:
    """Only in sandbox netns: MXNet looks for a network interface that is not loopback."""
    with laptop(Ground("netns"), "mxnet") as cluster:
        outcome = run_to_end(cluster, read("mxnet"), within_s=WITHIN_S, framework="mxnet")
    assert outcome.state == "Succeeded", outcome.story
    trained = re.search(r"trained 150 steps: loss ([\d.]+) -> ([\d.]+)", outcome.log_of_any("worker 0 of 2"))
    assert trained, outcome.story
    assert float(trained[2]) < 0.01
