"""Stories of workers at a c10d store that the simulation told first: each was a defect once, found by a seed and played here by hand."""

from dataclasses import replace
from datetime import timedelta

import pytest
from job_builders import NOW, OURS, Cluster, created, deleted, elastic_job, pod_for, reasons
from msgspec import structs

from controller.deciding.actions import SeenVersion
from controller.deciding.plan import plan
from controller.facts.snapshot import GROUP, Container, PodPhase
from elastic.api.book import Made, Replacements
from elastic.api.job import ElasticStatus
from elastic.api.kinds import WORKER
from elastic.kube.resources import PODS


def at_store(restart: str, *, workers: int = 3) -> Cluster:
    cluster = Cluster(elastic_job(workers, elastic={"rdzvBackend": "c10d"}, restart=restart), settings=OURS)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    return cluster


def ends(cluster: Cluster, name: str, *, code: int, after_s: float, began_s: float = 0) -> None:
    own = Container("pytorch", exit_code=code, started_at=NOW + timedelta(seconds=began_s), ended_at=NOW + timedelta(seconds=after_s))
    phase = PodPhase.FAILED if code else PodPhase.SUCCEEDED
    cluster.pods[name] = replace(cluster.pods[name], phase=phase, is_ready=False, containers=(own,))
    cluster.now = max(cluster.now, NOW + timedelta(seconds=after_s + 1))


@pytest.mark.parametrize("restart", ["Never", "ExitCode"])
def test_a_worker_that_torch_shuts_out_when_its_peers_have_finished_does_not_fail_the_job(restart: str) -> None:
    """It had come when the others waited for each other to end: the first end with 0 closed the rendezvous, and its agent gave up."""
    cluster = at_store(restart)
    ends(cluster, "train-worker-1", code=0, after_s=300)
    ends(cluster, "train-worker-2", code=1, after_s=300)
    plans = cluster.settle()
    assert cluster.state() == "Running"
    assert not [name for planned in plans for name in created(planned)], "nobody is let in any more"
    assert "Rescaled" not in reasons(plans)
    cluster.now = NOW + timedelta(seconds=330)
    cluster.settle()
    assert cluster.state() == "Running"
    ends(cluster, "train-worker-0", code=0, after_s=331)
    cluster.settle()
    assert cluster.state() == "Succeeded"
    assert cluster.job.status.elastic.restarts == {}  # type: ignore[union-attr]


def test_a_worker_that_is_seen_to_be_shut_out_before_its_peer_is_seen_to_finish_does_not_fail_the_job() -> None:
    cluster = at_store("Never")
    ends(cluster, "train-worker-2", code=1, after_s=301)
    plans = cluster.settle()
    assert cluster.state() == "Running"
    assert plans[-1].look_again_at == NOW + timedelta(seconds=311)
    ends(cluster, "train-worker-1", code=0, after_s=300)
    ends(cluster, "train-worker-0", code=0, after_s=302)
    cluster.now = NOW + timedelta(seconds=330)
    cluster.settle()
    assert cluster.state() == "Succeeded"


@pytest.mark.parametrize(
    ("began_s", "failed_s", "state"),
    [
        pytest.param(200, 400, "Running", id="it began when the peer had finished, and was not let in"),
        pytest.param(0, 400, "Failed", id="it trained on when the peer had finished"),
        pytest.param(0, 90, "Failed", id="it failed before the peer finished"),
    ],
)
def test_a_failure_after_a_peer_has_finished_fails_the_job_unless_its_worker_began_later(
    began_s: float, failed_s: float, state: str
) -> None:
    cluster = at_store("Never")
    ends(cluster, "train-worker-1", code=0, after_s=100)
    ends(cluster, "train-worker-2", code=1, began_s=began_s, after_s=failed_s)
    cluster.now += timedelta(seconds=20)
    cluster.settle()
    assert cluster.state() == state


def test_a_worker_that_is_lost_when_a_peer_has_finished_is_not_replaced() -> None:
    """It could not be let in; a job that never restarts would fail for it."""
    cluster = at_store("Never")
    ends(cluster, "train-worker-1", code=0, after_s=100)
    del cluster.pods["train-worker-2"]
    plans = cluster.settle()
    assert not [name for planned in plans for name in created(planned)]


