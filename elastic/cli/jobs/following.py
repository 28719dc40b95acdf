"""Follows a job to its end for a command that shows it: what happens, and in silent times what the job waits for. A server that stays away
ends it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import aiohttp

from elastic.cli.jobs import found
from elastic.cli.jobs.found import Found
from elastic.client.explanation import waits_for
from elastic.client.summary import summary
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.following import Happening, JobKey, Outcome, follow

LOOK_EVERY_S = 5.0
QUIET_S = 5.0
SAY_AGAIN_S = 30.0
AWAY_S = 60.0


async def followed(kube: Kube, job: JobKey, *, tell: Callable[[Happening], None], say: Callable[[str], None] | None = None) -> Outcome:
    """`tell` gets what happens, `say` what the job waits for while nothing does."""
    logging.getLogger("elastic.kube").setLevel(logging.ERROR)  # the watch below says what broke, in words for the user
    loop = asyncio.get_running_loop()
    heard = [loop.time()]

    def hear(happening: Happening) -> None:
        heard[0] = loop.time()
        tell(happening)

    tasks = {
        asyncio.create_task(follow(kube, job, hear)),
        asyncio.create_task(_watch(kube, job, say=say or (lambda words: None), heard=lambda: heard[0])),
    }
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(kube: Kube, job: JobKey, *, say: Callable[[str], None], heard: Callable[[], float]) -> Outcome:
    """Looks after the job beside its watches: these come back to a server that was away, and wait for one that never does."""
    loop = asyncio.get_running_loop()
    reached, said, said_at = loop.time(), "", loop.time()
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        now = loop.time()
        try:
            async with asyncio.timeout(AWAY_S):
                current = Found(job.kind, await kube.get(job.resource, job.name, namespace=job.namespace))
                if current.object["metadata"]["uid"] != job.uid:
                    return Outcome.DELETED
                reached, words = loop.time(), await _waits(kube, current)
        except (KubeError, aiohttp.ClientError, OSError, TimeoutError) as error:
            if isinstance(error, KubeError) and error.code == 404:
                return Outcome.DELETED
            if isinstance(error, KubeError) and error.code in (401, 403):
                raise
            if now - reached > AWAY_S:
                raise
            words = f"the API server, which cannot be reached; gives up after {AWAY_S:.0f} s"
        if words and now - heard() > QUIET_S and (words != said or now - said_at > SAY_AGAIN_S):
            say(f"waits for {words}")
            said, said_at = words, now


async def _waits(kube: Kube, job: Found) -> str:
    return waits_for(summary(job.kind, job.object), await found.pods_of(kube, job))
