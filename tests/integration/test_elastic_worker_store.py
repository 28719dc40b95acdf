"""The store of torchrun's agents ends every wait with its world."""

import datetime
import json
import threading
import time

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.torch]
torch_distributed = pytest.importorskip("torch.distributed")

from elastic_worker.agent.store import AgentStore, open_tcp_store  # noqa: E402


def stores(size: int, *, over: threading.Event) -> list[AgentStore]:
    first = torch_distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    rest = [torch_distributed.TCPStore("127.0.0.1", first.port, is_master=False, wait_for_workers=False) for _ in range(size - 1)]
    return [AgentStore(store, rank=rank, size=size, is_over=over.is_set) for rank, store in enumerate([first, *rest])]


def role_info(rank: int, workers: int) -> str:
    return json.dumps({"role": "default", "rank": rank, "local_world_size": workers})


def test_agents_exchange_their_keys_as_over_any_store() -> None:
    first, second = stores(2, over=threading.Event())
    second.set("torchelastic/role_info/1", role_info(1, 2))
    first.set("torchelastic/role_info/0", role_info(0, 2))
    infos = first.multi_get(["torchelastic/role_info/0", "torchelastic/role_info/1"])
    assert [json.loads(info)["rank"] for info in infos] == [0, 1]
    first.multi_set(["torchelastic/assigned_ranks/1"], ["[2, 4, 2, 4]"])
    assert json.loads(second.get("torchelastic/assigned_ranks/1")) == [2, 4, 2, 4]
    assert first.add("count", 1) + second.add("count", 1) == 3
    assert not first.broke
    assert not second.broke


def test_a_wait_for_a_peer_ends_with_the_world_and_not_after_minutes() -> None:
    """A peer was killed between the sealing of the world and its first key: rank 0 must not end with it."""
    over = threading.Event()
    first, _ = stores(2, over=over)
    first.set("torchelastic/role_info/0", role_info(0, 4))
    threading.Timer(0.3, over.set).start()
    infos = first.multi_get(["torchelastic/role_info/0", "torchelastic/role_info/1"])
    assert first.broke
    assert len(infos) == 2, "the agent goes on with made-up ranks to its next look at the rendezvous"


def test_the_loss_of_rank_0_gives_made_up_ranks_instead_of_an_error() -> None:
    first, second = stores(2, over=threading.Event())
    second.set("torchelastic/role_info/1", role_info(1, 4))
    first.close()
    assert json.loads(second.get("torchelastic/assigned_ranks/1")) == [4, 8, 4, 8]
    assert second.broke


def test_a_barrier_at_the_end_does_not_wait_for_a_world_that_has_ended() -> None:
    over = threading.Event()
    first, _ = stores(2, over=over)
    over.set()
    before = first.timeout
    first.set_timeout(datetime.timedelta(seconds=300))
    first.wait(["never"])
    first.set_timeout(before)
    assert first.broke


def test_a_time_out_is_a_time_out_while_the_world_stands() -> None:
    first, _ = stores(2, over=threading.Event())
    began = time.monotonic()
    first.wait(["never"], datetime.timedelta(seconds=0.6))
    assert time.monotonic() - began > 0.5
    assert first.broke


def test_a_store_without_libuv_is_used_if_torchs_own_switch_says_so() -> None:
    """Some builds of torch lack libuv; their users set the switch, or we find out."""
    timeout = datetime.timedelta(seconds=60)
    opened = [open_tcp_store("127.0.0.1", 0, {"USE_LIBUV": switch}, is_master=True, timeout=timeout) for switch in ("0", "1")]
    assert [store.libuvBackend for store in opened] == [False, True]
    environment: dict[str, str] = {}
    assert open_tcp_store("127.0.0.1", 0, environment, is_master=True, timeout=timeout).libuvBackend
    assert environment == {}


def test_after_a_change_in_process_the_store_is_not_asked_at_all() -> None:
    """Rank 0 of the world in which the workers began may be on a node that is lost: a question there takes torch 300 s."""

    class Unreachable:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"it was asked: {name}")

    store = AgentStore(Unreachable(), rank=0, size=3, is_over=lambda: False)
    store.detach()
    store.add("torchelastic/agent/terminal_state/num_members", 1)
    store.set("torchelastic/agent/terminal_state/last_member", "")
    store.wait(["torchelastic/agent/terminal_state/last_member"])
    assert not store.broke, "torchrun is not to come back to the barrier"


def test_a_wait_ends_with_a_change_in_process() -> None:
    first, _ = stores(2, over=threading.Event())
    threading.Timer(0.3, first.detach).start()
    first.wait(["never"])
    assert not first.broke
