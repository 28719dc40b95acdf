"""An MPIJob by exec: every MPI is told of hosts and remote shell after upstream's own words, and no worker starts processes in another."""

from typing import Any

from job_builders import PLAIN, Cluster, created, job, pod_for, replica

from elastic.kube.resources import ROLES
from elastic_training.controller.deciding.actions import Create, Update
from elastic_training.controller.facts.settings import Settings

UPSTREAMS = [
    ("OMPI_MCA_plm_rsh_agent", "/etc/mpi/kubexec.sh"),
    ("OMPI_MCA_orte_default_hostfile", "/etc/mpi/hostfile"),
    ("NVIDIA_VISIBLE_DEVICES", ""),
    ("NVIDIA_DRIVER_CAPABILITIES", ""),
    ("I_MPI_HYDRA_BOOTSTRAP", "rsh"),
    ("I_MPI_HYDRA_BOOTSTRAP_EXEC", "/etc/mpi/kubexec.sh"),
]
OURS = {
    "OMPI_MCA_routed_radix": "4096",
    "PRTE_MCA_plm_ssh_agent": "/etc/mpi/kubexec.sh",
    "PRTE_MCA_prte_default_hostfile": "/etc/mpi/hostfile",
    "PRTE_MCA_rml_base_radix": "4096",
    "I_MPI_HYDRA_HOST_FILE": "/etc/mpi/hostfile.hydra",
    "I_MPI_PERHOST": "3",
    "I_MPI_HYDRA_BRANCH_COUNT": "0",
    "HYDRA_LAUNCHER": "rsh",
    "HYDRA_LAUNCHER_EXEC": "/etc/mpi/kubexec.sh",
    "HYDRA_HOST_FILE": "/etc/mpi/hostfile.hydra",
    "I_MPI_HYDRA_IFACE": "eth0",
    "HYDRA_IFACE": "eth0",
}


def by_exec(**spec: Any) -> Any:
    worker = replica(2, restart="Never", kind="MPIJob", command=False)
    return job("MPIJob", Launcher=replica(kind="MPIJob", restart="Never"), Worker=worker, slotsPerWorker=3, **spec)


def launcher(one: Any, settings: Settings = PLAIN) -> Any:
    return pod_for(one, "Launcher", 0, Cluster(one, settings=settings).look())["spec"]


def variables(spec: Any) -> list[tuple[str, str]]:
    return [(entry["name"], entry["value"]) for entry in spec["containers"][0]["env"]]


def files(one: Any, settings: Settings = PLAIN) -> dict[str, str]:
    cluster = Cluster(one, settings=settings)
    cluster.settle()
    data: dict[str, str] = cluster.owned["ConfigMap", "train-config"].raw["data"]
    return data


def rules(cluster: Cluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.owned["Role", "train-launcher"].raw["rules"]
    return found


def test_the_launcher_comes_once_its_rights_name_workers_that_are_there() -> None:
    cluster = Cluster(by_exec())
    assert created(cluster.round()) == ["train-worker-0", "train-worker-1"]
    assert ("Role", "train-launcher") not in cluster.owned
    planned = cluster.round()
    kinds = [action.resource.kind for action in planned.actions if isinstance(action, Create)]
    assert kinds == ["Role", "RoleBinding", "Pod"]
    assert rules(cluster)[1]["resourceNames"] == ["train-worker-0", "train-worker-1"]


def test_a_pod_of_another_job_that_has_a_workers_name_is_in_no_role() -> None:
    """A PyTorchJob of that name had the pod, and the launcher of the MPIJob could exec into it."""
    cluster = Cluster(by_exec())
    cluster.settle()
    del cluster.pods["train-worker-1"]
    role = next(action for action in cluster.round().actions if isinstance(action, Update) and action.resource == ROLES)
    assert role.change["rules"][1]["resourceNames"] == ["train-worker-0"]
    cluster.pods.clear()
    role = next(action for action in cluster.round().actions if isinstance(action, Update) and action.resource == ROLES)
    assert [rule["resources"] for rule in role.change["rules"]] == [["pods"]], "a rule without names would hold for every pod"


def test_a_launcher_without_workers_has_no_right_to_exec() -> None:
    cluster = Cluster(job("MPIJob", Launcher=replica(kind="MPIJob"), Worker=replica(0, kind="MPIJob")))
    assert created(cluster.round()) == ["train-launcher"]
    assert [rule["resources"] for rule in rules(cluster)] == [["pods"]]


def test_every_mpi_is_told_of_hosts_and_remote_shell_after_upstreams_own_words() -> None:
    told = variables(launcher(by_exec()))
    assert told[: len(UPSTREAMS)] == UPSTREAMS
    assert dict(told[len(UPSTREAMS) :]) == OURS


def test_a_users_own_variable_is_set_once() -> None:
    one = by_exec()
    own = [{"name": "I_MPI_PERHOST", "value": "1"}, {"name": "HYDRA_IFACE", "value": "net1"}]
    one.replicas["Launcher"].template["spec"]["containers"][0]["env"] = own
    told = variables(launcher(one))
    assert [value for name, value in told if name in ("I_MPI_PERHOST", "HYDRA_IFACE")] == ["1", "net1"]


def test_a_launcher_in_its_nodes_network_is_called_by_its_nodes_name() -> None:
    one = by_exec()
    one.replicas["Launcher"].template["spec"]["hostNetwork"] = True
    assert not {"I_MPI_HYDRA_IFACE", "HYDRA_IFACE"} & dict(variables(launcher(one))).keys()


def test_both_forms_of_the_host_file_name_the_same_hosts_and_reach_the_launcher() -> None:
    one = by_exec()
    data = files(one)
    assert data["hostfile"] == "train-worker-0 slots=3\ntrain-worker-1 slots=3\n"
    assert data["hostfile.hydra"] == "train-worker-0:3\ntrain-worker-1:3\n"
    volume = next(v for v in launcher(one)["volumes"] if v["name"] == "mpi-job-config")
    assert {item["path"] for item in volume["configMap"]["items"]} == data.keys()


def test_the_remote_shell_becomes_the_exec_client_for_a_container_by_name() -> None:
    """So signals reach the client, and a container that the cluster puts into the pod is not taken for the worker."""
    one = by_exec()
    first = one.replicas["Worker"].template["spec"]["containers"][0]["name"]
    assert files(one)["kubexec.sh"].endswith(f'\nexec /opt/kube/kubectl exec ${{POD_NAME}} --container {first} -- /bin/sh -c "$*"')
    assert " --container main -- " in files(by_exec(mainContainer="main"))["kubexec.sh"]


def test_the_launcher_of_an_elastic_job_waits_for_as_many_workers_as_it_needs() -> None:
    own = Settings(kubectl_command=("bring",))
    waits = by_exec(elasticPolicy={"minReplicas": 1, "maxReplicas": 3})
    assert [launcher(one, own)["initContainers"][0]["command"] for one in (by_exec(), waits)] == [["bring"], ["bring", "--least", "1"]]
