"""Bytes that an etcd answered become a message or Away, and a room for what is held is kept."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.etcd.answers import MOST_PARTS, parsed
from elastic.etcd.messages import etcd3
from elastic.etcd.room import LITTLE, MOST_OF_ALL, Room
from elastic.etcd.store import Away

RANGE, WATCH = (etcd3().methods[name].response for name in ("KV/Range", "Watch/Watch"))


def test_the_answers_of_etcd_come_back_unchanged() -> None:
    answer = WATCH(watch_id=7, created=True)
    answer.header.revision = 2**40
    answer.events.add().kv.value = bytes(300_000)
    assert parsed(WATCH, answer.SerializeToString()) == answer
    assert parsed(RANGE, b"") == RANGE()


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    for kind in (RANGE, WATCH):
        with contextlib.suppress(Away):
            assert isinstance(parsed(kind, data), kind)


def test_a_message_of_many_empty_parts_is_not_made() -> None:
    assert len(parsed(RANGE, b"\x12\x00" * MOST_PARTS).kvs) == MOST_PARTS
    with pytest.raises(Away, match="more than 20000 parts"):
        parsed(RANGE, b"\x12\x00" * (MOST_PARTS + 1))


def test_the_largest_holders_go_first() -> None:
    room, much = Room(), MOST_OF_ALL // 4
    assert all(room.has(f"hog-{number}", much) for number in range(4))
    assert room.has("job", 10 * LITTLE)
    assert not room.has("hog-0", much)
    room.free("hog-0")
    assert room.has("hog-1", much)


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, MOST_OF_ALL)), max_size=30))
def test_small_holders_always_find_room_and_the_largest_only_while_there_is_some(asked: list[tuple[str, int]]) -> None:
    room, held = Room(), dict[str, int]()
    for job, size in asked:
        held[job] = size
        has_room = room.has(job, size)
        assert has_room or size > LITTLE
        if size > LITTLE and size == max(held.values()) and sum(held.values()) > MOST_OF_ALL:
            assert not has_room
