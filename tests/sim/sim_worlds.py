"""The worlds in which living processes of the simulation train, and the laws that hold there.

A step is made by all members of a world or by nobody. Two states are equal if they have the same step and the same history of worlds.
"""

import asyncio
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sim_trainer import At, Trainer

from elastic_training.rendezvous.engine.in_place import ATTEMPTS, FORM_S, FORM_S_A_WORKER, HELLO_S, PLANNED_S, RECEIVE_S
from elastic_training.rendezvous.engine.messages.in_place import Stage
from elastic_training.rendezvous.engine.state.job import JobState
from elastic_training.rendezvous.engine.state.membership import MemberPhase

if TYPE_CHECKING:
    from sim_living import LivingAgent
    from sim_rendezvous import SimServer

LATE_S = 10.0
"""Seconds by which a wait of the server may pass its bound: it looks at a job every 5 s at the latest."""
TRAINS_EVERY_S = 60.0
"""Once nothing happens any more, each process has committed a step within this time."""


class SimWorld:
    """One world in one change, or one that was formed from the environment."""

    def __init__(
        self, worlds: "LivingWorlds", key: tuple[str, str, int], *, generation: int, size: int, step: int, donors: Iterable[int]
    ) -> None:
        self.worlds, self.key, self.generation, self.size, self.step, self.donors = worlds, key, generation, size, step, tuple(donors)
        self.members: dict[int, Trainer] = {}
        """The trainers by rank that have come to form it."""
        self.is_connected = self.is_broken = False
        self._inside: dict[int, int] = {}
        self._told: set[Trainer] = set()
        self._name = f"{key[1]}/{key[2]}"
        self._formed_at = _time()

    def rank_of(self, trainer: Trainer) -> int | None:
        return next((rank for rank, member in self.members.items() if member is trainer), None)

    def is_new_to(self, trainer: Trainer) -> bool:
        """Return whether the trainer has made its first step here."""
        is_new = trainer not in self._told
        self._told.add(trainer)
        return is_new

    def lineage(self, before: str) -> str:
        """Return the history of a state after a step in this world."""
        return before if before.endswith(f" {self._name}") else f"{before} {self._name}"

    # --- forming

    def comes(self, trainer: Trainer) -> None:
        """Take in a trainer that forms this world."""
        assert trainer.agent.held is not None
        self.members[trainer.agent.held.rank] = trainer
        if len(self.members) == self.size and not self.is_broken:
            _later(trainer.draw.uniform(0.02, 0.3), self._connect)

    def _connect(self) -> None:
        if self.is_broken or self.is_connected:
            return
        self.is_connected = True
        if self.key[2] < 0:
            self._begin_plainly()
            return
        for member in list(self.members.values()):
            member.connected(self)

    def _begin_plainly(self) -> None:
        newest = max(self.members.values(), key=lambda member: (member.clean_step or 0, member.has_state))
        self.step = newest.clean_step or 0
        for member in self.members.values():
            member.step, member.lineage, member.has_state = self.step, newest.lineage or f"fresh {self._name}", True
        for member in list(self.members.values()):
            member.later(0.0, member.begin_step)

    def donor_for(self, trainer: Trainer) -> Trainer | None:
        rank = self.rank_of(trainer) or 0
        return self.members.get(self.donors[rank % len(self.donors) if self.step else 0])

    def gives(self, donor: Trainer) -> bool:
        """Return whether this donor gives the state of this world."""
        if not donor.is_here or donor.world is not self or donor.at not in (At.FORMING, At.FORMED):
            return False
        if donor.clean_step != self.step and not (donor.clean_step is None and not donor.is_writing and self.step == 0):
            if donor.began_at > self._formed_at:
                return False  # its process was lost after the server had chosen it, so the receiver asks another donor
            self.worlds.breach(
                "a donor holds the state of its world", f"{donor.agent.name} has {donor.clean_step}, {self._name} {self.step}"
            )
        if not donor.lineage:
            donor.lineage = f"fresh {donor.agent.incarnation}"
        return True

    # --- training

    def arrives(self, trainer: Trainer) -> None:
        """Let a trainer wait inside its step for all others."""
        if self.is_broken:
            trainer.later(trainer.draw.uniform(0.05, 1.0), trainer.loses_peer, self)
            return
        rank = self.rank_of(trainer)
        assert rank is not None
        self._inside[rank] = trainer.step
        if len(self._inside) == self.size and self._are_all_here():
            self._judge()
            _later(self.worlds.server.step_s(), self._complete)

    def _are_all_here(self) -> bool:
        return all(member.is_here and member.world is self and member.at is At.STEP for member in self.members.values())

    def _judge(self) -> None:
        states = {(member.clean_step, member.lineage) for member in self.members.values()}
        if len(states) != 1:
            told = {member.agent.name: (member.clean_step, member.lineage) for member in self.members.values()}
            self.worlds.breach("a world trains with one state", f"{self._name}: {told}")
        self.worlds.trains(self, next(iter(self.members.values())).step)

    def _complete(self) -> None:
        members, self._inside = list(self.members.values()), {}
        if self.is_broken or not self._are_all_here():
            return
        if self.worlds.draw.random() < self.worlds.blips:
            self.worlds.troubles += 1
            self.breaks()
            return
        for member in members:
            member.writes()

    def committed(self, trainer: Trainer) -> None:
        self.worlds.committed(self, trainer)

    def breaks(self, by: Trainer | None = None) -> None:
        """Break the connections of this world. Most members that need them notice soon, and some never do."""
        if self.is_broken:
            return
        self.is_broken = True
        for member in self.members.values():
            if member is by:
                continue
            if member.at is At.FORMING:
                member.later(member.draw.uniform(0.0, 1.0), member.fails_to_form, self, "Connection reset by peer")
            elif self.key[2] >= 0 and (by is None or member.draw.random() < 0.7):
                member.later(member.draw.uniform(0.0, 1.0), member.loses_peer, self)


