"""Real training processes whose world changes: every sample is used exactly once, and the weights are those of a single process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from training_changes import Changes
from training_lab import WORKER, Lab, forking, lab, starting

from elastic.local.ports import free_port

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def zygote() -> Iterator[subprocess.Popen[str]]:
    """Start the process from which all workers of the module are forked."""
    with forking() as one:
        yield one


@pytest.fixture
def start(tmp_path: Path, zygote: subprocess.Popen[str]) -> Iterator[Callable[..., Lab]]:
    """Start a lab with a first world."""
    with starting(tmp_path, zygote) as begin:
        yield begin


def assert_exact(one: Lab, *, ranks: int) -> list[dict]:
    """Let the training end, and compare it with the same training in a single process."""
    results = one.finish()
    assert len(results) == ranks
    steps = {result["steps"] for result in results}
    assert len(steps) == 1
    assert [result["wrong"] for result in results] == [0] * ranks, "samples that were not used exactly as often as they should"
    assert sorted(result["environment"]["RANK"] for result in results) == sorted(map(str, range(ranks)))
    assert {result["environment"]["WORLD_SIZE"] for result in results} == {str(ranks)}
    expected = one.reference(steps.pop())
    for result in results:
        assert max(abs(a - b) for a, b in zip(result["vector"], expected, strict=True)) < 1e-12
    assert one.plane.problems == []
    return results


def test_workers_that_all_get_sigterm_leave_a_save_of_their_newest_step(start: Callable[..., Lab], tmp_path: Path) -> None:
    """A suspended job lost the steps since its last save, because SIGTERM ended the processes at once."""
    one = start(3, save=str(tmp_path / "saves"))
    one.until((one.folder / "step").exists)
    pids = list(one.plane.world)
    reached = int((one.folder / "step").read_text())
    one.kill(*pids, sign=signal.SIGTERM)
    one.until(lambda: all((one.folder / f"exit-{pid}").exists() for pid in pids))
    (save,) = {int(path.name.split("-")[1]) for path in (tmp_path / "saves").glob("*.json")}
    assert save > reached
    assert [int((one.folder / f"after-{pid}").read_text()) for pid in pids] == [save - 1] * 3, "the code after the block was left out"
    assert [one.stderr(pid).splitlines()[-1] for pid in pids] == ["SystemExit: 143"] * 3


def test_a_worker_whose_peers_got_sigterm_first_leaves_a_save(start: Callable[..., Lab], tmp_path: Path) -> None:
    """Its step fails because they have gone, and nobody tells it so: its agent ends too."""
    one = start(2, save=str(tmp_path / "saves"))
    first, second = one.plane.world
    with one.plane.news:
        one.plane.is_finishing = True  # no change begins any more
        one.plane.blip_s = 1000.0
    one.kill(second, sign=signal.SIGTERM)
    assert one.plane.wait(lambda: bool(one.plane.complaints)), one.explain()
    one.kill(first, sign=signal.SIGTERM)
    one.until((one.folder / f"exit-{first}").exists)
    assert len(list((tmp_path / "saves").glob("*.json"))) == 1, one.explain()


def test_a_worker_that_gets_sigterm_between_two_worlds_leaves_a_save(start: Callable[..., Lab], tmp_path: Path) -> None:
    one = start(3, save=str(tmp_path / "saves"))
    first, still, lost = one.plane.world
    one.until((one.folder / "step").exists)
    with one.plane.news:
        one.plane.over_limit = lambda pids, now: []  # so the change lasts
    one.kill(still, sign=signal.SIGSTOP)
    one.kill(lost)
    assert one.plane.wait(lambda: one.plane.phase == "stopping" and one.plane.members[first].at is not None), one.explain()
    one.kill(first, sign=signal.SIGTERM)
    one.until((one.folder / f"exit-{first}").exists)
    assert len(list((tmp_path / "saves").glob("*.json"))) == 1, one.explain()


def test_a_worker_that_is_stuck_in_a_collective_ends_by_sigterm(start: Callable[..., Lab]) -> None:
    """Its peer stands still, so its step never ends, and Python runs no handler of its main thread."""
    one = start(2, hang_inside=[60, 1])
    stuck, _ = one.plane.world
    one.until(lambda: all((one.folder / f"forward-{pid}").exists() for pid in one.plane.world))
    one.kill(stuck, sign=signal.SIGTERM)
    assert one.plane.wait(lambda: stuck not in one.plane.members), one.explain()
    assert "the step did not end in time" in one.stderr(stuck)


def test_a_worker_that_waits_for_a_world_ends_at_once_by_sigterm(start: Callable[..., Lab]) -> None:
    """A worker that has left the world, or a newcomer that stands by, has no step after which it could end."""
    one = start(2)
    one.plane.start_size = 9
    with one.plane.news:
        one.plane.is_finishing = True  # no change begins any more, so the newcomer waits
    newcomer = one.start()
    assert one.plane.wait(lambda: newcomer in one.plane.members), one.explain()
    one.kill(newcomer, sign=signal.SIGTERM)
    one.until((one.folder / f"exit-{newcomer}").exists)
    assert_exact(one, ranks=2)


@pytest.mark.timeout(300)
def test_twenty_five_changes_use_every_sample_once_and_change_no_weight(start: Callable[..., Lab]) -> None:
    one = start(4)
    changes = Changes(one, 4, seed=5, spare=1)
    kinds = [changes.one(kind) for kind in ("add", "two", "add", "kill first", "add", "stop", "kill donor", "leave", "add", "kill forming")]
    for _ in range(15):
        changes.pause()
        kinds.append(changes.one())
    assert len(one.plane.changes) >= len(kinds)
    assert_exact(one, ranks=len(one.plane.world))


def test_a_collective_that_is_broken_off_without_an_error_changes_no_weight(start: Callable[..., Lab]) -> None:
    """It is the way of NCCL: the kernels end, and leave wrong numbers."""
    lab = start(3, is_silent=True)
    changes = Changes(lab, 3, seed=5)
    for kind in ("kill", "add", "kill first", "add", "stop", "add", "kill"):
        changes.pause()
        changes.one(kind)
    results = lab.finish()
    expected = lab.reference(results[0]["steps"])
    assert all(result["vector"] == pytest.approx(expected, abs=1e-12) for result in results), lab.explain()
    assert all(result["wrong"] == 0 for result in results)


def test_a_step_that_is_tried_again_counts_once_for_batch_norm_and_random_numbers(start: Callable[..., Lab]) -> None:
    """The survivors have run their forward, with BatchNorm and random numbers, when a peer is lost in the same step."""
    one = start(3, has_norm=True, hang_inside=[60, 2])
    *survivors, victim = one.plane.world
    one.until(lambda: all((one.folder / f"forward-{pid}").exists() for pid in one.plane.world))
    one.kill(victim)
    one.settle()
    assert one.plane.world == survivors
    results = assert_exact(one, ranks=2)
    for result in results:
        assert result["redrawn"] == 0, "each committed step draws the numbers of an undisturbed training"
        assert result["seen"] == [result["steps"], pytest.approx(1 - 0.9 ** result["steps"], rel=1e-12)]


def test_a_worker_with_half_an_optimizer_step_gets_the_state_of_a_peer(start: Callable[..., Lab]) -> None:
    one = start(2)
    half = one.start_standing_by(half_after=10, half_from=0)
    one.settle()
    one.until(lambda: (one.folder / f"half-{half}").exists())
    one.kill(one.plane.world[0])
    one.settle()
    assert one.plane.pulled == 1
    assert_exact(one, ranks=2)


def test_an_error_of_the_program_is_raised_unchanged(start: Callable[..., Lab]) -> None:
    one = start(2)
    failing = one.start_standing_by(raise_after=10, error="ValueError")
    one.settle()
    one.until(lambda: (one.folder / f"exit-{failing}").exists())
    assert "ValueError: the program's own error" in one.stderr(failing)
    one.settle()
    assert_exact(one, ranks=2)


def test_a_runtime_error_is_raised_unchanged_if_the_world_does_not_end(start: Callable[..., Lab]) -> None:
    one = start(1, raise_after=10, error="RuntimeError")
    (failing,) = one.pids
    one.until(lambda: (one.folder / f"exit-{failing}").exists())
    assert "RuntimeError: the program's own error" in one.stderr(failing)
    assert one.plane.complaints == [], "a complaint about an error of the program would change the world again and again"


def test_a_worker_that_hangs_is_ended_by_its_watchdog_with_its_stack(start: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch) -> None:
    one = start(2, leave_s=0.5)
    hanging = one.start_standing_by(hang_after=10, leave_s=0.5)
    one.settle()
    one.until(lambda: (one.folder / f"hangs-{hanging}").exists())
    one.kill(one.plane.world[0])
    one.settle()
    assert "the main thread is stuck" in one.stderr(hanging)
    assert "_misbehave" in one.stderr(hanging)
    assert_exact(one, ranks=1)


def test_workers_end_together_and_one_that_lost_its_last_step_gets_it_from_a_peer(start: Callable[..., Lab]) -> None:
    """The victim stops in the last step. Its peers have their gradients, and wait for it at the end of the loop."""
    one = start(3, until=80, hang_at=[79, 2])
    late = one.plane.world[2]
    one.until((one.folder / f"hangs-{late}").exists)
    one.kill(late)
    one.settle_or_end()
    assert_exact(one, ranks=2)


def test_a_job_that_starts_again_continues_from_its_save(tmp_path: Path, zygote: subprocess.Popen[str]) -> None:
    (tmp_path / "saves").mkdir()
    options = {"compute_s": 0.0, "save": str(tmp_path / "saves")}
    for number, until in enumerate((40, 90)):
        folder = tmp_path / str(number)
        folder.mkdir()
        with lab(folder, 2, zygote, until=until, **options) as one:
            one.start(seed=number)
            one.start(seed=number + 10)
            one.until(lambda one=one: len(one.results()) == 2)
            assert [(result["steps"], result["wrong"]) for result in one.results()] == [(until, 0)] * 2
            assert {result["first"] for result in one.results()} == {0 if number == 0 else 40}


def test_a_plain_job_forms_its_group_as_under_torchrun_and_says_why_once(tmp_path: Path, zygote: subprocess.Popen[str]) -> None:
    port = str(free_port())
    with lab(tmp_path, 2, zygote, plain="member a-1 runs an old image", until=40, compute_s=0.0) as one:
        for rank in range(2):
            stock = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            one.start(seed=7, environment={"ELASTIC_WORLD": str(tmp_path / "door"), "LOCAL_RANK": str(rank), **stock})
        one.until(lambda: len(one.results()) == 2)
        assert [(result["steps"], result["wrong"], result["size"]) for result in one.results()] == [(40, 0, 2)] * 2
        for pid in one.pids:
            assert one.stderr(pid).count("member a-1 runs an old image") == 1


@pytest.mark.timeout(300)
def test_stock_torchrun_and_a_single_process_train_the_same_with_the_same_script(tmp_path: Path) -> None:
    vectors = []
    for launcher in (("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"), ()):
        folder = tmp_path / str(len(vectors))
        folder.mkdir()
        options = json.dumps({"until": 30, "seed": 7, "folder": str(folder)})
        root = str(WORKER.parent.parent.parent)
        command = [sys.executable, *launcher, str(WORKER), options]
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        results = [json.loads(path.read_text()) for path in folder.glob("result-*")]
        assert [(result["steps"], result["wrong"]) for result in results] == [(30, 0)] * (2 if launcher else 1)
        assert done.stderr.count("does not change its world") == (2 if launcher else 0)
        vectors.append(results[0]["vector"])
    assert max(abs(a - b) for a, b in zip(*vectors, strict=True)) < 1e-12


def test_the_end_of_the_agent_ends_the_worker(start: Callable[..., Lab]) -> None:
    one = start(1)
    one.plane.close()
    one.until(lambda: not _is_alive(one.pids[0]))
    assert "The agent is gone." in one.stderr(one.pids[0])


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_leaver_is_ended_by_its_agent_between_two_steps(start: Callable[..., Lab]) -> None:
    one = start(2)
    leaving = one.plane.world[0]
    one.plane.leave(leaving)
    one.settle()
    assert leaving not in one.plane.world
    one.until(lambda: not _is_alive(leaving))
    assert one.plane.complaints == []
    assert_exact(one, ranks=1)
