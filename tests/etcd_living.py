"""Agents whose workers change worlds in process, in an etcd in memory: the real presence and InProcess, with scripted workers."""

import base64
import os
from dataclasses import dataclass, field
from typing import Any

from etcd_agents import Agent, Job, Release

from elastic_worker.agent.in_process import InProcess
from elastic_worker.agent.view import View
from elastic_worker.etcd.change_records import Change
from elastic_worker.etcd.presence import EtcdPresence
from elastic_worker.settings import WORLD

Message = dict[str, Any]


@dataclass(eq=False)
class Worker:
    """A training process behind the door, as Control and Worlds behave: it hears of changes, and answers."""

    pid: int = 1
    child: int = 1
    is_open: bool = True
    step: int | None = None
    """Step of its complete state."""
    is_inside: bool = False
    entered: int = -1
    formed: int = -1
    change: Message = field(default_factory=dict)
    held_at: int = 0
    known: dict[str, str] = field(default_factory=dict)
    forms: bool = True
    """Whether it gives its address and answers when a world is formed."""
    is_plain: bool = False
    size: int = 0
    out: list[Message] = field(default_factory=list)
    is_training: bool = False
    broke: bool = False
    """Its communication broke, so its step is not complete."""

    def hear(self, line: Message) -> None:
        if line["t"] == "keys":
            self.known.update(line["items"])
        elif line["t"] == "change":
            self._on_change(line)
        self._try_to_form()

    def _on_change(self, line: Message) -> None:
        phase = line["phase"]
        if phase == "plain":
            self.is_plain = self.is_plain or self.entered < 0
            return
        former, self.change = self.change.get("round", -1), line
        assert line["round"] >= former, "rounds only rise"
        if phase in ("hold", "stop", "run") and self.entered >= 0 and self.formed == self.entered:
            self.is_training = True  # the agent passes on the newest state only, so a later one also says that this world trains
        if phase == "hold":
            self.held_at = (self.step or 0) + self.is_inside
            self.out.append({"t": "holds", "round": line["round"], "step": self.held_at})
        elif phase == "abort":
            self.is_training = self.is_inside = False
            self.formed = -1
            self.out.append({"t": "at", "round": line["round"], "step": self.step})
        elif phase == "form":
            self.is_training, self.known = False, {}
            self.entered, self.size = line["round"], line["size"]
            if self.forms:
                address = base64.b64encode(f"{line['rank']}".encode()).decode()
                self.known[f"rank/{line['rank']}"] = address
                self.out.append({"t": "put", "round": line["round"], "key": f"rank/{line['rank']}", "value": address})
        if phase in ("hold", "stop"):
            self.train()

    def _try_to_form(self) -> None:
        line = self.change
        is_formed = self.formed == self.entered or len(self.known) < self.size
        if line.get("phase") == "form" and self.forms and not is_formed and self.entered == line["round"]:
            self.step, self.formed = line["step"], self.entered
            self.out.append({"t": "formed", "round": line["round"]})

    def train(self) -> None:
        """Do as many steps as the change allows; one, if it allows any number."""
        phase = self.change.get("phase")
        if phase == "stop" and self.is_training:
            assert self.step is not None
            assert self.step <= self.change["step"], "no worker makes a step that it promised not to begin"
            self.step, self.is_inside = self.change["step"], False
            self.out.append({"t": "at", "round": self.change["round"], "step": self.step})
        elif phase in ("run", "hold") and self.is_training and (phase == "run" or (self.step or 0) < self.held_at):
            self.step, self.is_inside = (self.step or 0) + 1, False
            self.out.append({"t": "stepped", "round": self.entered, "step": self.step})


