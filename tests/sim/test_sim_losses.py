"""Pods that end at once, or are deleted at once, for ever: how many of them one job makes in a minute, and what it says."""

import asyncio

import pytest
from sim_pods import is_deleting, is_running
from test_sim_refusals import HOUR_S, HOW, Refused, played

from elastic.kube.resources import PODS
from elastic_training.controller.facts.keys import JOBS

MOST_IN_THE_FIRST_MINUTE = 3 * (1 + 3 + 5)
"""Pods of three workers: the first ones, their immediate replacements, and then tries after 2, 4, 8, 16 and 32 s."""


async def end_at_once(scene: Refused, how: str) -> None:
    """End each pod at once, for ever, as a crashing program does, or a taint that the template does not tolerate."""
    while True:
        for pod in scene.workers():
            if how == "fails" and is_running(pod):
                scene.cluster.crash(pod, code=137)
            elif how == "is deleted" and pod["spec"].get("nodeName") and not is_deleting(pod):
                scene.cluster.preempt(pod)
            elif how == "vanishes":
                scene.cluster.vanish(pod)
        await asyncio.sleep(0.5)


@pytest.mark.parametrize("fault", ["fails", "is deleted", "vanishes"])
@pytest.mark.parametrize("how", HOW)
def test_pods_that_are_lost_at_once_for_ever_are_made_again_ever_more_slowly(how: str, fault: str) -> None:
    async def story(scene: Refused) -> None:
        for spec in scene.manifest["spec"].values():
            if isinstance(spec, dict) and "Worker" in spec:
                spec["Worker"]["restartPolicy"] = "ExitCode"
        scene.manifest["spec"].get("elasticPolicy", {})["maxRestarts"] = 1000
        scene.api.create(JOBS[scene.kind], scene.manifest, actor="user")
        loop = asyncio.create_task(end_at_once(scene, fault))
        await asyncio.sleep(60.0)
        assert scene.made <= 2 * MOST_IN_THE_FIRST_MINUTE, "of workers that meet by count, one that goes and one that comes are two numbers"
        before = scene.made
        await asyncio.sleep(HOUR_S / 6)
        assert scene.made <= before + 2 * 3 * 5, "64, 128, 256 and 300 s"
        has_own_pause = (how, fault) == ("whole", "fails")
        assert ("to create all pods again" if has_own_pause else "in a row were lost soon after they were created") in scene.message
        loop.cancel()
        await scene.until(lambda: scene.running >= 3, within_s=620)
        await scene.until_quiet()
        assert "It waits" not in scene.message
        assert [write.resource for write in scene.writes[-1:]] != [PODS]

    played(how, story)
