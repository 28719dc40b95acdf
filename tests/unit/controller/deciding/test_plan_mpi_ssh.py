"""An MPIJob over ssh: its objects as the MPI Operator's v2beta1 has them, one key pair for life, a launcher that waits for its workers."""

import base64
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from job_builders import PLAIN, Cluster, created, job, pod_for, replica

from elastic.api import SpecError, parse
from elastic.api.job import to_object
from elastic_training.controller.deciding.actions import Create, Update
from elastic_training.controller.deciding.plan import plan
from elastic_training.controller.facts.settings import Settings
from elastic_training.controller.facts.snapshot import KeyPair, PodPhase
from elastic_training.controller.frameworks import mpi_ssh
from elastic_training.controller.running.keypair import new_key_pair

KEYS = KeyPair(private="cHJpdmF0ZQ==", public="cHVibGlj")


def over_ssh(workers: int = 2, **spec: Any) -> Any:
    launcher = replica(kind="MPIJob", restart=spec.pop("launcher", "Never"))
    worker = replica(workers, restart="Never", kind="MPIJob", command=False)
    return job("MPIJob", Launcher=launcher, Worker=worker, mpiTransport="SSH", **spec)


class Keyed(Cluster):
    """A cluster whose controller makes a key pair when one is lacking, as the edge does: every time another one."""

    def look(self) -> Any:
        seen = super().look()
        return replace(seen, fresh_keys=KeyPair(f"{KEYS.private}{self.made}", KEYS.public)) if mpi_ssh.lacks_keys(self.job, seen) else seen

    def _do(self, action: Any) -> None:
        if isinstance(action, Update):
            there = self.owned[action.resource.kind, action.name]
            self.owned[action.resource.kind, action.name] = replace(there, raw={**there.raw, "data": action.change["data"]})
        super()._do(action)

    def data(self, kind: str, name: str) -> Any:
        return self.owned[kind, name].raw["data"]


def settled(one: Any, *, settings: Settings = PLAIN) -> Keyed:
    cluster = Keyed(one, settings=settings)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    return cluster


def env_of(pod: Any) -> dict[str, str]:
    return {entry["name"]: entry.get("value") for entry in pod["spec"]["containers"][0].get("env", ())}


def test_it_needs_keys_hosts_and_a_service_but_no_account() -> None:
    cluster = settled(over_ssh())
    assert sorted(cluster.owned) == [("ConfigMap", "train-config"), ("Secret", "train-ssh"), ("Service", "train")]
    assert cluster.owned["Secret", "train-ssh"].raw["type"] == "kubernetes.io/ssh-auth"
    assert set(cluster.data("Secret", "train-ssh")) == {"ssh-privatekey", "ssh-publickey"}
    service = cluster.owned["Service", "train"].raw["spec"]
    assert service["clusterIP"] == "None"
    assert service["selector"] == {
        "training.kubeflow.org/job-name": "train",
        "training.kubeflow.org/operator-name": "mpijob-controller",
    }
    launcher = pod_for(cluster.job, "Launcher", 0, cluster.look())
    assert "serviceAccountName" not in launcher["spec"]
    assert "initContainers" not in launcher["spec"]


def test_the_launcher_is_made_when_all_workers_are_ready() -> None:
    cluster = Keyed(over_ssh())
    assert created(cluster.round()) == ["train-worker-0", "train-worker-1"]
    cluster.set("train-worker-0", PodPhase.RUNNING)
    assert [name for planned in cluster.settle() for name in created(planned)] == []
    cluster.set("train-worker-1", PodPhase.RUNNING)
    assert created(cluster.round()) == ["train-launcher"]


def test_the_launcher_of_an_elastic_job_is_made_when_as_many_as_it_needs_are_ready() -> None:
    cluster = Keyed(over_ssh(2, elasticPolicy={"minReplicas": 1, "maxReplicas": 3}))
    cluster.round()
    cluster.set("train-worker-1", PodPhase.RUNNING)
    assert "train-launcher" in created(cluster.round())


def test_a_launcher_that_wants_to_start_at_once_does() -> None:
    cluster = Keyed(over_ssh(launcherCreationPolicy="AtStartup"))
    assert "train-launcher" in created(cluster.round())


