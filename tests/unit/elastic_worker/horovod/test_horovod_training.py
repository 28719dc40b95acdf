"""Check our library's additions to a training program's state. A world of one worker plays Horovod."""

import os
import queue
import socket
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from elastic_worker.horovod import training
from elastic_worker.horovod.commits import Commits

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Interrupt(Exception):
    """Horovod's HostsUpdatedInterrupt."""

    def __init__(self, skip_sync: bool) -> None:
        self.skip_sync = skip_sync


class Handler:
    def __init__(self, model: Any) -> None:
        self.value = model
        self.save()

    def save(self) -> None:
        self._saved_model_state = {name: tensor.clone() for name, tensor in self.value.state_dict().items()}

    def restore(self) -> None:
        self.value.load_state_dict(self._saved_model_state)


class State:
    """The part of horovod.torch's TorchState that matters here."""

    def __init__(self, model: Any, **values: int) -> None:
        self._handlers = {"model": Handler(model)}
        self._saved_state = values
        self._host_messages: queue.Queue[bool] = queue.Queue()
        self.synced = 0
        vars(self).update(values)

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        vars(self).update(self._saved_state)

    def sync(self) -> None:
        self.synced += 1

    def check_host_updates(self) -> None:
        if not self._host_messages.empty():
            raise Interrupt(skip_sync=self._host_messages.get())

    def commit(self) -> None:
        self.save()
        self.check_host_updates()


class World:
    """Horovod with one worker."""

    Sum = "sum"

    def rank(self) -> int:
        return 0

    local_rank = rank

    def allgather_object(self, one: Any) -> list[Any]:
        return [one]

    def broadcast_object(self, one: Any, root_rank: int) -> Any:
        assert root_rank == 0
        return one

    def allreduce_async(self, tensor: Any, name: str, op: str) -> Any:
        return tensor

    def synchronize(self, handle: Any) -> Any:
        return handle


class Asked:
    """The launcher's side: it gets the progress, and may ask for a checkpoint."""

    def __init__(self) -> None:
        self.sent: list[tuple[int | None, dict[str, float]]] = []
        self.is_asked = False

    def send(self, step: int | None, values: dict[str, float]) -> None:
        self.sent.append((step, values))

    def is_checkpoint_asked(self) -> bool:
        is_asked, self.is_asked = self.is_asked, False
        return is_asked


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ELASTIC_COMMITS", str(tmp_path))
    monkeypatch.delenv("HOROVOD_ELASTIC", raising=False)
    return tmp_path


def kept(**values: int) -> Any:
    return training.kept(World(), State(torch.nn.Linear(2, 1), **values))


def flushed(state: Any) -> None:
    commits: Commits = state._elastic.commits
    assert commits.flush(20.0)


def test_a_new_process_goes_on_from_the_commit_that_its_pod_has_kept() -> None:
    first = kept(step=0)
    first.sync()
    with torch.no_grad():
        first._handlers["model"].value.weight.fill_(7.0)
    first.step = 5
    first.commit()
    first.step = 6
    flushed(first)
    second = kept(step=0)
    assert isinstance(second, State)
    second.sync()
    assert (second.step, second.synced, second._elastic.number) == (5, 1, 1)
    assert second._handlers["model"].value.weight.tolist() == [[7.0, 7.0]]


def test_the_state_in_memory_is_newer_than_any_file() -> None:
    state = kept(step=0)
    state.step = 5
    state.commit()
    flushed(state)
    state.step = 6
    state.sync()
    assert state.step == 6


def test_a_worker_always_synchronises_after_a_change() -> None:
    state = kept(step=0)
    state._host_messages.put(True)
    with pytest.raises(Interrupt) as found:
        state.commit()
    assert found.value.skip_sync is False


def test_steps_are_committed_every_so_often_and_reported() -> None:
    state = kept(step=0)
    state._elastic.progress = asked = Asked()
    for step in range(1, 8):
        state.step = step
        assert state.step_done(3, loss=0.5) is False
    assert state._elastic.number == 2
    assert asked.sent[-1] == (7, {"loss": 0.5})


def test_a_change_of_hosts_that_waits_is_noticed_at_the_next_step() -> None:
    state = kept(step=0)
    state.step_done(1000)
    state._host_messages.put(False)
    state.step_done(1000)
    with pytest.raises(Interrupt):
        state.step_done(1000)
    assert state._elastic.number == 1


def test_after_the_last_step_of_another_worker_nothing_is_asked_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other worker had shut Horovod down. The failure made its peers look for another world, though the job had finished."""
    state = kept(step=0)
    with monkeypatch.context() as over:
        over.setattr(state._elastic.hvd, "allreduce_async", mock.Mock(side_effect=RuntimeError("Horovod has been shut down.")))
        assert state.step_done(1000) is False
    assert state.step_done(1000) is False


def test_a_checkpoint_that_is_asked_for_is_a_commit_and_the_answer() -> None:
    state = kept(step=0)
    state._elastic.progress = asked = Asked()
    assert state.step_done(1000) is False
    asked.is_asked = True
    assert [state.step_done(1000) for _ in range(4)] == [False, True, False, False]
    assert state._elastic.number == 1


class Elastic:
    """The module horovod.torch.elastic, whose functions leave a world and come into the next one."""

    begun = 0

    def init(self) -> None:
        self.begun += 1


def test_connections_of_the_last_world_end_before_the_next_one_begins() -> None:
    """If a worker is lost while all shut down, others may still wait for this one."""
    world: Any = World()
    world.elastic = Elastic()
    state = training.kept(world, State(torch.nn.Linear(2, 1), step=0))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, _ = server.accept()
        with theirs:
            state._elastic.gloos = {ours.fileno(): os.fstat(ours.fileno()).st_ino}
            world.elastic.init()
            theirs.settimeout(20)
            assert theirs.recv(1) == b""
    assert world.elastic.begun == 1


def test_the_state_of_another_framework_keeps_no_commits(folder: Path) -> None:
    plain = State(torch.nn.Linear(2, 1), step=0)
    del plain._handlers
    state = training.kept(World(), plain)
    state.sync()
    assert state._elastic.commits is None
    assert list(folder.iterdir()) == []
