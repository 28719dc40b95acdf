"""The examples whose frameworks are quick to install train for real on the laptop cluster, in each sandbox."""

import re
from collections.abc import Iterator

import pytest
from example_jobs import documents, laptop, read, run_to_end
from grounds import Ground

from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400), pytest.mark.sandboxes("netns", "loopback")]
WITHIN_S = 300.0


@pytest.fixture(scope="module")
def cluster(ground: Ground) -> Iterator[LocalCluster]:
    """Start one cluster for all examples of a sandbox, because they do not disturb each other."""
    with laptop(ground, "xgboost", "jax") as running:
        yield running


@pytest.mark.torch
def test_a_static_pytorchjob_trains_over_master_and_workers(cluster: LocalCluster) -> None:
    outcome = run_to_end(cluster, read("pytorch-static"), within_s=WITHIN_S)
    assert outcome.state == "Succeeded", outcome.story
    assert sorted(outcome.logs) == ["pytorch-static-master-0", "pytorch-static-worker-0", "pytorch-static-worker-1"]
    for log in outcome.logs.values():
        assert float(re.search(r"accuracy ([\d.]+) over 3 ranks", log)[1]) > 0.9, outcome.story


def test_an_xgboostjob_boosts_on_the_rows_of_all_replicas(cluster: LocalCluster) -> None:
    outcome = run_to_end(cluster, read("xgboost"), within_s=WITHIN_S, framework="xgboost")
    assert outcome.state == "Succeeded", outcome.story
    trained = re.search(r"trained 20 rounds on 6000 rows: error ([\d.]+) -> ([\d.]+)", outcome.logs["xgboost-master-0"])
    assert trained, outcome.story
    assert float(trained[1]) > 0.2 > float(trained[2])
    ranks = {name: re.search(r"rank (\d) of 3", log)[1] for name, log in outcome.logs.items() if "rank" in log}
    assert ranks.items() >= {("xgboost-master-0", "0")}


def test_a_jaxjob_trains_on_one_array_spread_over_its_workers(cluster: LocalCluster) -> None:
    outcome = run_to_end(cluster, read("jax"), within_s=WITHIN_S, framework="jax")
    assert outcome.state == "Succeeded", outcome.story
    for index in range(3):
        log = outcome.logs[f"jax-worker-{index}"]
        assert f"process {index} of 3" in log
        trained = re.search(r"trained 200 steps on 3 devices: loss ([\d.]+) -> ([\d.]+)", log)
        assert trained, outcome.story
        assert float(trained[2]) < float(trained[1]) / 10


@pytest.mark.parametrize(
    ("framework", "words"),
    [
        ("jax", r"(?s)process 0 of 2\n.*trained 200 steps on 2 devices: loss ([\d.]+) -> ([\d.]+)"),
        ("xgboost", r"(?s)rank 0 of 2\n.*trained 20 rounds on 4000 rows: error ([\d.]+) -> ([\d.]+)"),
    ],
)
def test_nodes_of_a_train_job_find_each_other(cluster: LocalCluster, framework: str, words: str) -> None:
    (job,) = documents(f"trainjob-{framework}")
    outcome = run_to_end(cluster, job, within_s=WITHIN_S, framework=framework)
    assert outcome.state == "Complete", outcome.story
    trained = re.search(words, outcome.logs[f"trainjob-{framework}-node-0-0"])
    assert trained, outcome.story
    assert float(trained[2]) < float(trained[1]) * 0.75
