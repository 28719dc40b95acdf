"""An elastic MPIJob whose launcher finds its hosts at the rendezvous server: what that is told, who leaves and when, the script."""

from dataclasses import replace
from typing import Any

from job_builders import NOW, OURS, PLAIN, Cluster, created, deleted, job, pod_for, replica, tainted
from msgspec import structs

from elastic.api.job import ElasticStatus
from elastic.kube.resources import CONFIG_MAPS
from elastic.membership.hosts import Host, HostFacts, HostState
from elastic_training.controller.deciding.actions import Plan, SetExpectation, Update
from elastic_training.controller.facts.snapshot import Container, PodPhase, WorldSeen


def elastic_mpi(workers: int = 3, *, least: int = 1, **spec: Any) -> Any:
    policy = {"minReplicas": least, "maxReplicas": 5}
    kinds = {"Launcher": replica(kind="MPIJob", restart="OnFailure"), "Worker": replica(workers, kind="MPIJob", command=False)}
    return job("MPIJob", **kinds, elasticPolicy=policy, slotsPerWorker=2, **spec)


def running(one: Any, settings: Any = OURS) -> Cluster:
    cluster = Cluster(one, settings=settings)
    for _ in range(3):
        cluster.settle()
        cluster.run_all()
    cluster.settle()
    return cluster


def facts_told(planned: Plan) -> HostFacts:
    word = next(action for action in planned.actions if isinstance(action, SetExpectation))
    assert word.hosts is not None
    return word.hosts


def told(planned: Plan) -> dict[str, Host]:
    return {host.name: host for host in facts_told(planned).hosts}


def hears(cluster: Cluster, *, listed: tuple[str, ...], working: tuple[str, ...] = (), leaving: tuple[str, ...] = ()) -> None:
    """Let the server tell of these pods, by name, with a driver that reports."""
    uids = {name: pod.uid for name, pod in cluster.pods.items()}
    state = HostState(
        listed=tuple(uids[name] for name in listed),
        working=tuple(uids[name] for name in working or listed),
        leaving=tuple(uids[name] for name in leaving),
        observed="driver",
    )
    cluster.world = WorldSeen(generation=0, members=frozenset(), phase="empty", hosts=state)


def scaled(cluster: Cluster, workers: int) -> None:
    spec = cluster.job.replicas["Worker"]
    cluster.job = structs.replace(cluster.job, replicas={**cluster.job.replicas, "Worker": structs.replace(spec, replicas=workers)})


def elastic(cluster: Cluster) -> ElasticStatus:
    assert cluster.job.status.elastic is not None
    return cluster.job.status.elastic


def files_of(cluster: Cluster) -> dict[str, str]:
    """Return the config map's files, with all changes that were made to them."""
    data: dict[str, str] = dict(cluster.owned["ConfigMap", "train-config"].raw["data"])
    for action in cluster.told:
        if isinstance(action, Update) and action.resource == CONFIG_MAPS:
            data |= action.change["data"]
    return data


W0, W1, W2, W3 = (f"train-worker-{index}" for index in range(4))


def test_the_server_is_told_of_every_running_worker_and_whether_it_is_ready() -> None:
    cluster = running(elastic_mpi())
    cluster.set(W1, PodPhase.RUNNING)
    cluster.pods[W1] = replace(cluster.pods[W1], is_ready=False)
    cluster.pods[W2] = replace(cluster.pods[W2], phase=PodPhase.PENDING)
    hosts = told(cluster.round())
    assert {name: (host.slots, host.is_ready, host.leaving) for name, host in hosts.items()} == {
        W0: (2, True, False),
        W1: (2, False, False),
    }
    assert hosts[W0].uid == cluster.pods[W0].uid