@pytest.mark.parametrize(("policy", "comes"), [({}, True), ({"launcherCreationPolicy": "WaitForWorkersReady"}, False)])
def test_the_launcher_by_exec_waits_for_workers_to_run_only_if_the_user_says_so(policy: dict[str, str], comes: bool) -> None:
    cluster = Cluster(job("MPIJob", Launcher=replica(kind="MPIJob"), Worker=replica(1, kind="MPIJob"), **policy))
    assert created(cluster.round()) == ["train-worker-0"]
    assert ("train-launcher" in created(cluster.round())) is comes


def test_the_key_pair_is_made_once_and_kept() -> None:
    cluster = settled(over_ssh())
    first = dict(cluster.data("Secret", "train-ssh"))
    cluster.set("train-worker-0", PodPhase.FAILED, reason="Evicted")
    cluster.settle()
    assert cluster.data("Secret", "train-ssh") == first
    seen = replace(cluster.look(), fresh_keys=KEYS)
    assert not any(isinstance(action, Update) for action in plan(cluster.job, seen).actions), "a fresh pair changes nothing"


def test_the_same_view_makes_the_same_bytes() -> None:
    one, seen = over_ssh(), replace(Cluster(over_ssh()).look(), fresh_keys=KEYS)
    first, second = (json.dumps([a.object for a in plan(one, seen).actions if isinstance(a, Create)]) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("implementation", "hostfile"),
    [
        ("OpenMPI", "train-worker-0.train.team.svc slots=3\ntrain-worker-1.train.team.svc slots=3\n"),
        ("Intel", "train-worker-0.train.team.svc:3\ntrain-worker-1.train.team.svc:3\n"),
        ("MPICH", "train-worker-0.train.team.svc:3\ntrain-worker-1.train.team.svc:3\n"),
    ],
)
def test_each_implementation_gets_its_form_of_the_host_file(implementation: str, hostfile: str) -> None:
    cluster = settled(over_ssh(mpiImplementation=implementation, slotsPerWorker=3))
    assert cluster.data("ConfigMap", "train-config")["hostfile"] == hostfile


VARIABLES = {
    "OpenMPI": {
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        "OMPI_MCA_orte_set_default_slots": "2",
        "PRTE_MCA_prte_keep_fqdn_hostnames": "true",
        "PRTE_MCA_prte_default_hostfile": "/etc/mpi/hostfile",
        "PRTE_MCA_plm_ssh_args": "$(OMPI_MCA_plm_rsh_args)",
        "PRTE_MCA_prte_set_default_slots": "2",
    },
    "Intel": {
        "I_MPI_HYDRA_HOST_FILE": "/etc/mpi/hostfile",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "-o ConnectionAttempts=10",
        "I_MPI_PERHOST": "2",
    },
    "MPICH": {
        "HYDRA_HOST_FILE": "/etc/mpi/hostfile",
        "HYDRA_LAUNCH_EXTRA_ARGS": "-o ConnectionAttempts=10",
        "HYDRA_LAUNCHER_EXTRA_ARGS": "-o ConnectionAttempts=10",
    },
}
NO_GPU = {"NVIDIA_VISIBLE_DEVICES": "", "NVIDIA_DRIVER_CAPABILITIES": ""}


@pytest.mark.parametrize("implementation", VARIABLES)
def test_each_implementation_is_told_in_its_own_variables(implementation: str) -> None:
    one = over_ssh(mpiImplementation=implementation, slotsPerWorker=2)
    launcher, worker = (env_of(pod_for(one, type, 0, Cluster(one).look())) for type in ("Launcher", "Worker"))
    assert launcher == {"K_MPI_JOB_ROLE": "launcher"} | VARIABLES[implementation] | NO_GPU
    assert worker == {"K_MPI_JOB_ROLE": "worker"}


def test_the_users_own_settings_stand() -> None:
    one = over_ssh()
    own = {"name": "OMPI_MCA_plm_rsh_args", "value": "-o StrictHostKeyChecking=no"}
    one.replicas["Launcher"].template["spec"]["containers"][0]["env"] = [own]
    launcher = pod_for(one, "Launcher", 0, Cluster(one).look())
    assert [e["value"] for e in launcher["spec"]["containers"][0]["env"] if e["name"] == own["name"]] == [own["value"]]


