"""Test the records in etcd: ours come back as they were, and nothing else is ever taken for one."""

import dataclasses
import json
import pickle
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_worker.etcd import records
from elastic_worker.etcd.change_records import EXCHANGE, Answer, Change, Part, Values
from elastic_worker.etcd.fields import Unusable
from elastic_worker.etcd.records import (
    EXPECTED,
    PROGRESS,
    WORLD,
    End,
    Expected,
    Failed,
    Leaving,
    Member,
    Progress,
    Record,
    Round,
    Seal,
    Seat,
    World,
)

SEAL = Seal("token", "job")
MEMBER = Member(
    "w0",
    "uid/1.1",
    "10.0.0.1:4242",
    entered=3,
    after=2,
    trouble="ä",
    failed=Failed(2, 137, 9, True, True, True, True),
    finished=3,
    left="gone",
    alive_at="h:1",
    in_process=Part(2, 3, True, 41, 7, Answer("unformed", 7, 41, "ä"), 5, 6),
)
FULL_WORLD = World(
    generation=7,
    seats=(Seat("w0", "a"), Seat("w1", "b")),
    store="h:1",
    reason="w1 joined",
    cause="plan",
    restarts={"user": 2},
    round=Round("w2 joined", "plan", (1,)),
    closed="closed",
    ends=(End(6, "w1", "b", "hang", is_lost=True),),
    fruitless=2,
    step=41,
    heirs=(0, 1),
    change=Change("plain", 9, 8, 6, 41, (0, 1), 2, True, 40, "ä", "a1"),
)
FULL_EXPECTED = Expected(
    members=("w0", "w1"),
    min=1,
    max=3,
    pending=("w2",),
    leaving=(Leaving("w1", "plan", by_s=2.5, when_replaced=True),),
    finished=("w9",),
    sizes=(1, 2),
    grace_s=2.5,
    floor=4,
    max_restarts=3,
    restarts={"hang": 1},
    closed="spent",
    term=5,
    without_progress=2,
    hang_s=60.0,
    fruitless=1,
    step=40,
    newcomers=("w2",),
    state_s=1.5,
)
EXAMPLES: list[tuple[str, Record]] = [
    ("members/w0", MEMBER),
    (WORLD, FULL_WORLD),
    (EXPECTED, FULL_EXPECTED),
    (PROGRESS, Progress(step=50, generation=7, in_world=49)),
    (EXCHANGE + "w0", Values("w0", 7, {"step/0": "MA=="})),
]

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


def sealed(key: str, body: str) -> bytes:
    """Return a record that somebody with the job's token may write."""
    return json.dumps({"v": 1, "seal": SEAL._sign(key, body), "body": body}).encode()


@pytest.mark.parametrize(("key", "record"), EXAMPLES)
def test_a_record_comes_back_as_it_was(key: str, record: Record) -> None:
    assert SEAL.open(key, SEAL.close(key, record)) == record


@given(st.binary(max_size=200))
def test_no_bytes_but_ours_are_a_record(value: bytes) -> None:
    with pytest.raises(Unusable):
        SEAL.open(WORLD, value)


@given(anything, st.sampled_from([key for key, _ in EXAMPLES]))
def test_no_json_but_ours_is_a_record(value: Any, key: str) -> None:
    with pytest.raises(Unusable):
        SEAL.open(key, json.dumps(value).encode())


@given(anything, st.sampled_from([key for key, _ in EXAMPLES]))
def test_whatever_the_token_seals_is_a_record_or_refused(value: Any, key: str) -> None:
    try:
        record = SEAL.open(key, sealed(key, json.dumps(value)))
    except Unusable:
        return
    assert SEAL.open(key, SEAL.close(key, record)) == record


@given(st.data())
def test_one_hostile_field_is_refused_or_bounded(data: st.DataObject) -> None:
    key, record = data.draw(st.sampled_from(EXAMPLES))
    fields = json.loads(json.loads(SEAL.close(key, record))["body"])
    name = data.draw(st.sampled_from(sorted(fields)))
    fields[name] = data.draw(anything | st.just("x" * 5000) | st.just(["x"] * 9000) | st.just(10**30) | st.just(-1) | st.just("w\n0"))
    try:
        again = SEAL.open(key, sealed(key, json.dumps(fields)))
    except Unusable:
        return
    assert SEAL.open(key, SEAL.close(key, again)) == again


@pytest.mark.parametrize(("key", "record"), EXAMPLES)
def test_a_record_cannot_be_moved_or_changed_or_read_with_another_token(key: str, record: Record) -> None:
    value = SEAL.close(key, record)
    for other, at in ((SEAL, "members/w1"), (Seal("another", "job"), key), (Seal("token", "job2"), key), (Seal("", "job"), key)):
        with pytest.raises(Unusable, match="not sealed with this job's token"):
            other.open(at, value)
    envelope = json.loads(value)
    envelope["body"] = (
        envelope["body"].replace("w0", "w8").replace("10.0.0.1", "10.6.6.6").replace("floor", "flood").replace("step", "pets")
    )
    with pytest.raises(Unusable, match="not sealed"):
        SEAL.open(key, json.dumps(envelope).encode())


class Trap:
    def __reduce__(self) -> Any:
        return pytest.fail, ("a value of etcd was unpickled",)


def test_nothing_is_unpickled() -> None:
    with pytest.raises(Unusable):
        SEAL.open(WORLD, pickle.dumps(Trap()))


@pytest.mark.parametrize(
    "value",
    [
        b'{"v":' + b"9" * 1_000_000 + b"}",
        b"[" * 500_000,
        b'{"v":1,"seal":"' + b"a" * 900_000 + b'","body":""}',
        b'{"v":1,"seal":"\xff","body":"\\ud800"}',
        b" " * (records.LONGEST_RECORD + 1),
    ],
    ids=["digits", "nesting", "seal", "surrogate", "length"],
)
def test_a_costly_value_is_refused_at_once(value: bytes) -> None:
    began = time.process_time()
    with pytest.raises(Unusable):
        SEAL.open(WORLD, value)
    assert time.process_time() - began < 0.5


def test_the_error_names_the_field_and_what_was_found() -> None:
    body = dataclasses.asdict(FULL_EXPECTED) | {"min": 5}
    with pytest.raises(Unusable, match="min is 5 and max is 3"):
        SEAL.open(EXPECTED, sealed(EXPECTED, json.dumps(body)))
    with pytest.raises(Unusable, match="max_restarts is 'many'; expected a number from 0 to 1000000000"):
        SEAL.open(EXPECTED, sealed(EXPECTED, json.dumps(body | {"min": 1, "max_restarts": "many"})))
    with pytest.raises(Unusable, match="seats holds a name twice"):
        SEAL.open(WORLD, SEAL.close(WORLD, dataclasses.replace(FULL_WORLD, seats=(Seat("w0", "a"), Seat("w0", "b")))))
