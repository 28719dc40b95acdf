"""Elastic jobs whose checkpoints lie on a claim, on the laptop cluster: what was learned outlives any change of their workers."""

import re
import shutil

import pytest
from example_jobs import NAMESPACE, claim_volumes, laptop, run_to_end
from grounds import Ground
from watched_jobs import Watched, endless, kill

from elastic.kube.client import Kube

pytestmark = [pytest.mark.heavy, pytest.mark.full, pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(600)]
WITHIN_S = 500.0
STARTS, SAVED = r"world {world} rank 0 starts at step (\d+)", r"saved step (\d+)"


def test_a_job_with_checkpoints_on_a_claim_goes_on_after_all_its_workers_are_gone() -> None:
    """It is suspended, and its newest checkpoint is then cut off, as by a volume that was full: the one before is taken."""
    job = endless("pytorch-checkpoints")
    with laptop(Ground("netns")) as cluster:
        folder = cluster.data_dir / "claims" / NAMESPACE / "pytorch-checkpoints" / "run-1"

        async def meanwhile(kube: Kube) -> None:
            watched = Watched(kube, job)
            await claim_volumes(kube, "pytorch-checkpoints")
            await watched.says(SAVED)
            await watched.pauses()
            before, newest = sorted(folder.glob("step-*.pt"))[-2:]
            newest.write_bytes(newest.read_bytes()[:200])
            step = int(before.stem.removeprefix("step-"))
            await watched.goes_on_until(step + 100)
            assert await watched.says(STARTS.format(world=r"\d")) == step

        outcome = run_to_end(cluster, job, within_s=WITHIN_S, meanwhile=meanwhile)
        left = len(list(folder.iterdir()))
    assert outcome.state == "Succeeded", outcome.story
    assert outcome.log_of_any("passes over step-"), outcome.story
    assert left <= 3, "two checkpoints, and the one that was cut off"


@pytest.mark.parametrize(
    ("example", "framework"),
    [("pytorch-fsdp", ""), pytest.param("deepspeed", "deepspeed", marks=pytest.mark.framework("deepspeed"))],
    ids=["fsdp", "deepspeed"],
)
def test_a_sharded_job_goes_on_from_its_checkpoint_in_worlds_of_other_sizes(example: str, framework: str) -> None:
    """A change that is planned costs no step, for all ranks save before it; a lost worker costs those since the last checkpoint."""
    if framework == "deepspeed" and shutil.which("g++") is None:
        pytest.skip("DeepSpeed compiles a part of itself, and there is no g++; scripts/setup-tests says which package brings it")
    job = endless(example)
    with laptop(Ground("netns"), framework) as cluster:

        async def meanwhile(kube: Kube) -> None:
            watched = Watched(kube, job)
            await claim_volumes(kube, example)
            await watched.says(SAVED)
            for workers in (3, 1, 2) if example == "pytorch-fsdp" else (3, 2):
                await watched.scale(workers)
                saved = await watched.says(SAVED + r" of world \d: the world changes")
                assert await watched.says(STARTS.format(world=workers)) == saved, "no step is lost"
            saved = await watched.says(SAVED)
            kill(cluster, next(pod for pod in await watched.pods() if pod != watched.first))
            step = await watched.says(STARTS.format(world=r"\d"))
            assert step >= saved
            await watched.pauses()
            await watched.goes_on_until(step + 100)

        outcome = run_to_end(cluster, job, within_s=WITHIN_S, framework=framework, meanwhile=meanwhile)
    assert outcome.state == "Succeeded", outcome.story
    log = outcome.log_of_any("rank 0 starts")
    assert float(re.search(r"step \d+ world \d loss ([\d.]+)", log)[1]) < 0.25, "an untrained model's is 0.4 or more"
    shards = re.findall(r"world (\d) rank 0 starts at step \d+ with (\d+) of 833 parameters", log)
    assert bool(shards) == (example == "pytorch-fsdp"), outcome.story
    assert all((own == "833") == (world == "1") for world, own in shards), outcome.story
    assert "user" not in outcome.elastic["restarts"], outcome.story
