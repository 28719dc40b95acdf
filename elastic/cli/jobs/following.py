"""Follow a job to its end for a command that shows it: tell what happens, and what the job waits for if nothing happens for long.

If the server is away for too long, this ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import aiohttp

from elastic.cli.jobs.milestone import Wait
from elastic.cli.silence import Silence
from elastic.client import verbs
from elastic.client.explanation import has_told_no_step, unreported, waits_for
from elastic.client.summary import summary
from elastic.client.verbs import Found
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.following import FollowedJob, Happening, Outcome, follow

LOOK_EVERY_S = 1.0
AWAY_S = 60.0


async def nothing(job: Found) -> Wait:
    return Wait()


async def followed(
    kube: Kube,
    job: FollowedJob,
    *,
    tell: Callable[[Happening], bool],
    say: Callable[[str], None] = lambda words: None,
    ahead: Callable[[Found], Awaitable[Wait]] = nothing,
    tail: int | None = None,
) -> Outcome:
    """Follow a job to its end and return how it ended.

    `tell` gets each happening, and returns whether it has shown it. If nothing was shown for long, `say` gets the words for what the job
    waits for. If nothing holds up the job, these words come from `ahead`.
    """
    logging.getLogger("elastic.kube").setLevel(logging.ERROR)  # the watch below says what broke, in words for the user
    loop = asyncio.get_running_loop()
    silence = Silence(loop.time())

    def hear(happening: Happening) -> None:
        if tell(happening):
            silence.hear(loop.time())

    tasks = {
        asyncio.create_task(follow(kube, job, hear, tail=tail)),
        asyncio.create_task(_watch(kube, job, say=say, silence=silence, ahead=ahead)),
    }
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(
    kube: Kube, job: FollowedJob, *, say: Callable[[str], None], silence: Silence, ahead: Callable[[Found], Awaitable[Wait]]
) -> Outcome:
    """Ask for the job again and again. Its watches reconnect to a server that was away, but would wait for ever if it never comes back."""
    loop = asyncio.get_running_loop()
    reached, is_warned = loop.time(), False
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        now = loop.time()
        try:
            async with asyncio.timeout(AWAY_S):
                current = Found(job.kind, await kube.get(job.resource, job.name, namespace=job.namespace))
                if current.object["metadata"]["uid"] != job.uid:
                    return Outcome.DELETED
                reached = loop.time()
                if not is_warned and (words := await _unreported(kube, current)) and not (await ahead(current)).has_steps:
                    say(words)
                    is_warned = True
                if not silence.is_quiet(now):
                    continue
                wait = await _waits(kube, current) or await ahead(current)
        except (KubeError, aiohttp.ClientError, OSError, TimeoutError) as error:
            if isinstance(error, KubeError) and error.code == 404:
                return Outcome.DELETED
            if isinstance(error, KubeError) and error.code in (401, 403):
                raise
            if now - reached > AWAY_S:
                raise
            wait = Wait(f"waits for the API server, which cannot be reached; gives up after {AWAY_S:.0f} s")
        if silence.is_to_say(wait.words, loop.time()):
            say(str(wait))


async def _unreported(kube: Kube, job: Found) -> str:
    told = summary(job.kind, job.object)
    return unreported(told, await verbs.pods_of(kube, job)) if has_told_no_step(told) else ""


async def _waits(kube: Kube, job: Found) -> Wait | None:
    told, pods = summary(job.kind, job.object), await verbs.pods_of(kube, job)
    words = waits_for(told, pods)
    return Wait(f"waits for {words}", f"waits for {waits_for(told, pods, datetime.now(UTC))}") if words else None
