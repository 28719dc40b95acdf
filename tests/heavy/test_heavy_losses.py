"""Kill a pod of a job whose framework cannot go on with fewer: the pod starts again in place, or the whole job starts again."""

import asyncio
import contextlib
import copy
import os
import re
import signal
from collections.abc import Mapping
from typing import Any

import pytest
from example_jobs import LOOK_EVERY_S, NAMESPACE, Meanwhile, claim_volumes, laptop, log_of, read, run_to_end
from grounds import Ground

from elastic.api.kinds import KINDS
from elastic.kube.client import Kube
from elastic.local import LocalCluster

pytestmark = [pytest.mark.heavy, pytest.mark.integration, pytest.mark.timeout(600)]
WITHIN_S = 500.0


@pytest.mark.torch
def test_a_static_pytorchjob_starts_again_in_place_when_a_worker_is_killed() -> None:
    """The others end with an error when their peer is gone. Under OnFailure all start again and meet at the master once more."""
    job = changed("pytorch-static", env={"STEPS": "1000"})
    with laptop(Ground("netns")) as cluster:
        kill = killing(cluster, "pytorch-static-worker-1", once={"pytorch-static-master-0": "step 100 "}, container="pytorch")
        outcome = run_to_end(cluster, job, within_s=WITHIN_S, meanwhile=kill)
    assert outcome.state == "Succeeded", outcome.story
    assert "over 3 ranks" in outcome.logs["pytorch-static-master-0"]
    # A worker may restart more than once: if it comes back while the old master still lives, it meets that one and fails with it.
    assert all(count >= 1 for count in outcome.restarts.values()), outcome.story


def of(example: str, framework: str, restart: str, meets: str, **env: str) -> Any:
    return pytest.param(example, framework, restart, meets, env, id=framework, marks=pytest.mark.framework(framework))


@pytest.mark.parametrize(
    ("example", "framework", "restart", "meets", "env"),
    [
        # Without a restart of the group, its peers notice after 100 s, or when it is back.
        of("jax", "jax", "OnFailure", r"process \d of 3", STEPS="600"),
        # Without a restart of the group, these end with 1, which is final under ExitCode.
        of("tensorflow-multiworker", "tensorflow", "ExitCode", r"worker \d of 2", EPOCHS="20"),
        of("xgboost", "xgboost", "ExitCode", r"rank \d of 3", ROUNDS="200"),
        of("paddle", "paddle", "OnFailure", r"rank \d of 2", STEPS="600"),
        # Without a restart of the group, they wait for ever.
        of("mxnet", "mxnet", "OnFailure", r"worker \d of 2", STEPS="800"),
    ],
)
def test_a_static_job_of_scope_group_restarts_as_a_whole_when_a_worker_is_killed(
    example: str, framework: str, restart: str, meets: str, env: dict[str, str]
) -> None:
    job = changed(example, env=env, restart=restart)
    job["spec"].setdefault("runPolicy", {})["restartScope"] = "Group"
    victim, container = f"{example}-worker-1", KINDS[job["kind"]].container
    with laptop(Ground("netns"), framework) as cluster:
        kill = killing(cluster, victim, once={victim: meets, f"{example}-worker-0": meets}, container=container)
        outcome = run_to_end(cluster, job, within_s=WITHIN_S, framework=framework, meanwhile=kill)
    assert outcome.state == "Succeeded", outcome.story
    assert (outcome.elastic["generation"], outcome.elastic["restarts"]) == (1, {"user": 1}), outcome.story
    assert set(outcome.restarts.values()) == {0}, "nothing was restarted in place"
    assert re.search(r"trained \d+", outcome.log_of_any("trained")), outcome.story


@pytest.mark.framework("lightgbm")
@pytest.mark.full
def test_lightgbm_goes_on_from_its_saved_model_when_a_worker_is_killed() -> None:
    job = changed("lightgbm", env={"ROUNDS": "80", "ROUND_SECONDS": "0.2"})
    victim, master = "lightgbm-worker-1", "lightgbm-master-0"
    with laptop(Ground("netns"), "lightgbm") as cluster:
        kill = killing(cluster, victim, once={victim: r"rank 2 of 3", master: "saved after round"}, container="xgboost")

        async def meanwhile(kube: Kube) -> None:
            await claim_volumes(kube, "lightgbm")
            await kill(kube)

        outcome = run_to_end(cluster, job, within_s=WITHIN_S, framework="lightgbm", meanwhile=meanwhile)
    assert outcome.state == "Succeeded", outcome.story
    assert (outcome.elastic["generation"], outcome.elastic["restarts"]) == (1, {"user": 1}), outcome.story
    first = int(re.search(r"rank 0 of 3 starts at round (\d+)", outcome.logs[master])[1])
    trained = re.search(r"rank 0 trained (\d+) rounds: error ([\d.]+) -> ([\d.]+)", outcome.logs[master])
    assert first >= 10, outcome.story
    assert int(trained[1]) == 80 - first, outcome.story
    assert float(trained[3]) < 0.1, outcome.story
    assert "saved after round 80" in outcome.logs[master], outcome.story


def changed(example: str, *, env: Mapping[str, str], restart: str = "") -> dict[str, Any]:
    """Return the example's job with these variables, little grace, and this restart policy if it is given."""
    job = read(example)
    for spec in job["spec"][KINDS[job["kind"]].replica_key].values():
        spec["template"] = copy.deepcopy(spec["template"])  # a file may use one pod twice by an anchor
        spec["restartPolicy"] = restart or spec["restartPolicy"]
        pod = spec["template"]["spec"]
        pod["terminationGracePeriodSeconds"] = 5  # some frameworks swallow SIGTERM
        container = pod["containers"][0]
        container["env"] = [*(container.get("env") or ()), *({"name": name, "value": value} for name, value in env.items())]
    return job


def killing(cluster: LocalCluster, victim: str, *, once: Mapping[str, str], container: str) -> Meanwhile:
    """Return a function that kills all processes of a pod once the logs of these pods match their patterns."""

    async def kill(kube: Kube) -> None:
        for pod, words in once.items():
            log = await log_of(kube, pod, container)
            while not re.search(words, log):
                await asyncio.sleep(LOOK_EVERY_S)
                log = await log_of(kube, pod, container)
        for pid in cluster.pids(NAMESPACE, victim):
            with contextlib.suppress(ProcessLookupError):  # a child whose parent was killed before it
                os.kill(pid, signal.SIGKILL)

    return kill
