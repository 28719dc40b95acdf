"""The ranks agree when to save and when to stop; here with one rank. tests/integration/test_integrations.py has several."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elastic_worker.integrations import agreement
from elastic_worker.integrations.agreement import Agreement, Verdict, newest_of_all
from elastic_worker.report import Answer

ROOT = Path(__file__).resolve().parents[4]


class Told:
    """A reporter whose answers the test chooses."""

    is_heard = True

    def __init__(self) -> None:
        self.answer = Answer()
        self.reports: list[tuple[int, dict[str, float]]] = []

    def send(self, step: int, **values: float) -> Answer:
        self.reports.append((step, values))
        return self.answer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def told() -> Told:
    return Told()


def begun(told: Told, clock: Any) -> Agreement:
    made = Agreement(told, clock=clock)  # type: ignore[arg-type]
    made.begin(0, replaces=lambda handler: False)
    return made


def test_a_notice_asks_for_one_checkpoint_and_a_second_notice_for_another(told: Told) -> None:
    ranks, clock = begun(told, clock := Clock()), clock

    def verdict(step: int, answer: Answer) -> Verdict:
        clock.now += 5.0  # a step of five seconds: the ranks agree after each
        told.answer = answer
        return ranks.after_step(step, "cpu", dict)

    noticed = Answer(checkpoint_s=30.0)
    answers = [Answer(), noticed, noticed, Answer(), Answer(stop=True), Answer(stop=True)]
    saves = [verdict(step, answer).save for step, answer in enumerate(answers, start=1)]
    assert saves == [False, True, False, False, True, False]


def test_ranks_agree_a_few_times_a_second_and_the_loss_is_read_no_oftener(told: Told) -> None:
    ranks, clock = begun(told, clock := Clock()), clock
    read = 0

    def values() -> dict[str, float]:
        nonlocal read
        read += 1
        return {"loss": 0.5}

    for step in range(1, 1001):
        clock.now += 0.03125
        ranks.after_step(step, "cpu", values)
    steps = [step for step, _ in told.reports]
    assert steps[:5] == [1, 3, 7, 15, 23], "the first steps say little about the speed"
    assert {later - earlier for earlier, later in itertools.pairwise(steps[3:])} == {8}
    assert read == len(told.reports)


def test_steps_that_become_slow_are_agreed_about_soon_again(told: Told) -> None:
    ranks, clock = begun(told, clock := Clock()), clock
    for step in range(1, 5000):
        clock.now += 0.0001
        ranks.after_step(step, "cpu", dict)
    before = len(told.reports)
    for step in range(5000, 5000 + agreement.MOST_STEPS + 10):
        clock.now += 60
        ranks.after_step(step, "cpu", dict)
    assert len(told.reports) - before > 5


def test_the_newest_step_is_the_only_ranks_own() -> None:
    assert newest_of_all([3, 12, 7]) == (12, 12)
    assert newest_of_all([]) == (None, None)


PROGRAM = """
import os, signal, sys, time
from elastic_worker.integrations.agreement import Agreement
def own(number, frame):
    print("own handler", flush=True)
    sys.exit(7)
{before}
ranks = Agreement(patience_s={patience})
ranks.begin(0)
{during}
"""
STUCK = "while True: time.sleep(0.01)"


def run(*, during: str, before: str = "", patience_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(before=before, during=during, patience=patience_s)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "ELASTIC_"))}
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)


def test_sigterm_stops_after_the_step_in_flight() -> None:
    steps = """
for step in range(1, 10):
    if step == 3: os.kill(os.getpid(), signal.SIGTERM)
    verdict = ranks.after_step(step, "cpu", dict)
    print(step, verdict.save, verdict.stop, flush=True)
    if verdict.stop: ranks.leave()
"""
    ended = run(during=steps)
    assert ended.returncode == 128 + signal.SIGTERM, ended.stderr
    assert ended.stdout.splitlines() == ["1 False False", "2 False False", "3 True True"]


def test_a_rank_that_is_stuck_ends_after_its_patience() -> None:
    ended = run(during="os.kill(os.getpid(), signal.SIGTERM)\n" + STUCK, patience_s=0.1)
    assert ended.returncode == 128 + signal.SIGTERM
    assert "no step ended in time" in ended.stderr


def test_a_rank_whose_steps_end_does_not_lose_its_patience_before_it_agrees() -> None:
    """Steps that became slow under load made a rank end without a checkpoint, because the next agreement was many steps away."""
    steps = """
from elastic_worker.integrations import agreement
agreement._peers = lambda: one
class one:
    get_rank = staticmethod(lambda: 0)
agreement._greatest = lambda own, device: [int(value) for value in own]
for step in range(1, 64):  # so fast that the next agreement is 32 steps away
    verdict = ranks.after_step(step, "cpu", dict)
os.kill(os.getpid(), signal.SIGTERM)
while not verdict.stop:
    time.sleep(0.1)
    step += 1
    verdict = ranks.after_step(step, "cpu", dict)
ranks.leave()
"""
    ended = run(during=steps, patience_s=2.0)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGTERM, "")


def test_a_sigterm_about_which_nobody_agreed_ends_the_process_after_training() -> None:
    ended = run(during=f"os.kill(os.getpid(), signal.SIGTERM)\nranks.end(9, {{}})\n{STUCK}")
    assert ended.returncode == -signal.SIGTERM, ended.stderr


def test_after_training_sigterm_is_what_it_was() -> None:
    ended = run(during=f"ranks.end(9, {{}})\nos.kill(os.getpid(), signal.SIGTERM)\n{STUCK}")
    assert ended.returncode == -signal.SIGTERM, ended.stderr


def test_the_programs_own_handler_stays() -> None:
    ended = run(before="signal.signal(signal.SIGTERM, own)", during=f"os.kill(os.getpid(), signal.SIGTERM)\n{STUCK}")
    assert (ended.returncode, ended.stdout) == (7, "own handler\n")


def test_a_forked_child_still_ends_by_sigterm() -> None:
    child = f"""
pid = os.fork()
if pid == 0:
    os.kill(os.getpid(), signal.SIGTERM)
    {STUCK}
_, status = os.waitpid(pid, 0)
print(os.WTERMSIG(status), flush=True)
os._exit(0)
"""
    ended = run(during=child)
    assert ended.stdout == f"{int(signal.SIGTERM)}\n", ended.stderr
