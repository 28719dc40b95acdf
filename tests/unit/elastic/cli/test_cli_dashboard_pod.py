"""Check which pods count as a cluster's dashboard: those that equal its Deployment's template after admission."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from installed_objects import installed_objects

from elastic.cli.showing.template import API_ACCESS, difference

Object = dict[str, Any]
TOKEN = {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}
CA = {"configMap": {"items": [{"key": "ca.crt", "path": "ca.crt"}], "name": "kube-root-ca.crt"}}
NAMESPACE = {"downwardAPI": {"items": [{"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}, "path": "namespace"}]}}
OPENSHIFT = {"configMap": {"items": [{"key": "service-ca.crt", "path": "service-ca.crt"}], "name": "openshift-service-ca.crt"}}


def deployment() -> Object:
    """Return the Deployment that is installed."""
    every = installed_objects("standalone", ("dashboard",), namespace="elastic-system", image="elastic-training:1")
    return next(copy.deepcopy(one) for one in every if (one["kind"], one["metadata"]["name"]) == ("Deployment", "elastic-dashboard"))


def pod(*sources: Object) -> Object:
    """Return the pod as a real API server stores it: with the account's token, a node, tolerations and limits."""
    spec = copy.deepcopy(deployment()["spec"]["template"]["spec"])
    spec |= {"nodeName": "n1", "priority": 0, "preemptionPolicy": "PreemptLowerPriority", "enableServiceLinks": True, "hostNetwork": False}
    spec["tolerations"] = [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]
    spec["imagePullSecrets"] = [{"name": "elastic-pull"}]
    spec["volumes"].append(
        {"name": "kube-api-access-x", "projected": {"defaultMode": 420, "sources": list(sources or (TOKEN, CA, NAMESPACE))}}
    )
    (container,) = spec["containers"]
    container["volumeMounts"].append({"mountPath": API_ACCESS, "name": "kube-api-access-x", "readOnly": True})
    container["resources"] = {"limits": {"memory": "1Gi", "cpu": "1"}}
    return {"metadata": {"name": "elastic-dashboard-1", "labels": {"app": "elastic-dashboard"}}, "spec": spec}


def container(found: Object) -> Object:
    (only,) = found["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def mount(found: Object, path: str) -> None:
    container(found)["volumeMounts"].append({"mountPath": path, "name": "rendezvous"})


@pytest.mark.parametrize("sources", [(), (TOKEN, CA, NAMESPACE, OPENSHIFT)])
def test_additions_of_scheduler_and_admission_make_no_difference(sources: tuple[Object, ...]) -> None:
    assert difference(pod(*sources), deployment()) == ""


FORGERIES: list[tuple[str, Callable[[Object], object]]] = [
    ("image of container 'dashboard'", lambda p: container(p).update(image="evil:1")),
    ("command of container 'dashboard'", lambda p: container(p).update(command=["nc", "-l", "8080"])),
    ("args of container 'dashboard'", lambda p: container(p)["args"].append("--log-level=debug")),
    ("env of container 'dashboard'", lambda p: container(p)["env"].append({"name": "PYTHONPATH", "value": "/evil"})),
    ("lifecycle of container 'dashboard'", lambda p: container(p).update(lifecycle={"postStart": {"exec": {"command": ["evil"]}}})),
    ("readinessProbe of container 'dashboard'", lambda p: container(p).update(readinessProbe={"exec": {"command": ["evil"]}})),
    (
        "volumeMounts of container 'dashboard'",
        lambda p: mount(p, "/usr/lib"),
    ),
    (
        "volumeMounts of container 'dashboard'",
        lambda p: mount(p, API_ACCESS),
    ),
    ("volumeMounts of container 'dashboard'", lambda p: container(p)["volumeMounts"].pop(0)),
    ("'proxy' in spec.containers", lambda p: p["spec"]["containers"].append({"name": "proxy", "image": "evil:1"})),
    ("'first' in spec.initContainers", lambda p: p["spec"].update(initContainers=[{"name": "first", "image": "evil:1"}])),
    ("'debug' in spec.ephemeralContainers", lambda p: p["spec"].update(ephemeralContainers=[{"name": "debug", "image": "evil:1"}])),
    ("'dashboard' in spec.containers", lambda p: container(p).update(name="other")),
    ("spec.hostNetwork", lambda p: p["spec"].update(hostNetwork=True)),
    ("spec.hostAliases", lambda p: p["spec"].update(hostAliases=[{"ip": "10.0.0.9", "hostnames": ["kubernetes.default.svc"]}])),
    ("spec.serviceAccountName", lambda p: p["spec"].update(serviceAccountName="default")),
    ("spec.runtimeClassName", lambda p: p["spec"].update(runtimeClassName="evil")),
    ("spec.dnsConfig", lambda p: p["spec"].update(dnsConfig={"nameservers": ["10.0.0.9"]})),
    ("volume 'rendezvous'", lambda p: p["spec"]["volumes"][0].update(projected={"sources": []})),
]


@pytest.mark.parametrize(("named", "forge"), FORGERIES)
def test_a_pod_that_runs_anything_else_is_named_with_what_differs(named: str, forge: Callable[[Object], object]) -> None:
    forged = pod()
    forge(forged)
    assert named in difference(forged, deployment())


@pytest.mark.parametrize(
    "sources",
    [
        (TOKEN, {"configMap": {**CA["configMap"], "name": "mine"}}, NAMESPACE),
        (TOKEN, CA, NAMESPACE, {"configMap": {"items": [{"key": "ca.crt", "path": "ca.crt"}], "name": "openshift-service-ca.crt"}}),
        (TOKEN, CA, NAMESPACE, {"configMap": {"name": "mine"}}),
        (TOKEN, CA, NAMESPACE, {"secret": {"name": "mine"}}),
    ],
)
def test_a_volume_with_another_ca_is_not_that_of_the_account(sources: tuple[Object, ...]) -> None:
    """The program would send its callers' tokens to another server with that CA."""
    assert "volumeMounts" in difference(pod(*sources), deployment())


def test_a_deployment_without_containers_describes_no_pod() -> None:
    assert difference(pod(), {"metadata": {"name": "d"}, "spec": {}}) == "Deployment d has no containers"
