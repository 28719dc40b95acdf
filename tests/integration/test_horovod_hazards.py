"""Prove that elastic Horovod neither hangs nor ends in the ways that it is known for.

The tests run real horovodrun with the list of a real rendezvous server, with an unmodified program and with one that uses our library. The
hosts are names on this machine, reached by a stand-in for ssh.
"""

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from example_jobs import environment
from horovod_lab import Lab, lab
from torch_agents import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.torch,
    pytest.mark.heavy,
    pytest.mark.full,
    pytest.mark.framework("horovod"),
    pytest.mark.timeout(600),
]

Begin = Callable[[bool], Lab]
BOTH = pytest.mark.parametrize("library", [False, True], ids=["unmodified", "library"])
PATIENCE_S = 240.0


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Make jobs with or without the library in their program."""
    python = environment("horovod") / "bin" / "python"
    with ExitStack() as stack:

        def make(library: bool) -> Lab:
            made: AbstractContextManager[Lab] = lab(tmp_path, python, library=library)
            return stack.enter_context(made)

        yield make


def until(one: Lab, *, size: int, after: float = 0.0) -> float:
    return one.until_step(size=size, after=after, patience_s=PATIENCE_S).at


def in_order(one: Lab) -> bool:
    """Return whether no step was made twice, and no step is missing."""
    numbers = [step.number for step in one.steps()]
    return numbers == list(range(1, len(numbers) + 1))


def test_with_the_library_workers_come_go_and_are_lost(begin: Begin) -> None:
    """Hosts are added and removed without the loss of a step; a killed worker's host comes back by itself."""
    one = begin(True)
    one.expect("w0")
    one.start()
    until(one, size=1)
    one.expect("w0", "w1", "w2")
    at = until(one, size=3)
    one.expect("w0", "w1", "w2", leaving=("w2",))
    at = until(one, size=2, after=at)
    wait_until(lambda: not one.workers("w2"), what="the removed host's process ends by itself")
    assert in_order(one), one.story()
    at = one.kill("w1")
    at = until(one, size=1, after=at)
    until(one, size=2, after=at)
    steps = [step.number for step in one.steps()]
    assert steps[-1] == max(steps), one.story()


@BOTH
def test_a_killed_worker_stops_nobody_even_if_no_peer_can_notice_its_loss(begin: Begin, library: bool) -> None:
    """Reproduce a stop of 60 s at most `kill -9` of a worker in a world of three.

    Only ranks next to the lost one noticed the loss, and rank 0 waited until gloo's timeout. Here no rank can notice: a forked child, like
    that of a DataLoader, keeps the lost worker's connections open. The launcher tells the others, and they shut their own connections.
    """
    one = begin(library)
    (one.folder / "forks-w2").touch()
    one.expect("w0", "w1", "w2")
    one.start("-np", "3", "--gloo-timeout-seconds", "600")
    one.until_steady(size=3, patience_s=PATIENCE_S)
    (one.folder / "forks-w2").unlink()
    at = time.time()
    os.kill(one.newest_process("w2"), signal.SIGKILL)
    try:
        until(one, size=2, after=at)
    finally:
        (one.folder / "released").touch()
    loss = "worker w2:0 ended with status 137"
    told = [line for line in one.output().splitlines() if f"elastic-training: {loss}; shut " in line]
    assert f"driver: {loss}; the other workers of its world shut their connections" in one.output(), one.story()
    assert len(told) == 2, one.story()
    until(one, size=3, after=at)


def test_a_new_worker_that_needs_long_stops_nobody(begin: Begin) -> None:
    """Without the library, a worker that needs longer than gloo's timeout ends all others."""
    one = begin(True)
    one.expect("w0")
    one.start()
    at = until(one, size=1)
    (one.folder / "slow-w1").write_text("45")
    one.expect("w0", "w1")
    until(one, size=2, after=at)
    steps = one.steps()
    gaps = [after.at - before.at for before, after in itertools.pairwise(steps)]
    assert max(gaps) < 20, f"training stood still for {max(gaps):.0f} s"
    assert in_order(one), one.story()