def test_the_server_hears_at_once_of_a_failed_worker_also_while_the_job_waits_for_what_explains_it() -> None:
    """The launcher started a worker in the pod again, and the training of all others stood still until the job failed."""
    cluster = running(elastic_mpi())
    own = Container("mpi", exit_code=137, exit_reason="Error", ended_at=cluster.now)
    cluster.pods[W1] = replace(cluster.pods[W1], phase=PodPhase.FAILED, is_ready=False, containers=(own,))
    planned = cluster.round()
    assert set(told(planned)) == {W0, W2}
    cluster.settle()
    assert cluster.state() == "Running"


def test_over_ssh_hosts_have_the_names_that_the_service_gives_them_and_the_launcher_may_be_one() -> None:
    cluster = running(elastic_mpi(1, mpiTransport="SSH", runLauncherAsWorker=True))
    hosts = told(cluster.round())
    assert {name: host.is_local for name, host in hosts.items()} == {
        "train-worker-0.train.team.svc": False,
        "train-launcher.train.team.svc": True,
    }


def test_a_surplus_worker_leaves_the_list_and_ends_its_processes_before_its_pod_goes() -> None:
    cluster = running(elastic_mpi())
    hears(cluster, listed=(W0, W1, W2))
    scaled(cluster, 2)
    planned = cluster.round()
    assert told(planned)[W2].leaving
    assert deleted(planned) == []
    assert [entry.member for entry in elastic(cluster).leaving] == [W2]
    assert deleted(cluster.round()) == [], "the server lists it still"
    hears(cluster, listed=(W0, W1), working=(W0, W1, W2), leaving=(W2,))
    assert deleted(cluster.round()) == [], "its processes run still"
    hears(cluster, listed=(W0, W1), leaving=(W2,))
    assert deleted(cluster.round()) == [W2]
    cluster.settle()
    assert elastic(cluster).leaving == ()


def test_a_surplus_worker_whose_processes_never_end_goes_when_its_time_is_up() -> None:
    cluster = running(elastic_mpi())
    hears(cluster, listed=(W0, W1, W2))
    scaled(cluster, 2)
    cluster.round()
    by = elastic(cluster).leaving[0].by
    assert by is not None
    assert cluster.round().look_again_at == by
    cluster.now = by
    assert deleted(cluster.round()) == [W2]


def test_an_evicted_worker_is_replaced_at_once_under_a_new_name() -> None:
    cluster = running(elastic_mpi())
    hears(cluster, listed=(W0, W1, W2))
    cluster.pods[W1] = replace(cluster.pods[W1], disruption="EvictionByEvictionAPI", is_deleting=True, gone_by=NOW)
    planned = cluster.round()
    assert created(planned) == [W3]
    assert told(planned)[W1].leaving
    del cluster.pods[W1]
    cluster.run_all()
    planned = cluster.round()
    assert created(planned) == []
    assert sorted(told(planned)) == [W0, W2, W3]


def test_a_worker_that_may_have_to_go_keeps_its_place_until_its_replacement_is_listed() -> None:
    cluster = running(elastic_mpi())
    hears(cluster, listed=(W0, W1, W2))
    cluster.pods[W1] = replace(cluster.pods[W1], node="node-1")
    cluster.nodes = {"node-1": tainted("node-1", "aws-node-termination-handler/rebalance-recommendation")}
    planned = cluster.round()
    assert created(planned) == [W3]
    assert {name: (one.leaving, one.when_replaced) for name, one in told(planned).items()} == {
        W0: (False, False),
        W1: (True, True),
        W2: (False, False),
    }
    assert facts_told(planned).wanted == 3
    hears(cluster, listed=(W0, W1, W2), leaving=(W1,))
    assert deleted(cluster.round()) == []
    cluster.nodes = {"node-1": tainted("node-1", "aws-node-termination-handler/spot-itn")}
    assert not told(cluster.round())[W1].when_replaced, "now it must go"