class Processes:
    """Stands for the agent's workers and store."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.local_size = 1

    def move(self, generation: int, *, rank: int, local_size: int) -> None:
        self.generation = generation

    def use_library(self, child: int) -> None: ...

    def detach(self) -> None: ...


class Door:
    """Hands lines to the workers."""

    path = ""
    most = 1

    def send(self, connection: Worker, line: Message) -> None:
        connection.hear(line)

    def drop(self, connection: Worker, why: str = "") -> None: ...


class Living(Agent):
    """An agent whose workers use the library: `starts` counts how often they were started."""

    presence: Any

    def __init__(self, *args: Any) -> None:
        self.starts = 0
        self.in_process: Any = None
        self.worker: Worker | None = None
        self.is_outside = False
        super().__init__(*args)
        if not hasattr(self.presence, "move"):
            return  # an older release
        self.in_process = InProcess(self.presence, address="10.0.0.1", secret=self.presence.secret)
        self.in_process._door = Door()
        self.in_process._thread = object()  # the test plays it
        self.in_process._wake_up = lambda: None

    def come(self, trouble: str = "") -> None:
        if self.in_process is not None:
            self.in_process.end()
        self.worker, self.is_outside = None, False
        super().come(trouble)

    def turn(self) -> None:
        """Do once what the presence's thread, the handler and the thread of the door do."""
        was_ready = self.is_ready
        super().turn()
        if self.in_process is None:
            return
        view = self.view
        if was_ready and not self.is_ready:
            self._start(view)
        elif self.is_ready and view.provisional and not view.generation:
            self.is_outside, self.is_ready = True, False  # the handler has returned from the barrier
            self._start(View({"size": 1}))
        if self.in_process._workers is not None:
            self.follow()

    def _start(self, view: View) -> None:
        self.starts += 1
        processes = Processes(view.generation)
        self.in_process.begin(processes, processes)
        self.worker = Worker()

    def hello(self) -> None:
        """Let the worker come to its first boundary."""
        worker = self.worker
        if worker is not None and worker not in self.in_process._of:
            self.in_process._of[worker] = self.in_process._change.hello({"t": "hello", "local_rank": 0, "step": worker.step})

    def follow(self) -> None:
        """Do what the thread of the door does."""
        change = self.in_process._change
        for _ in range(3):
            self.in_process._follow()
            if self.worker is not None and self.worker in self.in_process._of:
                told, self.worker.out = self.worker.out, []
                for line in told:
                    change.heard(self.in_process._of[self.worker], line, now=self.link.etcd.now)
        self.in_process._follow()
        generation = self.in_process._workers.generation
        if generation > self.generation:
            self.is_ready, self.is_outside, self.generation = False, False, generation
            self.held = self.presence.view
            if not self.entered or self.entered[-1] < generation:
                self.entered.append(generation)

    def end(self, *, politely: bool) -> None:
        super().end(politely=politely)
        self.close()

    def close(self) -> None:
        if self.in_process is not None:
            self.in_process._wake.close()
            os.environ.pop(WORLD, None)

    def complain(self) -> None:
        """Let the worker's communication break."""
        assert self.worker is not None
        self.worker.is_training = self.worker.is_inside = False
        self.worker.out.append({"t": "complains", "round": self.worker.entered, "words": "connection reset by peer"})

    @property
    def is_working(self) -> bool:
        return super().is_working and not self.is_outside

    @property
    def is_astray(self) -> bool:
        return self.in_process is not None and self.in_process.is_astray(self.view)


class LivingJob(Job):
    """A job whose agents' workers use the library."""

    agents: dict[str, Any]

    def start(self, *names: str) -> None:
        for name in names:
            self.agents[name] = Living(self.etcd, name, self.rules, self.hosts, self.release_of(name))

    def come_all(self) -> None:
        for agent in self.agents.values():
            if agent.is_frozen:
                continue
            agent_is_called = agent.view.reform and (agent.is_working or agent.is_outside)
            if agent_is_called or agent.is_astray or (agent.is_working and agent.has_failed):
                trouble = ""
                if agent.is_astray and not agent.view.reform:
                    agent.generation, trouble = max(agent.generation, agent.view.generation), "a world formed in which they were not asked"
                agent.come(trouble)

    def turn(self, times: int = 3) -> None:
        super().turn(times)
        for agent in self.agents.values():
            if not agent.is_frozen and agent.worker is not None:
                agent.hello()
                agent.follow()

    def train(self) -> None:
        """Let all workers make one step, if nobody of their world is missing."""
        for agent in self.agents.values():
            if not agent.is_frozen and agent.worker is not None and agent.worker.is_training:
                agent.worker.train()

    def close(self) -> None:
        super().close()
        for agent in self.agents.values():
            agent.close()

    def change(self) -> Change:
        world = self.world()
        return world.change or Change() if world is not None else Change()

    def starts(self) -> dict[str, int]:
        return {name: agent.starts for name, agent in self.agents.items()}


PLAIN = Release(presence=EtcdPresence)
"""Agents of ours that know no changes in process."""
