"""Agents and controller share the records in an etcd and no code: what one writes, the other reads, with the same bounds."""

import dataclasses
from typing import Any

import msgspec
import pytest
from test_etcd_records import EXAMPLES, FULL_EXPECTED

from elastic.etcd import observed, place, records
from elastic.etcd.thread import own_place
from elastic.membership import bounds
from elastic_training.controller.deciding.rendezvous import etcd
from elastic_worker._engine import words
from elastic_worker.etcd import fields, group, settings
from elastic_worker.etcd import records as theirs
from elastic_worker.etcd.change_records import STAGES, Values
from elastic_worker.settings import TOKEN

SHARED = [(key, record) for key, record in EXAMPLES if not isinstance(record, Values)]
"""The records of both. The controller does not read the addresses that workers exchange."""
AGENTS, CONTROLLERS = theirs.Seal("token", "job"), records.Seal("token", "job")


def as_plain(record: Any) -> Any:
    plain = dataclasses.asdict(record) if dataclasses.is_dataclass(record) else msgspec.to_builtins(record)
    plain.pop("name", None)
    return msgspec.json.decode(msgspec.json.encode(plain))


@pytest.mark.parametrize(("key", "record"), SHARED)
def test_the_controller_reads_what_agents_write_and_writes_what_they_read(key: str, record: theirs.Record) -> None:
    read = CONTROLLERS.open(key, AGENTS.close(key, record))
    assert as_plain(read) == as_plain(record)
    assert AGENTS.open(key, CONTROLLERS.close(key, read)) == record


def test_a_record_of_another_token_job_or_key_is_refused() -> None:
    value = AGENTS.close("expected", FULL_EXPECTED)
    for seal, key in ((records.Seal("other", "job"), "expected"), (records.Seal("token", "other"), "expected"), (CONTROLLERS, "world")):
        with pytest.raises(records.Unusable):
            seal.open(key, value)


@pytest.mark.parametrize("value", [b"", b"\xff", b"{}", b"[" * 100_000, b'{"v":1,"seal":"x","body":"{}"}', b"x" * (2**20 + 1)])
def test_nothing_but_a_record_is_taken_for_one(value: bytes) -> None:
    with pytest.raises(records.Unusable):
        CONTROLLERS.open("world", value)


def test_bounds_and_words_are_the_same() -> None:
    assert (records.MOST_ENDS, records.LONGEST_RECORD, records.VERSION) == (theirs.MOST_ENDS, theirs.LONGEST_RECORD, theirs.VERSION)
    assert (records.WORLD, records.EXPECTED, records.MEMBERS, records.PROGRESS) == (
        theirs.WORLD,
        theirs.EXPECTED,
        theirs.MEMBERS,
        theirs.PROGRESS,
    )
    assert (bounds.MAX_MEMBERS, bounds.MAX_WORDS, bounds.MOST_SECONDS) == (fields.MOST_MEMBERS, fields.LONGEST_WORDS, fields.MOST_SECONDS)
    assert fields.MOST_RESTARTS == etcd.MOST_RESTARTS
    assert {standing.value for standing in observed.Standing} == {standing.value for standing in group.Standing}
    assert (observed.PLAN, observed.USER, observed.DISRUPTION) == (words.Cause.PLAN, words.Cause.USER, words.Cause.DISRUPTION)
    assert set(observed.IN_PROCESS) < set(STAGES)
    assert set(observed.CHARGED) == {cause.value for cause in words.CHARGED}


def test_agents_look_where_the_controller_writes() -> None:
    own = settings.read({TOKEN: "t"}, {}, endpoint="etcd:2379", job="job-uid", nodes=(1, 3), local_address="10.0.0.1")
    assert own_place(("etcd:2379",), "job-uid").prefix == own.prefix
    assert place.user_of("job-uid") == "elastic-job-uid"
