"""SPDY as the node agent speaks it: what a client sends is understood however it is cut, and nothing it sends breaks the reader."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.local.agent import spdy
from elastic.local.agent.spdy import Data, Decoder, Encoder, Frame, GoneAway, Opened, Ping, Reset, SpdyError
from elastic.local.agent.spdysession import MOST_STREAMS, Session

HEADERS = st.dictionaries(st.text("abcdefgh-", min_size=1, max_size=12), st.text(max_size=40), max_size=6)


def merged(frames: list[Frame]) -> list[Frame]:
    """Join the pieces of each stream's data, because their borders mean nothing."""
    out: list[Frame] = []
    for frame in frames:
        last = out[-1] if out else None
        if isinstance(frame, Data) and isinstance(last, Data) and last.stream == frame.stream and not last.ended:
            out[-1] = Data(frame.stream, last.data + frame.data, frame.ended)
        else:
            out.append(frame)
    return out


def test_the_dictionary_is_the_protocols() -> None:
    assert (len(spdy.DICTIONARY), zlib.adler32(spdy.DICTIONARY)) == (1423, 0xE3C6A7C2)


@given(st.lists(HEADERS, min_size=1, max_size=4), st.binary(max_size=300), st.lists(st.integers(0, 2000), max_size=6))
def test_frames_are_found_however_the_bytes_are_cut(blocks: list[dict[str, str]], payload: bytes, cuts: list[int]) -> None:
    encoder, sent, expected = Encoder(), b"", []
    for i, headers in enumerate(blocks):
        sent += encoder.opened(2 * i + 1, headers) + spdy.data(2 * i + 1, payload, ended=True) + spdy.ping(i) + spdy.reset(2 * i + 1)
        expected += [Opened(2 * i + 1, headers), Data(2 * i + 1, payload, ended=True), Ping(i), Reset(2 * i + 1)]
    sent += spdy.going_away(1)
    decoder, found, places = Decoder(), [], sorted({0, len(sent), *(c for c in cuts if c < len(sent))})
    for begin, end in pairwise(places):
        found += decoder.feed(sent[begin:end])
    assert merged(found) == [*expected, GoneAway()]


def test_the_headers_of_answers_keep_both_compressors_in_step() -> None:
    encoder, decoder = Encoder(), Decoder()
    assert decoder.feed(encoder.accepted(1)) == []
    assert decoder.feed(encoder.opened(2, {"streamtype": "data"})) == [Opened(2, {"streamtype": "data"})]


@given(st.binary(max_size=400))
def test_any_bytes_are_frames_or_an_error(received: bytes) -> None:
    with contextlib.suppress(SpdyError):
        Decoder().feed(received)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (struct.pack(">II", 1 << 31 | 2 << 16 | 1, 0), "SPDY version 2"),
        (struct.pack(">II", 1 << 31 | 3 << 16 | 1, 1 << 20), "control frame of 1048576 bytes"),
        (struct.pack(">II", 1 << 31 | 3 << 16 | 1, 4) + b"abcd", "only 4 bytes"),
        (struct.pack(">II", 1 << 31 | 3 << 16 | 1, 14) + bytes(10) + b"abcd", "headers that cannot be read"),
    ],
)
def test_a_breach_of_the_protocol_is_named(sent: bytes, words: str) -> None:
    with pytest.raises(SpdyError, match=words):
        Decoder().feed(sent)


def test_headers_that_grow_without_end_are_refused() -> None:
    deflate = zlib.compressobj(zdict=spdy.DICTIONARY)
    block = deflate.compress(bytes(10 << 20)) + deflate.flush(zlib.Z_SYNC_FLUSH)
    body = struct.pack(">IIH", 1, 0, 0) + block
    with pytest.raises(SpdyError, match="headers of more than"):
        Decoder().feed(struct.pack(">II", 1 << 31 | 3 << 16 | 1, len(body)) + body)


class Played:
    """A client that sends what it was made with and goes; keeps what it is told."""

    def __init__(self, *sent: bytes) -> None:
        self._sent, self.told = list(sent), b""

    async def read(self) -> bytes:
        return self._sent.pop(0) if self._sent else b""

    async def write(self, data: bytes) -> None:
        self.told += data


async def played(client: Played) -> list[Frame]:
    return [event async for event in Session(client).events()]


def test_a_session_accepts_streams_answers_pings_and_tells_the_rest() -> None:
    encoder = Encoder()
    client = Played(encoder.opened(1, {"a": "b"}) + spdy.ping(7), spdy.data(1, b"x", ended=True) + spdy.data(9, b"nobody's"))
    assert asyncio.run(played(client)) == [Opened(1, {"a": "b"}), Data(1, b"x", ended=True)]
    assert Decoder().feed(client.told) == [Ping(7)]


def test_a_session_bounds_its_streams_and_takes_no_number_twice() -> None:
    encoder = Encoder()
    client = Played(*(encoder.opened(2 * i + 1, {}) for i in range(MOST_STREAMS + 1)), encoder.opened(1, {}))
    assert len(asyncio.run(played(client))) == MOST_STREAMS
    assert Decoder().feed(client.told) == [Reset(2 * MOST_STREAMS + 1), Reset(1)]
