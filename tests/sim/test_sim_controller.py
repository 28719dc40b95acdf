"""Seeded runs of plan and apply through every fault we know. A failure names its seed; SEEDS=1000 runs more of them."""

import os
from datetime import timedelta

import pytest
from simulation import Faults, Simulation

from controller.actions import Tell
from elastic.api.kinds import KINDS

SEEDS = int(os.environ.get("SEEDS", "40"))
STEPS = 40
LEAST, MOST = 1, 5


def manifest(kind: str, *, elastic: bool, workers: int = 3) -> dict:
    container = {"name": KINDS[kind].container, "image": "example/train:1", "command": ["torchrun", "train.py"]}
    replica = {"replicas": workers, "restartPolicy": "OnFailure", "template": {"spec": {"containers": [container]}}}
    types = {"Worker": replica} | {type: {**replica, "replicas": 1} for type in KINDS[kind].required}
    spec = {KINDS[kind].replica_key: types, "runPolicy": {}}
    if elastic:
        spec["elasticPolicy"] = {"minReplicas": LEAST, "maxReplicas": MOST, "maxRestarts": 1000, "scaleInGraceSeconds": 20}
    metadata = {"name": "train", "namespace": "team", "uid": "job-uid"}
    return {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": metadata, "spec": spec}


def play(sim: Simulation, *, old_views: bool = False, may_resize: bool = True) -> int:
    """A random life of the job; returns how many workers it wants at the end."""
    workers, is_suspended = 3, False
    for _ in range(STEPS):
        drawn = sim.draw.random()
        if drawn < 0.10 and may_resize:
            workers = sim.draw.randint(LEAST, MOST)
            sim.scale(workers)
        elif drawn < 0.15:
            is_suspended = not is_suspended
            sim.suspend(is_suspended)
        elif drawn < 0.25:
            sim.evict()
        elif drawn < 0.30 and sim.rendezvous is not None:
            sim.rendezvous.is_deaf = not sim.rendezvous.is_deaf
        elif drawn < 0.60:
            sim.kubelet(failures=True)
        elif old_views and sim.views and drawn < 0.75:
            sim.round(view=sim.draw.choice(sim.views))
        else:
            sim.round()
        sim.remember_view()
        sim.kube.now += sim.draw.choice(TICKS)
        check(sim)
    if is_suspended:
        sim.suspend(False)
    return workers


TICKS = [timedelta(seconds=s) for s in (0, 1, 5, 30)]


def check(sim: Simulation) -> None:
    """What must hold at every moment."""
    status = sim.job.get("status", {})
    charged = (status.get("elastic") or {}).get("restarts", {}).get("user", 0)
    assert charged <= sim.user_failures, f"{charged} charged, {sim.user_failures} happened"
    names = [p["metadata"]["name"] for p in sim.pods()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("kind", ["PyTorchJob", "TFJob", "MPIJob", "XGBoostJob", "PaddleJob", "JAXJob", "MXJob"])
def test_a_static_job_is_right_again_after_any_faults(kind: str, seed: int) -> None:
    sim = Simulation(manifest(kind, elastic=False), seed=seed)
    workers = play(sim)
    sim.calm()
    assert sim.state() == "Running", sim.history
    assert len(sim.live()) == workers + len(KINDS[kind].required), sim.history


@pytest.mark.parametrize("seed", range(SEEDS))
def test_an_elastic_job_is_right_again_after_any_faults(seed: int) -> None:
    sim = Simulation(manifest("PyTorchJob", elastic=True), seed=seed, ours=True)
    workers = play(sim)
    sim.calm()
    assert sim.state() == "Running", sim.history
    assert len(sim.live()) == workers, sim.history
    assert sim.rendezvous is not None
    assert isinstance(sim.rendezvous.told, Tell)
    assert sorted(sim.rendezvous.told.members) == sorted(sim.live()), sim.history
    assert sim.rendezvous.told.leaving == ()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_two_controllers_and_old_views_do_no_lasting_harm(seed: int) -> None:
    sim = Simulation(manifest("PyTorchJob", elastic=True), seed=seed, ours=True)
    workers = play(sim, old_views=True)
    sim.calm()
    assert sim.state() == "Running", sim.history
    assert len(sim.live()) == workers, sim.history


@pytest.mark.parametrize("seed", range(SEEDS))
def test_without_faults_a_running_worker_is_never_deleted_untold(seed: int) -> None:
    sim = Simulation(manifest("PyTorchJob", elastic=True), seed=seed, ours=True, faults=Faults(0, 0, 0))
    assert sim.rendezvous is not None
    running: set[str] = set()
    for _ in range(STEPS):
        if sim.draw.random() < 0.2:
            sim.scale(sim.draw.randint(LEAST, MOST))
        before = {p["metadata"]["name"] for p in sim.pods() if p["status"]["phase"] == "Running"}
        sim.round()
        deleted = {p["metadata"]["name"] for p in sim.pods() if "deletionTimestamp" in p["metadata"]} & before - running
        assert deleted <= sim.rendezvous.seen_leaving, sim.history
        running |= deleted
        sim.kubelet(failures=False)
        running -= {name for name in running if name not in {p["metadata"]["name"] for p in sim.pods()}}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_job_that_is_over_stays_over(seed: int) -> None:
    sim = Simulation(manifest("PyTorchJob", elastic=False), seed=seed)
    sim.job["spec"]["runPolicy"]["backoffLimit"] = 3
    was_over = False
    for _ in range(STEPS):
        sim.kubelet(failures=True)
        sim.round()
        was_over = was_over or sim.is_over()
        assert sim.is_over() == was_over, sim.history
    if was_over:
        sim.calm()
        assert sim.state() == "Failed"
