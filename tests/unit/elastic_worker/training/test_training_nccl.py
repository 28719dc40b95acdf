"""The NCCL part of a world without a GPU: backends that note their calls stand for NCCL's."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from scripted_agent import PATIENCE_S, ScriptedAgent
from torch._C._distributed_c10d import HashStore

from elastic_worker import Run
from elastic_worker.training import nccl
from elastic_worker.training.connections import Connections
from elastic_worker.training.control import Control, Over
from elastic_worker.training.nccl import Nccl


class Backend:
    """Notes its calls; an abort lasts until `goes_on`."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.goes_on = threading.Event()

    def abort(self) -> None:
        self.calls.append("abort")
        assert self.goes_on.wait(PATIENCE_S)

    def shutdown(self) -> None:
        self.calls.append("shutdown")


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ScriptedAgent]:
    one = ScriptedAgent(tmp_path)
    yield one
    one.end()


@pytest.fixture
def control(agent: ScriptedAgent) -> Control:
    """Return the control of a worker that forms the world of round 1."""
    one = agent.control(Connections())
    agent.hears()
    agent.says("form", 1)
    one.next_change(one.place)
    one.enter(1, PATIENCE_S)
    return one


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Backend:
    one = Backend()
    monkeypatch.setattr(Nccl, "_backend", lambda self, group: one)
    return one


@pytest.fixture
def world() -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    default = dist.group.WORLD
    assert default is not None
    yield default
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], None]], Nccl]]:
    """Yield a function that returns a part whose first collectives do what it is given."""

    def make(first: Callable[[], None]) -> Nccl:
        monkeypatch.setattr(Nccl, "first", lambda self, groups=None: first())
        return Nccl(torch.device("cpu"))

    return make


def test_the_settings_hold_for_worlds_in_process_and_the_users_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    monkeypatch.delenv("TORCH_NCCL_PROPAGATE_ERROR", raising=False)
    one = Nccl(torch.device("cpu"))
    one.take_settings()
    one.take_settings()
    assert {name: os.environ[name] for name in nccl.SETTINGS} == nccl.SETTINGS
    one.give_back_settings()
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"
    assert "TORCH_NCCL_PROPAGATE_ERROR" not in os.environ


def test_a_world_that_ends_while_nccl_connects_frees_the_main_thread(agent: ScriptedAgent, control: Control, part: Any) -> None:
    """Nothing breaks off NCCL's connecting, so the thread that connects is left alone."""
    goes_on = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        connecting: Future[None] = threads.submit(part(goes_on.wait).connect, control, round=1)
        agent.says("abort", 2)
        assert isinstance(connecting.exception(PATIENCE_S), Over)
    goes_on.set()


def test_connecting_ends_with_the_words_of_nccl_or_after_some_time(control: Control, part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    part(lambda: None).connect(control, round=1)

    def fail() -> None:
        raise dist.DistBackendError("Duplicate GPU detected")

    with pytest.raises(RuntimeError, match="NCCL has not connected the world: Duplicate GPU detected"):
        part(fail).connect(control, round=1)
    goes_on = threading.Event()
    monkeypatch.setattr(nccl, "CONNECT_S", 0.01)
    with pytest.raises(RuntimeError, match=r"NCCL has not connected the world within 0\.01 s"):
        part(goes_on.wait).connect(control, round=1)
    goes_on.set()


def test_a_break_does_not_wait_for_nccl_and_neither_does_the_next_world(world: dist.ProcessGroup, backend: Backend) -> None:
    one = Nccl(torch.device("cpu"))
    is_breaking = one.abort()
    assert is_breaking()
    one.leave()
    assert not dist.is_initialized()
    assert "shutdown" not in backend.calls
    backend.goes_on.set()
    one.end()  # waits for the group that was left, and not for the break
    until = time.monotonic() + PATIENCE_S
    while is_breaking():
        assert time.monotonic() < until
        time.sleep(0.001)
    assert sorted(backend.calls) == ["abort", "abort", "shutdown"]


def test_a_group_that_outlives_the_world_is_spared(world: dist.ProcessGroup, backend: Backend) -> None:
    one = Nccl(torch.device("cpu"), kept=[world])
    assert not one.abort()()
    one.leave()
    assert dist.is_initialized()
    assert backend.calls == []


def test_worlds_that_end_slowly_do_not_pile_up(backend: Backend) -> None:
    one = Nccl(torch.device("cpu"))
    backend.goes_on.set()
    for _ in range(20):
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        one.leave()
    assert len(one._ending) <= nccl.MOST_ENDING
    one.end()
    assert backend.calls.count("shutdown") == 20


@pytest.mark.parametrize(
    ("backend", "words"),
    [("mpi", 'backend is \'mpi\', but must be "nccl" or "gloo"'), ("nccl", 'backend is "nccl", but the model is on cpu. Move it to a GPU')],
)
def test_a_backend_that_does_not_fit_is_refused(backend: str, words: str) -> None:
    model = torch.nn.Linear(1, 1)
    with pytest.raises(ValueError, match=words):
        Run(model, torch.optim.SGD(model.parameters(), lr=0.1), batch=1, backend=backend)
