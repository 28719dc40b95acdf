"""Carries the state from a donor to the workers that lack it, by TCP. The receivers pull; the donor listens only while a round forms.

Both sides prove that they know the round's secret before anything else is sent. Then the donor sends a header (the step, the structure
as JSON, types and shapes), and the bytes of the tensors. Each peer has limits for each read and for the whole, so a slow or lying peer
ends only its own transfer.
"""

import contextlib
import encodings.idna  # noqa: F401 - the first look-up of a host imports it, while the others wait for a newcomer
import hashlib
import hmac
import json
import secrets
import socket
import struct
import threading
import time
import typing

import torch

from elastic_worker.training import state as states
from elastic_worker.training.connections import Connections
from elastic_worker.training.forks import keep_from_children

MAGIC = b"ELSTATE1"
GREETING = struct.Struct("!8sqqq32s")
"""Magic, round, rank of the donor, rank of the receiver, nonce of the receiver."""
ANSWER = struct.Struct("!32s32s")
"""Nonce of the donor, and its proof."""
HEADER = struct.Struct("!8sqQQ")
"""Magic, step, bytes of the JSON, bytes of the tensors."""
PROOF = 32
LONGEST_JSON = 64 << 20
PIECE = 1 << 20
STALL_S = 5.0
"""Seconds without a single byte until a peer counts as lost."""
LEAST_RATE = 4 << 20
"""Bytes a second that a transfer must have on average."""
TELL_EVERY_S = 0.5
SPARE_STRANGERS = 64
"""Connections without a proof, besides one for each member, until the oldest is dropped."""


class TransferError(RuntimeError):
    """The state did not come."""


class Parts(typing.NamedTuple):
    """A state to be given."""

    step: int
    text: bytes
    tensors: "typing.List[torch.Tensor]"

    @classmethod
    def of(cls, state: typing.Any, step: int) -> "Parts":
        """Take a state apart; nothing of it is copied."""
        structure, tensors = states.take_apart(state)
        shapes = [states.Shape.of(tensor) for tensor in tensors.values()]
        return cls(step, json.dumps([structure, shapes], separators=(",", ":")).encode(), list(tensors.values()))