@BOTH
def test_a_host_that_cannot_be_reached_stops_nobody(begin: Begin, library: bool) -> None:
    """One listed host in which no worker starts ends the whole job after gloo's timeout, also where it is taken back."""
    one = begin(library)
    (one.folder / "unreachable-w1").touch()
    one.expect("w0", "w1")
    one.start()
    until(one, size=1)
    one.until_steady(size=1, steps=150, patience_s=PATIENCE_S)
    (one.folder / "unreachable-w1").unlink()
    until(one, size=2)
    assert in_order(one), one.story()


@BOTH
def test_a_new_host_after_a_removal_joins(begin: Begin, library: bool) -> None:
    """Reproduce Horovod's issue 3494: below --min-np, and then a new name.

    The workers that stayed did not synchronise, and the new one waited.
    """
    one = begin(library)
    one.expect("w0", "w1")
    one.start("-np", "2", "--min-np", "2")
    until(one, size=2)
    at = time.time()
    one.expect("w0", "w1", leaving=("w1",))
    one.until_listed("w0", after=at, patience_s=PATIENCE_S)
    one.expect("w0", "w2")
    at = time.time()
    until(one, size=2, after=at)
    wait_until(lambda: bool(one.workers("w2")), what="the new host trains")


@BOTH
def test_all_hosts_are_exchanged_and_the_state_goes_on(begin: Begin, library: bool) -> None:
    """Horovod cannot go on if none of the former hosts stays in a change."""
    one = begin(library)
    one.expect("w0", "w1")
    one.start()
    until(one, size=2)
    one.expect("w0", "w1", "w2", "w3", leaving=("w0", "w1"))
    wait_until(lambda: not one.workers("w0") and not one.workers("w1"), what=one.story, patience_s=PATIENCE_S)
    at = time.time()
    until(one, size=2, after=at)
    assert in_order(one), one.story()


@BOTH
def test_after_the_loss_of_all_hosts_horovodrun_is_started_again(begin: Begin, library: bool) -> None:
    """Horovod itself cannot go on: none of the former hosts stays, and its end would count as the program's."""
    one = begin(library)
    one.expect("w0", "w1")
    one.start()
    until(one, size=2)
    one.expect("w2")
    one.kill("w0")
    at = one.kill("w1")
    until(one, size=1, after=at)
    assert "the loss of w0, w1; restarting it" in one.output(), one.story()


@BOTH
def test_a_host_whose_worker_failed_is_used_again(begin: Begin, library: bool) -> None:
    """By default Horovod never uses it again, under this name."""
    one = begin(library)
    one.expect("w0", "w1")
    one.start("--gloo-timeout-seconds", "30")
    until(one, size=2)
    at = one.kill("w1")
    at = until(one, size=1, after=at)
    until(one, size=2, after=at)


@BOTH
def test_a_worker_that_is_stopped_stops_the_others_for_a_while_only(begin: Begin, library: bool) -> None:
    """Horovod's driver waited without a limit for the worker to leave its world."""
    one = begin(library)
    one.expect("w0", "w1", "w2")
    one.start("-np", "3", "--gloo-timeout-seconds", "20")
    one.until_steady(size=3, patience_s=PATIENCE_S)
    at = one.kill("w1", signal.SIGSTOP)
    until(one, size=2, after=at)
    assert "driver: worker w1:0 has stood still for 60 s, and is ended" in one.output(), one.story()