def test_agents_that_are_seen_to_end_before_their_store_do_not_fail_the_job() -> None:
    """The store is seen through another watch, which was behind that of the workers."""
    cluster = at_store("ExitCode")
    ends(cluster, "train-worker-0", code=1, after_s=3)
    plans = cluster.settle()
    assert (cluster.state(), plans[-1].look_again_at) == ("Running", NOW + timedelta(seconds=13))
    del cluster.owned["Pod", "train-rdzv"]
    for name in ("train-worker-1", "train-worker-2"):
        ends(cluster, name, code=1, after_s=3)
    cluster.now = NOW + timedelta(seconds=30)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    assert cluster.state() == "Running"
    assert cluster.job.status.elastic.restarts == {}  # type: ignore[union-attr]


def test_a_failure_at_a_store_rests_on_the_store_that_was_seen() -> None:
    """A controller that had stood still saw the ends of all agents, and the store of a while ago: it asks for it before it writes."""
    cluster = at_store("Never")
    ends(cluster, "train-worker-0", code=1, after_s=3)
    cluster.now = NOW + timedelta(seconds=40)
    store = cluster.owned["Pod", "train-rdzv"]
    seen = {**store.raw, "metadata": {**store.raw["metadata"], "resourceVersion": "17"}}
    cluster.owned["Pod", "train-rdzv"] = replace(store, raw=seen)
    planned = plan(cluster.job, cluster.look())
    assert planned.rests_on == (SeenVersion(PODS, "train-rdzv", "17"),)


def rendezvous_ids(cluster: Cluster) -> set[str]:
    """Return the ids at which workers that would be made now meet."""
    made = (pod_for(cluster.job, "Worker", index, cluster.look()) for index in range(2))
    variables = (one for pod in made for container in pod["spec"]["containers"] for one in container["env"])
    return {one["value"] for one in variables if one["name"] == "PET_RDZV_ID"}


def test_workers_of_each_run_of_a_store_meet_apart() -> None:
    """Give each run of a store a rendezvous id of its own.

    An agent of the former group was still there when the new store came. It joined the new group under the same id, and closed its
    rendezvous when it was deleted.
    """
    cluster = at_store("OnFailure")
    first = rendezvous_ids(cluster)
    del cluster.owned["Pod", "train-rdzv"]
    cluster.settle()
    second = rendezvous_ids(cluster)
    assert len(first) == len(second) == 1
    assert first.isdisjoint(second)


def test_workers_at_a_store_that_was_made_before_its_runs_had_ids_meet_with_those_that_are_there() -> None:
    cluster = at_store("OnFailure")
    store = cluster.owned["Pod", "train-rdzv"]
    old = {**store.raw, "metadata": {key: value for key, value in store.raw["metadata"].items() if key != "annotations"}}
    cluster.owned["Pod", "train-rdzv"] = replace(store, raw=old)
    assert rendezvous_ids(cluster) == {"job-uid"}
    (group,) = {pod_for(cluster.job, "Worker", 0, cluster.look())["metadata"]["labels"][GROUP]}
    assert group == f"c10d-{store.uid[:8]}-0", "as the pods that are there have it"


@pytest.mark.parametrize("seconds", [20, 3600])
def test_an_agent_that_had_worked_for_a_while_does_not_end_the_group(seconds: int) -> None:
    """The container of the only worker had restarted three times in its life, and failed once more after minutes of training."""
    cluster = at_store("OnFailure", workers=1)
    began, ended = NOW + timedelta(seconds=5), NOW + timedelta(seconds=5 + seconds)
    own = Container("pytorch", restarts=3, waiting="CrashLoopBackOff", last_exit_code=1, last_started_at=began, ended_at=ended)
    cluster.pods["train-worker-0"] = replace(cluster.pods["train-worker-0"], containers=(own,))
    cluster.now = ended + timedelta(seconds=20)
    cluster.settle()
    assert cluster.state() == ("Failed" if seconds == 20 else "Running")


def test_a_loss_is_answered_only_once_the_store_is_deleted() -> None:
    """The deletion was refused, the status said that it was done, and the closed rendezvous failed the job."""
    cluster = at_store("OnFailure")
    del cluster.pods["train-worker-0"]
    cluster.settle()
    gave_up = Container("pytorch", restarts=1, waiting="CrashLoopBackOff", last_exit_code=1, ended_at=NOW + timedelta(seconds=8))
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], containers=(gave_up,))
    cluster.now = NOW + timedelta(seconds=9)
    planned = plan(cluster.job, cluster.look())
    assert "FreshRendezvous" in reasons([planned])
    assert deleted(planned) == ["train-rdzv"]
    assert planned.is_written_last


