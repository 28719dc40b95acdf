"""Wait for the job of a TrainJob that has none yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from elastic.api.kinds import OWNED, as_owned
from elastic.api.owners import is_owned_by
from elastic.client.bare_train_jobs import REFUSED, UNSERVED, state_of
from elastic.client.verbs import Found
from elastic.kube.client import Kube
from elastic.kube.following import Outcome, resource_of
from elastic.kube.resources import TRAIN_JOBS

LOOK_EVERY_S = 1.0
ENDS = {"Succeeded": Outcome.SUCCEEDED, "Failed": Outcome.FAILED}
RUNNING = "Running"


async def until_begun(kube: Kube, job: Found, *, say: Callable[[str], None], running_is_enough: bool = False) -> Found | Outcome | None:
    """Return the job once there is one, or how the TrainJob ended without. The caller's time-out bounds it.

    running_is_enough: return None if another controller runs it.
    """
    key, said = job.key, ""
    while True:
        train_job = await kube.find(TRAIN_JOBS, key.name, namespace=key.namespace)
        if train_job is None or train_job["metadata"]["uid"] != key.uid:
            return Outcome.DELETED
        state, words = state_of(train_job)
        if (outcome := ENDS.get(state)) is not None:
            return outcome
        if running_is_enough and state == RUNNING:
            return None
        for kind in OWNED:
            owned = await kube.find(resource_of(kind), key.name, namespace=key.namespace)
            if owned is not None and is_owned_by(owned["metadata"], key.uid):
                return Found(as_owned(kind, owned["metadata"]), owned)
        words = f"{state}: {words}" if state == REFUSED else "" if state == RUNNING else f"waits for {UNSERVED}"
        if words and words != said:
            say(words)
            said = words
        await asyncio.sleep(LOOK_EVERY_S)
