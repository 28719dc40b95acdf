"""Watches: where they start, what selectors make of changes, and what happens to a watcher that does not read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from elastic.local.apiserver import watch
from elastic.local.apiserver.calls import Call, User
from elastic.local.apiserver.errors import StatusError
from elastic.local.apiserver.resources import ResourceType
from elastic.local.apiserver.store import JOURNALLED, Store
from elastic.local.apiserver.watch import Ended, Shared, Watcher

KIND = ResourceType("", "v1", "configmaps", "ConfigMap", namespaced=True)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "objects.db", lambda *_: {})
    yield made
    made.close()


def put(store: Store, name: str, **labels: str) -> int:
    obj = {"metadata": {"name": name, "namespace": "default", "labels": labels}}
    return store.put("configmaps", "default", name, obj=obj, expected=store.get("configmaps", "default", name)).revision


def gone(store: Store, name: str) -> None:
    entry = store.get("configmaps", "default", name)
    assert entry is not None
    store.remove("configmaps", "default", name, obj=entry.load(), expected=entry)


def watcher(store: Store, aborted: list[bool] | None = None, shared: Shared | None = None, **query: str) -> Watcher:
    call = Call("watch", KIND, "default", "", "", query, User("somebody"))
    return Watcher(store, call, encode=None, shared=shared or Shared(), abort=lambda: aborted.append(True) if aborted is not None else None)


async def seen(w: Watcher) -> list[tuple[str, str]]:
    lines: list[Any] = [orjson.loads(line) for line in (await w.next(0.01)).splitlines()]
    return [(e["type"], e["object"]["metadata"].get("name", "")) for e in lines]


async def test_without_a_version_the_present_objects_come_first(store: Store) -> None:
    put(store, "a")
    w = watcher(store)
    put(store, "b")
    assert await seen(w) == [("ADDED", "a"), ("ADDED", "b")]


async def test_from_a_version_only_what_came_later_is_told(store: Store) -> None:
    version = put(store, "a")
    put(store, "b")
    w = watcher(store, resourceVersion=str(version))
    gone(store, "a")
    assert await seen(w) == [("ADDED", "b"), ("DELETED", "a")]


async def test_entering_and_leaving_a_selection_are_told_as_added_and_deleted(store: Store) -> None:
    version = put(store, "a", x="no")
    w = watcher(store, resourceVersion=str(version), labelSelector="x=yes")
    put(store, "a", x="yes")
    put(store, "a", x="yes", y="1")
    left = put(store, "a", x="no")
    put(store, "a", x="no", y="2")
    text = await w.next(0.01)
    events = [orjson.loads(line) for line in text.splitlines()]
    assert [e["type"] for e in events] == ["ADDED", "MODIFIED", "DELETED"]
    assert events[2]["object"]["metadata"]["labels"] == {"x": "yes", "y": "1"}
    assert events[2]["object"]["metadata"]["resourceVersion"] == str(left)


async def test_a_streamed_list_ends_with_a_bookmark_that_says_so(store: Store) -> None:
    put(store, "a")
    w = watcher(store, sendInitialEvents="true", allowWatchBookmarks="true", resourceVersionMatch="NotOlderThan")
    last = orjson.loads((await w.next(0.01)).splitlines()[-1])
    assert last["type"] == "BOOKMARK"
    assert last["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_a_version_that_is_forgotten_is_410(store: Store) -> None:
    version = put(store, "a")
    put(store, "b")
    store.forget_history()
    with pytest.raises(StatusError) as refused:
        watcher(store, resourceVersion=str(version))
    assert refused.value.code == 410


async def test_a_watcher_that_does_not_read_is_cut_off(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "QUEUE_BYTES", 1000)
    aborted: list[bool] = []
    w = watcher(store, aborted)
    for i in range(20):
        put(store, f"a{i}")
    assert aborted
    with pytest.raises(Ended):
        await w.next(0.01)


def put_large(store: Store, name: str, size: int = 100_000) -> None:
    obj = {"metadata": {"name": name, "namespace": "default"}, "data": {"x": "x" * size}}
    store.put("configmaps", "default", name, obj=obj, expected=store.get("configmaps", "default", name))


async def test_an_event_for_many_watches_counts_once_and_those_most_behind_are_cut(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "ALL_QUEUES_BYTES", 1_000_000)
    shared, aborted = Shared(), list[list[bool]]()
    watchers = []
    for _ in range(50):
        aborted.append([])
        watchers.append(watcher(store, aborted[-1], shared))
    for i in range(8):
        put_large(store, f"a{i}")
    assert not any(aborted), "800 kB are in memory, however many wait for them"
    assert 800_000 < shared.waiting < 900_000
    reading = watchers[7]
    while await reading.next(0.01):
        pass
    for i in range(8, 20):
        put_large(store, f"a{i}")
        while await reading.next(0.01):
            pass
    assert [bool(cut) for cut in aborted] == [w is not reading for w in watchers]
    assert shared.waiting == 0


async def test_a_long_list_is_not_copied_for_clients_that_do_not_read(store: Store) -> None:
    for i in range(50):
        put_large(store, f"a{i}", 10_000)
    shared = Shared()
    w = watcher(store, shared=shared)
    first = await w.next(0.01)
    assert watch.SENT_AT_ONCE <= len(first) < watch.SENT_AT_ONCE + 11_000
    put_large(store, "later", 10)
    assert shared.waiting < 1000
    names: list[str] = [orjson.loads(line)["object"]["metadata"]["name"] for line in first.splitlines()]
    while text := await w.next(0.01):
        names += [orjson.loads(line)["object"]["metadata"]["name"] for line in text.splitlines()]
    assert names == [*sorted(f"a{i}" for i in range(50)), "later"]


async def test_a_closed_watcher_hears_nothing_more(store: Store) -> None:
    w = watcher(store)
    w.close()
    put(store, "a")
    assert await seen(w) == []


async def test_writes_of_one_turn_of_the_loop_are_sent_together(store: Store) -> None:
    w, sent = watcher(store, resourceVersion=str(store.revision)), list[bytes]()

    def send(text: bytes) -> bool:
        sent.append(text)
        return True

    w.send_at_once(send)
    put(store, "a")
    put(store, "b")
    await asyncio.sleep(0)
    put(store, "c")
    await asyncio.sleep(0)
    assert [text.count(b"\n") for text in sent] == [2, 1]


async def test_events_that_a_slow_client_does_not_take_wait_in_order(store: Store) -> None:
    w, sent, takes = watcher(store, resourceVersion=str(store.revision)), list[bytes](), True

    def send(text: bytes) -> bool:
        if takes:
            sent.append(text)
        return takes

    w.send_at_once(send)
    takes = False
    put(store, "a")
    await asyncio.sleep(0)
    takes = True
    put(store, "b")
    await asyncio.sleep(0)
    assert sent == []
    assert await seen(w) == [("ADDED", "a"), ("ADDED", "b")]
    put(store, "c")
    await asyncio.sleep(0)
    assert sent == [], "the stream is still at what it was given, and nothing may come in between"
    assert await seen(w) == [("ADDED", "c")]
    assert await seen(w) == []
    put(store, "d")
    await asyncio.sleep(0)
    assert len(sent) == 1


def test_the_journal_is_moved_while_others_write(store: Store, tmp_path: Path) -> None:
    due: list[bool] = []
    store.journal_is_long = lambda: due.append(True)
    for number in range(2 * JOURNALLED):
        put(store, f"n{number % 50}")
        if due:
            store.move_journal()
            due.clear()
    again = Store(tmp_path / "objects.db", lambda resource, obj: {})
    assert (len(list(again.load())), again.revision) == (50, store.revision)
    again.close()
