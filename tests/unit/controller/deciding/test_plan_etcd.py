"""Elastic jobs that meet in their user's etcd: what their pods get, what users hear, and how such a job ends."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from job_builders import OURS, PLAIN, Cluster, elastic_job, pod_for, reasons, snapshot

from elastic.api.errors import SpecError
from elastic.api.job import Job
from elastic.api.words import IN_WORLD
from elastic.membership import bounds, wire
from elastic.membership.phases import WorldPhase
from elastic_training.controller.deciding.actions import SetExpectation
from elastic_training.controller.deciding.rendezvous import etcd
from elastic_training.controller.facts.snapshot import Container, PodPhase, WorldSeen
from elastic_training.rendezvous import delivery
from elastic_worker.agent import last_words
from elastic_worker.agent.last_words import REFUSED, Unmet
from elastic_worker.etcd import settings

UNREACHED = WorldSeen(0, frozenset(), phase=WorldPhase.UNREACHED, trouble="it does not answer")
WITH_ETCD = replace(OURS, etcd=("elastic-etcd:2379",))
AT_ETCD = {"rdzvBackend": "etcd", "rdzvHost": "etcd-0.storage, etcd-1.storage:2380", "maxRestarts": 4}


def of_etcd(**policy: Any) -> Job:
    return elastic_job(3, elastic=AT_ETCD | policy)


def environment(job: Job) -> dict[str, Any]:
    made = pod_for(job, "Worker", 0, snapshot(settings=OURS))
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in made["spec"]["containers"][0]["env"]}


def test_workers_get_the_library_and_meet_in_the_etcd() -> None:
    variables = environment(of_etcd())
    assert variables["PET_RDZV_BACKEND"] == "elastic-etcd"
    assert variables["PET_RDZV_ENDPOINT"] == "etcd-0.storage:2379,etcd-1.storage:2380"
    assert variables["PET_RDZV_ID"] == "job-uid"
    assert variables["PET_MAX_RESTARTS"] == delivery.MAX_RESTARTS, "torch's own count is out of reach"
    assert variables["PET_RDZV_CONF"] == "max_restarts=4,grace=30"
    assert variables["ELASTIC_TOKEN"] == {"secretKeyRef": {"name": "train-elastic", "key": "token"}}
    assert "ELASTIC_CA" not in variables
    made = pod_for(of_etcd(), "Worker", 0, snapshot(settings=OURS))
    assert made["spec"]["initContainers"][-1]["name"] == delivery.INIT_CONTAINER
    assert made["spec"]["readinessGates"] == [{"conditionType": IN_WORLD}]
    made = pod_for(of_etcd(), "Worker", 0, snapshot(settings=OURS, world=UNREACHED))
    assert "readinessGates" not in made["spec"], "nobody could say that a worker is in the world"


@pytest.mark.parametrize("field", [{"firstStepTimeoutSeconds": 60}, {"stragglers": "Replace"}])
def test_the_fields_about_ranks_hold_in_an_etcd_and_nowhere_without_the_engine(field: dict[str, Any]) -> None:
    (name,) = field
    told = of_etcd(**field).elastic
    assert told is not None
    with pytest.raises(SpecError, match=f"{name} is .*, but only a PyTorchJob with rdzvBackend elastic or etcd or etcd-v2 can "):
        elastic_job(3, elastic={"rdzvBackend": "c10d", **field})


def test_the_backend_reads_what_the_controller_writes() -> None:
    variables = environment(of_etcd(rdzvConf=[{"key": "last_call_timeout", "value": "7"}], sizeStep=2, minReplicas=2, maxReplicas=6))
    conf = dict(entry.split("=") for entry in variables["PET_RDZV_CONF"].split(","))
    least, most = (int(bound) for bound in variables["PET_NNODES"].split(":"))
    own = settings.read({}, conf, endpoint=variables["PET_RDZV_ENDPOINT"], job="job-uid", nodes=(least, most), local_address="10.0.0.1")
    assert own.rules.sizes == (2, 4, 6)
    assert (own.rules.max_restarts, own.rules.last_call_s, own.rules.grace_s) == (4, 7, 30)
    assert set(delivery.ETCD_LOGIN) == {settings.USER, settings.PASSWORD, settings.CA, settings.CERT, settings.KEY}
    assert delivery.CLOSED_PREFIX == last_words.CLOSED_PREFIX
    assert delivery.FAILED_PREFIX == last_words.FAILED_PREFIX


def test_limits_of_progress_reach_the_agents_as_far_as_they_can_count() -> None:
    variables = environment(of_etcd(maxRestarts=2**31 - 1, maxRestartsWithoutProgress=3, hangTimeoutSeconds=2**31 - 1))
    conf = dict(entry.split("=") for entry in variables["PET_RDZV_CONF"].split(","))
    own = settings.read({}, conf, endpoint="etcd:2379", job="job-uid", nodes=(1, 3), local_address="10.0.0.1")
    assert (own.rules.max_restarts, own.rules.without_progress, own.rules.hang_s) == (10**9, 3, bounds.MOST_SECONDS)


def test_the_users_own_settings_win() -> None:
    variables = environment(of_etcd(rdzvConf=[{"key": "max_restarts", "value": "9"}]))
    assert variables["PET_RDZV_CONF"] == "max_restarts=9,grace=30"


def test_login_and_certificates_come_from_the_users_secret_as_far_as_it_has_them() -> None:
    variables = environment(of_etcd(rdzvSecret="etcd-login"))
    assert variables["ELASTIC_ETCD_PASSWORD"] == {"secretKeyRef": {"name": "etcd-login", "key": "password", "optional": True}}
    assert variables["ELASTIC_ETCD_CA"] == {"secretKeyRef": {"name": "etcd-login", "key": "ca.crt", "optional": True}}
    assert not [name for name in environment(of_etcd()) if name.startswith("ELASTIC_ETCD")]


def test_the_annotation_names_the_secret_if_a_client_lacks_the_field() -> None:
    job = of_etcd()
    job = msgspec.structs.replace(
        job, metadata=msgspec.structs.replace(job.metadata, annotations={"elastic-training/rdzv-secret": "etcd-login"})
    )
    variables = environment(job)
    assert variables["ELASTIC_ETCD_PASSWORD"]["secretKeyRef"] == {"name": "etcd-login", "key": "password", "optional": True}
    assert etcd.place(job, OURS).secret == "etcd-login"


def test_the_jobs_own_secret_holds_the_token_alone() -> None:
    cluster = Cluster(of_etcd(), settings=OURS)
    cluster.settle()
    assert set(cluster.owned["Secret", "train-elastic"].raw["data"]) == {"token"}


def expected(cluster: Cluster) -> SetExpectation:
    return [word for word in cluster.told if isinstance(word, SetExpectation)][-1]


def test_the_job_runs_keeps_its_backend_and_its_words_go_into_the_etcd() -> None:
    cluster = Cluster(of_etcd(rdzvSecret="etcd-login"), settings=OURS)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    assert cluster.state() == "Running"
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.backend == "etcd"
    place = expected(cluster).place
    assert place is not None
    assert (place.endpoints, place.prefix) == (("etcd-0.storage:2379", "etcd-1.storage:2380"), "/elastic-training/job-uid/")
    assert (place.namespace, place.secret, place.is_tls, place.is_own) == ("team", "etcd-login", False, False)
    assert {one.group for one in cluster.pods.values()} == {"etcd"}
    cluster.delete("train-worker-1")
    cluster.settle()
    assert len(cluster.pods) == 3


def test_a_job_that_began_at_torchs_own_handler_stays_there() -> None:
    cluster = Cluster(of_etcd(), settings=PLAIN)
    cluster.settle()
    before = cluster.names()
    cluster.settings = OURS
    cluster.settle()
    assert cluster.names() == before
    assert {one.group for one in cluster.pods.values()} == {""}


def test_a_rendezvous_that_its_agents_closed_ends_the_job_with_their_words() -> None:
    cluster = Cluster(of_etcd(), settings=OURS)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    words = "a worker of train-worker-0 ended with status 3. Restarts used: 4 of 4."
    ended = cluster.pods["train-worker-1"]
    message = f"{last_words.CLOSED_PREFIX} job-uid: {words}"
    cluster.pods["train-worker-1"] = replace(ended, containers=(replace(ended.containers[0], restarts=1, last_message=message),))
    cluster.settle()
    assert cluster.state() == "Failed"
    assert cluster.job.status.conditions[-1].message.endswith(f"{words}")


def test_another_jobs_words_in_a_pod_end_nothing() -> None:
    cluster = Cluster(of_etcd(), settings=OURS)
    cluster.settle()
    cluster.run_all()
    running = cluster.pods["train-worker-1"]
    message = f"{last_words.CLOSED_PREFIX} another-uid: x"
    cluster.pods["train-worker-1"] = replace(running, containers=(replace(running.containers[0], last_message=message),))
    cluster.settle()
    assert cluster.state() == "Running"


def test_an_image_that_cannot_take_the_library_gets_a_group_with_c10d() -> None:
    cluster = Cluster(of_etcd(), settings=OURS)
    cluster.settle()
    cluster.set("train-worker-1", PodPhase.RUNNING, code=delivery.UNDELIVERABLE_STATUS)
    broken = cluster.pods["train-worker-1"]
    message = f"{delivery.UNDELIVERABLE_PREFIX} job-uid: torch 2.4 is too old"
    cluster.pods["train-worker-1"] = replace(broken, containers=(replace(broken.containers[0], message=message),))
    cluster.settle()
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.backend == "c10d"
    assert {one.group.partition("-")[0] for one in cluster.pods.values()} == {"c10d"}


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({}, ""),
        ({"rdzvBackend": "etcd-v2"}, "elasticPolicy.rdzvBackend is etcd-v2: workers meet over etcd's v3 API, as with etcd"),
        ({"workerLibrary": "None"}, "torch's own handler is used, which needs python-etcd in the image"),
    ],
)
def test_one_remark_says_what_users_must_know(policy: dict[str, Any], words: str) -> None:
    job = elastic_job(3, elastic={key: value for key, value in (AT_ETCD | policy).items() if value is not None})
    remark = etcd.remark(job, OURS)
    assert remark.startswith(words) or words in remark
    assert bool(remark) == bool(words)
    cluster = Cluster(job, settings=OURS)
    assert ("EtcdRendezvous" in reasons([cluster.round()])) == bool(words)
    assert remark in cluster.job.status.conditions[-1].message


def test_without_a_library_to_deliver_torchs_own_handler_is_used() -> None:
    variables = {entry["name"]: entry["value"] for entry in pod_for(of_etcd(), "Worker", 0, snapshot())["spec"]["containers"][0]["env"]}
    assert variables["PET_RDZV_BACKEND"] == "etcd"


def of_own_etcd(**policy: Any) -> Job:
    return elastic_job(3, elastic={"rdzvBackend": "etcd", "maxRestarts": 4} | policy)


def test_without_a_host_the_pods_wait_for_the_user_that_the_installations_etcd_gets() -> None:
    cluster = Cluster(of_own_etcd(), settings=WITH_ETCD)
    cluster.settle()
    assert cluster.names() == []
    place = expected(cluster).place
    assert place is not None
    assert (place.job, place.endpoints, place.is_tls) == ("job-uid", ("elastic-etcd:2379",), True)
    cluster.world = UNREACHED
    cluster.settle()
    assert cluster.names() == []
    assert "for the installation's etcd: it does not answer" in cluster.job.status.conditions[-1].message
    cluster.world = WorldSeen(0, frozenset(), phase="empty")
    cluster.settle()
    assert len(cluster.pods) == 3
    assert "installation's etcd" not in cluster.job.status.conditions[-1].message
    cluster.run_all()
    cluster.world = UNREACHED
    cluster.delete("train-worker-1")
    cluster.settle()
    assert len(cluster.pods) == 3, "its user is there: pods go on being made while the etcd is away"


def test_without_any_etcd_the_pods_wait_until_the_installation_has_one() -> None:
    """Torch's own handler was used, for which images have no client.

    Every container ended again and again, no end was counted against maxRestarts, and `elastic explain` named the crash loop only.
    """
    cluster = Cluster(of_own_etcd(), settings=OURS)
    cluster.settle()
    assert cluster.names() == []
    assert "EtcdRendezvous" in reasons([cluster.round()])
    words = "elasticPolicy.rdzvBackend is etcd, rdzvHost names no etcd, and this installation has none: set rdzvHost and rdzvPort, or"
    message = cluster.job.status.conditions[-1].message
    assert words in message
    assert message.count("rdzvBackend") == 1
    elastic = cluster.job.status.elastic
    assert elastic is not None
    assert elastic.waits_for.startswith(f"3 of 3 workers: {words}")
    cluster.settings = WITH_ETCD
    cluster.world = WorldSeen(0, frozenset(), phase="empty")
    cluster.settle()
    assert len(cluster.pods) == 3
    assert "installation has none" not in cluster.job.status.conditions[-1].message
    elastic = cluster.job.status.elastic
    assert elastic is not None
    assert elastic.waits_for == ""


def test_a_job_that_began_without_any_etcd_goes_on_as_it_began() -> None:
    """Release 0.4.0 gave such a job torch's own handler, and its pods may run."""
    began = Cluster(of_etcd(), settings=replace(OURS, rendezvous=None))
    began.settle()
    began.run_all()
    began.settle()
    assert began.job.status.elastic is None or not began.job.status.elastic.backend
    cluster = Cluster(of_own_etcd(), settings=OURS)
    cluster.job = msgspec.structs.replace(cluster.job, status=began.job.status)
    cluster.pods = began.pods
    cluster.settle()
    assert len(cluster.pods) == 3
    assert "this installation has none" in cluster.job.status.conditions[-1].message


