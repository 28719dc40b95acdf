"""Agents of the simulation whose workers use the training library, so that their processes live on when the world changes.

The decisions of the agent are the real ones (LocalChange). This module plays the handler and the presence around them.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sim_agent import Agent, Connection
from sim_trainer import Save, Trainer

from elastic.membership.wire import Failed, Finished, FromMember, Held, Join, Ready, Started, View, convert, to_builtins
from elastic_training.rendezvous.engine.messages.controller import HeldRestarts
from elastic_worker.agent import view as agent_view
from elastic_worker.agent.change import LocalChange, LocalWorker

ASTRAY = "a world was formed in which its living workers were not asked to change"
LOSS_SEEN_S = 1.1
"""Seconds after which LocalChange reports a lost connection."""


@dataclass(eq=False)
class LivingAgent(Agent):
    """torchrun's agent with our handler, and one worker that uses the training library."""

    change: LocalChange = field(init=False)
    worker: Trainer | None = None
    """The worker process; None at the barrier."""
    generation: int = 0
    """The generation of the workers; 0 in a provisional world."""
    left: int = 0
    """The newest generation that this agent has left, or gave up."""
    local: LocalWorker | None = None
    living: dict[str, Any] = field(default_factory=dict)
    states: dict[str, Failed | Finished | Started] = field(default_factory=dict)
    failed_before: Failed | None = None
    trouble: str = ""
    save: Save | None = None
    """The newest state that the worker has written to the container's disk."""
    view: agent_view.View = field(default_factory=lambda: agent_view.View({}))
    is_leaving: bool = False
    """torchrun stops the workers, and comes to the barrier soon."""

    def __post_init__(self) -> None:
        self.change = LocalChange(address="10.0.0.1", secret=lambda generation, round: f"{generation} {round}")

    # --- what happens to it

    def stop(self, *, says_so: bool) -> None:
        super().stop(says_so=says_so)
        if self.worker is not None:
            self.worker.die()

    def fail(self, *, generation: int | None = None) -> bool:
        is_working = self.worker is not None and self.worker.is_alive and not (self.is_over or self.is_finishing or self.is_leaving)
        if not is_working or generation not in (None, self.generation or None):
            return False
        assert self.worker is not None
        self.worker.die()
        if self.generation:
            self.has_failed = True
            self._report("failed", Failed(generation=self.generation, status=1))
        if self.local is not None:
            self.change.lost(self.local, now=_time())
            self._later(LOSS_SEEN_S, self._pass_time, self.worker)
        self._come_in(self.draw.uniform(0.05, 0.5))
        return True

    def finish(self) -> None:
        worker = self.worker
        if worker is None or not worker.may_finish or self.is_over or self.is_finishing or self.is_leaving or self.is_ready:
            return
        worker.finish()
        if self.local is not None:
            self.change.heard(self.local, {"t": "done"}, now=_time())
            self.follow()
        self._later(self.draw.uniform(0.05, 0.5), self._finished, worker)

    def _finished(self, worker: Trainer) -> None:
        if worker is self.worker and not self.is_over and not self.is_leaving:
            self.is_finishing = True
            self._report("finished", Finished(generation=self.generation))
            self._later(3.0, self._exit, 0)

    def hear(self, link: Connection, view: View) -> None:
        if link is not self.link or not link.is_open or self.is_over or self.is_finishing:
            return
        if self.held is not None and (view.id == self.held.id or view.unacknowledged_restarts):
            self.held = replace(self.held, unacknowledged_restarts=view.unacknowledged_restarts)
        self.view = agent_view.View(to_builtins(view))
        if view.closed:
            self._later(0.2, self._exit, 1)
        elif self.worker is None:
            self._enter_if_told(view)
        elif not self.is_leaving:
            self.follow()
            self._go_back_if_told(self.view)

    def _enter_if_told(self, view: View) -> None:
        if view.generation > self.left:
            self.left = view.generation
            self._hold(view)
            self.is_ready = self.has_failed = False
            self.failed_before, self.trouble = None, ""
            self._begin(view.generation)
        elif view.provisional and not view.generation:
            self._begin(0)
        elif view.finished:
            self._later(0.2, self._exit, 0)

    def _go_back_if_told(self, view: agent_view.View) -> None:
        change = view.change
        is_told = change is not None and change.phase != "plain"
        uses_library = self.change.is_used or not self.generation
        if view.reform:
            self._come_in(self.draw.choice([0.05, 0.5, 3.0]))
        elif uses_library and view.generation and view.generation != self.generation and not is_told:
            self.left = view.generation
            self._come_in(self.draw.choice([0.05, 0.5, 3.0]), trouble=ASTRAY)

    # --- workers

    def _begin(self, generation: int) -> None:
        """Start the worker, in the job's world or in one of its own."""
        self.generation, self.is_leaving, self.local = generation, False, None
        self.worker = Trainer(self)
        self.change.begin(generation, lambda: 1)
        if generation:
            self.entered.append(generation)
            self._report("started", Started(generation=generation))
        self._later(self.draw.uniform(0.5, 10.0), self._hello, self.worker)

    def _hello(self, worker: Trainer) -> None:
        if worker is self.worker and worker.is_alive and not self.is_leaving:
            self.local = self.change.hello({"t": "hello", "local_rank": 0, "step": worker.clean_step})
            self.follow()

    def takes(self, worker: Trainer, message: Mapping[str, Any]) -> None:
        """Take a message of the worker."""
        if worker is self.worker and self.local is not None and worker.is_alive and not self.is_leaving:
            self.change.heard(self.local, dict(message), now=_time())
            self.follow()

    def follow(self) -> None:
        """Bring server and worker up to date."""
        if self.is_over or self.is_leaving or self.worker is None:
            return
        if self.change.follow(self.view):
            self._move(self.view)
        self._tell_server()
        if self.local is not None:
            for line in self.change.lines(self.local):
                self.worker.hears(line)

    def _move(self, view: agent_view.View) -> None:
        """Enter a world in process."""
        former = self.generation
        self._hold(view)
        self.generation = view.generation
        self.is_ready, self.failed_before, self.living = False, None, {}
        if view.generation != former:
            self.entered.append(view.generation)
            self.states.pop("started", None)
            for kind, state in list(self.states.items()):
                self._report(kind, replace(state, generation=view.generation))

    def _tell_server(self) -> None:
        for message in self.change.take_up():
            if message["t"] == "ready":
                self.is_ready, self.trouble = True, ""
                self.living = {"alive": True, "round": message["round"], "step": message.get("step")}
                self._say(Ready(after=self._generation, store=self._store, **self.living))
            elif message["t"] == "resume":
                self.is_ready, self.living = False, {}
            elif message["t"] == "started":
                self._report("started", Started(generation=self.generation))
            elif message["t"] != "put":
                self._say(convert(message, FromMember))

    def _pass_time(self, worker: Trainer) -> None:
        if worker is self.worker and not self.is_leaving:
            self.change.pass_time(_time())
            self._tell_server()

    # --- the way to the barrier

    def _come_in(self, seconds: float, *, trouble: str = "") -> None:
        if not self.is_leaving:
            self.is_leaving = True
            self.change.stop()
            self._later(seconds, self._come_back, self.worker, trouble)

    def _come_back(self, worker: Trainer, trouble: str) -> None:
        if worker is not self.worker or self.is_over or self.is_finishing:
            return
        worker.die()
        if not self.generation and not self.view.reform and not trouble:
            self._exit(1)  # a worker failed before it came into a world
            return
        self.left = max(self.left, self.generation)
        self.worker = self.local = None
        self.is_leaving = False
        self.change.begin(0)
        failed = self.states.get("failed", self.failed_before)
        self.failed_before = failed if isinstance(failed, Failed) else None
        self.states.clear()
        self.view = agent_view.View({})
        self.is_ready, self.living, self.trouble = True, {}, trouble
        self._say(Ready(after=self.left, store=self._store, trouble=trouble))

    # --- the presence

    def _hold(self, view: View | agent_view.View) -> None:
        restarts = convert(to_builtins(view.unacknowledged_restarts), HeldRestarts)
        self.held = Held(
            id=view.id, generation=view.generation, rank=view.rank, size=view.size, store=view.store, unacknowledged_restarts=restarts
        )

    @property
    def _store(self) -> str:
        return f"{self.name}:{self._generation}"

    def _report(self, kind: str, state: Failed | Finished | Started) -> None:
        self.states[kind] = state
        self._say(state)

    def _join(self) -> Join:
        held = replace(self.held, round=self.change.round) if self.held is not None else None
        failed = self.is_ready and self.failed_before is not None
        fields = self.change.introduction()[0] | (self.living if self.is_ready else {})
        return Join(
            incarnation=self.incarnation,
            held=held,
            ready=self.is_ready,
            store=self._store,
            trouble=self.trouble if self.is_ready else "",
            failed=failed,
            status=1 if failed else None,
            **fields,
        )

    def _repeat(self) -> None:
        for state in self.states.values():
            self._say(state)
        for message in self.change.introduction()[1]:
            if message["t"] != "put":
                self._say(convert(message, FromMember))


def _time() -> float:
    return asyncio.get_running_loop().time()
