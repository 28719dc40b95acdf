"""If torch's own c10d counts the restarts, its agents give up after a loss, and the group meets again."""

import zlib
from dataclasses import replace
from datetime import timedelta

import pytest
from job_builders import NOW, OURS, Cluster, elastic_job, reasons, with_status
from msgspec import structs

from elastic.api.job import ElasticStatus
from elastic_training.controller.facts.snapshot import Container, PodPhase


def training(workers: int = 3, **changes: object) -> Cluster:
    cluster = Cluster(elastic_job(workers, elastic={"rdzvBackend": "c10d", "maxRestarts": 1}, **changes), settings=OURS)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    return cluster


def gives_up(cluster: Cluster, name: str, *, after_s: float, restarts: int = 1, code: int = 1) -> None:
    ended = Container("pytorch", restarts=restarts, waiting="CrashLoopBackOff", last_exit_code=code)
    at = NOW + timedelta(seconds=after_s)
    cluster.pods[name] = replace(cluster.pods[name], containers=(replace(ended, ended_at=at),))
    cluster.now = max(cluster.now, at)


def elastic(cluster: Cluster) -> ElasticStatus:
    assert cluster.job.status.elastic is not None
    return cluster.job.status.elastic


def lose(cluster: Cluster, name: str) -> None:
    """Lose a pod as by a forced deletion: it is gone before anybody has seen it go."""
    del cluster.pods[name]
    cluster.settle()
    cluster.run_all()
    cluster.settle()


def test_an_agent_that_gives_up_after_a_loss_costs_a_fresh_store_and_nothing_else() -> None:
    cluster = training()
    before = {one.uid for one in cluster.pods.values()}
    store = cluster.owned["Pod", "train-rdzv"].uid
    lose(cluster, "train-worker-0")
    gives_up(cluster, "train-worker-1", after_s=8)
    plans = cluster.settle()
    assert "FreshRendezvous" in reasons(plans)
    assert cluster.owned["Pod", "train-rdzv"].uid != store
    assert len(cluster.names()) == 3
    assert not before & {one.uid for one in cluster.pods.values()}
    assert elastic(cluster).restarts == {}
    cluster.run_all()
    cluster.settle()
    assert cluster.state() == "Running"


def test_one_loss_is_made_up_for_once() -> None:
    cluster = training()
    lose(cluster, "train-worker-0")
    gives_up(cluster, "train-worker-1", after_s=8)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    store = cluster.owned["Pod", "train-rdzv"].uid
    gives_up(cluster, cluster.names()[0], after_s=20)
    assert "FreshRendezvous" not in reasons(cluster.settle())
    assert cluster.owned["Pod", "train-rdzv"].uid == store


@pytest.mark.parametrize("restart", ["Never", "OnFailure", "ExitCode"])
def test_a_scale_in_never_fails_the_job_under_any_restart_policy(restart: str) -> None:
    cluster = training(restart=restart)
    cluster.job = elastic_job(2, elastic={"rdzvBackend": "c10d", "maxRestarts": 1}, restart=restart, status=cluster.job.status)
    cluster.settle()
    assert cluster.names() == ["train-worker-0", "train-worker-1"]
    if restart == "OnFailure":
        gives_up(cluster, "train-worker-0", after_s=5)
    else:
        ended = Container("pytorch", exit_code=1, ended_at=NOW + timedelta(seconds=5))
        cluster.pods["train-worker-0"] = replace(cluster.pods["train-worker-0"], phase=PodPhase.FAILED, containers=(ended,))
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    assert cluster.state() == "Running", cluster.job.status
    assert elastic(cluster).restarts == {}


def test_a_group_whose_workers_end_one_by_one_is_no_smaller_for_it() -> None:
    cluster = training()
    for name in ("train-worker-1", "train-worker-0", "train-worker-2"):
        cluster.pods[name] = replace(cluster.pods[name], phase=PodPhase.SUCCEEDED)
        cluster.settle()
        assert (elastic(cluster).world_size, elastic(cluster).last_rescale) == (3, None)
    assert cluster.state() == "Succeeded"


def test_an_agent_that_gives_up_long_after_a_loss_is_another_story() -> None:
    cluster = training()
    lose(cluster, "train-worker-0")
    gives_up(cluster, "train-worker-1", after_s=600)
    assert "FreshRendezvous" not in reasons(cluster.settle())


@pytest.mark.parametrize("restart", ["Never", "ExitCode"])
@pytest.mark.parametrize("loss", ["evicted", "vanished"])
def test_an_agent_that_is_seen_to_give_up_together_with_the_loss_does_not_fail_the_job(restart: str, loss: str) -> None:
    """A controller that had just started saw the evicted pod and what its peers made of that in one look, and the job failed."""
    cluster = training(restart=restart)
    if loss == "evicted":
        cluster.pods["train-worker-0"] = replace(cluster.pods["train-worker-0"], phase=PodPhase.FAILED, disruption="TerminationByKubelet")
    else:
        del cluster.pods["train-worker-0"]
    ended = Container("pytorch", exit_code=1, ended_at=NOW + timedelta(seconds=1))
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], phase=PodPhase.FAILED, containers=(ended,))
    cluster.now = NOW + timedelta(seconds=2)
    plans = cluster.settle()
    assert reasons(plans).count("FreshRendezvous") == 1
    cluster.run_all()
    cluster.settle()
    assert cluster.state() == "Running"
    assert elastic(cluster).restarts == {}