def test_workers_log_in_to_the_installations_etcd_as_the_jobs_user() -> None:
    policy = {"rdzvConf": [{"key": "etcd_prefix", "value": "/others"}, {"key": "lease_ttl", "value": "7"}]}
    job, world = of_own_etcd(**policy), WorldSeen(0, frozenset(), phase="empty")
    made = pod_for(job, "Worker", 0, snapshot(settings=WITH_ETCD, world=world))
    variables = {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in made["spec"]["containers"][0]["env"]}
    assert variables["PET_RDZV_ENDPOINT"] == "https://elastic-etcd:2379"
    assert variables["PET_RDZV_CONF"] == "max_restarts=4,grace=30,lease_ttl=7", "its prefix is the only one that its user may write to"
    assert variables["ELASTIC_ETCD_USER"] == {"secretKeyRef": {"name": "train-elastic", "key": "user", "optional": True}}
    cluster = Cluster(job, settings=WITH_ETCD)
    cluster.world = world
    cluster.settle()
    assert set(cluster.owned["Secret", "train-elastic"].raw["data"]) == {"token", "ca.crt", "user", "password"}


def scaled(cluster: Cluster, workers: int) -> None:
    replicas = {**cluster.job.replicas, "Worker": msgspec.structs.replace(cluster.job.replicas["Worker"], replicas=workers)}
    cluster.job = msgspec.structs.replace(cluster.job, replicas=replicas)


