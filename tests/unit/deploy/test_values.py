"""Check how each value changes the manifests. test_chart shows that Helm and `elastic install` make the same of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elastic.api import webhook
from elastic.cli.installing import manifests
from elastic.cli.installing.values import given
from elastic.cli.installing.values.table import COMPONENTS, SHARED, VALUES
from elastic.kube.resources import Object
from elastic_training.autoscale.running.main import main as autoscaler_main
from elastic_training.controller.running.main import main as controller_main
from elastic_training.dashboard.running.main import main as dashboard_main
from elastic_training.rendezvous.main import main as rendezvous_main

PROGRAMS = {"controller": controller_main, "rendezvous": rendezvous_main, "autoscaler": autoscaler_main, "dashboard": dashboard_main}
EVERYTHING = {"autoscaler": {"enabled": True}, "dashboard": {"enabled": True}, "etcd": {"enabled": True}}


def made(values: dict[str, Any] | None = None, overlay: str = "standalone") -> list[Object]:
    every = given.complete(given.joined(EVERYTHING if overlay == "standalone" else {}, {"image": "i:1"}, values or {}))
    return manifests.objects(overlay, every, namespace="here")


def only(found: list[Object], kind: str, name: str) -> Object:
    (item,) = [item for item in found if (item["kind"], item["metadata"]["name"]) == (kind, name)]
    return item


def template(found: list[Object], component: str) -> Object:
    kind = "StatefulSet" if component == "etcd" else "Deployment"
    item: Object = only(found, kind, f"elastic-{component}")["spec"]["template"]
    return item


def container(found: list[Object], component: str) -> Object:
    (one,) = template(found, component)["spec"]["containers"]
    return dict(one)


def kinds(found: list[Object], kind: str) -> list[str]:
    return sorted(item["metadata"]["name"] for item in found if item["kind"] == kind)


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_setting_of_a_component_wins_over_the_global_one(component: str) -> None:
    both = made({"global": {"nodeSelector": {"a": "b"}, "imagePullPolicy": "Always"}, component: {"nodeSelector": {"c": "d"}}})
    assert template(both, component)["spec"]["nodeSelector"] == {"c": "d"}
    others = [one for one in COMPONENTS if one != component]
    assert [template(both, one)["spec"]["nodeSelector"] for one in others] == [{"a": "b"}] * len(others)
    assert container(both, component)["imagePullPolicy"] == "Always"


@pytest.mark.parametrize("component", COMPONENTS)
def test_tolerations_are_added_and_an_affinity_replaces_the_built_in_one(component: str) -> None:
    plain, toleration = made(), {"key": "dedicated", "operator": "Exists"}
    values = {
        "global": {"tolerations": [toleration]},
        component: {"affinity": {"podAffinity": {}}, "tolerations": [{"operator": "Exists"}]},
    }
    found = made(values)
    before = template(plain, component)["spec"].get("tolerations", [])
    assert template(found, component)["spec"]["tolerations"] == [*before, toleration, {"operator": "Exists"}]
    assert template(found, component)["spec"]["affinity"] == {"podAffinity": {}}
    other = "rendezvous" if component == "controller" else "controller"
    assert template(found, other)["spec"]["affinity"] == template(plain, other)["spec"]["affinity"]


@pytest.mark.parametrize("component", COMPONENTS)
def test_labels_of_pods_are_added_to_those_that_select_them(component: str) -> None:
    found = made({"global": {"podLabels": {"a": "x", "b": "x"}, "labels": {"team": "t"}}, component: {"podLabels": {"b": "y"}}})
    assert template(found, component)["metadata"]["labels"] == {"app": f"elastic-{component}", "a": "x", "b": "y"}
    assert all(item["metadata"]["labels"]["team"] == "t" for item in found)


@pytest.mark.parametrize("component", PROGRAMS)
def test_the_flags_that_values_add_are_flags_of_the_program(component: str) -> None:
    found = made({"global": {"logLevel": "debug"}, component: {"extraArgs": ["--help"]}, "webhook": {"certificates": "certManager"}})
    args = container(found, component)["args"]
    assert args[-2:] == ["--log-level=debug", "--help"], "the user's flags come last, so they win"
    known = {option for parameter in PROGRAMS[component].params for option in parameter.opts}
    assert {flag.partition("=")[0] for flag in args[:-1]} <= known


def test_one_replica_has_no_budget_because_no_drain_would_ever_end() -> None:
    assert kinds(made(), "PodDisruptionBudget") == ["elastic-autoscaler", "elastic-controller", "elastic-etcd"]
    found = made({"controller": {"replicas": 1}, "autoscaler": {"replicas": 3}, "etcd": {"podDisruptionBudget": False}})
    assert kinds(found, "PodDisruptionBudget") == ["elastic-autoscaler"]


@pytest.mark.parametrize("mode", ["off", "instead", "beside"])
def test_without_the_webhook_nothing_speaks_of_it(mode: str) -> None:
    found = made({"webhook": {"enabled": False}, "trainjobs": mode})
    assert kinds(found, "ValidatingWebhookConfiguration") == []
    left = [manifests.name(item) for item in found if webhook.NAME in json.dumps(item) or "--webhook" in json.dumps(item)]
    assert left == (["ClusterRole elastic-controller-trainjobs"] if mode != "off" else [])


def test_a_certificate_of_cert_manager_is_made_by_nobody_else() -> None:
    found = made({"webhook": {"certificates": "certManager"}})
    assert kinds(found, "Secret") == []
    spec = only(found, "Certificate", webhook.NAME)["spec"]
    assert (spec["secretName"], spec["issuerRef"]) == (webhook.NAME, {"name": webhook.NAME, "kind": "Issuer"})
    service = only(found, "ValidatingWebhookConfiguration", webhook.NAME)["webhooks"][0]["clientConfig"]["service"]
    assert f"{service['name']}.{service['namespace']}.svc" in spec["dnsNames"]
    assert kinds(found, "Issuer") == [webhook.NAME]
    assert "--webhook-certificate=secret" in container(found, "controller")["args"]
    with_issuer = made({"webhook": {"certificates": "certManager", "issuerName": "ca", "issuerKind": "ClusterIssuer"}})
    assert only(with_issuer, "Certificate", webhook.NAME)["spec"]["issuerRef"] == {"name": "ca", "kind": "ClusterIssuer"}
    assert kinds(with_issuer, "Issuer") == []
    assert "--webhook-certificate=secret" not in container(made(), "controller")["args"]


def test_resources_are_joined_with_the_defaults_and_null_takes_one_away() -> None:
    found = made({"controller": {"resources": {"requests": {"cpu": "1"}, "limits": {"memory": None}}}})
    assert container(found, "controller")["resources"] == {"requests": {"cpu": "1", "memory": "192Mi"}, "limits": {}}


def test_policies_and_scrape_annotations_can_be_left_out() -> None:
    found = made({"networkPolicies": {"enabled": False}, "monitoring": {"scrapeAnnotations": False}})
    assert kinds(found, "NetworkPolicy") == []
    assert "prometheus.io" not in json.dumps(found)


def test_monitors_have_the_labels_by_which_prometheus_selects_them() -> None:
    found = made({"monitoring": {"enabled": True, "labels": {"release": "prometheus"}}})
    monitors = [item for item in found if item["apiVersion"].startswith("monitoring.coreos.com")]
    assert len(monitors) == 5
    assert all(item["metadata"]["labels"] == {"release": "prometheus"} for item in monitors)


def test_the_storage_of_the_etcd_can_be_chosen() -> None:
    (claim,) = only(made({"etcd": {"storageSize": "10Gi", "storageClassName": "fast"}}), "StatefulSet", "elastic-etcd")["spec"][
        "volumeClaimTemplates"
    ]
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"] == {"requests": {"storage": "10Gi"}}


def test_one_namespace_takes_the_same_values() -> None:
    found = made({"controller": {"replicas": 3, "logLevel": "debug", "priorityClassName": "high"}}, overlay="namespaced")
    assert only(found, "Deployment", "elastic-controller")["spec"]["replicas"] == 3
    assert container(found, "controller")["args"][-1] == "--log-level=debug"
    assert template(found, "controller")["spec"]["priorityClassName"] == "high"
    assert "priorityClassName" not in template(found, "rendezvous")["spec"]


@pytest.mark.parametrize("path", [path for path, value in VALUES.items() if path.partition(".")[2] and value not in SHARED])
def test_each_value_has_an_effect(path: str) -> None:
    """A value that no manifest has a place for would be accepted and ignored."""
    used = json.dumps([repr(node) for node in manifests.placed("standalone")])
    elsewhere = {"installation.create"}  # test_chart and test_cli_install_values show its effect
    assert path in elsewhere or f"'{path}'" in used


@pytest.mark.parametrize("value", SHARED, ids=lambda value: value.name)
def test_each_shared_value_has_an_effect_on_each_component(value: Any) -> None:
    used = repr(manifests.placed("standalone"))
    for component in ("global", *COMPONENTS):
        if component not in value.but:
            assert f"'{component}.{value.name}'" in used, component
