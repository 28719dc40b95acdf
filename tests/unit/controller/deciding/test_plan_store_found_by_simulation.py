"""Check the plans for jobs with a c10d store in situations that the simulation found. Most of these tests failed before a fix."""

from dataclasses import replace
from datetime import timedelta

import pytest
from job_builders import NOW, OURS, Cluster, created, deleted, elastic_job, pod_for, reasons
from msgspec import structs

from elastic.api.book import Made, Replacements
from elastic.api.job import ElasticStatus
from elastic.api.kinds import WORKER
from elastic.kube.resources import PODS
from elastic_training.controller.deciding.actions import SeenVersion
from elastic_training.controller.deciding.plan import plan
from elastic_training.controller.facts.snapshot import GROUP, Container, PodPhase


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
def test_a_late_worker_that_fails_because_its_peers_finished_does_not_fail_the_job(restart: str) -> None:
    """Before the fix, a worker joined while its peers were finishing.

    The first peer that exited with 0 closed the rendezvous. The agent of the late worker gave up, and its exit code 1 failed the job.
    """
    cluster = at_store(restart)
    ends(cluster, "train-worker-1", code=0, after_s=300)
    ends(cluster, "train-worker-2", code=1, after_s=300)
    plans = cluster.settle()
    assert cluster.state() == "Running"
    assert not [name for planned in plans for name in created(planned)], "a job that is finishing gets no new workers"
    assert "Rescaled" not in reasons(plans)
    cluster.now = NOW + timedelta(seconds=330)
    cluster.settle()
    assert cluster.state() == "Running"
    ends(cluster, "train-worker-0", code=0, after_s=331)
    cluster.settle()
    assert cluster.state() == "Succeeded"
    assert cluster.job.status.elastic.restarts == {}  # type: ignore[union-attr]


def test_a_late_workers_failure_that_is_seen_before_its_peers_success_does_not_fail_the_job() -> None:
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
        pytest.param(200, 400, "Running", id="the worker started after the peer had finished and could not join"),
        pytest.param(0, 400, "Failed", id="the worker was training when the peer finished and failed later"),
        pytest.param(0, 90, "Failed", id="the worker failed before the peer finished"),
    ],
)
def test_a_failed_worker_fails_the_job_unless_it_started_after_a_peer_had_finished(began_s: float, failed_s: float, state: str) -> None:
    cluster = at_store("Never")
    ends(cluster, "train-worker-1", code=0, after_s=100)
    ends(cluster, "train-worker-2", code=1, began_s=began_s, after_s=failed_s)
    cluster.now += timedelta(seconds=20)
    cluster.settle()
    assert cluster.state() == state


def test_a_worker_that_is_lost_after_a_peer_has_finished_is_not_replaced() -> None:
    """A replacement could not join any more, and its failure would fail a job with the restart policy Never."""
    cluster = at_store("Never")
    ends(cluster, "train-worker-1", code=0, after_s=100)
    del cluster.pods["train-worker-2"]
    plans = cluster.settle()
    assert not [name for planned in plans for name in created(planned)]


def test_agents_whose_end_is_seen_before_the_loss_of_their_store_do_not_fail_the_job() -> None:
    """Before the fix, the watch of the store's pod was behind the watch of the workers.

    The failures of the workers were seen first and failed the job.
    """
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


def test_a_plan_that_fails_the_job_rests_on_the_version_of_the_store() -> None:
    """Before the fix, a controller that had paused saw that all agents had ended, but had an outdated view of the store.

    Now it reads the store again before it acts.
    """
    cluster = at_store("Never")
    ends(cluster, "train-worker-0", code=1, after_s=3)
    cluster.now = NOW + timedelta(seconds=40)
    store = cluster.owned["Pod", "train-rdzv"]
    seen = {**store.raw, "metadata": {**store.raw["metadata"], "resourceVersion": "17"}}
    cluster.owned["Pod", "train-rdzv"] = replace(store, raw=seen)
    planned = plan(cluster.job, cluster.look())
    assert planned.rests_on == (SeenVersion(PODS, "train-rdzv", "17"),)


