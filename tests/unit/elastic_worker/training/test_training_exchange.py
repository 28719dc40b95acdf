"""The store over the agent's door, used by torch itself."""

import base64
import datetime
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from scripted_agent import PATIENCE_S, ScriptedAgent

from elastic_worker.training import whole
from elastic_worker.training.connections import Connections
from elastic_worker.training.control import Control
from elastic_worker.training.exchange import Exchange
from elastic_worker.training.group import Group


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ScriptedAgent]:
    one = ScriptedAgent(tmp_path)
    yield one
    one.end()


def group_of(model: torch.nn.Module) -> Group:
    return Group(model, whole.Whole(model, torch.optim.SGD(model.parameters()), {}))


def entered(agent: ScriptedAgent, connections: Connections) -> Control:
    """Return the control of a worker that forms the world of round 1."""
    one = agent.control(connections)
    agent.hears()
    agent.says("form", 1)
    one.next_change(one.place)
    one.enter(1, PATIENCE_S)
    return one


def test_each_method_of_a_store_works_or_says_why_not(agent: ScriptedAgent) -> None:
    store = Exchange(entered(agent, Connections()), Connections(), round=1, timeout_s=0.01)
    store.set("a", b"\xff")
    store.set("b", "text")
    assert [agent.hears()["key"] for _ in range(2)] == ["a", "b"]
    assert store.get("a") == b"\xff"
    assert store.multi_get(["a", "b"]) == [b"\xff", b"text"]
    assert store.num_keys() == 2
    assert store.check(["a"])
    assert not store.check(["a", "c"])
    store.wait(["a", "b"])
    store.wait(["a"], datetime.timedelta(seconds=1))
    assert store.delete_key("b")
    assert not store.delete_key("b")
    for wait in (lambda: store.get("b"), lambda: store.wait(["b"]), lambda: store.multi_get(["a", "b"])):
        with pytest.raises(RuntimeError, match=r"no peer has sent b within 0\.01 s"):
            wait()
    store.set_timeout(datetime.timedelta(seconds=0.02))
    with pytest.raises(RuntimeError, match=r"0\.02 s"):
        store.get("b")
    for count in (lambda: store.add("n", 1), lambda: store.compare_set("a", "", "x")):
        with pytest.raises(RuntimeError, match="has no counters"):
            count()


def test_two_ranks_meet_over_it_and_a_break_frees_one_that_waits(tmp_path: Path) -> None:
    """The peer is another process, which never takes part in the second allreduce."""
    import multiprocessing

    context = multiprocessing.get_context("fork")
    folders = [tmp_path / str(rank) for rank in range(2)]
    for folder in folders:
        folder.mkdir()
    agents = [ScriptedAgent(folder) for folder in folders]
    inside, leave = context.Event(), context.Event()
    peer = context.Process(target=_peer, args=(folders[1], agents[1], inside, leave))
    peer.start()
    connections = Connections()
    group = group_of(torch.nn.Linear(1, 1))
    try:
        _accept(agents[1])
        control = agents[0].control(connections)
        agents[0].hears()
        agents[1].hears()
        passing = threading.Thread(target=_pass_on, args=(agents,), daemon=True)
        passing.start()
        control.next_change(control.place)
        control.enter(1, PATIENCE_S)
        group.form(control, connections, round=1, rank=0, size=2)
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 3
        assert inside.wait(PATIENCE_S)
        agents[0].says("abort", 2)
        with pytest.raises(RuntimeError, match="gloo"):
            dist.all_reduce(total)
        assert control.is_ending()
        control.at_boundary(2, None)
    finally:
        leave.set()
        group.leave()
        peer.join(PATIENCE_S)
        for agent in agents:
            agent.end()
    assert peer.exitcode == 0


def _accept(agent: ScriptedAgent) -> None:
    agent.connection, _ = agent._listener.accept()
    agent.connection.settimeout(PATIENCE_S)
    agent._lines = agent.connection.makefile("rb")


def _pass_on(agents: list[ScriptedAgent]) -> None:
    """Play the server of one round: the value of each rank goes to both."""
    for agent in agents:
        agent.says("form", 1)
    items = {}
    for agent in agents:
        message = agent.hears()
        assert base64.b64decode(message["value"])
        items[message["key"]] = message["value"]
    for agent in agents:
        agent.sends({"t": "keys", "round": 1, "items": items})


def _peer(folder: Path, agent: ScriptedAgent, inside: object, leave: object) -> None:
    agent._listener.close()
    connections = Connections()
    control = Control(str(folder / "door"), connections)
    control.start(pid=2, local_rank=0, torch="2.13.0", step=None)
    control.next_change(control.place)
    control.enter(1, PATIENCE_S)
    group = group_of(torch.nn.Linear(1, 1))
    group.form(control, connections, round=1, rank=1, size=2)
    dist.all_reduce(torch.full((1,), 2.0))
    inside.set()
    leave.wait(PATIENCE_S)
    control.done()
    group.leave()


def test_a_program_forms_groups_of_its_own_and_hears_when_no_more_have_room(agent: ScriptedAgent) -> None:
    """Torch kept only the C++ part of our store, so each further group failed with an internal assertion.

    A worker that puts more values than its agent takes would lose its connection, and end as if the agent were gone.
    """
    connections = Connections()
    group = group_of(torch.nn.Linear(1, 1))
    group.form(entered(agent, connections), connections, round=1, rank=0, size=1)
    try:
        for _ in range(13):
            total = torch.ones(1)
            dist.all_reduce(total, group=dist.new_group([0]))
        with pytest.raises(RuntimeError, match="has formed 14 process groups in one world"):
            dist.new_group([0])
        assert [agent.hears()["t"] for _ in range(14)] == 14 * ["put"]
    finally:
        group.leave()


def test_a_torch_whose_wrapper_always_waits_for_all_ranks_changes_no_worlds_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch 2.6 has no `init_sync`, and the library failed in its first world."""
    assert whole.obstacle() == ""

    class Older(torch.nn.parallel.DistributedDataParallel):
        def __init__(self, module: torch.nn.Module, device_ids: object = None) -> None:
            super().__init__(module)

    monkeypatch.setattr(whole, "DistributedDataParallel", Older)
    monkeypatch.setattr(whole, "_Wrapper", Older)
    assert whole.obstacle() == f"torch {torch.__version__} is too old, because its DistributedDataParallel has no init_sync"
    model = torch.nn.Linear(1, 1)
    replica = whole.Whole(model, torch.optim.SGD(model.parameters()), {})
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        replica.wrap(is_level=False)  # as under stock torchrun
        assert isinstance(replica.wrapper, Older)
    finally:
        replica.leave()
        dist.destroy_process_group()
