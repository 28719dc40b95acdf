"""The components that a user adds to an overlay fit it, and have the rights of the table."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from built_overlays import DEPLOY, OVERLAYS, Build, containers, only, pods

from elastic import certificates
from elastic.api import webhook
from elastic.api.kinds import KINDS
from elastic.api.rights import (
    AUTOSCALER,
    DASHBOARD,
    METRICS_API,
    MPI,
    SYSTEM,
    as_objects,
    autoscaler_roles,
    dashboard_roles,
    metrics_api_roles,
    train_job_roles,
    trainer_lease_roles,
)
from elastic.api.trainer.crd import definitions
from elastic.api.trainer.shipped import objects
from elastic_training.autoscale.running.main import main as autoscaler_main
from elastic_training.dashboard.running.main import main as dashboard_main
from elastic_training.rendezvous.server.access import AUDIENCE


@pytest.mark.parametrize("namespace", ["", "team-a"])
def test_the_autoscaler_is_in_the_namespace_of_the_control_plane_with_the_rights_of_the_table(build: Build, namespace: str) -> None:
    found = list(build("standalone", components=("autoscaler",), namespace=namespace))
    home = namespace or SYSTEM
    ours = [item for item in found if item["metadata"]["name"].startswith("elastic-autoscaler")]
    assert {item["metadata"].get("namespace", home) for item in ours} == {home}
    for role in autoscaler_roles():
        for item in as_objects(role, home=home):
            assert only(found, item["kind"], item["metadata"]["name"]) == item
    (pod, container), *_ = [each for each in containers(found) if each[1]["name"] == "autoscaler"]
    assert pod["serviceAccountName"] == AUTOSCALER
    known = {option for parameter in autoscaler_main.params for option in parameter.opts}
    assert {flag.partition("=")[0] for flag in container["args"]} <= known
    mounted = json.dumps(pod["volumes"])
    assert "server.key" not in mounted, "it gets no key"
    assert f'"audience": "{AUDIENCE}"' in mounted
    server = only(found, "Deployment", "elastic-rendezvous")["spec"]["template"]["spec"]["containers"][0]
    assert f"--reader-account=system:serviceaccount:$(NAMESPACE):{AUTOSCALER}" in server["args"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("namespace", ["", "team-a"])
def test_the_dashboard_only_reads_and_is_reached_through_the_api_server(build: Build, namespace: str) -> None:
    found = list(build("standalone", components=("dashboard",), namespace=namespace))
    home = namespace or SYSTEM
    ours = [item for item in found if item["metadata"]["name"].startswith(DASHBOARD)]
    assert {item["metadata"].get("namespace", home) for item in ours} == {home}
    assert not any(item["kind"] == "Service" for item in ours)
    for role in dashboard_roles():
        for item in as_objects(role, home=home):
            assert only(found, item["kind"], item["metadata"]["name"]) == item
        assert {verb for right in role.rights for verb in right.verbs} <= {"get", "list", "watch"}
        assert not {"secrets", "pods/log", "*"} & {resource for right in role.rights for resource in right.resources}
    (pod, container), *_ = [each for each in containers(found) if each[1]["name"] == "dashboard"]
    known = {option for parameter in dashboard_main.params for option in parameter.opts}
    assert {flag.partition("=")[0] for flag in container["args"]} <= known
    assert "--listen=127.0.0.1:8080" in container["args"]
    assert "server.key" not in json.dumps(pod["volumes"])
    server = only(found, "Deployment", "elastic-rendezvous")["spec"]["template"]["spec"]["containers"][0]
    assert f"--reader-account=system:serviceaccount:$(NAMESPACE):{DASHBOARD}" in server["args"]


@pytest.mark.parametrize("namespace", ["", "team-a"])
def test_the_metrics_api_is_served_by_every_replica_that_answers(build: Build, namespace: str) -> None:
    found = list(build("standalone", components=("autoscaler", "autoscaler-metrics-api"), namespace=namespace))
    home = namespace or SYSTEM
    for role in metrics_api_roles():
        for item in as_objects(role, home=home):
            assert only(found, item["kind"], item["metadata"]["name"]) == item
    service = only(found, "Service", METRICS_API)
    assert service["metadata"]["namespace"] == home
    assert "publishNotReadyAddresses" not in service["spec"], "an address on a lost node would stay"
    deployment = only(found, "Deployment", "elastic-autoscaler")["spec"]
    assert deployment["replicas"] == 2
    pod = deployment["template"]["spec"]
    assert {t["tolerationSeconds"] for t in pod["tolerations"]} == {5}
    assert pod["topologySpreadConstraints"]
    (container,) = pod["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/healthz", "discovery answers before the jobs are seen"
    assert {p["containerPort"] for p in container["ports"] if p["name"] == service["spec"]["ports"][0]["targetPort"]} == {8443}
    assert "--metrics-api-port=8443" in container["args"]
    assert only(found, "PodDisruptionBudget", "elastic-autoscaler")["spec"]["minAvailable"] == 1
    ports = only(found, "NetworkPolicy", "elastic-autoscaler")["spec"]["ingress"][0]["ports"]
    assert {"port": "metrics-api", "protocol": "TCP"} in ports
    assert not any(item["kind"] == "APIService" for item in found), "another adapter's would be overwritten"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_without_mpi_nobody_may_exec_or_hand_out_roles(build: Build, overlay: str) -> None:
    found = build(overlay, components=("without-mpi",))
    ours = [item for item in found if item["kind"] in ("Role", "ClusterRole") and item["metadata"]["name"].startswith("elastic-")]
    granted = [rule for item in ours for rule in item["rules"]]
    named = {resource for rule in granted for resource in rule["resources"]}
    assert not named & {"pods/exec", "roles", "rolebindings", "serviceaccounts", "configmaps", "mpijobs"}
    assert "elastic-controller-mpi" not in json.dumps(found)
    args = only(found, "Deployment", "elastic-controller")["spec"]["template"]["spec"]["containers"][0]["args"]
    (enabled,) = [flag.partition("=")[2] for flag in args if flag.startswith("--enable-kinds")]
    assert enabled.split(",") == [kind for kind in KINDS if kind != MPI]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_monitors_find_services_and_ports(build: Build, overlay: str) -> None:
    found = build(overlay, components=("monitoring",))
    services = [item for item in found if item["kind"] == "Service"]
    monitors = [item for item in found if item["kind"] == "ServiceMonitor"]
    assert len(monitors) == 2
    for monitor in monitors:
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        (service,) = [item for item in services if wanted <= item["metadata"].get("labels", {}).items()]
        assert service["metadata"]["namespace"] == monitor["metadata"]["namespace"], "it looks for services beside itself"
        assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_pod_monitors_find_what_speaks_of_jobs_and_keep_their_names(build: Build) -> None:
    found = build("standalone", components=("monitoring", "autoscaler", "dashboard"))
    monitors = [item for item in found if item["kind"] == "PodMonitor"]
    assert len(monitors) == 2
    for monitor in monitors:
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        (pod,) = [pod for pod in pods(found) if wanted <= pod["metadata"]["labels"].items()]
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] in {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
        assert endpoint["honorLabels"] is True, "`job` and `namespace` are the job's, not those of the scrape"


def test_a_used_up_quota_fails_no_probe_of_etcd(build: Build) -> None:
    """Its members were restarted every two minutes, and an update that raised the quota waited for the first of them for ever."""
    (container,) = only(build("standalone", components=("etcd",)), "StatefulSet", "elastic-etcd")["spec"]["template"]["spec"]["containers"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert "exclude=NOSPACE" in container[probe]["httpGet"]["path"], probe


@pytest.mark.parametrize(("overlay", "namespace"), [("standalone", ""), ("namespaced", "team-a")])
def test_the_etcd_component_has_three_members_that_the_controller_and_the_certificate_name(
    build: Build, tmp_path: Path, overlay: str, namespace: str
) -> None:
    found, home = build(overlay, namespace=namespace, components=("etcd",)), namespace or SYSTEM
    for kind in ("StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy"):
        assert only(found, kind, "elastic-etcd")["metadata"]["namespace"] == home
    stateful = only(found, "StatefulSet", "elastic-etcd")["spec"]
    args = dict(word.removeprefix("--").partition("=")[::2] for word in stateful["template"]["spec"]["containers"][0]["args"])
    args = {key: value.replace("$(NAMESPACE)", home) for key, value in args.items()}
    flags = only(found, "Deployment", "elastic-controller")["spec"]["template"]["spec"]["containers"][0]["args"]
    (named,) = [flag.partition("=")[2].replace("$(NAMESPACE)", home) for flag in flags if flag.startswith("--etcd-endpoint=")]
    members = [f"elastic-etcd-{index}.elastic-etcd.{home}.svc" for index in range(stateful["replicas"])]
    assert named.split(",") == [f"{member}:2379" for member in members]
    assert args["initial-cluster"].split(",") == [f"elastic-etcd-{index}=https://{name}:2380" for index, name in enumerate(members)]
    assert stateful["serviceName"] == only(found, "Service", "elastic-etcd")["metadata"]["name"]
    assert "peer-client-cert-auth" in args
    made = subprocess.run(["sh", str(DEPLOY / "installation.sh"), str(tmp_path / "made"), home], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert certificates.covers((tmp_path / "made" / "tls.crt").read_bytes(), (*members, f"elastic-rendezvous.{home}.svc"))


def test_train_jobs_come_with_their_rights_and_overwrite_nothing_of_kubeflow_trainer(build: Build) -> None:
    found = list(build("standalone", components=("trainjobs",)))
    names = {(item["kind"], item["metadata"]["name"]) for item in found}
    assert [item for item in (*definitions(), *objects()) if (item["kind"], item["metadata"]["name"]) in names] == []
    for role in (*train_job_roles(), *trainer_lease_roles()):
        for item in as_objects(role, home=SYSTEM):
            assert only(found, item["kind"], item["metadata"]["name"]) == item
    (container,) = [each for _, each in containers(found) if each["name"] == "controller"]
    assert "--trainjobs=instead" in container["args"]
    service = only(found, "ValidatingWebhookConfiguration", webhook.NAME)["webhooks"][0]["clientConfig"]["service"]
    asked = webhook.train_job_configuration({"service": service})
    assert only(found, "ValidatingWebhookConfiguration", asked["metadata"]["name"]) == asked