def test_workers_listen_and_all_pods_hold_the_keys_under_full_names() -> None:
    one = over_ssh()
    worker = pod_for(one, "Worker", 1, Cluster(one).look())["spec"]
    assert worker["containers"][0]["command"] == ["/usr/sbin/sshd", "-De"]
    assert (worker["hostname"], worker["subdomain"]) == ("train-worker-1", "train")
    assert worker["dnsConfig"]["searches"] == ["train.team.svc.cluster.local"]
    for type in ("Launcher", "Worker"):
        spec = pod_for(one, type, 0, Cluster(one).look())["spec"]
        volume = next(v for v in spec["volumes"] if v["name"] == "ssh-auth")
        assert volume["secret"]["defaultMode"] == 0o600
        assert {i["path"]: i["key"] for i in volume["secret"]["items"]} == {
            "id_rsa": "ssh-privatekey",
            "id_rsa.pub": "ssh-publickey",
            "authorized_keys": "ssh-publickey",
        }
        assert {"name": "ssh-auth", "mountPath": "/root/.ssh"} in spec["containers"][0]["volumeMounts"]


def test_another_user_than_root_gets_keys_that_it_may_read() -> None:
    one = over_ssh(sshAuthMountPath="/home/mpiuser/.ssh")
    spec = pod_for(one, "Worker", 0, Cluster(one).look())["spec"]
    assert "defaultMode" not in next(v for v in spec["volumes"] if v["name"] == "ssh-auth")["secret"]
    assert {"name": "ssh-auth", "mountPath": "/home/mpiuser/.ssh"} in spec["containers"][0]["volumeMounts"]


def test_the_launcher_may_be_a_host_too() -> None:
    cluster = settled(over_ssh(1, runLauncherAsWorker=True), settings=Settings(cluster_domain="example"))
    files = cluster.data("ConfigMap", "train-config")
    assert files["hostfile"] == "train-launcher.train.team.svc.example slots=1\ntrain-worker-0.train.team.svc.example slots=1\n"
    assert files["discover_hosts.sh"] == "#!/bin/sh\n" + "".join(f"echo {line.split()[0]}\n" for line in files["hostfile"].splitlines())
    assert not NO_GPU.items() & env_of(pod_for(cluster.job, "Launcher", 0, cluster.look())).items()


def test_a_host_that_is_lost_is_no_longer_discovered_but_still_listed() -> None:
    cluster = settled(over_ssh())
    cluster.set("train-worker-1", PodPhase.FAILED, reason="Evicted")
    cluster.round()
    files = cluster.data("ConfigMap", "train-config")
    assert files["discover_hosts.sh"] == "#!/bin/sh\necho train-worker-0.train.team.svc\n"
    assert "train-worker-1" in files["hostfile"]


def test_a_name_that_no_service_may_have_is_refused_and_fields_without_effect_are_told() -> None:
    raw = to_object(over_ssh())
    with pytest.raises(SpecError, match="start with a letter"):
        parse({**raw, "metadata": {**raw["metadata"], "name": "0train"}})
    with pytest.raises(SpecError, match="write the whole path"):
        parse({**raw, "spec": {**raw["spec"], "sshAuthMountPath": ".ssh"}})
    by_exec = {key: value for key, value in raw["spec"].items() if key != "mpiTransport"}
    _, warnings = parse({**raw, "spec": {**by_exec, "mpiImplementation": "MPICH"}})
    assert [str(w) for w in warnings] == [
        "spec.mpiImplementation: mpiImplementation has no effect with mpiTransport Exec; remove one of the two"
    ]


def test_the_keys_are_a_pair_that_ssh_takes(tmp_path: Path) -> None:
    keys = new_key_pair()
    private = tmp_path / "id_rsa"
    private.write_bytes(base64.b64decode(keys.private))
    public = base64.b64decode(keys.public).decode().split()
    assert public[0] == "ecdsa-sha2-nistp521"
    private.chmod(0o600)
    try:
        done = subprocess.run(["ssh-keygen", "-y", "-f", str(private)], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("ssh-keygen is not installed")
    assert done.stdout.split()[:2] == public[:2]