def rendezvous_ids(cluster: Cluster) -> set[str]:
    """Return the rendezvous ids that new workers would get now."""
    made = (pod_for(cluster.job, "Worker", index, cluster.look()) for index in range(2))
    variables = (one for pod in made for container in pod["spec"]["containers"] for one in container["env"])
    return {one["value"] for one in variables if one["name"] == "PET_RDZV_ID"}


def test_each_run_of_a_store_has_its_own_rendezvous_id() -> None:
    """Before the fix, an agent of the former group was still running when the new store started.

    The old agent joined the new group, because both groups had the same id. When the old agent was deleted, it closed the rendezvous of the
    new group.
    """
    cluster = at_store("OnFailure")
    first = rendezvous_ids(cluster)
    del cluster.owned["Pod", "train-rdzv"]
    cluster.settle()
    second = rendezvous_ids(cluster)
    assert len(first) == len(second) == 1
    assert first.isdisjoint(second)


def test_new_workers_at_a_store_from_an_old_release_get_the_rendezvous_id_of_its_workers() -> None:
    cluster = at_store("OnFailure")
    store = cluster.owned["Pod", "train-rdzv"]
    old = {**store.raw, "metadata": {key: value for key, value in store.raw["metadata"].items() if key != "annotations"}}
    cluster.owned["Pod", "train-rdzv"] = replace(store, raw=old)
    assert rendezvous_ids(cluster) == {"job-uid"}
    (group,) = {pod_for(cluster.job, "Worker", 0, cluster.look())["metadata"]["labels"][GROUP]}
    assert group == f"c10d-{store.uid[:8]}-0", "the existing pods have this label"


@pytest.mark.parametrize("seconds", [20, 3600])
def test_restarts_of_an_agent_that_has_trained_for_a_while_do_not_fail_the_job(seconds: int) -> None:
    """Before the fix, the container of the only worker had restarted three times, and failed again after a long time of training."""
    cluster = at_store("OnFailure", workers=1)
    began, ended = NOW + timedelta(seconds=5), NOW + timedelta(seconds=5 + seconds)
    own = Container("pytorch", restarts=3, waiting="CrashLoopBackOff", last_exit_code=1, last_started_at=began, ended_at=ended)
    cluster.pods["train-worker-0"] = replace(cluster.pods["train-worker-0"], containers=(own,))
    cluster.now = ended + timedelta(seconds=20)
    cluster.settle()
    assert cluster.state() == ("Failed" if seconds == 20 else "Running")


def test_a_fresh_rendezvous_is_written_to_the_status_only_after_the_store_is_deleted() -> None:
    """Before the fix, the API server refused to delete the store, but the status said that the store was deleted.

    The closed rendezvous then failed the job.
    """
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


def test_an_agent_that_fails_because_an_unseen_peer_was_lost_does_not_fail_the_job() -> None:
    """Before the fix, the controller's view was not updated after the group was created.

    When the view was updated, some of the pods were gone, and another had failed because of that.
    """
    cluster = at_store("Never")
    del cluster.owned["Pod", "train-rdzv"]
    cluster.settle()
    del cluster.pods[cluster.names()[0]]
    ends(cluster, cluster.names()[0], code=1, after_s=3)
    cluster.now = NOW + timedelta(seconds=40)
    plans = cluster.settle()
    assert "FreshRendezvous" in reasons(plans)
    assert cluster.state() != "Failed"


def test_a_worker_that_vanished_before_any_worker_was_seen_running_is_a_loss() -> None:
    """Before the fix, the watch stalled when the first pods were created.

    The next plan created the missing worker again, as if it had never existed. The other agents gave up because of the loss, and failed the
    job.
    """
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


def test_a_worker_that_was_never_created_is_not_a_loss() -> None:
    """One of the first workers could not be created, and the watch stalled. The status says which workers were created."""
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


def test_a_vanished_worker_is_a_loss_even_if_the_status_is_old_and_fewer_workers_are_wanted() -> None:
    """Before the fix, a status patch got no answer for 30 s, so the status described only an earlier group.

    Meanwhile the user asked for two workers, and one of the three workers vanished. The other two failed the job.
    """
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
