"""Define the records that say what the workers of a job do, and what follows from it for the controller.

    news/NAME   what one agent tells about its workers: stacks, paces and failed saves; written by it alone, under its lease
    findings    what the engine makes of the news; written by one member, under the job's lease

All of it is optional. A member of release 0.4.0 ignores both keys, and tells nothing.
"""

import dataclasses
import json
import typing

from elastic_worker._engine.messages.bounds import MAX_ERROR, MAX_MEMBERS, MOST_COUNTED
from elastic_worker._engine.messages.doing import MOST_CODE, MOST_WORDS, Doing, DoingKind, Doings
from elastic_worker._engine.messages.doing import MOST_TOLD as MOST_DOINGS
from elastic_worker._engine.messages.pace import MOST_TOLD as MOST_PACES
from elastic_worker._engine.messages.pace import Pace, Paces
from elastic_worker._engine.messages.saves import MOST_FAILING, FailedSave, Saves
from elastic_worker.etcd.fields import Fields, Unusable

NEWS = "news/"
FINDINGS = "findings"
MOST_WINDOWS = 2**52
MOST_MICROSECONDS = 86400 * 10**6
LONGEST_FINDINGS = 64 * 1024
"""Characters of the findings. The engine bounds their texts and entries, so ours are always shorter."""
NO_TROUBLE = Saves()


@dataclasses.dataclass(frozen=True)
class News:
    """The news of one run of an agent about its workers. The engine's messages describe the parts.

    window: the number of the window that the paces are of, so that each window is compared once.
    """

    name: str
    incarnation: str = ""
    doings: typing.Optional[Doings] = None
    paces: typing.Optional[Paces] = None
    window: int = 0
    saves: Saves = NO_TROUBLE


@dataclasses.dataclass(frozen=True)
class Findings:
    """The findings of the engine, as JSON's types. Members only compare it; the controller reads it (elastic.etcd.records).

    generation, ended_early: the two fields of it that members use.
    """

    body: typing.Mapping[str, typing.Any]
    generation: int = 0
    ended_early: str = ""


def news_of(name: str, fields: Fields) -> News:
    """Read the news of a member."""
    doings, paces, saves = fields.inner("doings"), fields.inner("paces"), fields.inner("saves")
    return News(
        name=name,
        incarnation=fields.plain("incarnation", default=""),
        doings=doings_of(doings) if doings is not None else None,
        paces=paces_of(paces) if paces is not None else None,
        window=fields.integer("window", 0, MOST_WINDOWS) or 0,
        saves=saves_of(saves) if saves is not None else NO_TROUBLE,
    )


def findings_of(body: object) -> Findings:
    """Read the findings."""
    if not isinstance(body, dict) or len(json.dumps(body)) > LONGEST_FINDINGS:
        raise Unusable("it is no object of at most {} characters".format(LONGEST_FINDINGS))
    fields = Fields(body)
    return Findings(body, fields.generation("generation"), fields.words("ended_early"))


def doings_of(fields: Fields) -> Doings:
    """Read what the workers of a member do, from a record or from the message of an agent."""
    return Doings(fields.generation("generation"), tuple(map(_doing, fields.inners("workers")[:MOST_DOINGS])))


def paces_of(fields: Fields) -> Paces:
    """Read how long the workers of a member need for a step."""
    return Paces(
        generation=fields.generation("generation"),
        workers=tuple(map(_pace, fields.inners("workers")[:MOST_PACES])),
        throttled=fields.integer("throttled", 0, 100) or 0,
        milli_cpus=fields.integer("milli_cpus", 0, MOST_COUNTED) or 0,
    )


def saves_of(fields: Fields) -> Saves:
    """Read which workers of a member fail to save."""
    failed = tuple(map(_failed_save, fields.inners("failed")[:MOST_FAILING]))
    return Saves(failed, fields.integer("workers", 1, MAX_MEMBERS) or 1)


def _doing(fields: Fields) -> Doing:
    kind = fields.words("kind")
    return Doing(
        # A later release may know more kinds.
        kind=DoingKind(kind) if kind in [known.value for known in DoingKind] else DoingKind.UNKNOWN,
        looks=_count(fields, "looks", default=1),
        for_s=fields.seconds("for_s", 0.0),
        cpu=fields.seconds("cpu", 0.0),
        does=fields.words("does")[:MOST_WORDS],
        place=fields.words("place")[:MOST_WORDS],
        code=fields.words("code")[:MOST_CODE],
    )


def _pace(fields: Fields) -> Pace:
    times = {
        part: fields.integer(part, 0, MOST_MICROSECONDS) or 0 for part in ("compute_us", "data_us", "outside_us", "wait_us", "send_us")
    }
    return Pace(_count(fields, "steps", default=0), **times)


def _failed_save(fields: Fields) -> FailedSave:
    return FailedSave(
        local_rank=_count(fields, "local_rank", default=0),
        step=fields.step("step") or 0,
        words=fields.words("words")[:MAX_ERROR],
        last=fields.step("last"),
        failures=_count(fields, "failures", default=1),
    )


def _count(fields: Fields, name: str, *, default: int) -> int:
    found = fields.integer(name, 0, MOST_COUNTED)
    return default if found is None else found