class LivingWorlds:
    """All worlds of one life, and what breaks a law."""

    def __init__(self, server: "SimServer", draw: random.Random) -> None:
        self.server, self.draw = server, draw
        self.blips = 0.003
        """The share of steps in which the communication breaks although nobody is lost."""
        self.troubles = 0
        """The number of times that communication broke although nobody was lost, and that a process could not enter a world."""
        self.breaches: list[str] = []
        self.failures = 0
        """Processes that ended because nobody told them why their communication broke."""
        self.trained = self.planned = self.aborted = 0
        """The numbers of worlds that were formed in process and trained, and of changes that were planned, and that followed a loss."""
        self.agents: list[LivingAgent] = []
        self._worlds: dict[tuple[str, str, int], SimWorld] = {}
        self._present: dict[str, SimWorld] = {}
        """By job, the world that has trained last."""
        self._over: set[SimWorld] = set()
        self._best: dict[str, int] = {}
        self._ways: dict[tuple[str, str], Stage | None] = {}
        self._late: dict[tuple[str, str], float] = {}

    def world(self, agent: "LivingAgent", line: Mapping[str, Any]) -> SimWorld:
        assert agent.held is not None
        key = (agent.job_uid, agent.held.id, int(line["round"]))
        if key not in self._worlds:
            facts = {"generation": int(line["generation"]), "size": int(line["size"]), "step": int(line["step"])}
            self._worlds[key] = SimWorld(self, key, donors=line["donors"], **facts)
        return self._worlds[key]

    def plain_world(self, agent: "LivingAgent") -> SimWorld:
        held = agent.held
        assert held is not None
        key = (agent.job_uid, held.id, -1)
        if key not in self._worlds:
            self._worlds[key] = SimWorld(self, key, generation=held.generation, size=held.size, step=0, donors=())
        return self._worlds[key]

    def breach(self, law: str, words: str) -> None:
        self.breaches.append(f"[{_time():.1f} s] {law}: {words}")

    def gave_up(self, trainer: Trainer) -> None:
        """End a process whose error nobody explained in time. Its agent must have been without a server."""
        self.failures += trainer.agent.fail()

    # --- training

    def trains(self, world: SimWorld, step: int) -> None:
        """Judge a world in which all members have begun a step."""
        uid = world.key[0]
        self._see_order(world)
        is_first, self._present[uid] = self._present.get(uid) is not world, world
        way = self._ways.get(world.key[:2])
        if is_first and way is not None:
            self.trained += 1
            repeated, allowed = self._best.get(uid, step) - step, 0 if way is Stage.STOP else 1
            if repeated > allowed:
                self.breach("a change in process repeats at most one step, and none if planned", f"{world.key} after {way}: {repeated}")

    def committed(self, world: SimWorld, trainer: Trainer) -> None:
        uid = world.key[0]
        self._see_order(world)
        self._best[uid] = max(trainer.step, self._best.get(uid, 0))

    def _see_order(self, world: SimWorld) -> None:
        """Judge that nobody trains in a world once another one has trained after it."""
        former = self._present.get(world.key[0])
        if world in self._over:
            self.breach(
                "never do members train in two worlds at once", f"{world.key} trains, and {former and former.key} has trained since"
            )
        elif former is not None and former is not world:
            self._over.add(former)

    def idle(self, uid: str, members: set[str]) -> Iterator[str]:
        """Yield what is wrong with the training of a job in which nothing happens any more."""
        here = {a.name: a for a in self.agents if a.job_uid == uid and not a.is_over and a.worker is not None and a.worker.is_here}
        trainers = {name: agent.worker for name, agent in here.items() if agent.worker is not None}
        for name in sorted(members - trainers.keys()):
            yield f"{name} has no worker process"
        inside = {name: trainer for name, trainer in trainers.items() if name in members}
        if len({trainer.world for trainer in inside.values()}) > 1:
            yield f"the processes train in several worlds: { ({n: t.world and t.world.key for n, t in inside.items()}) }"
        for name, trainer in inside.items():
            if trainer.committed_at < _time() - TRAINS_EVERY_S:
                yield f"{name} has made no step since {trainer.committed_at:.0f} s: {trainer.at}, {trainer.world and trainer.world.key}"

    # --- the server

    def see(self, before: JobState, after: JobState) -> None:
        """Note how each world is formed."""
        world, stage = after.membership.world, before.in_place.stage
        if world is None or world.adopted or (before.membership.world is not None and before.membership.world.id == world.id):
            return
        if after.in_place.stage is Stage.FORM:
            self._ways[after.uid, world.id] = stage
            self.planned += stage is Stage.STOP
            self.aborted += stage is Stage.ABORT
        if after.in_place.stage is not Stage.FORM or world.lost_state:
            self._best.pop(after.uid, None)  # training begins with the state that a container has kept

    def judge(self) -> None:
        """Look for waits that are longer than their bounds."""
        hub = self.server.hub
        if not hub.runs.is_set() or self.server.is_out_of_reach:
            self._late.clear()
            return
        for job in hub.jobs():
            found = dict(_overdue(job, _time()))
            for kind in [k for k in self._late if k[0] == job.uid and k[1] not in found]:
                del self._late[kind]
            for kind, words in found.items():
                since = self._late.setdefault((job.uid, kind), _time())
                if _time() > since + LATE_S:
                    self.breach("no wait is longer than its bound", words)