def test_a_worker_that_may_have_to_go_goes_once_it_is_off_the_list_and_its_processes_have_ended() -> None:
    cluster = running(elastic_mpi())
    cluster.pods[W1] = replace(cluster.pods[W1], node="node-1")
    cluster.nodes = {"node-1": tainted("node-1", "aws-node-termination-handler/rebalance-recommendation")}
    hears(cluster, listed=(W0, W1, W2))
    cluster.settle()
    cluster.run_all()
    hears(cluster, listed=(W0, W2, W3), working=(W0, W1, W2, W3), leaving=(W1,))
    assert deleted(cluster.round()) == []
    hears(cluster, listed=(W0, W2, W3), leaving=(W1,))
    assert deleted(cluster.round()) == [W1]


def test_the_host_file_names_the_workers_that_stay_and_come() -> None:
    cluster = running(elastic_mpi())
    cluster.pods[W1] = replace(cluster.pods[W1], disruption="EvictionByEvictionAPI", is_deleting=True, gone_by=NOW)
    cluster.settle()
    assert files_of(cluster)["hostfile"] == f"{W0} slots=2\n{W2} slots=2\n{W3} slots=2\n"


def test_the_status_says_how_many_hosts_work_and_how_that_is_known() -> None:
    cluster = running(elastic_mpi())
    hears(cluster, listed=(W0, W1, W2), working=(W0, W1))
    cluster.settle()
    status = elastic(cluster)
    assert (status.observed, status.world_size, status.generation) == ("driver", 2, 1)
    hears(cluster, listed=(W0, W1, W2))
    plans = cluster.settle()
    status = elastic(cluster)
    assert (status.world_size, status.generation) == (3, 2)
    assert status.last_rescale is not None
    assert (status.last_rescale.from_size, status.last_rescale.to_size, status.last_rescale.cause) == (2, 3, "plan")
    assert any(news.reason == "Rescaled" for planned in plans for news in planned.news)


def test_the_script_asks_the_server_and_ends_with_the_list_that_the_controller_knew() -> None:
    cluster = running(elastic_mpi())
    script = files_of(cluster)["discover_hosts.sh"]
    assert "\nurl=https://rdzv:8443/v1/jobs/job-uid/hosts\n" in script
    assert script.endswith(f"#= {W0}:2\n#= {W1}:2\n#= {W2}:2\n")
    hears(cluster, listed=(W0, W2))
    cluster.settle()
    assert files_of(cluster)["discover_hosts.sh"].endswith(f"file:\n#= {W0}:2\n#= {W2}:2\n")


def test_the_scripts_own_list_keeps_a_leaving_worker_if_too_few_would_stay() -> None:
    cluster = running(elastic_mpi(2, least=2))
    cluster.pods[W1] = replace(cluster.pods[W1], disruption="EvictionByEvictionAPI", is_deleting=True, gone_by=NOW)
    cluster.settle()
    assert files_of(cluster)["discover_hosts.sh"].endswith(f"file:\n#= {W0}:2\n#= {W1}:2\n")


def test_only_the_launcher_gets_the_token_and_it_is_not_that_of_members() -> None:
    one = elastic_mpi()
    cluster = running(one)
    data = cluster.owned["Secret", "train-elastic"].raw["data"]
    assert sorted(data) == ["ca.crt", "launcher-token"]
    look = cluster.look()
    spec = pod_for(one, "Launcher", 0, look)["spec"]
    volume = next(volume for volume in spec["volumes"] if volume["name"] == "elastic-hosts")
    assert volume["secret"]["secretName"] == "train-elastic"
    assert {"name": "elastic-hosts", "mountPath": "/etc/elastic-training"} in spec["containers"][0]["volumeMounts"]
    assert "train-elastic" not in str(pod_for(one, "Worker", 0, look))


def test_without_a_rendezvous_server_the_launcher_gets_upstreams_script() -> None:
    script = files_of(running(elastic_mpi(), PLAIN))["discover_hosts.sh"]
    assert script == f"#!/bin/sh\necho {W0}:2\necho {W1}:2\necho {W2}:2"
