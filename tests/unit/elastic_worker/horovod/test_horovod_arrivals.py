"""Check that Horovod's driver uses only hosts whose workers have all asked for their place."""

import itertools
import threading
from collections.abc import Callable

import pytest

from elastic_worker.horovod.arrivals import Arrivals, Place, Slot, WorldLost


class Driver:
    """A driver that assigns the offered hosts, as Horovod's does when its workers have met."""

    def __init__(self) -> None:
        self.now = 0.0
        self.assignment: dict[str, int] = {}
        self.early: list[Slot] = []
        self.stopped: list[Slot] = []
        self.plain: list[Slot] = []
        self.ready_again: list[Slot] = []
        self.arrivals = Arrivals(self, clock=lambda: self.now)

    def is_assigned(self, host: str) -> bool:
        return host in self.assignment

    def place(self, slot: Slot) -> Place | None:
        slots = [(host, number) for host, count in self.assignment.items() for number in range(count)]
        return Place(slots.index(slot), len(slots), slot[1], self.assignment[slot[0]], 0, 1) if slot in slots else None

    def start(self, slot: Slot) -> None:
        self.early.append(slot)

    def stop(self, slot: Slot) -> None:
        self.stopped.append(slot)

    def assign_anew(self, slot: Slot) -> None:
        self.ready_again.append(slot)

    def assign(self, hosts: dict[str, int]) -> None:
        before, self.assignment = self.assignment, dict(hosts)
        for host, count in hosts.items():
            for number in range(count):
                if host not in before and not self.arrivals.given_rank((host, number)):
                    self.plain.append((host, number))
        self.arrivals.assigned()

    def meet(self, *slots: Slot) -> Callable[[], dict[Slot, Place | None]]:
        """Let these workers ask, each in a thread. Return a function that waits for their answers."""
        found: dict[Slot, Place | None] = {}

        def ask(slot: Slot) -> None:
            found[slot] = self.arrivals.meet(slot, 1000.0)

        threads = [threading.Thread(target=ask, args=(slot,), daemon=True) for slot in slots]
        for thread in threads:
            thread.start()

        def answers() -> dict[Slot, Place | None]:
            for thread in threads:
                thread.join(10)
            return found

        return answers


def begun(**hosts: int) -> Driver:
    """Return a driver whose world of these hosts trains with the library."""
    driver = Driver()
    assert driver.arrivals.offered(hosts) == hosts
    driver.assign(hosts)
    slots = [(host, number) for host, count in hosts.items() for number in range(count)]
    assert all(driver.meet(*slots)().values())
    return driver


def until_waiting(driver: Driver, *slots: Slot) -> Callable[[], dict[Slot, Place | None]]:
    """Let these workers ask, and return once all of them wait."""
    answers = driver.meet(*slots)
    while not all(slot in driver.arrivals._arrived for slot in slots):
        pass
    return answers


def test_a_program_without_the_library_gets_every_host_at_once() -> None:
    driver = Driver()
    driver.assign({"w0": 1})
    assert driver.arrivals.offered({"w0": 1, "w1": 1}) == {"w0": 1, "w1": 1}
    assert driver.early == []


def test_a_new_hosts_workers_start_at_once_and_it_is_offered_when_all_have_asked() -> None:
    driver = begun(w0=1)
    listed = {"w0": 1, "w1": 2}
    assert driver.arrivals.offered(listed) == {"w0": 1}
    assert driver.arrivals.offered(listed) == {"w0": 1}
    assert driver.early == [("w1", 0), ("w1", 1)], "once each"
    first = until_waiting(driver, ("w1", 0))
    assert driver.arrivals.offered(listed) == {"w0": 1}, "one of its two workers is still to come"
    second = until_waiting(driver, ("w1", 1))
    assert driver.arrivals.offered(listed) == listed
    driver.assign(listed)
    assert driver.plain == [("w0", 0)], "the early workers are used"
    assert (first()[("w1", 0)], second()[("w1", 1)]) == (Place(1, 3, 0, 2, 0, 1), Place(2, 3, 1, 2, 0, 1))


def test_the_first_world_meets_only_when_all_its_workers_are_there() -> None:
    driver = Driver()
    driver.assign({"w0": 1, "w1": 1})
    first = until_waiting(driver, ("w0", 0))
    assert driver.arrivals.offered({"w0": 1, "w1": 1}) == {"w0": 1, "w1": 1}
    second = driver.meet(("w1", 0))
    assert first()[("w0", 0)] is not None
    assert second()[("w1", 0)] is not None


def test_a_host_whose_worker_was_lost_leaves_at_once_and_comes_back_after_a_pause_with_a_worker_that_is_there() -> None:
    driver = begun(w0=1, w1=1)
    driver.now = 5.0
    listed = {"w0": 1, "w1": 1}
    driver.arrivals.ended(("w1", 0), is_failure=True)
    assert driver.arrivals.offered(listed) == {"w0": 1}
    assert driver.early == []
    driver.assign({"w0": 1})
    driver.now += 1.0
    assert driver.arrivals.offered(listed) == {"w0": 1}
    assert driver.early == [("w1", 0)]
    until_waiting(driver, ("w1", 0))
    assert driver.arrivals.offered(listed) == listed


def test_an_early_worker_that_ends_is_started_again_after_a_growing_pause() -> None:
    driver = begun(w0=1)
    listed, started = {"w0": 1, "w1": 1}, []
    for _ in range(200):
        driver.arrivals.offered(listed)
        if driver.early:
            started.append(driver.now)
            driver.arrivals.ended(driver.early.pop(), is_failure=True)
        driver.now += 0.5
    assert [after - before for before, after in itertools.pairwise(started)] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]


def test_the_early_worker_of_a_host_that_leaves_the_list_is_ended() -> None:
    driver = begun(w0=1)
    driver.arrivals.offered({"w0": 1, "w1": 1})
    assert driver.arrivals.offered({"w0": 1}) == {"w0": 1}
    assert driver.stopped == [("w1", 0)]


def test_a_worker_that_has_finished_keeps_its_host() -> None:
    driver = begun(w0=1, w1=1)
    driver.arrivals.ended(("w1", 0), is_failure=False)
    assert driver.arrivals.offered({"w0": 1, "w1": 1}) == {"w0": 1, "w1": 1}
    assert driver.early == []


def test_a_worker_without_a_place_is_answered_in_time() -> None:
    driver = begun(w0=1)
    assert driver.arrivals.meet(("w1", 0), 0.0) is None


def test_a_worker_of_the_first_world_that_is_lost_before_it_asks_leaves_the_others_a_world_of_their_own() -> None:
    driver = Driver()
    driver.assign({"w0": 1, "w1": 1})
    first = until_waiting(driver, ("w0", 0))
    driver.arrivals.ended(("w1", 0), is_failure=True)
    while not driver.ready_again:
        pass
    driver.assign({"w0": 1})
    assert first()[("w0", 0)] == Place(0, 1, 0, 1, 0, 1)
    assert driver.ready_again == [("w0", 0)], "once"


def test_a_newcomer_gets_no_world_without_the_workers_that_have_the_state() -> None:
    driver = begun(w0=1)
    listed = {"w0": 1, "w1": 1, "w2": 1}
    driver.arrivals.offered(listed)
    driver.arrivals._arrived |= {("w1", 0), ("w2", 0)}
    assert driver.arrivals.offered(listed) == listed
    driver.assign(listed)
    driver.arrivals.ended(("w2", 0), is_failure=True)
    with pytest.raises(WorldLost):
        driver.arrivals.meet(("w1", 0), 1.0)
    assert driver.ready_again == []