def _overdue(job: JobState, now: float) -> Iterator[tuple[str, str]]:
    """Yield the waits of a job that have not ended in time, or may take longer than they should."""
    known, group = job.in_place, job.membership
    if (
        job.accounting.closed
        or job.is_done
        or group.expectation is None
        or job.timings.doubt_since is not None
        or now < job.timings.patient_until
    ):
        return
    round, stage = group.round, known.stage
    world = group.world
    at_work = [m.name for m in group.members.values() if world is not None and m.name in world.ranks and m.phase is MemberPhase.RUNNING]
    if known.attempts > ATTEMPTS:
        yield "attempts", f"{known.attempts} attempts to form a world"
    if stage in (Stage.HOLD, Stage.STOP, Stage.ABORT) and round is not None:
        most = PLANNED_S if stage is not Stage.ABORT else group.grace_s + job.limits.drain_s
        if round.until > now + most + 1.0:
            yield "deadline", f"a change at {stage} may take {round.until - now:.0f} s"
        if now > round.until and (at_work or stage is not Stage.ABORT):
            yield "round", f"a change at {stage} goes on {now - round.until:.0f} s after its end, {at_work} at work"
    if stage is Stage.FORM:
        most = FORM_S + FORM_S_A_WORKER * sum(m.workers for m in group.members.values()) + RECEIVE_S
        if known.until > now + most:
            yield "form", f"a world may be forming for {known.until - now:.0f} s"
        if now > known.until and group.members:
            yield "form", f"a world is forming {now - known.until:.0f} s after its end"
    is_met = stage is None and not known.why_plain and world is not None and not group.is_draining
    if is_met and known.able_since is not None and now > known.able_since + HELLO_S:
        yield "hello", f"workers wait for others for {now - known.able_since:.0f} s"


def _later(seconds: float, call: Any, *args: object) -> None:
    asyncio.get_running_loop().call_later(seconds, call, *args)


def _time() -> float:
    return asyncio.get_running_loop().time()
