"""A job is deleted and created again under its name while pods of the former job still end. Nothing of that job counts for it."""

import asyncio

from test_sim_rest import KIND, Scene, named, played

from elastic.api.names import REPLICA_TYPE
from elastic.api.owners import controller_uid
from elastic.kube.resources import PODS, SERVICES
from elastic_training.controller.facts.keys import JOBS


def test_a_job_made_again_under_its_name_takes_nothing_over_from_the_former() -> None:
    async def story() -> None:
        scene = Scene()
        scene.api.create(JOBS[KIND], named("again"), actor="user")
        await scene.until_quiet()
        former = scene.api.get(JOBS[KIND], "again")["metadata"]["uid"]
        scene.api.delete(JOBS[KIND], "again", actor="user")
        scene.api.create(JOBS[KIND], named("again"), actor="user")
        assert {controller_uid(pod["metadata"]) for pod in scene.api.all(PODS)} == {former}
        await asyncio.sleep(1.0)
        status = scene.api.get(JOBS[KIND], "again").get("status") or {}
        assert not any(count.get("active") for count in (status.get("replicaStatuses") or {}).values())
        await scene.until_quiet()
        mine = scene.api.get(JOBS[KIND], "again")["metadata"]["uid"]
        assert mine != former
        for resource in (PODS, SERVICES):
            found = [item for item in scene.api.all(resource) if REPLICA_TYPE in item["metadata"]["labels"]]
            assert [controller_uid(item["metadata"]) for item in found] == [mine] * 3
        assert scene.conditions("again")[-1] == "PyTorchJobRunning"

    played(story())
