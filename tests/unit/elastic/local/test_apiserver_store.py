"""The store: versions only grow, the past can be read as far as it is known, and what was written is there after reopening."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic.local.apiserver.eventlife import KEPT_FOR, EventLife
from elastic.local.apiserver.store import Change, Stale, Store, Unwritable

Json = dict[str, Any]


def obj(value: str, **labels: str) -> Json:
    return {"apiVersion": "v1", "kind": "Thing", "metadata": {"labels": labels}, "value": value}


def opened(path: Path, **limits: int) -> Store:
    return Store(path / "objects.db", lambda _, o: {"value": o["value"]}, **limits)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = opened(tmp_path)
    yield made
    made.close()


def put(store: Store, name: str, value: str, namespace: str = "ns") -> int:
    return store.put("things", namespace, name, obj=obj(value), expected=store.get("things", namespace, name)).revision


def values(store: Store, revision: int | None = None) -> dict[str, str] | None:
    entries = store.entries("things") if revision is None else store.entries_at("things", revision)
    return None if entries is None else {e.name: e.fields["value"] for e in entries}


def test_every_change_gets_the_next_version_and_the_object_carries_it(store: Store) -> None:
    first, second = put(store, "a", "1"), put(store, "b", "1")
    assert second == first + 1
    entry = store.get("things", "ns", "a")
    assert entry is not None
    assert entry.load() == {"metadata": {"labels": {}, "resourceVersion": str(first)}, "value": "1"}


def test_a_write_over_another_ones_write_is_refused(store: Store) -> None:
    put(store, "a", "1")
    seen = store.get("things", "ns", "a")
    put(store, "a", "2")
    with pytest.raises(Stale):
        store.put("things", "ns", "a", obj=obj("3"), expected=seen)
    with pytest.raises(Stale):
        store.put("things", "ns", "a", obj=obj("3"), expected=None)
    assert values(store) == {"a": "2"}


def test_the_list_is_sorted_and_can_be_of_one_namespace(store: Store) -> None:
    for namespace, name in (("b", "x"), ("a", "z"), ("a", "y")):
        put(store, name, "1", namespace)
    assert [e.key for e in store.entries("things")] == [("a", "y"), ("a", "z"), ("b", "x")]
    assert [e.name for e in store.entries("things", "a")] == ["y", "z"]


def test_listeners_hear_changes_in_order_until_they_leave(store: Store) -> None:
    heard: list[Change] = []
    leave = store.subscribe("things", heard.append)
    put(store, "a", "1")
    put(store, "a", "2")
    entry = store.get("things", "ns", "a")
    assert entry is not None
    store.remove("things", "ns", "a", obj=entry.load(), expected=entry)
    leave()
    put(store, "b", "1")
    assert [(c.before is None, c.gone) for c in heard] == [(True, False), (False, False), (False, True)]
    assert [c.revision for c in heard] == sorted(c.revision for c in heard)


def test_a_short_history_forgets_and_says_so(tmp_path: Path) -> None:
    store = opened(tmp_path, history=3)
    start = put(store, "a", "0")
    for i in range(5):
        put(store, "a", str(i))
    assert store.since("things", start) is None
    assert store.entries_at("things", start) is None
    assert [c.after.fields["value"] for c in store.since("things", store.revision - 3) or ()] == ["2", "3", "4"]
    store.close()


def test_versions_do_not_go_back_after_the_last_change_was_a_deletion(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, "a", "1")
    entry = store.get("things", "ns", "a")
    assert entry is not None
    last = store.remove("things", "ns", "a", obj=entry.load(), expected=entry).revision
    store.close()
    again = opened(tmp_path)
    assert list(again.load()) == []
    assert again.revision == last
    again.close()


steps = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["1", "2", None])), max_size=25)


@given(steps)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_every_past_state_can_be_listed_and_the_last_survives_reopening(tmp_path_factory: pytest.TempPathFactory, steps: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("store")
    store = opened(folder)
    truth: dict[str, str] = {}
    past = {store.revision: dict(truth)}
    for name, value in steps:
        entry = store.get("things", "ns", name)
        if value is not None:
            put(store, name, value)
            truth[name] = value
        elif entry is not None:
            store.remove("things", "ns", name, obj=entry.load(), expected=entry)
            del truth[name]
        past[store.revision] = dict(truth)
    for revision, state in past.items():
        assert values(store, revision) == state
    store.close()
    again = opened(folder)
    list(again.load())
    assert values(again) == truth
    assert again.revision == store.revision
    again.close()


def test_an_event_is_kept_for_an_hour_after_it_was_last_written(store: Store) -> None:
    def write(name: str) -> None:
        store.put("events", "ns", name, obj=obj(""), expected=store.get("events", "ns", name))

    life = EventLife(store)
    write("once")
    write("again")
    assert not any(life.outlived() for _ in range(KEPT_FOR))
    write("again")
    assert [entry.name for entry in life.outlived()] == ["once"]


def test_a_change_that_the_disk_does_not_take_is_told_as_that_and_is_not_there(store: Store) -> None:
    put(store, "a", "1")
    database = store._db
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(Unwritable, match="database or disk is full"):
        put(store, "b", "x" * 100_000)
    assert values(store) == {"a": "1"}
    database.execute(f"PRAGMA max_page_count={pages + 1000}")
    assert put(store, "b", "2") == store.revision
    assert values(store) == {"a": "1", "b": "2"}


FULL_DISK = """
import pathlib, sys
from elastic.local.apiserver.store import Store, Unwritable
from elastic.local.sandbox import linux

folder = pathlib.Path(sys.argv[1])
linux.mount("tmpfs", str(folder), kind="tmpfs", options="size=32m")
(folder / "filler").write_bytes(bytes(24 << 20))
store = Store(folder / "objects.db", lambda *_: {})
def put(name, size):
    store.put("things", "ns", name, obj={"metadata": {}, "value": "x" * size}, expected=store.get("things", "ns", name))
def gone(name):
    entry = store.get("things", "ns", name)
    store.remove("things", "ns", name, obj=entry.load(), expected=entry)
for size in (500_000, 1_000):
    try:
        for i in range(10_000):
            put(f"{size}-{i}", size)
    except Unwritable as error:
        print(error)
for entry in store.entries("things"):
    gone(entry.name)
(folder / "filler").unlink()
put("after", 500_000)
store.move_journal()
print((folder / "objects.reserve").stat().st_size >> 20)
print([entry.name for entry in store.entries("things")])
"""


def test_objects_can_be_deleted_if_the_disk_is_full_and_with_room_others_are_taken_again(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine allows no namespaces")
    command = ["unshare", "-rm", sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    first, second, reserve, left = done.stdout.splitlines()
    assert first.endswith("database or disk is full")
    assert second.endswith("database or disk is full")
    assert (left, reserve) == ("['after']", "4")
