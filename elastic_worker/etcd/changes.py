"""Read from the records how far a change in process has come, and write the stages that the engine decides. Pure.

An abort is not written. Each member begins it for itself when it sees that the world is broken, and keeps to it until the next world.
Its round is the recorded one plus 1, and that of a planned change the recorded one plus 2. So nobody takes an answer to an abort for one
to a plan.
"""

import dataclasses
import math
import typing

from elastic_worker._engine.in_place import FORM_S, FORM_S_A_WORKER, PLANNED_S
from elastic_worker._engine.messages.in_place import Stage
from elastic_worker._engine.state.in_place import InPlace
from elastic_worker._engine.state.job import JobState
from elastic_worker._engine.state.membership import Member as Placed
from elastic_worker._engine.state.membership import MemberPhase, Round
from elastic_worker._engine.values import replace
from elastic_worker._engine.words import Cause
from elastic_worker.etcd.change_records import FORM, FORMED, HOLD, HOLDS, PLAIN, READY, RESTART, RUN, STOP, UNFORMED, Change, Part
from elastic_worker.etcd.group import Group, Standing
from elastic_worker.etcd.records import Member

MOST_MEMBERS = 64
"""Members of a world that changes in process. In a larger one, the addresses would be too much for the etcd."""
STAGES = {HOLD: Stage.HOLD, STOP: Stage.STOP, FORM: Stage.FORM, RUN: Stage.RUN}
WORDS = {stage: word for word, stage in STAGES.items()}
NO_CHANGE, NO_PART = Change(), Part()


def recorded(group: Group) -> Change:
    """Return the change that the world's record has."""
    return group.world.change or NO_CHANGE if group.world is not None else NO_CHANGE


def is_in_process(group: Group) -> bool:
    """Return whether the record asks the members to change in process, so that no process is asked to end."""
    return recorded(group).stage in (HOLD, STOP)


def obstacle(group: Group) -> str:
    """Return why an etcd cannot take the next change in process; empty if it can."""
    names = [*group.ranks, *(member.name for member in group.newcomers())]
    old = next((name for name in names if name in group.members and group.members[name].in_process is None), None)
    if old is not None:
        return "{} cannot change worlds in process".format(old)
    is_large = min(len(names), group.rules.max) > MOST_MEMBERS
    return "more than {} members meet in an etcd".format(MOST_MEMBERS) if is_large else ""


def state_of(group: Group, before: typing.Optional[JobState], *, until: float) -> InPlace:
    """Return the change in process, as the records and this member's own view of a broken world have it.

    until: when a world that is being formed counts as failed.
    """
    known = _of_record(group, until=until)
    if before is not None and known.stage is None and not known.why_plain:
        known = replace(known, able_since=before.in_place.able_since)  # workers wait so long at their first boundary for the others
    local = deviation(group, before)
    if before is None or local is None:
        return known
    was = before.in_place
    if local is Stage.PLAIN:
        return replace(known, stage=None, until=math.inf, step=None, donors=(), holds={}, formed=frozenset(), trouble="")
    aborted = replace(known, stage=Stage.ABORT, round=known.round + 1, attempts=was.attempts, blip_step=was.blip_step)
    return replace(aborted, until=math.inf, step=None, donors=(), holds={}, formed=frozenset(), trouble="")


def deviation(group: Group, before: typing.Optional[JobState]) -> typing.Optional[Stage]:
    """Return the stage that this member is in although the record does not say so: ABORT, PLAIN for a restart, or None."""
    if before is None or recorded(group).stage not in STAGES:
        return None
    if before.in_place.stage is Stage.ABORT:
        return Stage.ABORT  # its workers have left the world, even if the reason has gone since
    round = before.membership.round
    is_restart = before.in_place.stage is None and round is not None and round.draining and not round.in_place
    return Stage.PLAIN if is_restart and is_broken(group) else None


def is_broken(group: Group) -> bool:
    """Return whether a member of the world is gone, has failed or is at the barrier, or its communication broke."""
    return bool(group.those(Standing.GONE, Standing.BACK, Standing.FAILED) or alarms(group) or _trouble(group))