def test_an_agent_that_gives_up_for_a_worker_that_was_lost_before_it_was_seen_to_run_does_not_fail_the_job() -> None:
    """The controller's view stood still from the creation of the group on: of two pods it saw one that had failed, and not the other."""
    cluster = at_store("Never")
    del cluster.owned["Pod", "train-rdzv"]
    cluster.settle()
    del cluster.pods[cluster.names()[0]]
    ends(cluster, cluster.names()[0], code=1, after_s=3)
    cluster.now = NOW + timedelta(seconds=40)
    plans = cluster.settle()
    assert "FreshRendezvous" in reasons(plans)
    assert cluster.state() != "Failed"


def test_a_worker_that_vanished_before_any_was_seen_to_run_is_a_loss() -> None:
    """A watch stalled from the first pods on, and the first look made the worker again: agents that gave up for it failed the job."""
    cluster = Cluster(elastic_job(3, elastic={"rdzvBackend": "c10d"}, restart="OnFailure"), settings=OURS)
    cluster.settle()
    status = cluster.job.status
    cluster.run_all()
    for name in ("train-worker-0", "train-worker-1"):
        own = Container("pytorch", started_at=NOW)
        cluster.pods[name] = replace(cluster.pods[name], containers=(own,))
    del cluster.pods["train-worker-2"]
    assert status.elastic is None or not status.elastic.world_size
    cluster.now = NOW + timedelta(seconds=23)
    cluster.settle()
    last = cluster.job.status.elastic.last_rescale  # type: ignore[union-attr]
    assert last is not None
    assert (last.cause, last.from_size, last.to_size) == ("disruption", 3, 2)


def test_a_worker_that_was_never_made_is_no_loss() -> None:
    """One of the first workers could not be created, and a watch stalled: the status says which of them were made."""
    cluster = Cluster(elastic_job(3, elastic={"rdzvBackend": "c10d"}, restart="OnFailure"), settings=OURS)
    cluster.settle()
    made = Replacements(type=WORKER, made=tuple(Made(index=index, at=NOW) for index in (0, 1)))
    elastic = ElasticStatus(backend="c10d", replaced=(made,))
    cluster.job = structs.replace(cluster.job, status=structs.replace(cluster.job.status, elastic=elastic))
    cluster.run_all()
    for name in ("train-worker-0", "train-worker-1"):
        cluster.pods[name] = replace(cluster.pods[name], containers=(Container("pytorch", started_at=NOW),))
    del cluster.pods["train-worker-2"]
    cluster.now = NOW + timedelta(seconds=23)
    cluster.settle()
    found = cluster.job.status.elastic
    assert found is not None
    assert (found.world_size, found.last_rescale) == (2, None)


def test_a_worker_that_vanished_is_a_loss_even_if_the_status_tells_of_an_earlier_group_only_and_fewer_are_wanted() -> None:
    """A status patch had no answer for 30 s, the user asked for two workers, and one of three vanished: the others failed the job."""
    cluster = Cluster(elastic_job(3, elastic={"rdzvBackend": "c10d"}, restart="OnFailure"), settings=OURS)
    cluster.settle()
    earlier = Replacements(type=WORKER, lost=(2,), count=1, tries=1, at=NOW - timedelta(minutes=2))
    cluster.job = structs.replace(
        elastic_job(2, elastic={"rdzvBackend": "c10d"}, restart="OnFailure"),
        status=structs.replace(cluster.job.status, elastic=ElasticStatus(backend="c10d", replaced=(earlier,))),
    )
    cluster.run_all()
    for name in ("train-worker-0", "train-worker-2"):
        cluster.pods[name] = replace(cluster.pods[name], containers=(Container("pytorch", started_at=NOW),))
    del cluster.pods["train-worker-1"]
    cluster.now = NOW + timedelta(seconds=23)
    cluster.settle()
    last = cluster.job.status.elastic.last_rescale  # type: ignore[union-attr]
    assert last is not None
    assert (last.cause, last.from_size, last.to_size) == ("disruption", 3, 2)
