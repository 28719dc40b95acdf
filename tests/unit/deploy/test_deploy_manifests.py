"""Check that the files under deploy/ fit together and fit the code."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from built_overlays import DEPLOY, OVERLAYS, Build, containers, only, pods
from rights_used import granted

from elastic import certificates
from elastic.api import webhook
from elastic.api.kinds import KINDS
from elastic.api.rights import (
    SYSTEM,
    as_objects,
    roles,
)
from elastic.kube.resources import NODES
from elastic.local.installation import SERVICE
from elastic.membership.tokens import load_keys
from elastic.runtime.cert_rotation import CertificateName
from elastic_training.controller.facts.keys import JOBS
from elastic_training.controller.running.main import main as controller_main
from elastic_training.controller.watching.observe import resources_of
from elastic_training.rendezvous.main import main as rendezvous_main


def test_every_kind_is_applied() -> None:
    listed = yaml.safe_load((DEPLOY / "crds" / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(f"{kind.crd_name}.yaml" for kind in KINDS.values())


def test_the_webhook_is_asked_as_on_a_laptop_and_called_by_the_name_that_its_certificate_has(build: Build) -> None:
    found = build("standalone")
    there = only(found, "ValidatingWebhookConfiguration", webhook.NAME)
    service = there["webhooks"][0]["clientConfig"]["service"]
    (port,) = only(found, "Service", service["name"])["spec"]["ports"]
    assert there == webhook.configuration({"service": service})
    assert (service["path"], service["port"]) == (webhook.PATH, port["port"])
    assert f"{service['name']}.{service['namespace']}.svc" in CertificateName(namespace=SYSTEM, name=webhook.NAME).names
    assert only(found, "Secret", webhook.NAME).get("data") is None
    controller = only(found, "Deployment", "elastic-controller")["spec"]["template"]["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in controller["ports"]}
    assert f"--webhook-port={ports[port['targetPort']]}" in controller["args"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_flags_of_both_processes_are_ones_they_have(build: Build, overlay: str) -> None:
    programs = {"elastic-controller": controller_main, "elastic-rendezvous": rendezvous_main}
    for _, container in containers(build(overlay)):
        known = {option for parameter in programs[container["command"][0]].params for option in parameter.opts}
        assert {flag.partition("=")[0] for flag in container["args"]} <= known


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_of_the_control_plane_fit_the_level_restricted_and_say_what_they_need(build: Build, overlay: str) -> None:
    seen = 0
    for pod, container in containers(build(overlay)):
        seen += 1
        assert pod["securityContext"]["runAsNonRoot"] is True
        user = (DEPLOY / "Dockerfile").read_text().rpartition("USER ")[2].split()[0]
        # A kubelet takes no group from an image: without one here files would be root's group's.
        assert f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" == user
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        context = container["securityContext"]
        assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]
        named = {port["name"] for port in container["ports"]}
        for probe in ("livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] in named
        assert not any(key.startswith("host") for key in pod)
    assert seen == 2


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_pods_of_a_dead_node_are_replaced_within_seconds(build: Build, overlay: str) -> None:
    for pod, _ in containers(build(overlay)):
        waits = {toleration["key"]: toleration for toleration in pod["tolerations"]}
        assert waits.keys() == {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
        for toleration in waits.values():
            assert (toleration["operator"], toleration["effect"], toleration["tolerationSeconds"]) == ("Exists", "NoExecute", 5)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_start_on_a_starved_node_is_not_taken_for_a_dead_process(build: Build, overlay: str) -> None:
    """Seen on real nodes at a load of 30: both controllers took over a minute to start, and the liveness probe killed them each time."""
    for _, container in containers(build(overlay)):
        starts = container["startupProbe"]
        assert starts["httpGet"] == container["livenessProbe"]["httpGet"]
        assert starts["periodSeconds"] * starts["failureThreshold"] >= 300


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_controllers_and_server_prefer_nodes_that_stay_and_to_be_apart_and_start_anywhere(build: Build, overlay: str) -> None:
    found = build(overlay)
    for name in ("elastic-controller", "elastic-rendezvous"):
        pod = only(found, "Deployment", name)["spec"]["template"]["spec"]
        assert all(set(rules) == {"preferredDuringSchedulingIgnoredDuringExecution"} for rules in pod["affinity"].values())
        (stays,) = pod["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        rules = stays["preference"]["matchExpressions"]
        assert {rule["operator"] for rule in rules} == {"NotIn"}, "a node without the label fits as well"
        keys = {rule["key"] for rule in rules}
        assert {"karpenter.sh/capacity-type", "eks.amazonaws.com/capacityType", "cloud.google.com/gke-spot"} < keys
    controller, server = (only(found, "Deployment", name)["spec"]["template"] for name in ("elastic-controller", "elastic-rendezvous"))
    (term,) = controller["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["topologyKey"] == "topology.kubernetes.io/zone"
    (spread,) = server["spec"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    assert spread["labelSelector"]["matchLabels"] == controller["metadata"]["labels"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_server_keeps_no_controller_off_its_node(build: Build, overlay: str) -> None:
    """Seen on two real nodes: a controller that was deleted came back on the other controller's node.

    The scheduler heeds the anti-affinity of pods that run, also for the pods that it names. The server's weighed as much as the spread.
    """
    server = only(build(overlay), "Deployment", "elastic-rendezvous")["spec"]["template"]["spec"]
    assert server["affinity"].keys() == {"nodeAffinity"}


@pytest.mark.parametrize("name", ["elastic-controller", "elastic-autoscaler"])
def test_two_replicas_have_a_node_each_also_after_a_rollout(build: Build, name: str) -> None:
    """Seen on real nodes after an upgrade: both controllers were on one node.

    While a pod of the old revision held the other node, the scheduler saw one pod on each. The server's node added to an anti-affinity,
    which then weighed as much as the spread.
    """
    deployment = only(build("standalone", components=("autoscaler",)), "Deployment", name)["spec"]
    assert deployment["replicas"] == 2
    assert "strategy" not in deployment, "one more pod at a time, and none fewer"
    pod = deployment["template"]["spec"]
    (spread,) = pod["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname", "a second constraint voids both on nodes without its label"
    assert spread["matchLabelKeys"] == ["pod-template-hash"]
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway", "a cluster of one node has both"
    assert spread["labelSelector"]["matchLabels"].items() <= deployment["template"]["metadata"]["labels"].items()
    terms = [term["podAffinityTerm"] for term in pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]]
    assert all(term["topologyKey"] != "kubernetes.io/hostname" for term in terms), "it would count pods of the old revision"
    assert all("matchLabelKeys" not in term for term in terms), "Kubernetes 1.27 refuses it there"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_update_of_the_server_waits_for_no_pod_of_a_dead_node_and_never_has_two_that_serve(build: Build, overlay: str) -> None:
    deployment = only(build(overlay), "Deployment", "elastic-rendezvous")["spec"]
    assert deployment["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    assert deployment["replicas"] == 1
    container = deployment["template"]["spec"]["containers"][0]
    assert container["readinessProbe"]["periodSeconds"] == container["startupProbe"]["periodSeconds"] == 1


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_network_policies_open_ports_that_there_are_and_all_that_serve(build: Build, overlay: str) -> None:
    found = build(overlay)
    for item in (item for item in found if item["kind"] == "NetworkPolicy"):
        name = item["metadata"]["name"]
        deployment = only(found, "Deployment", name)["spec"]["template"]
        assert item["spec"]["podSelector"]["matchLabels"].items() <= deployment["metadata"]["labels"].items()
        opened = {port["port"] for rule in item["spec"]["ingress"] for port in rule["ports"]}
        assert opened == {port["name"] for port in deployment["spec"]["containers"][0]["ports"]}


def test_one_name_of_an_image_in_a_kustomization_is_all_that_a_user_writes(build: Build) -> None:
    found = build("standalone", image="reg.example/elastic-training")
    images = {container["image"] for _, container in containers(found)}
    assert images == {"reg.example/elastic-training:latest"}
    text = json.dumps([container for _, container in containers(found)])
    assert "elastic-training:latest" not in text.replace("reg.example/elastic-training:latest", "")
    assert "--worker-image=own" in text


def test_rights_in_a_cluster_are_those_of_the_table(build: Build) -> None:
    found = build("standalone")
    for role in roles():
        for item in as_objects(role):
            made = only(found, item["kind"], item["metadata"]["name"])
            assert made == item


def test_the_namespaced_overlay_asks_for_nothing_outside_its_namespace(build: Build) -> None:
    found = build("namespaced", namespace="team-a", components=("monitoring",))
    assert {item["metadata"].get("namespace") for item in found} == {"team-a"}
    assert "elastic-system" not in json.dumps(found)
    assert {s["namespace"] for item in found for s in item.get("subjects", ())} == {"team-a"}
    assert not any(item["kind"].startswith("Cluster") for item in found)
    args = only(found, "Deployment", "elastic-controller")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--namespace=$(NAMESPACE)" in args
    assert not any(flag.startswith("--webhook") for flag in args)


@pytest.mark.parametrize("gang_scheduler", ["", "volcano", "another"])
@pytest.mark.parametrize("kinds", [tuple(KINDS), *((kind,) for kind in KINDS)])
def test_a_controller_of_any_kinds_may_watch_what_it_watches(kinds: tuple[str, ...], gang_scheduler: str) -> None:
    """A watch that is refused would keep the view from ever being whole, and every job from its first pod."""
    for everywhere in (True, False):
        held = granted(roles(everywhere=everywhere, kinds=kinds))
        watched = [*resources_of(kinds, gang_scheduler=gang_scheduler), *(JOBS[kind] for kind in kinds), *([NODES] if everywhere else [])]
        assert {(verb, each.group, each.plural) for each in watched for verb in ("list", "watch")} <= held


@pytest.mark.parametrize("namespace", ["", "team-a"])
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_services_and_budgets_choose_the_pods_that_they_are_for(build: Build, overlay: str, namespace: str) -> None:
    """An object that selects nothing is applied without an error, and nobody hears of it."""
    found = build(overlay, components=("monitoring",), namespace=namespace)
    (home,) = {item["metadata"]["namespace"] for item in found if item["kind"] == "Deployment"}
    seen = 0
    for item in (item for item in found if item["kind"] in ("Service", "PodDisruptionBudget", "ConfigMap")):
        assert item["metadata"]["namespace"] == home
        if item["kind"] == "ConfigMap":
            continue
        selector = item["spec"]["selector"]
        (chosen,) = [pod for pod in pods(found) if selector.get("matchLabels", selector).items() <= pod["metadata"]["labels"].items()]
        named = {port["name"] for port in chosen["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in item["spec"].get("ports", ())} <= named
        seen += 1
    assert seen == 3 + (overlay == "standalone")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_metrics_are_where_annotations_say(build: Build, overlay: str) -> None:
    found = build(overlay)
    service = only(found, "Service", "elastic-controller")
    args = only(found, "Deployment", "elastic-controller")["spec"]["template"]["spec"]["containers"][0]["args"]
    noted = service["metadata"]["annotations"]
    assert (noted["prometheus.io/scrape"], noted["prometheus.io/path"]) == ("true", "/metrics")
    assert f"--metrics-port={noted['prometheus.io/port']}" in args


def test_users_who_may_edit_or_view_a_namespace_may_edit_or_view_jobs_of_every_kind(build: Build) -> None:
    plurals = {kind.plural for kind in KINDS.values()}
    found = build("standalone")
    for name, verbs in (
        ("admin", "create delete get list patch update watch"),
        ("edit", "create delete get list patch update watch"),
        ("view", "get list watch"),
    ):
        role = only(found, "ClusterRole", f"kubeflow-training-{name}")
        assert role["metadata"]["labels"][f"rbac.authorization.k8s.io/aggregate-to-{name}"] == "true"
        jobs, statuses, scales = role["rules"]
        assert (set(jobs["resources"]), set(jobs["verbs"])) == (plurals, set(verbs.split()))
        assert (set(statuses["resources"]), statuses["verbs"]) == ({f"{plural}/status" for plural in plurals}, ["get"])
        assert set(scales["resources"]) == {f"{plural}/scale" for plural in plurals}
        assert set(scales["verbs"]) == ({"get"} if name == "view" else {"get", "patch", "update"})


def test_one_controller_serves_the_webhook_while_the_others_are_replaced(build: Build) -> None:
    """The API server may be sent to a pod for a moment after it was told to end, and a new one must be ready before an old one goes."""
    deployment = only(build("standalone"), "Deployment", "elastic-controller")["spec"]
    pod = deployment["template"]["spec"]
    assert deployment["replicas"] >= 2
    # A quarter of two may be missing, rounded down: none.
    assert deployment.get("strategy", {}).get("type", "RollingUpdate") == "RollingUpdate"
    (command,) = [container["lifecycle"]["preStop"]["exec"]["command"] for container in pod["containers"]]
    assert command[0] == "python3", "the image has nothing else"
    assert 0 < float(re.findall(r"sleep\((\d+)\)", command[-1])[0]) < pod["terminationGracePeriodSeconds"] / 2


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
@pytest.mark.parametrize(("arguments", "name"), [((), SERVICE), (("team-a",), "elastic-rendezvous.team-a.svc")])
def test_the_script_makes_an_installation_that_server_and_controller_can_use(tmp_path: Path, arguments: tuple[str], name: str) -> None:
    folder = tmp_path / "installation"
    command = [str(DEPLOY / "installation.sh"), str(folder), *arguments]
    subprocess.run(command, check=True, capture_output=True)
    assert sorted(path.name for path in folder.iterdir()) == ["ca.crt", "server.key", "tls.crt", "tls.key"]
    assert len(load_keys(folder)) == 1
    assert certificates.covers((folder / "tls.crt").read_bytes(), (name, "localhost", "127.0.0.1"))
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 1
    assert "nothing was changed" in again.stderr
