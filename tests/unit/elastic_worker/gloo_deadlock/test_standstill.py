"""When a training process counts as stuck in torch's deadlock at its end, and everything that lets it live."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from elastic_worker.gloo_deadlock.diagnosis import CALLS, Snapshot, Thread, describe, doubt
from elastic_worker.gloo_deadlock.last_workers import LastWorkers
from elastic_worker.gloo_deadlock.procfs import Unreadable

CALL = CALLS["x86_64"]
FUTEX, EPOLL, SENDTO, READ, CLOCK_NANOSLEEP, FLOCK = 202, 232, 44, 0, 230, 73
PRIVATE_WAIT, SHARED_WAIT = 0x189, 0x109
MAIN, GROUP, LOOP, POOL = 100, 103, 102, 101


def waiting(id: int, name: str, *call: int, switches: int = 5, state: str = "S") -> Thread:
    return Thread(id=id, name=name, state=state, switches=switches, call=(*call, 0, 0, 0, 0, 0, 0)[:7])


def deadlock(at: float = 0.0) -> Snapshot:
    """Return a snapshot that was read from a process that hung."""
    threads = (
        waiting(MAIN, "python", FUTEX, 0x7F77, SHARED_WAIT, GROUP, 0),
        waiting(POOL, "python", FUTEX, 0x7F78, PRIVATE_WAIT, 0, 0),
        waiting(LOOP, "gloo_tcp_loop", EPOLL, 0x13, 0x7F76, 0x40, 10, switches=int(100 * at)),
        waiting(GROUP, "pt_gloo_runloop", FUTEX, 0x7F79, 0x89, 0, 0x7FFC, switches=int(160 * at)),
    )
    return Snapshot(at=at, threads={thread.id: thread for thread in threads}, traffic=(518, 45, 4, 4), sending=0, children=0)


def changed(look: Snapshot, id: int, **changes: object) -> Snapshot:
    return replace(look, threads={**look.threads, id: replace(look.threads[id], **changes)})  # type: ignore[arg-type]


def call(look: Snapshot, id: int, *words: int) -> Snapshot:
    return changed(look, id, call=(*words, 0, 0, 0, 0, 0, 0)[:7])


def test_the_known_wait_is_known_and_told_with_all_its_threads() -> None:
    assert doubt(MAIN, deadlock(), deadlock(5.0), CALL) == ""
    words = describe(MAIN, deadlock(5.0))
    assert "main thread 100" in words
    assert "thread 103 (pt_gloo_runloop)" in words
    assert "101 (python), 102 (gloo_tcp_loop)" in words


def _with_more(look: Snapshot) -> Snapshot:
    return replace(look, threads={**look.threads, 104: waiting(104, "gloo_tcp_loop", EPOLL)})


@pytest.mark.parametrize(
    ("alive", "words"),
    [
        pytest.param(lambda look: call(look, MAIN, CLOCK_NANOSLEEP, 0, 0, 0x7F, 0), "waits in system call 230", id="time.sleep"),
        pytest.param(lambda look: call(look, MAIN, SENDTO, 5, 0x7F, 4096, 0), "waits in system call 44", id="upload"),
        pytest.param(lambda look: call(look, MAIN, FLOCK, 5, 2), "waits in system call 73", id="flock"),
        pytest.param(lambda look: changed(look, MAIN, state="D"), "state D", id="blocked in fsync"),
        pytest.param(lambda look: changed(look, MAIN, state="R", call=()), "state R", id="computes"),
        pytest.param(lambda look: changed(look, MAIN, switches=6), "runs now and then", id="main ran"),
        pytest.param(lambda look: call(look, MAIN, FUTEX, 0x7F, SHARED_WAIT, 0, 0), "other than the end of a thread", id="shared lock"),
        pytest.param(lambda look: call(look, MAIN, FUTEX, 0x7F, PRIVATE_WAIT, GROUP, 0), "other than the end", id="private lock"),
        pytest.param(lambda look: call(look, MAIN, FUTEX, 0x7F, SHARED_WAIT, GROUP, 0x7FF), "other than the end", id="with a limit"),
        pytest.param(lambda look: call(look, MAIN, FUTEX, 0x7F, SHARED_WAIT, POOL, 0), "end of thread 101 (python)", id="joins another"),
        pytest.param(lambda look: changed(look, GROUP, switches=0), "does not ask for a lock", id="group thread waits for its peers"),
        pytest.param(lambda look: call(look, GROUP, FUTEX, 0x7F, PRIVATE_WAIT, 0, 0), "does not ask for a lock", id="without a limit"),
        pytest.param(lambda look: call(look, GROUP, READ, 5), "does not ask for a lock", id="group thread reads"),
        pytest.param(lambda look: call(look, POOL, SENDTO, 5), "thread 101 (python) may be at work", id="a thread uploads"),
        pytest.param(lambda look: call(look, POOL, FUTEX, 0x7F, PRIVATE_WAIT, 0, 0x7FF), "may be at work", id="a thread wakes up later"),
        pytest.param(lambda look: call(look, POOL, FUTEX, 0x7F, SHARED_WAIT, 0, 0), "may be at work", id="a thread waits for a process"),
        pytest.param(lambda look: changed(look, POOL, switches=6), "may be at work", id="a thread ran"),
        pytest.param(lambda look: changed(look, LOOP, name="python"), "may be at work", id="somebody else's loop"),
        pytest.param(lambda look: replace(look, traffic=(519, 45, 4, 4)), "reads or writes", id="a byte was read"),
        pytest.param(lambda look: replace(look, sending=1), "1 bytes yet to send", id="a byte is under way"),
        pytest.param(lambda look: replace(look, children=2), "2 child processes", id="children"),
        pytest.param(_with_more, "come and go", id="a new thread"),
        pytest.param(lambda look: changed(look, LOOP, call=()), "in no system call", id="a thread is in no call"),
    ],
)
def test_everything_else_that_is_seen_is_a_doubt(alive: object, words: str) -> None:
    assert callable(alive)
    changes = doubt(MAIN, deadlock(), alive(deadlock(5.0)), CALL)
    assert changes
    assert words in changes + doubt(MAIN, alive(deadlock()), alive(deadlock(5.0)), CALL)


class Scripted:
    """A process that looks each time as the script says; the last look stays."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seen: Callable[[float], Snapshot] = deadlock
        self.ending = LastWorkers(snapshot=self._look, worker_of=lambda pid: MAIN)

    def _look(self, pid: int) -> Snapshot:
        return self.seen(self.now)

    def stuck(self, now: float, pids: tuple[int, ...] = (7,)) -> dict[int, str]:
        self.now = now
        return self.ending.deadlocked(pids, now=now)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    return Scripted()