def standing(*names: str, generation: int = 1, **fields: Any) -> WorldSeen:
    return WorldSeen(generation, frozenset(names), phase="running", size=len(names), fruitless=0, **fields)


def test_a_surplus_worker_leaves_the_world_before_its_pod_goes() -> None:
    names = [f"train-worker-{index}" for index in range(3)]
    cluster = Cluster(of_etcd(minReplicas=1), settings=OURS)
    cluster.settle()
    cluster.run_all()
    cluster.world = standing(*names)
    cluster.settle()
    scaled(cluster, 2)
    cluster.settle()
    assert cluster.names() == names
    assert [leaving.member for leaving in expected(cluster).leaving] == ["train-worker-2"]
    cluster.world = standing(*names[:2], generation=2)
    cluster.settle()
    assert cluster.names() == names[:2]


def test_restarts_of_every_charged_cause_count_against_max_restarts() -> None:
    """The agents know of failed workers only; that memory ran out, the controller sees."""
    cluster = Cluster(of_etcd(maxRestarts=1), settings=OURS)
    cluster.settle()
    cluster.run_all()
    restarts = [wire.Restart(id=f"{number}.etcd/uid", generation=number, cause="outOfMemory", pod="uid") for number in (1, 2)]
    cluster.world = standing(*cluster.names(), generation=3, unacknowledged_restarts=tuple(restarts))
    cluster.settle()
    assert cluster.state() == "Failed"
    assert "restarts used: 1 of 1" in cluster.job.status.conditions[-1].message


