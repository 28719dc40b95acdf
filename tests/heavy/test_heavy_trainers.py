"""The Trainers of Hugging Face and Lightning in elastic jobs on the laptop cluster, with the real packages."""

import re

import pytest
from example_jobs import NAMESPACE, claim_volumes, laptop, log_of, run_to_end
from grounds import Ground
from watched_jobs import Watched, endless, kill, set_env

from elastic.kube.client import Kube

pytestmark = [pytest.mark.heavy, pytest.mark.full, pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(600)]
WITHIN_S = 500.0
NEVER = "100000000"
FURTHER = 150
"""Number of steps that no job does while it is being suspended: the examples sleep in each step."""


@pytest.mark.parametrize(
    ("example", "starts", "distance"),
    [
        pytest.param("huggingface", "checkpoint-", range(10), marks=pytest.mark.framework("huggingface")),
        pytest.param("lightning", "step ", range(1, 2), marks=pytest.mark.framework("lightning")),
    ],
    ids=["huggingface", "lightning"],
)
def test_a_trainer_loses_no_step_in_planned_changes_and_no_checkpoint_with_a_worker(example: str, starts: str, distance: range) -> None:
    """The Trainer itself never saves, so each checkpoint is our callback's. Lightning's script does not know us.

    Lightning printed each step before it was done, Hugging Face's Trainer each tenth.
    """
    job = endless(example)
    set_env(job, SAVE_EVERY=NEVER, STEP_SECONDS="0.05")
    begins = "world {world} rank 0 goes on from " + starts + r"(\d+)"
    with laptop(Ground("netns"), example) as cluster:

        async def meanwhile(kube: Kube) -> None:
            watched = Watched(kube, job)
            await claim_volumes(kube, example)
            saved, workers = 0, 2
            for wanted in (3, 1, 2):
                assert await watched.says(rf"step (\d+) world {workers} ") >= saved, "it trains"
                await watched.scale(wanted)
                saved = await watched.says(begins.format(world=wanted))
                steps = await watched.said(rf"step (\d+) world {workers} ")
                assert saved > 0
                assert not steps or saved - max(steps) in distance, "no step is lost"
                workers = wanted
            await watched.says(rf"step (\d+) world {workers} ")
            kill(cluster, next(pod for pod in await watched.pods() if pod != watched.first))
            assert await watched.says(begins.format(world=r"\d")) == saved
            last = await watched.says(r"step (\d+) world \d ")  # of the new world
            await watched.pauses()
            set_env(job, STEP_SECONDS="0")
            await watched.goes_on_until(last + FURTHER)
            assert await watched.says(begins.format(world=r"\d")) >= last

        outcome = run_to_end(cluster, job, within_s=WITHIN_S, framework=example, meanwhile=meanwhile)
    assert outcome.state == "Succeeded", outcome.story
    assert outcome.log_of_any("done at step "), outcome.story
    assert "user" not in outcome.elastic["restarts"], outcome.story
    assert outcome.elastic["lastRescale"].get("stepAfter"), "the callback reports steps"


@pytest.mark.framework("huggingface")
def test_hugging_faces_trainer_trains_on_in_process_when_its_workers_change() -> None:
    """Worker 0 stays through all changes, and its process lives on. It leaves out no step, and makes none twice."""
    job = endless("huggingface-in-process")
    set_env(job, SAVE_EVERY=NEVER)
    stays = "huggingface-in-process-worker-0"
    with laptop(Ground("netns"), "huggingface") as cluster:

        async def meanwhile(kube: Kube) -> None:
            watched = Watched(kube, job)
            await claim_volumes(kube, "huggingface-in-process")
            await watched.says(r"step (\d+) world 2 ")
            processes = set(cluster.pids(NAMESPACE, stays))
            for wanted in (3, 1, 2):
                await watched.scale(wanted)
                await watched.says(rf"step (\d+) world {wanted} ")
            kill(cluster, next(pod for pod in await watched.pods() if pod != stays))
            await watched.says(r"step (\d+) world 1 ")
            last = await watched.says(r"step (\d+) world 2 ")
            assert watched.first == stays
            assert processes <= set(cluster.pids(NAMESPACE, stays)), "no process of it was restarted"
            steps = [int(step) for step in re.findall(r"^step (\d+) ", await log_of(kube, stays, "pytorch"), re.MULTILINE)]
            assert steps == list(range(steps[0], steps[0] + len(steps))), "each step counts once"
            await watched.pauses()
            set_env(job, STEP_SECONDS="0")
            await watched.goes_on_until(last + FURTHER)
            assert await watched.says(r"step (\d+) world \d ") > last, "the notice made it save"

        outcome = run_to_end(cluster, job, within_s=WITHIN_S, framework="huggingface", meanwhile=meanwhile)
    assert outcome.state == "Succeeded", outcome.story
    assert outcome.log_of_any("done at step "), outcome.story
    assert outcome.elastic["restarts"] == {"disruption": 1}, outcome.story
    assert "Traceback" not in outcome.story, outcome.story