@BOTH
def test_a_host_that_vanishes_with_its_worker_stops_nobody(begin: Begin, library: bool) -> None:
    """The list still had the host, whose pod had ended: a worker was started there, and all others waited for it."""
    one = begin(library)
    one.expect("w0", "w1", "w2")
    one.start("-np", "3", "--gloo-timeout-seconds", "600")
    one.until_steady(size=3, patience_s=PATIENCE_S)
    (one.folder / "unreachable-w2").touch()
    at = one.kill("w2")
    until(one, size=2, after=at)
    one.until_steady(size=2, steps=300, patience_s=PATIENCE_S)
    (one.folder / "unreachable-w2").unlink()
    until(one, size=3, after=at)


@BOTH
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_launcher_leaves_no_worker(begin: Begin, library: bool, number: signal.Signals) -> None:
    one = begin(library)
    one.expect("w0", "w1")
    one.start()
    until(one, size=2)
    assert one.process is not None
    os.kill(one.process.pid, number)
    one.process.wait(60)
    wait_until(lambda: not one.workers("w0") and not one.workers("w1"), what=one.story, patience_s=60)


def test_after_the_loss_of_the_launcher_training_goes_on_from_the_last_commit(begin: Begin) -> None:
    one = begin(True)
    one.expect("w0", "w1")
    one.start(every=10)
    at = until(one, size=2)
    wait_until(lambda: one.steps()[-1].number > 45, what=one.story, patience_s=PATIENCE_S)
    assert one.process is not None
    one.process.kill()
    one.process.wait(20)
    wait_until(lambda: not one.workers("w0") and not one.workers("w1"), what=one.story, patience_s=60)
    last, at = one.steps()[-1].number, time.time()
    one.start(every=10)
    step = one.until_step(size=2, after=at, patience_s=PATIENCE_S)
    assert last - 20 <= step.number <= last + 1, f"step {last} was the last, and training went on with {step.number}"


@BOTH
def test_one_host_is_enough_to_begin_and_the_end_of_training_ends_all(begin: Begin, library: bool) -> None:
    """Without --network-interface, horovodrun waits for a second host before it starts."""
    one = begin(library)
    one.expect("w0")
    one.start(steps=150)
    until(one, size=1)
    one.expect("w0", "w1")
    assert one.process is not None
    assert one.process.wait(PATIENCE_S) == 0, one.story()
    assert [line for line in one.lines() if " done " in line]
    assert one.steps()[-1].number == 150


@BOTH
def test_a_worker_whose_last_step_takes_longer_than_that_of_another_finishes_too(begin: Begin, library: bool) -> None:
    """The other one has shut Horovod down by then, and what the library asked after the last step failed the job."""
    one = begin(library)
    (one.folder / "late-w1").write_text("1.5")
    one.expect("w0", "w1")
    one.start("-np", "2", steps=6, every=1000)
    assert one.process is not None
    assert one.process.wait(PATIENCE_S) == 0, one.story()
    assert sorted(line.split()[1] for line in one.lines() if " done " in line) == ["w0", "w1"]


@BOTH
def test_training_begins_once_there_are_as_many_slots_as_np_says(begin: Begin, library: bool) -> None:
    """Wait for as many slots at the start, whatever --min-np is. Afterwards fewer are enough."""
    one = begin(library)
    one.expect("w0")
    one.start("-np", "2")
    one.until_listed("w0", after=0.0, patience_s=PATIENCE_S)
    time.sleep(1)  # in which a worker would start on the only host
    assert one.lines() == [], one.story()
    one.expect("w0", "w1")
    at = until(one, size=2)
    one.expect("w0", "w1", leaving=("w1",))
    until(one, size=1, after=at)


def test_more_changes_than_the_reset_limit_end_the_job(begin: Begin) -> None:
    one = begin(False)
    one.expect("w0")
    one.start("--reset-limit", "1")
    at = until(one, size=1)
    one.expect("w0", "w1")
    until(one, size=2, after=at)
    one.expect("w0", "w1", leaving=("w1",))
    assert one.process is not None
    assert one.process.wait(PATIENCE_S) == 1, one.story()
    assert "resets during elastic job exceeded limit: 1" in one.output(), one.story()