def test_an_etcd_that_the_controller_cannot_reach_is_said_once_and_pods_are_counted() -> None:
    cluster = Cluster(of_etcd(minReplicas=1), settings=OURS)
    cluster.world = UNREACHED
    plans = cluster.settle()
    cluster.run_all()
    plans += cluster.settle()
    assert "counts pods: it does not answer" in cluster.job.status.conditions[-1].message
    assert {news.message for plan in plans for news in plan.news if news.reason == "WorldUnreadable"} == {
        "The controller cannot follow the rendezvous in etcd, and counts pods: it does not answer"
    }
    scaled(cluster, 2)
    cluster.settle()
    assert len(cluster.pods) == 2


def test_an_etcd_that_refuses_the_agents_alone_is_told_in_their_words() -> None:
    """The controller speaks gRPC and follows; without a gateway its agents start again and again, and the job looked healthy."""
    cluster = Cluster(of_etcd(minReplicas=1), settings=OURS)
    cluster.settle()
    cluster.run_all()
    cluster.world = WorldSeen(0, frozenset(), phase="empty")
    refused = "etcd at etcd-0:2379 refuses: it serves no JSON gateway at /v3 (404): is it etcd 3.4 or newer, with --enable-grpc-gateway?"
    said = last_words.message("job-uid", unmet=Unmet(REFUSED, refused))
    ended = Container(name="pytorch", is_running=True, restarts=1, last_exit_code=1, last_message=said)
    name = cluster.names()[0]
    cluster.pods[name] = replace(cluster.pods[name], containers=(ended,))
    cluster.settle()
    assert f"workers: {name} could not start: {refused}." in cluster.job.status.conditions[-1].message
    cluster.world = UNREACHED
    cluster.settle()
    assert "could not start" not in cluster.job.status.conditions[-1].message, "nobody knows whether it trains now"
