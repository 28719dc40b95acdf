"""A member's connection at the server: what is sent last, and that it really ends."""

import asyncio
import gc
import weakref

from elastic.membership.wire import View
from rendezvous.server.members import Connection


class Socket:
    """A WebSocket of a peer that takes its time. Only the tasks that wait for it keep its futures."""

    def __init__(self) -> None:
        self.sends: list[weakref.ref[asyncio.Future[None]]] = []
        self.sent: list[str] = []
        self.closed: list[int] = []

    async def send_str(self, text: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self.sends.append(weakref.ref(turn))
        await turn
        self.sent.append(text)

    async def close(self, *, code: int) -> None:
        self.closed.append(code)

    def take_next(self) -> None:
        turn = self.sends.pop(0)()
        assert turn is not None, "the task that sends was thrown away"
        turn.set_result(None)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_connection_that_ends_while_a_view_is_sent_still_ends() -> None:
    """The end of the view's task dropped the only reference to the task that closes, which may then be collected."""
    socket = Socket()
    connection = Connection(socket, None)  # type: ignore[arg-type]
    connection.send(View(generation=1))
    await turns()
    connection.end("a newer incarnation of this member has come")
    connection.close()
    await turns()
    socket.take_next()
    await turns()
    assert connection._ending is not None
    gc.collect()
    socket.take_next()
    await turns()
    assert [("refused" in text) for text in socket.sent] == [False, True]
    assert socket.closed == [1008]


async def test_a_connection_that_ends_sends_no_more_views() -> None:
    socket = Socket()
    connection = Connection(socket, None)  # type: ignore[arg-type]
    connection.close()
    connection.send(View(generation=1))
    await turns()
    assert (socket.sends, socket.closed) == ([], [1013])
