"""Check the framing of an agent's connection, however the network cuts it up."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_worker.agent.websocket import Broken, _read_head, _take_frame


def frame(text: bytes) -> bytes:
    """Return a text frame as a server sends it, without a mask."""
    if len(text) < 126:
        return struct.pack(">BB", 0x81, len(text)) + text
    if len(text) < 65536:
        return struct.pack(">BBH", 0x81, 126, len(text)) + text
    return struct.pack(">BBQ", 0x81, 127, len(text)) + text


@given(
    sizes=st.lists(st.sampled_from([0, 1, 125, 126, 127, 65535, 65536]), min_size=1, max_size=4),
    cuts=st.lists(st.integers(1, 70_000), max_size=6),
)
def test_frames_come_out_whole_however_they_are_cut(sizes: list[int], cuts: list[int]) -> None:
    texts = [bytes([index]) * size for index, size in enumerate(sizes, start=65)]
    stream = b"".join(frame(text) for text in texts)
    buffer, taken = bytearray(), []
    for cut in [*cuts, len(stream)]:
        buffer += stream[:cut]
        stream = stream[cut:]
        while (found := _take_frame(buffer)) is not None:
            taken.append(found[1])
    assert taken == texts
    assert not buffer


def test_a_frame_without_bounds_breaks_the_connection() -> None:
    with pytest.raises(Broken, match="a frame of 9007199254740992 bytes"):
        _take_frame(bytearray(struct.pack(">BBQ", 0x81, 127, 2**53)))


def test_answers_that_are_no_http_have_no_status() -> None:
    assert _read_head("SSH-2.0-OpenSSH")[0] == 0
    assert _read_head("HTTP/1.1 401 Unauthorized\r\nA: b:c") == (401, {"a": "b:c"})