def alarms(group: Group) -> typing.List[str]:
    """Return the members whose communication broke in this world."""
    change = recorded(group)
    if change.stage not in (HOLD, STOP, RUN):
        return []
    return [name for name in group.ranks if (part := _part(group, name)).alarm == change.world_round and part.alarm]


def deserters(group: Group) -> typing.List[str]:
    """Return the members that have answered an abort, which is how other members learn of it at the latest."""
    change = recorded(group)
    if change.stage not in STAGES:
        return []
    found = []
    for name in group.those(Standing.WORKING):
        answer = _part(group, name).answer
        beyond = answer.round - change.world_round
        if answer.kind == READY and beyond > 0 and beyond % 2:
            found.append(name)
    return found


def form_s(group: Group) -> float:
    """Return the seconds for all members to form the world."""
    return FORM_S + FORM_S_A_WORKER * sum(_part(group, name).workers for name in group.ranks)


def received(group: Group) -> int:
    """Return how often the members have said that they receive the state."""
    return sum(_part(group, name).received for name in group.ranks)


def round_of(group: Group, before: typing.Optional[JobState], *, now: float) -> typing.Optional[Round]:
    """Return the round of a change in process; None if the next world, if any, is formed by a restart."""
    change, known = recorded(group), before.membership.round if before is not None else None
    local = deviation(group, before)
    if local is Stage.ABORT and before is not None:
        if known is not None and before.in_place.round == change.round + 1:
            return known
        known = known or Round("the world broke", Cause.DISRUPTION.value, now, True, now, now, in_place=True)
        return replace(known, until=now + group.rules.grace_s + group.rules.drain_s)
    if local is not None or not is_in_process(group):
        return None
    assert group.world is not None
    asked = group.world.round
    if asked is None:
        return None
    if known is not None and known.draining and known.in_place and known.reason == asked.reason:
        return known
    return Round(asked.reason, asked.cause, now, True, now + PLANNED_S, now, in_place=True)


def abort_round(group: Group, *, now: float) -> Round:
    """Return the round of a change that other members began as an abort."""
    words = "{} left the world".format(deserters(group)[0])
    return Round(words, Cause.DISRUPTION.value, now, True, now + group.rules.grace_s + group.rules.drain_s, now)


def placed(member: Placed, record: Member, group: Group, known: InPlace) -> Placed:
    """Return the member with its part in the change. Without one it is at the place that its record alone gives it."""
    part = record.in_process
    if part is None or not (part.workers or part.is_outside):
        return member
    change = recorded(group)
    standing = group.standings.get(record.name, Standing.GONE)
    if standing is Standing.FINISHED:
        return member
    if standing in (Standing.GONE, Standing.BACK):
        return _outside(member, part) if part.is_outside and member.phase is MemberPhase.READY else member
    is_of_world = change.stage in STAGES or (part.generation == member.generation and not part.is_outside)
    member = replace(member, workers=part.workers if is_of_world else 0, step=part.step)
    answer, is_awaited = part.answer, known.stage in (Stage.STOP, Stage.ABORT)
    has_failed = standing is Standing.FAILED and not (record.failed is not None and record.failed.replaced)
    if is_awaited and member.workers and answer.kind == READY and answer.round == known.round and not has_failed:
        return replace(member, phase=MemberPhase.READY, world_id="", alive=True, step=answer.step)
    return member


def _outside(member: Placed, part: Part) -> Placed:
    """Return a newcomer whose processes run in a world of their own. They have the state of no world."""
    if not part.workers:
        return replace(member, phase=MemberPhase.BOOTING, provisional=True, generation=0, workers=0)
    return replace(member, phase=MemberPhase.READY, world_id="", generation=0, alive=True, provisional=True, workers=part.workers)


