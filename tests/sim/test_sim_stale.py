"""Check that a c10d group is replaced as a whole after its store is lost.

No pod of the next group comes while a former pod is not yet being deleted.
"""

import asyncio
from typing import Any

from sim_api import Write
from sim_pods import is_deleting
from test_sim_refusals import Refused, played

from elastic.api.job import Object
from elastic.kube.errors import KubeError
from elastic.kube.resources import PODS, Resource


def test_a_pod_that_cannot_be_deleted_after_its_store_was_lost_keeps_its_successor_waiting() -> None:
    """A deletion of a former group's pod got the answer 504, but the next group was created in full. Four pods did the work of three."""

    async def story(scene: Refused) -> None:
        await scene.begin()
        former, counts = {pod["metadata"]["uid"] for pod in scene.workers()}, []
        delete, is_refused = scene.api.delete, True

        def refusing(resource: Resource, name: str, **how: Any) -> Object:
            if is_refused and resource == PODS and name == "train-worker-1":
                raise KubeError(code=504, reason="Timeout", message="not now")
            return delete(resource, name, **how)

        def count(write: Write) -> None:
            if write.resource == PODS:
                counts.append(sum(not is_deleting(pod) for pod in scene.workers()))

        scene.api.observers.append(count)
        scene.api.delete = refusing  # type: ignore[method-assign]
        scene.cluster.vanish(next(pod for pod in scene.cluster.pods() if pod["metadata"]["name"] == "train-rdzv"))
        await asyncio.sleep(60.0)
        assert max(counts) == 3, counts
        assert sum(pod["metadata"]["uid"] not in former for pod in scene.workers()) == 2, "all but the one that has no place"
        is_refused = False
        await scene.until(lambda: {pod["metadata"]["uid"] for pod in scene.workers()}.isdisjoint(former), within_s=120)
        await scene.until(lambda: scene.running == 3, within_s=60)
        assert max(counts) == 3, counts
        assert scene.elastic.get("restarts", {}) == {}

    played("c10d", story)
