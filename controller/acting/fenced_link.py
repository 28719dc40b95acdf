"""Send nothing to the rendezvous server once another process may hold the Lease."""

from collections.abc import AsyncIterator, Callable

from elastic.membership import wire
from elastic.runtime.fence import Left, in_time
from elastic_training.controller.acting.link import Server


class FencedServer:
    """Listens at all times."""

    def __init__(self, server: Server, left: Left) -> None:
        self._server = server
        self._left = left

    async def expect(self, job_uid: str, expectation: wire.Expectation) -> None:
        await in_time(self._left, lambda: self._server.expect(job_uid, expectation))

    async def forget(self, job_uid: str) -> int | None:
        return await in_time(self._left, lambda: self._server.forget(job_uid))

    def worlds(self, on_open: Callable[[], None] | None = None) -> AsyncIterator[wire.WorldReport]:
        return self._server.worlds(on_open)