def test_a_loss_that_comes_into_view_with_its_replacement_is_a_loss() -> None:
    """The controller that made the replacement died before it wrote the status: as many workers are there as before."""
    cluster = training()
    lose(cluster, "train-worker-0")
    made = next(entry for entry in elastic(cluster).replaced if entry.type == "Worker").made[-1]
    name = f"train-worker-{made.index}"
    cluster.now = NOW + timedelta(seconds=250)
    cluster.settle()
    cluster.pods["train-worker-7"] = replace(cluster.pods.pop(name), name="train-worker-7", uid="made-by-another", index=7)
    gives_up(cluster, "train-worker-1", after_s=252)
    assert "FreshRendezvous" in reasons(cluster.settle())


def test_an_agent_that_gives_up_without_a_loss_fails_the_job() -> None:
    cluster = training(restart="Never")
    ended = Container("pytorch", exit_code=1, ended_at=NOW + timedelta(seconds=1))
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], phase=PodPhase.FAILED, containers=(ended,))
    cluster.now = NOW + timedelta(seconds=11)
    cluster.settle()
    assert cluster.state() == "Failed"


def test_an_agent_that_gave_up_by_a_clock_behind_ours_follows_from_the_loss() -> None:
    """The controller's clock was 40 s ahead of the node's: the end was dated before the loss, and the job failed."""
    cluster = training()
    lose(cluster, "train-worker-0")
    gives_up(cluster, "train-worker-1", after_s=-32)
    assert "FreshRendezvous" in reasons(cluster.settle())


def test_an_agent_that_ended_before_a_loss_and_works_again_has_not_given_up_for_it() -> None:
    cluster = training()
    works = Container("pytorch", restarts=1, is_running=True, last_exit_code=1, ended_at=NOW - timedelta(seconds=32))
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], containers=(works,))
    lose(cluster, "train-worker-0")
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], containers=(works,))
    assert "FreshRendezvous" not in reasons(cluster.settle())


def test_a_killed_container_has_not_given_up() -> None:
    cluster = training()
    lose(cluster, "train-worker-0")
    gives_up(cluster, "train-worker-1", after_s=8, code=137)
    assert "FreshRendezvous" not in reasons(cluster.settle())


def test_a_group_whose_agents_all_give_up_by_themselves_has_spent_its_budget() -> None:
    cluster = training(2)
    for name in ("train-worker-0", "train-worker-1"):
        gives_up(cluster, name, after_s=300, restarts=1)
    cluster.settle()
    assert cluster.state() == "Running", "an agent may have come too early for its store"
    for name in ("train-worker-0", "train-worker-1"):
        gives_up(cluster, name, after_s=320, restarts=2)
    cluster.settle()
    assert cluster.state() == "Failed"
    assert "maxRestarts (1)" in cluster.job.status.conditions[-1].message


def test_a_worker_that_has_finished_is_no_loss() -> None:
    cluster = training(2)
    cluster.set("train-worker-1", PodPhase.SUCCEEDED, code=0)
    cluster.settle()
    assert elastic(cluster).last_rescale is None


@pytest.mark.parametrize("restart", ["Never", "OnFailure"])
def test_how_workers_end_because_their_store_is_gone_is_no_failure(restart: str) -> None:
    cluster = training(2, restart=restart)
    del cluster.owned["Pod", "train-rdzv"]
    for name in cluster.names():
        cluster.set(name, PodPhase.FAILED if restart == "Never" else PodPhase.RUNNING, code=1)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    assert cluster.state() == "Running"
    assert elastic(cluster).restarts == {}


def test_a_worker_that_lies_about_half_deleted_is_one_loss_and_is_written_once() -> None:
    cluster = training()
    cluster.pods["train-worker-2"] = replace(cluster.pods["train-worker-2"], is_deleting=True)
    cluster.settle()
    first = elastic(cluster).last_rescale
    assert first is not None
    assert (first.cause, first.from_size, first.to_size) == ("disruption", 3, 2)
    cluster.now += timedelta(hours=1)
    cluster.settle()
    assert elastic(cluster).last_rescale == first


def scale(cluster: Cluster, workers: int) -> None:
    cluster.job = elastic_job(workers, elastic={"rdzvBackend": "c10d", "maxRestarts": 1}, status=cluster.job.status)


