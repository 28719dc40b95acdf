"""What happens to a job whose framework cannot go on with fewer when it loses a pod."""

import asyncio
import copy
import os
import signal

import pytest
from example_jobs import LOOK_EVERY_S, NAMESPACE, laptop, read, run_to_end
from grounds import Ground

from elastic.kube.client import Kube
from elastic.kube.errors import KubeError

pytestmark = [pytest.mark.heavy, pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(400)]
WITHIN_S = 300.0


def test_a_static_pytorchjob_starts_again_in_place_when_a_worker_is_killed() -> None:
    """The others end with an error when their peer is gone; under OnFailure all start again and meet at the master once more."""
    job = read("pytorch-static")
    for spec in job["spec"]["pytorchReplicaSpecs"].values():
        spec["template"] = copy.deepcopy(spec["template"])  # the file says the same pod twice by an anchor
        spec["template"]["spec"]["containers"][0]["env"] = [{"name": "STEPS", "value": "3000"}]
    with laptop(Ground("netns")) as cluster:

        async def kill_a_worker(kube: Kube) -> None:
            log = ""
            while "step 300 " not in log:
                await asyncio.sleep(LOOK_EVERY_S)
                log = await _log_so_far(kube, "pytorch-static-master-0")
            for pid in cluster.pids(NAMESPACE, "pytorch-static-worker-1"):
                os.kill(pid, signal.SIGKILL)

        outcome = run_to_end(cluster, job, within_s=WITHIN_S, meanwhile=kill_a_worker)
    assert outcome.state == "Succeeded", outcome.story
    assert "over 3 ranks" in outcome.logs["pytorch-static-master-0"]
    assert outcome.restarts == dict.fromkeys(outcome.logs, 1), outcome.story


async def _log_so_far(kube: Kube, pod: str) -> str:
    """Nothing while the pod does not run yet."""
    try:
        chunks = [chunk async for chunk in kube.logs(pod, namespace=NAMESPACE, container="pytorch")]
    except KubeError as error:
        if error.code in (400, 404):
            return ""
        raise
    return b"".join(chunks).decode(errors="replace")
