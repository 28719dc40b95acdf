"""Check which state a worker has in its next world. The test plays the agent, and the other worker's donor."""

import base64
import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from scripted_agent import PATIENCE_S, ScriptedAgent

from elastic_worker.training import environment, transfer
from elastic_worker.training.connections import Connections
from elastic_worker.training.control import Control
from elastic_worker.training.snapshot import states_of
from elastic_worker.training.worlds import Worlds

SECRET = "ab" * 16
STEP = 5


class LoneGroup:
    """A group in which no collective takes place."""

    def __init__(self, model: torch.nn.Module) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.replica = SimpleNamespace(states={"model": model, "optimizer": optimizer}, meets_peers=lambda: True, wrap=self.form)

    def form(self, *_: object, **__: object) -> None:
        """Form nothing."""

    rehearse = leave = form


def model_of(value: float) -> torch.nn.Linear:
    model = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(model.weight, value)
    return model


def worlds_of(model: torch.nn.Module) -> Worlds:
    return Worlds(SimpleNamespace(rank=0, size=1), LoneGroup(model), sampler=None, extra={})  # type: ignore[arg-type]


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedAgent]:
    monkeypatch.setattr(environment, "write", lambda world: None)  # this process belongs to pytest
    one = ScriptedAgent(tmp_path)
    yield one
    one.end()


@contextlib.contextmanager
def donor(value: float, *, round: int, rank: int = 0, step: int = STEP) -> Iterator[bytes]:
    """Give the state of a model with this weight, and yield the donor's place."""
    parts = transfer.Parts.of(states_of(worlds_of(model_of(value)).objects), step)
    with contextlib.closing(transfer.Donor(parts, host="127.0.0.1", round=round, rank=rank, size=2, secret=bytes.fromhex(SECRET))) as one:
        yield json.dumps(["127.0.0.1", one.port]).encode()


def form(agent: ScriptedAgent, round: int, place: bytes, *, rank: int = 1, donors: tuple[int, ...] = (0,), step: int = STEP) -> None:
    """Tell the worker to form a world of two with this rank, at a step of which the other rank has the state."""
    agent.sends({"t": "keys", "round": round, "items": {f"state/{1 - rank}": base64.b64encode(place).decode()}})
    fields = {"generation": round, "rank": rank, "size": 2, "local_rank": 0, "local_size": 1, "node": rank, "nodes": 2}
    agent.says("form", round, **fields, step=step, donors=list(donors), secret=SECRET, address="127.0.0.1")
    while agent.hears()["t"] != "formed":
        pass
    agent.says("run", round)


def begun(agent: ScriptedAgent, model: torch.nn.Module, *, step: int | None) -> tuple[Worlds, Control, threading.Thread]:
    """Let a worker with a save of this step say hello, and wait for its first world."""
    worlds, connections = worlds_of(model), Connections()
    control = Control(agent.path, connections, leave=agent._leave)
    agent._control = control
    entered = threading.Thread(target=lambda: worlds.begin(control, connections, step=step))
    entered.start()
    agent.accept()
    assert agent.hears()["step"] == step
    return worlds, control, entered


def test_a_newcomer_takes_the_state_of_a_world_although_its_save_has_the_same_step(agent: ScriptedAgent) -> None:
    """The others had made the save's last step again in another world, and two states trained together."""
    own = model_of(1.0)
    worlds, _, entered = begun(agent, own, step=STEP)
    with donor(2.0, round=1) as place:
        form(agent, 1, place)
        entered.join(PATIENCE_S)
    assert own.weight.item() == 2.0
    own.weight.data.fill_(3.0)
    changed = threading.Thread(target=worlds.change)
    changed.start()
    agent.says("stop", 2, step=STEP)
    with donor(4.0, round=2) as place:
        form(agent, 2, place)
        changed.join(PATIENCE_S)
    assert own.weight.item() == 3.0, "a worker that was in the world has the state of that step"


@pytest.mark.parametrize(("rank", "step", "weight"), [(0, STEP, 2.0), (1, STEP, 2.0), (1, 0, 2.0), (0, 0, 1.0)])
def test_a_process_in_the_place_of_a_lost_donor_gives_no_state_of_a_later_step(
    agent: ScriptedAgent, rank: int, step: int, weight: float
) -> None:
    """The server had chosen the donor, its process was lost, and the new one trained on with random weights at the others' step.

    At step 0 all take the weights of the first donor, also if its process is new.
    """
    own = model_of(1.0)
    _, control, entered = begun(agent, own, step=None)
    with donor(2.0, round=1, rank=1 - rank, step=step) as place:
        form(agent, 1, place, rank=rank, donors=(0, 1), step=step)
        entered.join(PATIENCE_S)
    assert own.weight.item() == weight
    assert control.step == step