def written(group: Group, after: JobState, *, stage: str) -> Change:
    """Return the record of this stage of the engine's change."""
    known, before = after.in_place, recorded(group)
    return Change(
        stage=stage,
        round=known.round + 1 if stage == HOLD else known.round,  # the round before belongs to an abort
        world_round=known.round if stage == FORM else before.world_round,
        began=before.began if before.stage in STAGES or group.world is None else group.world.generation,
        step=known.step if stage in (STOP, FORM) else None,
        donors=known.donors if stage == FORM else (),
        attempts=known.attempts,
        trained=known.has_trained,
        blip_step=known.blip_step,
        why=known.why_plain if stage == PLAIN else "",
        nonce=before.nonce if stage != FORM else "",
    )


def restarting(group: Group, after: JobState) -> Change:
    """Return the record of a world whose processes start again at the next change, or have done so."""
    return Change(stage=RESTART, round=max(after.in_place.round, recorded(group).round))


def next_stage(group: Group, job: JobState, after: JobState) -> str:
    """Return the stage that the record must have next, within the same world; the present one if nothing is to be written.

    job, after: the states before and after the engine's step.
    """
    now, stage = recorded(group).stage, after.in_place.stage
    if now in (RESTART, PLAIN):
        if stage is Stage.FORM:
            return FORM
        is_told = any(_part(group, name).workers for name in group.ranks)
        is_whole = group.world is not None and group.world.round is None and not is_broken(group)
        return PLAIN if now == RESTART and after.in_place.why_plain and is_told and is_whole else now
    if stage is None and now in (HOLD, STOP):
        return RESTART if after.membership.round is not None else now  # without a round, all members of the world have finished
    if job.in_place.stage is not STAGES[now] or stage not in WORDS:
        return now
    return WORDS[stage]


def _of_record(group: Group, *, until: float) -> InPlace:
    change, why = recorded(group), obstacle(group)
    stage = STAGES.get(change.stage)
    parts = [member.in_process or NO_PART for member in group.members.values()]
    if stage is None:
        heard = max((max(part.round, part.answer.round) for part in parts), default=0)
        # Only a world that its processes have formed is left by an abort: its record numbers the rounds for all members.
        early = "its workers have not formed a world in process yet" if is_broken(group) else ""
        return InPlace(round=max(change.round, heard), why_plain=(change.why if change.stage == PLAIN else "") or why or early)
    if why and stage is not Stage.FORM:
        return InPlace(round=change.round, world_round=change.world_round, why_plain=why)
    progress, world = group.records.progress, group.world
    has_stepped = stage is not Stage.FORM and progress is not None and world is not None and progress.generation == world.generation
    answers = {name: _part(group, name).answer for name in group.ranks}
    holds = {n: a.step or 0 for n, a in answers.items() if (a.kind, a.round) == (HOLDS, change.round)}
    formed = frozenset(n for n, a in answers.items() if (a.kind, a.round) == (FORMED, change.round))
    return InPlace(
        round=change.round,
        world_round=change.world_round,
        stage=stage,
        until=until if stage is Stage.FORM else math.inf,
        step=change.step,
        donors=change.donors,
        holds=holds if stage is Stage.HOLD else {},
        formed=formed if stage is Stage.FORM else frozenset(),
        trouble=_trouble(group),
        attempts=0 if has_stepped else change.attempts,
        has_trained=change.trained or stage is not Stage.FORM,
        blip_step=change.blip_step,
    )


def _trouble(group: Group) -> str:
    """Return why the world that is being formed cannot be formed, if a member says so."""
    change = recorded(group)
    if change.stage != FORM:
        return ""
    for name in group.ranks:
        answer = _part(group, name).answer
        if (answer.kind, answer.round) == (UNFORMED, change.round):
            return "{} could not enter the world: {}".format(name, answer.words)[:1000]
    gone = deserters(group)
    return "{} has left the world that was being formed".format(gone[0]) if gone else ""


def _part(group: Group, name: str) -> Part:
    """Return the part of this seat's member, if the member is here in the same run."""
    if group.standings.get(name) is Standing.GONE:
        return NO_PART
    return group.members[name].in_process or NO_PART


def marked(change: Change, nonce: str) -> Change:
    """Return the change of a new world with its own random text."""
    return dataclasses.replace(change, nonce=nonce) if change.stage == FORM and not change.nonce else change
