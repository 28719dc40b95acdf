"""Cut deep values from the API server's answers to kopf, which reads JSON by recursion: one deep job would end its watch of all jobs."""

from collections.abc import AsyncIterator
from typing import Any, Self

import aiohttp

from elastic.kube.answers import lines
from elastic.kube.decoding import cut, decoded
from elastic.kube.interim import BoundedAnswer


class ShallowAnswer(BoundedAnswer):
    """An answer in which no value lies deeper than `elastic.kube.decoding` reads."""

    async def start(self, connection: Any) -> Self:
        await super().start(connection)
        self.content: Any = _ShallowLines(self.content)
        return self

    async def json(self, **_: Any) -> Any:
        return decoded(await self.read())


class _ShallowLines:
    """A stream whose chunks are whole lines; everything else is done by the stream itself."""

    def __init__(self, stream: aiohttp.StreamReader) -> None:
        self._stream = stream

    async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        async for line in lines(self._stream):
            yield cut(line) + b"\n"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
