"""Worker processes of the simulation that use the training library, with the facts that decide when they train, stop and form worlds.

The main thread trains, stands at a boundary, or forms a world. It follows elastic_worker.training.control and worlds; nothing of gloo is
played but that a world stands once all have come, that it may fail to, and that a step needs all.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from elastic_training.rendezvous.engine.in_place import FORM_S, FORM_S_A_WORKER
from elastic_worker.training.control import GOES_ON, PHASES

if TYPE_CHECKING:
    from sim_living import LivingAgent
    from sim_worlds import SimWorld

SAVE_EVERY = 5
RUN = PHASES.index("run")
TELL_S = 1.0
LOST_PEER_S = 10.0
"""Seconds that an error of the communication waits for the news that the world has ended (elastic_worker.training.run)."""
STALL_S = 5.0
"""A transfer of the state may stand still for so long."""


def forming_s(size: int) -> float:
    """Return the seconds that the connections of a world may take."""
    return FORM_S + FORM_S_A_WORKER * size


class At(Enum):
    """Actions of the main thread."""

    STARTING = auto()
    LOOP = auto()  # between two steps
    STEP = auto()  # inside a step
    BROKEN = auto()  # inside a step whose communication broke
    BOUNDARY = auto()  # between two worlds, waiting for the next one
    FORMING = auto()
    FORMED = auto()  # waiting for everybody else
    ENDED = auto()


@dataclass(frozen=True, slots=True)
class Save:
    """A state of training: the step, and the history of worlds in which the steps up to it were made."""

    step: int
    lineage: str


class Trainer:
    """One worker process."""

    def __init__(self, agent: "LivingAgent") -> None:
        self.agent, self.draw = agent, agent.draw
        self.at = At.STARTING
        self.is_alive = True
        self.is_plain = False
        self.step, self.lineage = (agent.save.step, agent.save.lineage) if agent.save is not None else (0, "")
        self.has_state, self.is_writing = agent.save is not None, False
        self.world: SimWorld | None = None
        self.entered = -1
        self._held_at = 0
        self._change: tuple[int, str] = (-1, "run")
        self._fields: Mapping[str, Any] = {}
        self._after = self._place_of(-1, "run")
        self._heard_at = 0.0
        self._forming_until = 0.0
        self.committed_at = 0.0
        self.began_at = asyncio.get_running_loop().time()

    @property
    def clean_step(self) -> int | None:
        """Return the step of the complete state that the process holds; None if it holds none."""
        return self.step if self.has_state and not self.is_writing else None

    @property
    def may_finish(self) -> bool:
        return self.is_alive and self.at in (At.STEP, At.LOOP)

    def die(self) -> None:
        """End the process. Its peers see that their connections to it break."""
        if self.is_alive and self.at is not At.ENDED and self.world is not None:
            self.world.breaks(by=self)
        self.is_alive = False

    def finish(self) -> None:
        """End the training loop."""
        self.at = At.ENDED

    def later(self, seconds: float, call: Callable[..., object], *args: object) -> None:
        asyncio.get_running_loop().call_later(seconds, self._if_alive, call, args)

    def _if_alive(self, call: Callable[..., object], args: tuple[object, ...]) -> None:
        if self.is_here:
            call(*args)

    @property
    def is_here(self) -> bool:
        """Return whether the process runs on a machine that exists."""
        return self.is_alive and not self.agent.is_over

    def say(self, kind: str, **fields: object) -> None:
        """Send a message to the agent."""
        self.later(self.draw.uniform(0.001, 0.01), self.agent.takes, self, {"t": kind, **fields})

    # --- the thread that listens to the agent

    def hears(self, line: Mapping[str, Any]) -> None:
        """Let a line of the agent arrive, after those before it."""
        if line["t"] == "change":
            loop = asyncio.get_running_loop()
            self._heard_at = max(self._heard_at + 1e-4, loop.time() + self.draw.uniform(0.001, 0.05))
            loop.call_at(self._heard_at, self._if_alive, self._on_change, (line,))

    @staticmethod
    def _place_of(round: int, phase: str) -> tuple[int, int]:
        return round, PHASES.index(phase)

    def _on_change(self, line: Mapping[str, Any]) -> None:
        if self.at is At.ENDED:
            return
        if line["phase"] == "plain":
            if self.entered < 0 and self.at is At.STARTING:
                self.is_plain = True
                self._train_plainly()
            return
        place = self._place_of(int(line["round"]), line["phase"])
        if place > self._place_of(*self._change):
            self._change, self._fields = (int(line["round"]), line["phase"]), line
            if line["phase"] == "hold":
                self._held_at = self.step + (self.at in (At.STEP, At.BROKEN))
        if place == self._place_of(*self._change) and line["phase"] == "hold":
            self.say("holds", round=place[0], step=self._held_at)
        self._go_on()

    def _go_on(self) -> None:
        """Let the main thread act on the newest change, if it waits for one or is broken off by it."""
        match self.at:
            case At.STARTING | At.BOUNDARY:
                self._next()
            case At.LOOP:
                self.begin_step()
            case At.STEP | At.BROKEN if self._is_leaving() and self._change[1] != "stop":
                self._leave_in(self.draw.uniform(0.0, 0.3))
            case At.FORMING if self._change[0] > self.entered:
                self._leave_in(self.draw.uniform(0.0, 0.2))
            case At.FORMED if self._place_of(*self._change) >= (self.entered, RUN):
                if self._change[0] > self.entered and self._change[1] not in GOES_ON:
                    self._leave_in(0.0)
                else:
                    self.at = At.LOOP
                    self.begin_step()

    def _is_leaving(self) -> bool:
        round, phase = self._change
        if round <= self.entered or phase in ("hold", "run"):
            return False
        return phase != "stop" or self.step >= int(self._fields.get("step", 0))

    # --- the loop

    def begin_step(self) -> None:
        """Begin the next step, unless the world ends before it or a change holds it."""
        if self.at is not At.LOOP:
            return
        if self._change[0] > self.entered and self._change[1] == "hold" and self.step >= self._held_at:
            return
        if self._is_leaving():
            self._leave()
            return
        assert self.world is not None
        self.at = At.STEP
        self.world.arrives(self)

    def writes(self) -> None:
        """Let the optimizer write the step that all have computed."""
        self.is_writing = True
        self.later(self.draw.uniform(0.0, 0.1), self._commit, self.world)

    def _commit(self, world: "SimWorld") -> None:
        if self.at is not At.STEP or world is not self.world or not self.is_writing:
            return
        self.is_writing, self.at = False, At.LOOP
        self.step, self.lineage = self.step + 1, world.lineage(self.lineage)
        self.committed_at = asyncio.get_running_loop().time()
        if self.step % SAVE_EVERY == 0:
            self.agent.save = Save(self.step, self.lineage)
        world.committed(self)
        if world.is_new_to(self):
            self.say("stepped", round=self.entered, step=self.step)
        if self.draw.random() < 0.02:
            self.later(self.draw.choice([1.0, 5.0, 20.0]), self.begin_step)  # an evaluation
        else:
            self.begin_step()

    def loses_peer(self, world: "SimWorld") -> None:
        """Let the communication of the present step break."""
        if world is self.world and self.at is At.STEP and not self.is_writing:
            self.at = At.BROKEN
            self.say("complains", round=self.entered, words="Connection reset by peer")
            self.later(LOST_PEER_S, self._give_up, world)

    def _give_up(self, world: "SimWorld") -> None:
        if world is self.world and self.at is At.BROKEN and not self.is_plain:
            world.worlds.gave_up(self)

    # --- from world to world

    def _leave_in(self, seconds: float) -> None:
        self.later(seconds, self._leave_if_still_in, self.world, self.at)

    def _leave_if_still_in(self, world: "SimWorld | None", at: At) -> None:
        if self.world is world and self.at is at:
            self._leave()

    def _leave(self) -> None:
        """Stand at the boundary. After a stop the group stays until the next one is formed, because the change may be called off."""
        self._after = self._place_of(self.entered, "form" if self.at in (At.FORMING, At.FORMED) else "run")
        if self.at in (At.FORMING, At.FORMED) or self._change[1] != "stop":
            self._leave_group()
        self.at = At.BOUNDARY
        self._next()

    def _leave_group(self) -> None:
        if self.world is not None:
            self.world.breaks(by=self)
            self.world = None

    def _next(self) -> None:
        if self._place_of(*self._change) <= self._after:
            return
        self._after = self._place_of(*self._change)
        round, phase = self._change
        if phase in ("abort", "form"):
            self._leave_group()
        if phase in ("stop", "abort"):
            self.at = At.BOUNDARY
            self.say("at", round=round, step=self.clean_step)
        elif phase == "form":
            self._form(self._fields)
        elif phase == "run" and self.world is not None:
            self.at = At.LOOP  # the change is called off, and the present world goes on
            self.begin_step()

    def _form(self, line: Mapping[str, Any]) -> None:
        worlds = self.agent.server.living
        assert worlds is not None
        self.entered, self.at = int(line["round"]), At.FORMING
        self.world = worlds.world(self.agent, line)
        self._forming_until = asyncio.get_running_loop().time() + forming_s(self.world.size)
        self.later(forming_s(self.world.size), self._end_forming, self.world, "no peer has sent its address")
        self.world.comes(self)

    def connected(self, world: "SimWorld") -> None:
        """Go on to the state, once all workers of the world are connected."""
        if world is not self.world or self.at is not At.FORMING:
            return
        if self.draw.random() < 0.03:
            self.fails_to_form(world, "Connection refused")
        elif self._is_level(world):
            self._formed(world)
        else:
            self._pull(world, self.draw.choice([0.2, 0.2, 2.0, 12.0]), world.donor_for(self))

    def _is_level(self, world: "SimWorld") -> bool:
        """Return whether this process has the state with which the world begins. At step 0 all take that of the first donor."""
        if world.step:
            return self.clean_step == world.step
        return world.rank_of(self) == world.donors[0] and not self.is_writing

    def _pull(self, world: "SimWorld", left_s: float, donor: "Trainer | None") -> None:
        if world is not self.world or self.at is not At.FORMING:
            return
        if donor is None or not world.gives(donor):
            self.fails_to_form(world, "the donor is gone")
            return
        self._forming_until = asyncio.get_running_loop().time() + STALL_S + TELL_S
        self.say("receives", round=self.entered, bytes=1)
        if left_s > TELL_S:
            self.later(TELL_S, self._pull, world, left_s - TELL_S, donor)
        else:
            self.later(left_s, self._level, world, donor)

    def _level(self, world: "SimWorld", donor: "Trainer") -> None:
        if world is self.world and self.at is At.FORMING:
            if world.gives(donor):
                self.step, self.lineage, self.is_writing = donor.step, donor.lineage, False
                self._formed(world)
            else:
                self.fails_to_form(world, "the donor is gone")

    def _formed(self, world: "SimWorld") -> None:
        if not self.has_state and not self.lineage:
            self.lineage = f"fresh {self.agent.incarnation}"
        self.has_state, self.step, self.at = True, world.step, At.FORMED
        self.say("formed", round=self.entered)
        self._go_on()

    def _end_forming(self, world: "SimWorld", words: str) -> None:
        if world is self.world and self.at is At.FORMING:
            left_s = self._forming_until - asyncio.get_running_loop().time()
            if left_s > 0.01:
                self.later(left_s, self._end_forming, world, words)
            else:
                self.fails_to_form(world, words)

    def fails_to_form(self, world: "SimWorld", words: str) -> None:
        """Break off the forming of this world."""
        if world is not self.world or self.at is not At.FORMING:
            return
        if self._change[0] <= self.entered:
            world.worlds.troubles += 1
            self.say("unformed", round=self.entered, words=words)
        self._leave()

    # --- without the library

    def _train_plainly(self) -> None:
        worlds = self.agent.server.living
        assert worlds is not None
        self.at, self.world = At.LOOP, worlds.plain_world(self.agent)
        self.world.comes(self)
