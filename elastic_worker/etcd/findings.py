"""Say for the controller what the engine has found about the workers of a job: a standstill, stragglers, failing saves, early ends. Pure.

All members find the same, at slightly different times. One of them writes it, so that two members never undo each other's record.
"""

import dataclasses
import json
import typing

from elastic_worker._engine import failing_saves, hang, stragglers
from elastic_worker._engine.doing_words import sentence
from elastic_worker._engine.messages.doing import STILL_LOOKS, HangState
from elastic_worker._engine.state.job import JobState
from elastic_worker.etcd.group import Group, Standing
from elastic_worker.etcd.news_records import Findings

ORDER = ((Standing.WORKING,), (Standing.FAILED, Standing.BACK), (Standing.FINISHED,))
VARYING = ("percent", "among", "throttled", "milli_cpus")
"""Figures of a straggler, which differ from member to member as all fractions do."""

Body = typing.Mapping[str, typing.Any]


def is_writer(group: Group, name: str) -> bool:
    """Return whether this member writes the findings: the first by rank that can, and one at work if there is any.

    Each member whose lease holds can act, so nobody waits for it. A member of release 0.4.0 has no part in changes in process.
    """
    for standings in ORDER:
        for candidate in group.those(*standings):
            member = group.members.get(candidate)
            if member is not None and member.in_process is not None:
                return candidate == name
    return False


def found(group: Group, job: JobState) -> typing.Optional[Findings]:
    """Return the findings to write; None if the record says the same."""
    if group.world is None:
        return None
    known = group.records.findings or Findings({})
    body = {
        "generation": group.world.generation,
        "ended_early": job.accounting.ended_early or known.ended_early,
        "failing_saves": plain(failing_saves.told(job)),
        "stragglers": plain(stragglers.told(job)),
        **_hang(job, known),
    }  # type: typing.Dict[str, typing.Any]
    if body["stragglers"] is None:
        body["stragglers"] = known.body.get("stragglers")
    if signature(body) == signature(known.body):
        return None
    return Findings(body, group.world.generation, body["ended_early"])


def signature(body: Body) -> Body:
    """Return the findings without the times and figures that differ from member to member, and without empty ones."""
    told = {name: _steady(value) for name, value in body.items() if value and name not in ("generation", "step")}
    if "hang" in told:
        told["generation"] = body.get("generation")
    return told


def in_words(job: JobState) -> typing.List[str]:
    """Return the findings in words, for the log of the member that writes them."""
    watched = job.hang_watch.found
    words = [failing_saves.sentence(one) for one in failing_saves.told(job)]
    words += [sentence(watched)] if watched is not None and watched.state is HangState.SUSPECTED else []
    slow = ["rank {} ({}) is slower than the others: {}".format(one.rank, one.member, one.kind) for one in stragglers.told(job) or ()]
    return words + slow + ([job.accounting.ended_early] if job.accounting.ended_early else [])


def _hang(job: JobState, known: Findings) -> Body:
    """Return the standstill, and the step that it began after.

    A member that has watched it for less time than the one that found it keeps the known words.
    """
    world, step, watched_s = job.membership.world, job.progress.step_in_world, hang.quiet_s(job)
    of_known = known.body.get("hang")
    is_same = world is not None and known.generation == world.generation and known.body.get("step") == step
    if isinstance(of_known, dict) and is_same and watched_s is not None:
        since_s = of_known.get("since_s")
        if isinstance(since_s, (int, float)) and watched_s < since_s:
            return {"hang": of_known, "step": step}
    return {"hang": plain(job.hang_watch.found), "step": step}


def plain(value: object) -> typing.Any:
    """Return a value of the engine, or several, as JSON's types."""
    if value is None:
        return None
    made = [dataclasses.asdict(one) for one in value] if isinstance(value, tuple) else dataclasses.asdict(value)  # type: ignore[call-overload]
    return json.loads(json.dumps(made))


def _steady(value: typing.Any) -> typing.Any:
    if isinstance(value, dict):
        kept = {name: one for name, one in value.items() if not isinstance(one, float) and name not in VARYING}
        return {name: one >= STILL_LOOKS if name == "looks" and isinstance(one, int) else _steady(one) for name, one in kept.items()}
    return [_steady(one) for one in value] if isinstance(value, list) else value