@pytest.mark.parametrize("lingering", [False, True])
def test_a_scale_in_that_was_asked_for_is_no_disruption_even_if_pods_vanish_at_once(*, lingering: bool) -> None:
    cluster = training()
    cluster.lingering = lingering
    scale(cluster, 2)
    plans = cluster.settle()
    last = elastic(cluster).last_rescale
    assert last is not None
    assert (last.cause, last.reason, last.from_size, last.to_size) == ("plan", "train-worker-2 left; 2 work", 3, 2)
    assert reasons(plans).count("Rescaled") == 1
    cluster.pods = {name: one for name, one in cluster.pods.items() if not one.is_deleting}
    cluster.settle()
    assert elastic(cluster).leaving == ()
    assert elastic(cluster).last_rescale == last


def test_a_loss_during_a_scale_in_is_a_disruption() -> None:
    cluster = training()
    scale(cluster, 2)
    cluster.round()
    del cluster.pods["train-worker-0"]
    cluster.settle()
    last = elastic(cluster).last_rescale
    assert last is not None
    assert last.cause == "disruption"


def test_losses_that_overlap_are_recorded_once_each() -> None:
    """Two workers go one after the other: when the first is gone, the second was taken for a new loss."""
    cluster = training()
    told = []
    for change in ("worker-1 goes", "worker-2 goes", "worker-1 is gone", "worker-2 is gone"):
        name = f"train-{change.split()[0]}"
        if change.endswith("goes"):
            cluster.pods[name] = replace(cluster.pods[name], is_deleting=True)
        else:
            del cluster.pods[name]
        told += [event.message for planned in cluster.settle() for event in planned.news if event.reason == "Rescaled"]
        last = elastic(cluster).last_rescale
        assert last is not None
        told[-1] = told[-1].replace(last.id, "ID")
    assert told == [
        "PyTorchJob train trains with 2 workers after 3: train-worker-1 left; 2 work (cause disruption, rescale ID)",
        "PyTorchJob train trains with 1 worker after 2: train-worker-2 left; 1 work (cause disruption, rescale ID)",
    ]


def test_a_loss_is_recorded_while_another_pod_still_goes_and_a_third_has_come() -> None:
    """The number of those that work stays the same, so only the pods themselves say that there is another loss."""
    cluster = training()
    cluster.pods["train-worker-0"] = replace(cluster.pods["train-worker-0"], is_deleting=True)
    cluster.settle()
    first = elastic(cluster).last_rescale
    (replacement,) = (name for name, one in cluster.pods.items() if one.phase is PodPhase.PENDING)
    cluster.set(replacement, PodPhase.RUNNING)
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], is_deleting=True)
    cluster.settle()
    second = elastic(cluster).last_rescale
    assert first is not None
    assert second is not None
    assert (second.reason, second.id != first.id) == ("train-worker-1 left; 2 work", True)


def test_each_loss_of_the_whole_group_is_told() -> None:
    """If no pod was left, the loss always had the same id, and its Event was taken for an earlier one."""
    cluster = training()
    ids = []
    for _ in range(3):
        cluster.pods.clear()
        plans = cluster.settle()
        assert reasons(plans).count("Rescaled") == 1
        last = elastic(cluster).last_rescale
        assert last is not None
        ids.append(last.id)
        cluster.run_all()
        cluster.settle()
    assert len(set(ids)) == 3


@pytest.mark.parametrize("form", ["both", "0.4.0", "next"])
def test_a_loss_that_is_recorded_in_any_releases_form_is_not_recorded_again(form: str) -> None:
    """Release 0.4.0 keeps the lost pods as checksums in the id of the rescale, and reads them from there."""
    cluster = training()
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], is_deleting=True)
    cluster.settle()
    known = elastic(cluster)
    last = known.last_rescale
    assert last is not None
    assert last.lost == (cluster.pods["train-worker-1"].uid,)
    assert last.id == f"{zlib.crc32((last.lost[0] + ' ').encode()):08x}", "as the former release reads it"
    changed = {"both": last, "0.4.0": structs.replace(last, lost=()), "next": structs.replace(last, id="loss-7")}[form]
    cluster.job = with_status(cluster.job, structs.replace(cluster.job.status, elastic=structs.replace(known, last_rescale=changed)))
    assert reasons(cluster.settle()).count("Rescaled") == 0
    cluster.pods["train-worker-2"] = replace(cluster.pods["train-worker-2"], is_deleting=True)
    assert reasons(cluster.settle()).count("Rescaled") == 1


def test_a_loss_of_many_pods_is_recorded_under_one_checksum() -> None:
    cluster = training(30, most=30)
    for name in cluster.names()[:20]:
        cluster.pods[name] = replace(cluster.pods[name], is_deleting=True)
    assert reasons(cluster.settle()).count("Rescaled") == 1
    last = elastic(cluster).last_rescale
    assert last is not None
    assert [len(entry) for entry in last.lost] == [8]
    assert reasons(cluster.settle()).count("Rescaled") == 0
