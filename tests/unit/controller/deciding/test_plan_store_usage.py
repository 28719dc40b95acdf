"""No agent of ours reports a wrong command if workers meet at torch's own c10d: the end of the log does."""

from dataclasses import replace
from datetime import timedelta

import pytest
from job_builders import NOW, OURS, Cluster, elastic_job, reasons

from elastic_training.controller.deciding.lifecycle import usage_errors
from elastic_training.controller.facts.snapshot import Container

WRONG = "usage: torchrun [-h]\n                [--nnodes NNODES]\ntorchrun: error: unrecognized arguments: --nonsense\n"
SAID = "train-worker-1 could not start: torchrun: error: unrecognized arguments: --nonsense"
STORE_AWAY = "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed."


def at_store(*, backoff_limit: int | None = None, **elastic: object) -> Cluster:
    policy = {"backoffLimit": backoff_limit}
    cluster = Cluster(elastic_job(2, elastic={"rdzvBackend": "c10d", **elastic}, runPolicy=policy), settings=OURS)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    return cluster


def ends(cluster: Cluster, name: str, *, times: int, code: int = 2, message: str = WRONG) -> list[str]:
    """End a pod's container this number of times, so that it waits for its restart. Return the reasons of the Events that follow."""
    at = NOW + timedelta(seconds=10 * times)
    own = Container("pytorch", waiting="CrashLoopBackOff", last_exit_code=code, restarts=times, last_message=message, ended_at=at)
    cluster.pods[name] = replace(cluster.pods[name], containers=(own,))
    cluster.now = at
    return reasons(cluster.settle())


def words(cluster: Cluster) -> str:
    return cluster.job.status.conditions[-1].message


def charged(cluster: Cluster) -> int:
    assert cluster.job.status.elastic is not None
    return cluster.job.status.elastic.restarts.get("user", 0)


def test_a_wrong_command_is_charged_at_each_end_and_quoted() -> None:
    cluster = at_store(maxRestarts=2)
    for times in (1, 2):
        ends(cluster, "train-worker-1", times=times)
        cluster.settle()
        assert charged(cluster) == times
        assert cluster.state() == "Running"
        assert words(cluster).endswith(f" Missing 1 of 2 workers: {SAID}.")
    ends(cluster, "train-worker-1", times=3)
    assert cluster.state() == "Failed"
    assert words(cluster).endswith(f"restarts used: 2 of 2. {SAID}.")


def test_the_jobs_own_budget_for_failures_of_the_user_holds_too() -> None:
    cluster = at_store(maxRestarts=9, restartBudget={"user": 1})
    ends(cluster, "train-worker-1", times=1)
    assert cluster.state() == "Running"
    ends(cluster, "train-worker-1", times=2)
    assert words(cluster).endswith(f"restarts used by cause user: 1 of 1. {SAID}.")


def test_workers_that_all_have_a_wrong_command_use_up_the_restarts_and_nothing_is_said_of_torchs_rendezvous() -> None:
    cluster = at_store(maxRestarts=9)
    for times in (1, 2, 3, 4):
        for name in ("train-worker-0", "train-worker-1"):
            ends(cluster, name, times=times)
    assert cluster.state() == "Running"
    assert charged(cluster) == 8


@pytest.mark.parametrize(("code", "message"), [(1, STORE_AWAY), (1, WRONG), (2, STORE_AWAY), (2, ""), (143, WRONG)])
def test_an_agent_that_ends_otherwise_is_not_charged(code: int, message: str) -> None:
    cluster = at_store(maxRestarts=0)
    ends(cluster, "train-worker-1", times=1, code=code, message=message)
    assert charged(cluster) == 0
    assert cluster.state() == "Running"
    assert "could not start" not in words(cluster)


NOT_FOUND = 'exec: "torchrunn": not found in $PATH'


def test_a_job_whose_workers_end_again_and_again_says_so_and_what_ends_it() -> None:
    """Its command was missing: it was Running with a world of two, waited for nothing, and no restart was counted."""
    cluster = at_store(maxRestarts=0)
    ends(cluster, "train-worker-0", times=1, code=128, message=NOT_FOUND)
    assert "again" not in words(cluster), "it has another try"
    for name in ("train-worker-0", "train-worker-1"):
        ends(cluster, name, times=2, code=128, message=NOT_FOUND)
    status = cluster.job.status.elastic
    assert status is not None
    assert status.waits_for == (
        "2 of 2 workers: train-worker-0, train-worker-1 end again and again (maxRestarts does not count that at c10d; "
        'set runPolicy.backoffLimit), at last with exit code 128: exec: "torchrunn": not found in $PATH'
    )
    assert words(cluster).endswith(f" Missing {status.waits_for}.")


def test_if_a_limit_bounds_it_no_other_is_asked_for() -> None:
    cluster = at_store(backoff_limit=9)
    ends(cluster, "train-worker-1", times=2, code=128, message=NOT_FOUND)
    assert "1 of 2 workers: train-worker-1 ends again and again, at last with exit code 128" in words(cluster)


def test_one_that_is_killed_by_its_node_again_and_again_is_no_fault_of_its_command() -> None:
    cluster = at_store(maxRestarts=0)
    own = Container("pytorch", waiting="CrashLoopBackOff", last_exit_code=137, last_exit_reason="ContainerStatusUnknown", restarts=3)
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], containers=(own,))
    cluster.settle()
    assert "again" not in words(cluster)


def test_a_wrong_command_after_a_loss_restarts_no_group() -> None:
    cluster = at_store(maxRestarts=9)
    del cluster.pods["train-worker-0"]
    cluster.settle()
    assert "FreshRendezvous" not in ends(cluster, "train-worker-1", times=1)
    assert charged(cluster) == 1


def test_a_worker_that_runs_again_may_have_met_the_others() -> None:
    cluster = at_store(maxRestarts=9)
    ends(cluster, "train-worker-1", times=1)
    own = cluster.pods["train-worker-1"].containers[0]
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], containers=(replace(own, waiting="", is_running=True),))
    cluster.settle()
    assert "could not start" not in words(cluster)
    assert charged(cluster) == 1


@pytest.mark.parametrize(
    "line",
    [
        "torchrun: error: the following arguments are required: training_script",
        "run.py: error: unrecognized arguments: --nonsense",
        "python3 -m torch.distributed.run: error: unrecognized arguments: --nonsense",
    ],
)
def test_argparses_words_are_known_for_every_program_name(line: str) -> None:
    assert usage_errors.by_log(2, f"usage: it\n{line}\n") == line
    assert not usage_errors.by_log(2, f"{line}\nand it went on\n")
