"""The state from a donor to the workers that lack it, also with peers that lie, stall or do not know the secret."""

import collections
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from unittest import mock

import pytest
import torch

from elastic_worker.training import state as states
from elastic_worker.training import transfer, worlds
from elastic_worker.training.connections import Connections
from elastic_worker.training.snapshot import states_of
from elastic_worker.training.transfer import Donor, Parts, TransferError

SECRET = b"the round's secret"
PATIENCE_S = 20.0


def training_state(seed: int, *, steps: int = 1, width: int = 5) -> dict:
    """Return the state of a model that has trained for some steps."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.randn(8, 3)).sum().backward()
        optimizer.step()
    odd = {"words": ["a", None, True], "pair": (1, 2.5), 3: b"\x00", "nan": float("inf"), "half": torch.ones(3, dtype=torch.bfloat16)}
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "extra": odd}


def assert_same(one: object, other: object) -> None:
    if isinstance(one, torch.Tensor):
        assert isinstance(other, torch.Tensor)
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert isinstance(other, dict)
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert type(one) is type(other)
        assert len(one) == len(other)
        for inner, its in zip(one, other, strict=True):
            assert_same(inner, its)
    else:
        assert one == other


@contextmanager
def giving(state: object, *, step: int = 9, size: int = 4, host: str = "127.0.0.1") -> Iterator[Donor]:
    with closing(Donor(Parts.of(state, step), host=host, round=3, rank=0, size=size, secret=SECRET)) as donor:
        yield donor


def receive(address: tuple[str, int], own: object, **changed: object) -> object:
    options = {"round": 3, "donor": 0, "rank": 1, "step": 9, "secret": SECRET, "connections": Connections(), "is_in_place": True}
    return transfer.receive(address, own, **{"tell": lambda size: None, **options, **changed})


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("is_in_place", [True, False])
def test_the_state_arrives_as_it_is_at_the_donor(host: str, is_in_place: bool) -> None:
    given, own = training_state(1), training_state(2, steps=0)
    with giving(given, host=host) as donor:
        got = receive((host, donor.port), own, is_in_place=is_in_place)
    assert_same(given, got)
    written = [torch.equal(own["model"][name], given["model"][name]) for name in ("0.weight", "2.bias")]
    assert written == [is_in_place, is_in_place]


def test_several_receivers_are_served_at_once_with_tensors_larger_than_a_piece() -> None:
    given = {"model": {"large": torch.randn(3 * transfer.PIECE // 4 + 7), "odd": torch.randn(4, 6).t(), "none": torch.zeros(0)}}
    with giving(given) as donor, ThreadPoolExecutor(3) as pool:
        gots = pool.map(lambda rank: receive(("127.0.0.1", donor.port), training_like(given), rank=rank), (1, 2, 3))
        for got in gots:
            assert_same(given, got)


def training_like(state: dict) -> dict:
    return {"model": {name: torch.zeros(one.shape, dtype=one.dtype) for name, one in state["model"].items()}}


def test_neither_side_accepts_a_peer_without_the_secret() -> None:
    state = training_state(1)
    with giving(state) as donor:
        with pytest.raises(TransferError, match="does not know the round's secret"):
            receive(("127.0.0.1", donor.port), state, secret=b"another")
        with pytest.raises(TransferError, match=r"closed the connection|reset"):
            receive(("127.0.0.1", donor.port), state, round=2)
        with socket.create_connection(("127.0.0.1", donor.port), PATIENCE_S) as stranger:
            stranger.sendall(transfer.GREETING.pack(transfer.MAGIC, 3, 0, 1, bytes(32)))
            assert len(stranger.recv(64, socket.MSG_WAITALL)) == 64
            stranger.sendall(bytes(32))
            assert stranger.recv(1) == b"", "nothing of the state is sent before the proof"
        assert_same(receive(("127.0.0.1", donor.port), state), state)


def test_silent_strangers_keep_no_member_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "SPARE_STRANGERS", 2)
    state = training_state(1)
    with giving(state, size=2) as donor:
        strangers = [socket.create_connection(("127.0.0.1", donor.port), PATIENCE_S) for _ in range(12)]
        try:
            assert_same(receive(("127.0.0.1", donor.port), state), state)
            assert strangers[0].recv(1) == b"", "the oldest stranger was dropped"
        finally:
            for one in strangers:
                one.close()


def test_a_receiver_that_reads_nothing_ends_only_its_own_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "STALL_S", 0.3)
    given = {"model": {"large": torch.randn(8 << 20)}}
    with giving(given) as donor:
        greeting = transfer.GREETING.pack(transfer.MAGIC, 3, 0, 2, bytes(32))
        with socket.create_connection(("127.0.0.1", donor.port), PATIENCE_S) as slow:
            slow.sendall(greeting)
            answer = slow.recv(64, socket.MSG_WAITALL)
            slow.sendall(transfer._proof(SECRET, b"receiver", greeting + answer[:32]))
            monkeypatch.setattr(transfer, "STALL_S", 5.0)
            assert_same(receive(("127.0.0.1", donor.port), training_like(given)), given)
            end = time.monotonic() + PATIENCE_S
            while donor._members:
                assert time.monotonic() < end
                time.sleep(0.01)


class Liar:
    """A donor that knows the secret, and sends whatever the test wants after the proofs."""

    def __init__(self, *sends: bytes) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = self.server.getsockname()
        self._sends = sends
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with self.server, closing(self.server.accept()[0]) as peer:
            greeting = peer.recv(transfer.GREETING.size, socket.MSG_WAITALL)
            nonce = bytes(32)
            peer.sendall(transfer.ANSWER.pack(nonce, transfer._proof(SECRET, b"donor", greeting + nonce)))
            peer.recv(32, socket.MSG_WAITALL)
            for some in self._sends:
                peer.sendall(some)

    def end(self) -> None:
        self._thread.join(PATIENCE_S)


def header(text: bytes, size: int, *, step: int = 9) -> bytes:
    return transfer.HEADER.pack(transfer.MAGIC, step, len(text), size) + text


def text(structure: object, *shapes: object) -> bytes:
    return json.dumps([structure, list(shapes)]).encode()


ONE = ["d", [["model", ["d", [["weight", ["x", 0]]]]]]]
LIES: dict[str, tuple[bytes, str]] = {
    "another step": (header(text(ONE, ["float32", [2]]), 8, step=8), "offers step 8 .* step 9 was wanted"),
    "a structure without end": (transfer.HEADER.pack(transfer.MAGIC, 9, transfer.LONGEST_JSON + 1, 8), "bytes of structure"),
    "another format": (bytes(transfer.HEADER.size), "offers step 0"),
    "no JSON": (header(b"\x80\x04", 8), "no JSON"),
    "a nest without end": (header(b"[" * 100_000, 8), "no JSON"),
    "deep lists": (header(json.dumps([json.loads('["l",[' * 200 + '["x",0]' + "]]" * 200), [["float32", [2]]]]).encode(), 8), "invalid at"),
    "no pair": (header(b"[1]", 8), "another form"),
    "a huge tensor": (header(text(ONE, ["float32", [1 << 40]]), 4 << 40), r"weight is Shape\(dtype='float32', sizes=\(2,\)\) here"),
    "a huge new tensor": (
        header(text(["d", [*ONE[1], ["optimizer", ["x", 1]]]], ["float32", [2]], ["float32", [1 << 28]]), 8 + (4 << 28)),
        "at most 67110912 fit this model",
    ),
    "other sizes than the sum": (header(text(ONE, ["float32", [2]]), 12), "need other than 12 bytes"),
    "another type": (header(text(ONE, ["float64", [2]]), 16), "is Shape"),
    "an unknown type": (header(text(ONE, ["object", [2]]), 8), "is no shape"),
    "a negative size": (header(text(ONE, ["float32", [-2]]), 8), "is no shape"),
    "a tensor twice": (header(text(["d", [["model", ["l", [["x", 0], ["x", 0]]]]]], ["float32", [2]]), 8), "twice"),
    "a tensor that is not there": (header(text(["d", [["model", ["x", 1]]]], ["float32", [2]]), 8), "has only 1"),
    "a tensor too much": (header(text(ONE, ["float32", [2]], ["float32", [2]]), 16), "names 1 of 2"),
    "a model without its weight": (
        header(text(["d", [["model", ["d", [["bias", ["x", 0]]]]]]], ["float32", [2]]), 8),
        "lacks model.weight",
    ),
    "half of the bytes": (header(text(ONE, ["float32", [2]]), 8) + b"half", "closed the connection"),
    "nothing": (b"", "closed the connection"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_donor_ends_its_own_transfer(lie: str) -> None:
    sent, words = LIES[lie]
    liar = Liar(sent)
    with pytest.raises(TransferError, match=words):
        receive(liar.address, {"model": {"weight": torch.zeros(2)}})
    liar.end()


def test_a_donor_that_stalls_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "STALL_S", 0.1)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent, pytest.raises(TransferError, match="timed out"):
        receive(silent.getsockname(), {"model": {}})


def test_a_break_of_the_group_ends_a_transfer() -> None:
    connections = Connections()
    connections.begin(2)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent, ThreadPoolExecutor(1) as pool:
        got = pool.submit(receive, silent.getsockname(), {"model": {}}, connections=connections)
        with closing(silent.accept()[0]) as peer:
            assert peer.recv(transfer.GREETING.size, socket.MSG_WAITALL)
            connections.break_off(connections.epoch)
            with pytest.raises(TransferError):
                got.result(PATIENCE_S)


def test_progress_is_told_at_most_twice_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"model": {"large": torch.zeros(3 << 20)}}
    told: list[int] = []
    with giving(given) as donor:
        receive(("127.0.0.1", donor.port), training_like(given), tell=told.append)
        assert told == []
        monkeypatch.setattr(transfer, "TELL_EVERY_S", -1.0)
        receive(("127.0.0.1", donor.port), training_like(given), tell=told.append)
    assert told == [n << 20 for n in range(1, 13)]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "a object at extra.x"),
        (torch.ones(2).to_sparse(), "a Tensor at extra.x"),
        ({(1, 2): 3}, "a dict at extra.x"),
        ({1, 2}, "a set at extra.x"),
    ],
)
def test_a_state_that_cannot_travel_is_refused_with_its_place(value: object, words: str) -> None:
    with pytest.raises(states.BadState, match=words):
        Parts.of({"extra": {"x": value}}, 1)


def test_numpy_values_and_ordered_dicts_travel_as_plain_ones() -> None:
    numpy = pytest.importorskip("numpy")
    state = collections.OrderedDict(a=numpy.float64(0.5), b=numpy.arange(3))
    structure, tensors = states.take_apart(state)
    assert_same(states.put_together(structure, list(tensors.values())), {"a": 0.5, "b": torch.arange(3)})


def test_the_proofs_of_both_sides_differ() -> None:
    """A peer could otherwise send a proof back to where it came from."""
    assert transfer._proof(SECRET, b"donor", b"x") != transfer._proof(SECRET, b"receiver", b"x")
    assert struct.calcsize(transfer.GREETING.format) == 64


def test_a_donor_closes_in_the_middle_of_a_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"model": {"large": torch.zeros(16 << 20)}}
    with giving(given) as donor:
        monkeypatch.setattr(transfer, "TELL_EVERY_S", -1.0)
        with pytest.raises(TransferError, match=r"closed|reset"):
            receive(("127.0.0.1", donor.port), training_like(given), tell=lambda size: donor.close())


class Stubborn:
    """An object of the program that takes no state."""

    def state_dict(self) -> dict[str, int]:
        return {"count": 1}

    def load_state_dict(self, state: object) -> None:
        raise ValueError("another version")


def test_a_worker_that_could_not_load_a_state_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its model was the donor's already, and the rest its own. It named the step of its own state all the same."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    group = mock.Mock(replica=mock.Mock(states={"model": model, "optimizer": optimizer}))
    own = worlds.Worlds(mock.Mock(), group, sampler=None, extra={"count": Stubborn()})
    own._control, own._connections, own._has_state = mock.Mock(step=7), mock.Mock(), True
    own._control.get.return_value = [b'["127.0.0.1", 1]']
    given = states_of(own.objects)
    monkeypatch.setattr(worlds.transfer, "receive", lambda *_, **__: given)
    assert own.step == 7
    with pytest.raises(ValueError, match="another version"):
        own._pull({"rank": 1, "size": 2, "step": 8, "donors": [0], "secret": "00"}, 1)
    assert own.step is None
