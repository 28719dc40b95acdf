"""A node restarts under a job that must not fail: a peer notices first, and the controller may die while it waits for the reason."""

import asyncio

import pytest
from sim_pods import is_running
from test_sim_refusals import Refused, played

from elastic.api.words import ConditionType
from elastic.kube.resources import Object

SILENT_S = 120.0


def never_again(scene: Refused) -> None:
    for spec in scene.manifest["spec"].values():
        for replica in spec.values() if isinstance(spec, dict) else ():
            if isinstance(replica, dict) and "template" in replica:
                replica["restartPolicy"] = "Never"


def states(scene: Refused) -> set[str]:
    return {condition["type"] for condition in scene.job["status"]["conditions"] if condition["status"] == "True"}


def first_running(scene: Refused) -> tuple[Object, Object]:
    running = [pod for pod in scene.workers() if is_running(pod)]
    return running[0], running[-1]


async def lasts(scene: Refused, seconds: float, *, dies: bool) -> None:
    """Wait, and let the controller die in the middle if asked. The job must not fail meanwhile."""
    await asyncio.sleep(seconds / 2)
    if dies:
        scene.restart()
    await asyncio.sleep(seconds / 2)
    assert ConditionType.FAILED.value not in states(scene)


async def goes_on_uncharged(scene: Refused) -> None:
    await scene.until(lambda: scene.running >= 3, within_s=60)
    await scene.until_quiet()
    assert ConditionType.FAILED.value not in states(scene)
    assert scene.elastic["restarts"].keys() <= {"disruption", "collateral"}


@pytest.mark.parametrize("reported_after_s", [0.5, 5.0, 50.0])
@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("how", ["static", "whole"])
def test_a_peer_that_notices_first_is_replaced_although_the_controller_dies(how: str, dies: bool, reported_after_s: float) -> None:
    """The job was failed one second after its node had died, five seconds before the kubelet reported the loss."""

    async def story(scene: Refused) -> None:
        never_again(scene)
        await scene.begin()
        peer, lost = first_running(scene)
        scene.cluster.crash(peer, code=1, by_user=False)
        await lasts(scene, reported_after_s, dies=dies)
        scene.cluster.crash(lost, code=255, reason="Unknown", by_user=False)
        await goes_on_uncharged(scene)

    played(how, story)


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("how", ["static", "whole"])
def test_a_node_that_is_silent_for_two_minutes_fails_no_job(how: str, dies: bool) -> None:
    """The cluster noticed after 40 s that the node was silent. The job had been failed after 30 s, because a peer had ended with 1."""

    async def story(scene: Refused) -> None:
        never_again(scene)
        await scene.begin()
        peer, lost = first_running(scene)
        scene.cluster.cut_node(lost["spec"]["nodeName"], SILENT_S)
        scene.cluster.crash(peer, code=1, by_user=False)
        await lasts(scene, SILENT_S, dies=dies)
        if any(pod["metadata"]["uid"] == lost["metadata"]["uid"] for pod in scene.workers()):
            scene.cluster.crash(lost, code=255, reason="Unknown", by_user=False)
        await goes_on_uncharged(scene)

    played(how, story)