def test_a_process_is_stuck_after_half_a_minute_in_the_known_wait_and_not_before(scripted: Scripted) -> None:
    assert not any(scripted.stuck(float(now)) for now in range(35))
    assert list(scripted.stuck(35.0)) == [7]


def test_one_doubt_begins_the_half_minute_again(scripted: Scripted) -> None:
    for now in range(0, 31, 5):
        assert not scripted.stuck(float(now))
    scripted.seen = lambda at: replace(deadlock(at), traffic=(1, 1, 1, 1))
    assert not scripted.stuck(35.0)
    for now in range(40, 66, 5):
        assert not scripted.stuck(float(now))
    assert list(scripted.stuck(70.0)) == [7]


def test_a_thread_of_torch_that_is_awake_for_a_moment_is_looked_at_again(scripted: Scripted) -> None:
    looks = 0

    def awake_now_and_then(at: float) -> Snapshot:
        nonlocal looks
        looks += 1
        return deadlock(at) if looks % 3 == 0 else changed(deadlock(at), LOOP, state="R", call=())

    scripted.seen = awake_now_and_then
    assert not any(scripted.stuck(float(now)) for now in range(35))
    assert list(scripted.stuck(35.0)) == [7]


def test_a_process_that_cannot_be_read_is_left_alone_and_told_once(scripted: Scripted, caplog: pytest.LogCaptureFixture) -> None:
    def unreadable(at: float) -> Snapshot:
        raise Unreadable("[Errno 13] Permission denied: '/proc/7/io'")

    scripted.seen = unreadable
    assert not any(scripted.stuck(float(now)) for now in range(0, 600, 5))
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 1
    assert "Permission denied" in logged[0]
    assert "left alone" in logged[0]


def test_nobody_is_ended_while_another_rank_of_the_pod_may_still_work(scripted: Scripted) -> None:
    ending = LastWorkers(
        snapshot=lambda pid: deadlock(scripted.now) if pid == MAIN else _unreadable(), worker_of=lambda pid: MAIN if pid == 7 else pid
    )
    for now in range(0, 300, 5):
        scripted.now = float(now)
        assert not ending.deadlocked((7, 8), now=float(now))


def _unreadable() -> Snapshot:
    raise Unreadable("gone")
