"""The thread that talks with the agent, alone: no torch, no group, and an agent that says every line itself."""

import base64
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from scripted_agent import PATIENCE_S, ScriptedAgent

from elastic_worker.training import control as controls
from elastic_worker.training import environment
from elastic_worker.training.connections import Connections
from elastic_worker.training.control import AGENT_GONE, STUCK, Over


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ScriptedAgent]:
    one = ScriptedAgent(tmp_path)
    yield one
    one.end()


@pytest.fixture
def main_thread() -> Iterator[Callable[..., Future]]:
    """Call a function in a thread that stands for the worker's main thread."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_it_says_hello_with_its_step_and_imports_no_torch(agent: ScriptedAgent) -> None:
    agent.control(step=7)
    assert agent.hears() == {"t": "hello", "pid": 1, "local_rank": 0, "torch": "2.13.0", "step": 7}
    code = "import sys, elastic_worker, elastic_worker.training.control; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_hold_is_answered_while_the_main_thread_is_inside_a_step(agent: ScriptedAgent) -> None:
    one = agent.control(step=5)
    agent.hears()
    assert one.begin_step()
    agent.says("hold", 1)
    assert agent.hears() == {"t": "holds", "round": 1, "step": 6}
    one.commit()
    agent.says("hold", 1)  # again: the promise stays the same
    assert agent.hears() == {"t": "holds", "round": 1, "step": 6}


def test_a_held_step_begins_if_the_world_stops_later_and_not_if_it_stops_before(
    agent: ScriptedAgent, main_thread: Callable[..., Future]
) -> None:
    one = agent.control(step=5)
    agent.hears()
    agent.says("hold", 1)
    assert agent.hears()["step"] == 5
    begun = main_thread(one.begin_step)
    agent.says("stop", 1, step=6)
    assert begun.result(PATIENCE_S)
    one.commit()
    assert not one.begin_step()
    assert one.next_change(one.place).phase == "stop"
    one.at_boundary(1, 6)
    assert agent.hears() == {"t": "at", "round": 1, "step": 6}


def test_a_message_of_an_older_round_or_phase_changes_nothing(agent: ScriptedAgent) -> None:
    one = agent.control(step=0)
    agent.hears()
    agent.says("abort", 4)
    agent.says("hold", 3)
    agent.says("hold", 4)
    agent.says("form", 5)
    change = one.next_change(one.place)
    until(lambda: one.next_change(one.place).round == 5)
    assert change.round in (4, 5)
    agent.says("hold", 6)
    assert agent.hears() == {"t": "holds", "round": 6, "step": 0}, "neither of the late holds was answered"


def test_an_abort_breaks_again_and_again_until_the_main_thread_is_out(agent: ScriptedAgent) -> None:
    broken: list[int] = []

    class Counted(Connections):
        def break_off(self, epoch: int) -> int:
            broken.append(epoch)
            return 1

    connections = Counted()
    connections.begin(2)
    one = agent.control(connections)
    agent.hears()
    assert one.begin_step()
    agent.says("abort", 1)
    until(lambda: len(broken) > 2)
    assert one.is_ending()
    with pytest.raises(Over):
        one.check_step()
    one.at_boundary(1, None)
    assert agent.hears() == {"t": "at", "round": 1, "step": None}
    connections.begin(2)
    assert set(broken) == {1}, "the epoch of the group that ended"


def test_a_worker_at_the_boundary_breaks_nothing_off_when_the_next_world_forms(agent: ScriptedAgent) -> None:
    """Each look for the sockets of the group takes a millisecond of the core on which the next world forms."""
    broken: list[int] = []

    class Counted(Connections):
        def break_off(self, epoch: int) -> int:
            broken.append(epoch)
            return 1

    one = agent.control(Counted(), step=5)
    agent.hears()
    agent.says("stop", 1, step=5)
    until(lambda: one.next_change((-1, 0)).phase == "stop")
    one.at_boundary(1, 5)
    assert agent.hears() == {"t": "at", "round": 1, "step": 5}
    agent.says("form", 1)
    until(lambda: one.next_change((-1, 0)).phase == "form")
    agent.says("hold", 2)
    assert agent.hears()["t"] == "holds", "the thread has acted on `form` before it read this"
    assert broken == []
    agent.says("abort", 3)
    until(lambda: broken != [])  # the group may still be there after a stop


def test_formed_waits_for_run_and_ends_with_the_round(agent: ScriptedAgent, main_thread: Callable[..., Future]) -> None:
    one = agent.control(step=3)
    agent.hears()
    for round, end in ((1, "run"), (2, "abort")):
        agent.says("form", round)
        until(lambda round=round: one.next_change((-1, 0)).round == round)
        one.enter(round, PATIENCE_S)
        formed = main_thread(one.formed, round)
        assert agent.hears() == {"t": "formed", "round": round}
        assert not formed.done()
        agent.says(end, round if end == "run" else 3)
        if end == "run":
            formed.result(PATIENCE_S)
        else:
            with pytest.raises(Over):
                formed.result(PATIENCE_S)


def test_a_hold_of_the_next_round_says_that_the_world_trains(agent: ScriptedAgent, main_thread: Callable[..., Future]) -> None:
    """The agent sends the newest state only, so a worker may never hear `run`."""
    one = agent.control(step=3)
    agent.hears()
    agent.says("form", 1)
    until(lambda: one.next_change((-1, 0)).round == 1)
    one.enter(1, PATIENCE_S)
    formed = main_thread(one.formed, 1)
    agent.hears()
    agent.says("hold", 2)
    formed.result(PATIENCE_S)
    assert agent.hears() == {"t": "holds", "round": 2, "step": 3}


def test_values_are_exchanged_per_round_and_a_wait_ends_with_it(agent: ScriptedAgent, main_thread: Callable[..., Future]) -> None:
    one = agent.control()
    agent.hears()
    agent.says("form", 1)
    until(lambda: one.next_change((-1, 0)).round == 1)
    one.enter(1, PATIENCE_S)
    one.put(1, "0", b"\x00\xff")
    assert agent.hears() == {"t": "put", "round": 1, "key": "0", "value": base64.b64encode(b"\x00\xff").decode()}
    got = main_thread(one.get, 1, ["0", "1"], PATIENCE_S)
    agent.sends({"t": "keys", "round": 1, "items": {"1": base64.b64encode(b"one").decode()}})
    assert got.result(PATIENCE_S) == [b"\x00\xff", b"one"]
    with pytest.raises(RuntimeError, match=r"no peer has sent 2 within 0\.01 s"):
        one.get(1, ["2"], 0.01)
    got = main_thread(one.get, 1, ["2"], PATIENCE_S)
    agent.says("abort", 2)
    with pytest.raises(Over):
        got.result(PATIENCE_S)
    with pytest.raises(Over):
        one.put(1, "3", b"")
    assert one.known(2) == {}


def test_a_value_that_is_too_large_is_refused_before_it_is_sent(agent: ScriptedAgent) -> None:
    one = agent.control()
    with pytest.raises(ValueError, match="32769 bytes; at most 32768"):
        one.put(1, "key", bytes(32 * 1024 + 1))
    with pytest.raises(ValueError, match="256 characters"):
        one.put(1, "k" * 257, b"")


def test_plain_ends_the_wait_and_the_process_outlives_its_agent(agent: ScriptedAgent, main_thread: Callable[..., Future]) -> None:
    one = agent.control()
    change = main_thread(one.next_change, one.place)
    agent.says("plain", 0, why="a member runs torch without it")
    assert change.result(PATIENCE_S) is None
    assert one.plain == "a member runs torch without it"
    agent.close()
    until(lambda: not any(thread.name == "elastic-control" for thread in threading.enumerate()))
    assert agent.exit_code is None


def test_the_agent_hears_once_which_exception_ends_the_program(agent: ScriptedAgent) -> None:
    one = agent.control()
    agent.hears()
    one.done(early=True, error="ValueError: bad batch")
    one.done(early=True)
    one.send("last")
    assert agent.hears() == {"t": "done", "early": True, "words": "ValueError: bad batch"}
    assert agent.hears() == {"t": "last"}


@pytest.mark.parametrize("is_done", [False, True])
def test_the_process_ends_with_its_agent_unless_its_loop_has_ended(agent: ScriptedAgent, is_done: bool) -> None:
    one = agent.control()
    agent.hears()
    if is_done:
        one.done()
        assert agent.hears() == {"t": "done"}
    agent.close()
    until(lambda: not any(thread.name == "elastic-control" for thread in threading.enumerate()))
    assert agent.exit_code == (None if is_done else AGENT_GONE)


@pytest.mark.parametrize("line", [b"{]\n", b'{"t":"change","round":1}\n', b"[]\n", b"x" * (controls.LONGEST_LINE + 1)])
def test_an_agent_that_sends_nonsense_counts_as_gone(agent: ScriptedAgent, line: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    agent.control()
    agent.connection.sendall(line)
    assert agent.left.wait(PATIENCE_S)
    assert agent.exit_code == AGENT_GONE
    assert "This process ends." in capfd.readouterr().err


def test_unknown_messages_and_phases_of_a_later_release_are_ignored(agent: ScriptedAgent) -> None:
    agent.control(step=2)
    agent.hears()
    agent.sends({"t": "news"})
    agent.says("pause", 1)
    agent.says("hold", 2)
    assert agent.hears() == {"t": "holds", "round": 2, "step": 2}


def test_a_main_thread_that_does_not_leave_ends_the_process_with_its_stack(
    agent: ScriptedAgent, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(controls, "LEAVE_S", 0.0)
    one = agent.control(step=1)
    for _ in range(2):
        assert one.begin_step()
        one.commit()
    assert one.begin_step()
    agent.says("abort", 1)
    assert agent.left.wait(PATIENCE_S)
    assert agent.exit_code == STUCK
    errors = capfd.readouterr().err
    assert "the main thread is stuck: the world that round 1 ended" in errors
    assert "test_a_main_thread_that_does_not_leave" in errors


def test_a_group_that_is_not_formed_in_time_ends_the_process(agent: ScriptedAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "LEAVE_S", 0.0)
    one = agent.control()
    agent.says("form", 1)
    until(lambda: one.next_change((-1, 0)).round == 1)
    one.enter(1, 0.0)
    assert agent.left.wait(PATIENCE_S)
    assert agent.exit_code == STUCK


def test_a_forked_child_does_not_keep_the_door_open(agent: ScriptedAgent) -> None:
    """A loader process would otherwise hide the end of its parent from the agent."""
    one = agent.control()
    agent.hears()
    blocking, release = os.pipe()
    child = os.fork()
    if not child:
        os.close(release)
        os.read(blocking, 1)
        os._exit(0)
    try:
        one.done()
        assert agent.hears() == {"t": "done"}
        one._socket.close()  # as the end of the parent does
        agent.connection.setblocking(True)
        agent.connection.settimeout(PATIENCE_S)
        assert agent.connection.recv(1) == b""
    finally:
        os.close(release)
        os.waitpid(child, 0)
        os.close(blocking)


def test_a_group_that_takes_too_long_is_broken_off_first(agent: ScriptedAgent) -> None:
    broken = threading.Event()

    class Noted(Connections):
        def break_off(self, epoch: int) -> int:
            broken.set()
            return 1

    one = agent.control(Noted())
    agent.hears()
    agent.says("form", 1)
    until(lambda: one.next_change((-1, 0)).round == 1)
    one.enter(1, 0.0)
    assert broken.wait(PATIENCE_S)
    one.unformed(1, "a peer does not answer")
    assert agent.hears() == {"t": "unformed", "round": 1, "words": "a peer does not answer"}
    assert agent.exit_code is None


@pytest.mark.parametrize("phases", [["hold"], ["hold", "stop"]])
def test_a_change_that_is_called_off_lets_the_world_train_on(
    agent: ScriptedAgent, main_thread: Callable[..., Future], phases: list[str]
) -> None:
    one = agent.control(step=5)
    agent.hears()
    agent.says("form", 1)
    until(lambda: one.next_change((-1, 0)).round == 1)
    one.enter(1, PATIENCE_S)
    formed = main_thread(one.formed, 1)
    agent.hears()
    agent.says("run", 1)
    formed.result(PATIENCE_S)
    for phase in phases:
        agent.says(phase, 2, step=5)
    until(lambda: one.next_change((1, 4)).phase == phases[-1])
    agent.says("run", 2)
    until(lambda: one.next_change((1, 4)).phase == "run")
    assert not one.is_ending()
    assert main_thread(one.begin_step).result(PATIENCE_S)
    one.check_step()
    one.commit()
    agent.says("abort", 3)
    until(one.is_ending)


def test_a_plain_job_takes_part_in_no_change(agent: ScriptedAgent, main_thread: Callable[..., Future]) -> None:
    """A new server may not know yet that the job is plain. The change broke off the collectives, and ended the process."""
    one = agent.control()
    agent.hears()
    agent.says("plain", 0, why="a member runs torch without it")
    assert main_thread(one.next_change, one.place).result(PATIENCE_S) is None
    agent.says("abort", 4)
    agent.says("hold", 5)
    agent.close()
    until(lambda: not any(thread.name == "elastic-control" for thread in threading.enumerate()))
    assert (one._breaks, one._deadline, agent.exit_code) == (None, None, None)


@pytest.mark.parametrize(("generation", "said", "code"), [("3", True, None), ("0", True, AGENT_GONE), ("3", False, AGENT_GONE)])
def test_a_process_that_the_agent_turns_away_is_plain_unless_its_world_is_provisional(
    agent: ScriptedAgent, monkeypatch: pytest.MonkeyPatch, generation: str, said: bool, code: int | None
) -> None:
    """A worker took itself for turned away, and trained alone, if its agent was killed and the listener closed after the connection."""
    monkeypatch.setenv("ELASTIC_GENERATION", generation)
    one = agent.control()
    if said:
        agent.connection.sendall(b'{"t":"stranger"}\n')
    agent._lines.close()
    agent.connection.close()
    until(lambda: not any(thread.name == "elastic-control" for thread in threading.enumerate()))
    assert agent.exit_code == code
    assert (one.plain == environment.NOT_ITS_WORKER) is (code is None)


def test_an_agent_that_is_lost_after_it_has_spoken_ends_the_process(agent: ScriptedAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTIC_GENERATION", "3")
    agent.control()
    agent.says("hold", 1)
    assert agent.hears()["t"] == "hello"
    assert agent.hears()["t"] == "holds"
    agent._lines.close()
    agent.connection.close()
    assert agent.left.wait(PATIENCE_S)
    assert agent.exit_code == AGENT_GONE


def test_the_worker_learns_over_how_long_it_measures_its_pace(agent: ScriptedAgent) -> None:
    one = agent.control()
    agent.hears()
    assert one.pace_s == 0.0, "an older agent never asks"
    agent.sends({"t": "pace", "every_s": 10.0})
    until(lambda: one.pace_s == 10.0)
    agent.sends({"t": "pace", "every_s": 0.0})
    until(lambda: one.pace_s == 0.0)
    agent.sends({"t": "something-newer", "every_s": 5.0})
    agent.says("abort", 1)
    until(lambda: one.is_ending())
    assert (one.pace_s, agent.left.is_set()) == (0.0, False)