class Donor:
    """Gives a state to every member of the round that asks for it, until it is closed."""

    def __init__(self, parts: Parts, *, host: str, round: int, rank: int, size: int, secret: bytes) -> None:
        self._parts = parts
        self._round, self._rank, self._size, self._secret = round, rank, size, secret
        self._strangers = []  # type: typing.List[socket.socket]
        """Connections without a proof so far, the oldest first."""
        self._members = []  # type: typing.List[socket.socket]
        self._lock = threading.Lock()
        self._is_closed = False
        self._listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            self._listener.bind((host, 0))
            self._listener.listen(size)
        except OSError:
            self._listener.close()
            raise
        keep_from_children(self._listener)
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, name="elastic-donor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all transfers, and stop listening."""
        with self._lock:
            self._is_closed = True
            for connection in (*self._strangers, *self._members):
                _shut(connection)
        _shut(self._listener)  # wakes the thread in accept
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._is_closed:
                    return
                time.sleep(STALL_S / 100)  # no descriptor is free, for example
                continue
            with self._lock:
                self._strangers.append(connection)
                if self._is_closed:
                    _shut(connection)
                elif len(self._strangers) > SPARE_STRANGERS + self._size:
                    _shut(self._strangers[0])
            threading.Thread(target=self._serve, args=(connection,), name="elastic-donor", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            link = _Link(connection, STALL_S)
            self._let_in(link)
            with self._lock:
                self._strangers.remove(connection)
                self._members.append(connection)
            sizes = sum(tensor.numel() * tensor.element_size() for tensor in self._parts.tensors)
            link.allow(len(self._parts.text) + sizes)
            link.write(HEADER.pack(MAGIC, self._parts.step, len(self._parts.text), sizes))
            link.write(self._parts.text)
            for piece in _joined(self._parts.tensors):
                link.write(piece)
        except (OSError, TransferError):
            pass  # the receiver says why it got nothing
        finally:
            with self._lock:
                for some in (self._strangers, self._members):
                    if connection in some:
                        some.remove(connection)
                connection.close()

    def _let_in(self, link: "_Link") -> None:
        greeting = link.read(GREETING.size)
        magic, round, donor, receiver, _ = GREETING.unpack(greeting)
        if (magic, round, donor) != (MAGIC, self._round, self._rank) or not 0 <= receiver < self._size:
            raise TransferError("the peer asks for another round or rank")
        own = secrets.token_bytes(PROOF)
        link.write(ANSWER.pack(own, _proof(self._secret, b"donor", greeting + own)))
        if not hmac.compare_digest(link.read(PROOF), _proof(self._secret, b"receiver", greeting + own)):
            raise TransferError("the peer does not know the round's secret")


def receive(
    address: typing.Tuple[str, int],
    own: typing.Any,
    *,
    round: int,
    donor: int,
    rank: int,
    step: int,
    secret: bytes,
    connections: Connections,
    is_in_place: bool,
    tell: typing.Callable[[int], None],
) -> typing.Any:
    """Return the state of a donor; `own` is the state of this worker, whose tensors say what fits.

    is_in_place: write into our own tensors. If the transfer fails, they are spoilt.
    """
    _, mine = states.take_apart(own)
    try:
        with contextlib.closing(socket.create_connection(address, STALL_S)) as connection:
            connections.add(connection)
            try:
                return _receive(_Link(connection, STALL_S), mine, round, donor, rank, step, secret, is_in_place, tell)
            finally:
                connections.drop(connection)
    except (OSError, ValueError) as error:
        raise TransferError("the state did not come from rank {} at {}:{}: {}".format(donor, *address, error)) from error


def _receive(
    link: "_Link",
    mine: "typing.Dict[states.Path, torch.Tensor]",
    round: int,
    donor: int,
    rank: int,
    step: int,
    secret: bytes,
    is_in_place: bool,
    tell: typing.Callable[[int], None],
) -> typing.Any:
    greeting = GREETING.pack(MAGIC, round, donor, rank, secrets.token_bytes(PROOF))
    link.write(greeting)
    nonce, proof = ANSWER.unpack(link.read(ANSWER.size))
    if not hmac.compare_digest(proof, _proof(secret, b"donor", greeting + nonce)):
        raise TransferError("the donor does not know the round's secret")
    link.write(_proof(secret, b"receiver", greeting + nonce))
    magic, given_step, length, size = HEADER.unpack(link.read(HEADER.size))
    if magic != MAGIC or given_step != step or length > LONGEST_JSON:
        raise TransferError("the donor offers step {} and {} bytes of structure; step {} was wanted".format(given_step, length, step))
    link.allow(length + size)
    structure, shapes = _parse(link.read(length))
    paths = states.places(structure, len(shapes))
    if sum(shape.bytes for shape in shapes) != size:
        raise TransferError("the donor's shapes need other than {} bytes".format(size))
    states.check(dict(zip(paths, shapes)), mine, is_in_place=is_in_place)
    tensors, done, told = [], 0, time.monotonic()
    for path, shape in zip(paths, shapes):
        tensor = mine.get(path) if is_in_place else None
        if tensor is None or not states.is_plain(tensor) or states.Shape.of(tensor) != shape:
            tensor = torch.empty(shape.sizes, dtype=states.DTYPES[shape.dtype])
        view = states.memory(tensor)
        for begin in range(0, len(view), PIECE):
            done += link.read_into(view[begin : begin + PIECE])
            if time.monotonic() > told + TELL_EVERY_S:
                told = time.monotonic()
                tell(done)
        tensors.append(tensor)
    return states.put_together(structure, tensors)


def _parse(text: bytes) -> "typing.Tuple[states.Structure, typing.List[states.Shape]]":
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TransferError("the donor's structure is no JSON: {}".format(error)) from error
    if not isinstance(raw, list) or len(raw) != 2 or not isinstance(raw[1], list):
        raise TransferError("the donor's header has another form")
    return raw[0], [states.Shape.parse(one) for one in raw[1]]


class _Link:
    """A connection whose reads and writes have limits."""

    def __init__(self, connection: socket.socket, within_s: float) -> None:
        self._connection = connection
        self._until = time.monotonic() + within_s
        connection.settimeout(STALL_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def allow(self, size: int) -> None:
        """Allow the time that so many bytes need."""
        self._until = time.monotonic() + STALL_S + size / LEAST_RATE

    def write(self, data: "typing.Union[bytes, bytearray, memoryview]") -> None:
        """Send everything."""
        view = memoryview(data)
        while len(view):
            self._check()
            view = view[self._connection.send(view[:PIECE]) :]

    def read(self, size: int) -> bytes:
        """Receive exactly so many bytes."""
        data = bytearray(size)
        self.read_into(memoryview(data))
        return bytes(data)

    def read_into(self, view: memoryview) -> int:
        """Fill the view, and return its size."""
        at = 0
        while at < len(view):
            self._check()
            count = self._connection.recv_into(view[at:])
            if not count:
                raise TransferError("the peer has closed the connection")
            at += count
        return at

    def _check(self) -> None:
        if time.monotonic() > self._until:
            raise TransferError("the peer is too slow")


def _joined(tensors: "typing.Iterable[torch.Tensor]") -> "typing.Iterator[typing.Union[bytearray, memoryview]]":
    """Yield the bytes of the tensors, the small ones joined."""
    small = bytearray()
    for tensor in tensors:
        plain = tensor if states.is_plain(tensor) else tensor.resolve_conj().resolve_neg().cpu().contiguous()
        view = states.memory(plain)
        if len(view) >= PIECE or len(small) >= PIECE:
            yield small
            small = bytearray()
        if len(view) >= PIECE:
            yield view
        else:
            small += view
    yield small


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _proof(secret: bytes, who: bytes, what: bytes) -> bytes:
    return hmac.new(secret, who + what, hashlib.sha256).digest()
