"""Prove which workers the launcher tells of a loss: those of the lost worker's world, and no others."""

import threading
import time

import pytest

from elastic_worker.horovod.losses import Losses

W0, W1, W2 = ("w0", 0), ("w1", 0), ("w2", 0)
SIGKILLED = 137


class World:
    """Three workers of one world, each with its process."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.losses = Losses(self.said.append)
        self.processes = {slot: object() for slot in (W0, W1, W2)}
        self.losses.assigned()
        for slot, process in self.processes.items():
            self.losses.started(slot, process)

    def ended(self, slot: tuple[str, int], exit_code: int = SIGKILLED) -> None:
        self.losses.ended(slot, self.processes[slot], exit_code)

    def told(self, slot: tuple[str, int]) -> str:
        return self.losses.wait(slot, 0)


@pytest.fixture
def world() -> World:
    return World()


def test_all_others_of_a_world_are_told_of_the_worker_that_it_lost(world: World) -> None:
    assert world.told(W0) == ""
    world.ended(W2)
    assert world.told(W0) == world.told(W1) == "worker w2:0 ended with status 137"
    assert world.said == ["worker w2:0 ended with status 137; the other workers of its world shut their connections"]


def test_a_worker_that_already_waits_is_told_at_once(world: World) -> None:
    told: list[str] = []
    waits = threading.Thread(target=lambda: told.append(world.losses.wait(W0, 60)))
    waits.start()
    world.ended(W2)
    waits.join(20)
    assert told == ["worker w2:0 ended with status 137"]


def test_a_worker_that_has_finished_is_no_loss(world: World) -> None:
    """The others are about to finish too, and may still need their connections."""
    world.ended(W2, exit_code=0)
    assert world.told(W0) == ""


def test_a_worker_that_was_removed_ends_without_harm_to_the_world_after_it(world: World) -> None:
    """Horovod ends it with SIGABRT once it has asked for a rank and got none."""
    world.losses.assigned()
    for slot, has_rank in ((W0, True), (W2, False), (W1, True)):
        world.losses.ranked(slot, has_rank)
    world.ended(W2, exit_code=134)
    assert world.told(W0) == world.told(W1) == ""


def test_a_worker_that_still_waits_in_the_lost_world_is_told_and_one_of_the_next_world_is_not(world: World) -> None:
    world.ended(W2)
    world.losses.assigned()
    world.losses.ranked(W0, has_rank=True)
    assert world.told(W0) == ""
    assert world.told(W1) == "worker w2:0 ended with status 137"


def test_a_loss_in_the_next_world_is_told_there(world: World) -> None:
    world.ended(W2)
    world.losses.assigned()
    world.losses.ranked(W0, has_rank=True)
    world.losses.ranked(W1, has_rank=True)
    world.ended(W1, exit_code=1)
    assert world.told(W0) == "worker w1:0 ended with status 1"


def test_the_late_end_of_a_former_process_is_not_taken_for_the_end_of_its_successor(world: World) -> None:
    """The connection to a host may break later than a new process starts there."""
    world.losses.assigned()
    for slot in (W0, W1):
        world.losses.ranked(slot, has_rank=True)
    world.losses.started(W2, object())
    world.ended(W2)
    assert world.told(W0) == ""


def test_a_question_ends_when_the_worker_gets_a_rank_in_another_world(world: World) -> None:
    """Otherwise each change would leave a thread of the launcher behind for its whole time limit."""
    told: list[str] = []
    began = threading.Event()

    def ask() -> None:
        began.set()
        told.append(world.losses.wait(W0, 3600))

    waits = threading.Thread(target=ask, daemon=True)
    waits.start()
    assert began.wait(20)
    deadline = time.monotonic() + 20
    while not told and time.monotonic() < deadline:  # it may not have asked yet: then it asks in the newer world
        world.losses.assigned()
        world.losses.ranked(W0, has_rank=True)
        waits.join(0.05)
    assert told == [""]


def test_an_unknown_worker_is_told_nothing(world: World) -> None:
    world.ended(W2)
    assert world.told(("w9", 0)) == ""
