"""Put the places for values into the manifests of deploy/. With the default values, the manifests are those that kustomize makes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from elastic.api import webhook
from elastic.api.trainer.modes import LABEL, Mode
from elastic.api.trainer.modes import VALUE as ASKS
from elastic.cli.installing.values.nodes import (
    MORE,
    Both,
    Chosen,
    Condition,
    Equals,
    Is,
    Joined,
    More,
    MoreThan,
    Not,
    Put,
    When,
)
from elastic.cli.installing.values.table import COMPONENTS, ETCD, GLOBAL, VALUES

Object = dict[str, Any]
WITH, WITHOUT, VALUE = "$with", "$without", "$value"
"""Keys of a value that belongs to the manifest only with, or only without a component."""
IMAGE = "elastic-training:latest"
MODE = "--trainjobs="
SWITCHES: dict[str, Condition] = {
    "without-mpi": Not(Is("mpi")),
    "etcd": Is("etcd.enabled"),
    "autoscaler": Is("autoscaler.enabled"),
    "autoscaler-metrics-api": Both(Is("autoscaler.enabled"), Is("autoscaler.metricsApi")),
    "dashboard": Is("dashboard.enabled"),
    "trainjobs": Not(Equals("trainjobs", Mode.OFF.value)),
    "monitoring": Is("monitoring.enabled"),
}
"""Conditions under which the components of deploy/ are installed."""
WEBHOOK, CERT_MANAGER = Is("webhook.enabled"), Equals("webhook.certificates", "certManager")
WEBHOOK_FLAG, WEBHOOK_RIGHTS = "--webhook-port=", "elastic-controller-webhook"
SCRAPE = "prometheus.io/"
MONITORS = ("ServiceMonitor", "PodMonitor", "PrometheusRule")


def with_places(items: Iterable[Any]) -> list[Any]:
    """Return the objects of an overlay with places for all values."""
    return [_object(_conditional(item)) for item in items]


def condition_of(node: Any) -> tuple[list[Condition], Object]:
    """Return the conditions under which an object is there, and the object."""
    found = []
    while isinstance(node, When):
        found.append(node.condition)
        node = node.value
    return found, node


def _conditional(node: Any) -> Any:
    """Return a tree in which the marks of components are conditions."""
    if isinstance(node, list):
        return [_conditional(entry) for entry in node]
    if not isinstance(node, dict):
        return node
    if VALUE not in node:
        return {key: _conditional(value) for key, value in node.items()}
    if WITH in node:
        return When(SWITCHES[node[WITH]], _conditional(node[VALUE]))
    opposite = SWITCHES[node[WITHOUT]]
    assert isinstance(opposite, Not), "only a component that takes something away is asked for like this"
    return When(opposite.of, _conditional(node[VALUE]))


def _object(node: Any) -> Any:
    if isinstance(node, When):
        return replace(node, value=_object(node.value))
    item: Object = {**node, "metadata": _described(node["metadata"])}
    kind, name = item["kind"], item["metadata"]["name"]
    component = next((one for one in COMPONENTS if name.startswith(f"elastic-{one}")), "")
    match kind:
        case "Deployment" | "StatefulSet":
            item["spec"] = _workload(item["spec"], component)
        case "ServiceAccount":
            paths = (f"{component}.serviceAccountAnnotations", "global.serviceAccountAnnotations", "global.annotations")
            item["metadata"]["annotations"] = Joined(paths)
        case "PodDisruptionBudget":
            wanted: Condition = Is(f"{component}.podDisruptionBudget")
            return When(wanted if component == ETCD else Both(wanted, MoreThan(f"{component}.replicas", 1)), item)
        case "NetworkPolicy":
            if component == "controller":
                item["spec"] = _without_webhook_port(item["spec"])
            return When(Is("networkPolicies.enabled"), item)
        case "Role" if name == "elastic-controller-own":
            item["rules"] = [When(WEBHOOK, rule) if webhook.NAME in rule.get("resourceNames", ()) else rule for rule in item["rules"]]
        case "ValidatingWebhookConfiguration":
            return When(WEBHOOK, _asking(item))
        case "Secret" if name == webhook.NAME:
            return When(Both(WEBHOOK, Not(CERT_MANAGER)), item)
        case _ if name in (webhook.NAME, WEBHOOK_RIGHTS):
            return When(WEBHOOK, item)
        case _ if kind in MONITORS:
            item["metadata"]["labels"] = Joined(("monitoring.labels", "global.labels"))
    return item


def _described(metadata: Object) -> Object:
    """Return the metadata with the labels and annotations of every object."""
    made = {**metadata, "labels": _with(metadata.get("labels"), ("global.labels",))}
    noted = metadata.get("annotations")
    if noted and all(key.startswith(SCRAPE) for key in noted):
        everywhere = Joined(("global.annotations",))
        made["annotations"] = When(Is("monitoring.scrapeAnnotations"), {**noted, MORE: everywhere}, everywhere)
    else:
        made["annotations"] = _with(noted, ("global.annotations",))
    return made


def _with(entries: Object | None, paths: tuple[str, ...]) -> Any:
    return {**entries, MORE: Joined(paths)} if entries else Joined(paths)


def _paths(component: str, name: str) -> tuple[str, ...]:
    """Return where a component's setting may stand; the first wins."""
    return tuple(path for path in (f"{component}.{name}", f"{GLOBAL}.{name}") if path in VALUES)


def _workload(spec: Object, component: str) -> Object:
    made = {**spec, "template": _template(spec["template"], component)}
    if f"{component}.replicas" in VALUES:
        made["replicas"] = Put(f"{component}.replicas")
    if component == ETCD:
        (claim,) = spec["volumeClaimTemplates"]
        resources = {"requests": {"storage": Put("etcd.storageSize")}}
        storage = {**claim["spec"], "resources": resources, "storageClassName": Chosen(("etcd.storageClassName",))}
        made["volumeClaimTemplates"] = [{**claim, "spec": storage}]
    return made


def _template(template: Object, component: str) -> Object:
    metadata, pod = template["metadata"], template["spec"]
    labels, notes = _paths(component, "podLabels"), _paths(component, "podAnnotations")
    described = {**metadata, "labels": _with(metadata["labels"], labels), "annotations": _with(metadata.get("annotations"), notes)}
    if scraped := metadata.get("annotations"):
        described["annotations"] = When(Is("monitoring.scrapeAnnotations"), _with(scraped, notes), Joined(notes))
    (container,) = pod["containers"]
    tolerations = More(tuple(reversed(_paths(component, "tolerations"))))
    made = {
        **pod,
        "imagePullSecrets": Chosen(_paths(component, "imagePullSecrets")),
        "nodeSelector": Chosen(_paths(component, "nodeSelector")),
        "tolerations": [*pod["tolerations"], tolerations] if "tolerations" in pod else _only(tolerations),
        "affinity": Chosen(_paths(component, "affinity"), *([pod["affinity"]] if "affinity" in pod else [])),
        "priorityClassName": Chosen(
            _paths(component, "priorityClassName"), *([pod["priorityClassName"]] if "priorityClassName" in pod else [])
        ),
        "containers": [_container(container, component)],
    }
    return {**template, "metadata": described, "spec": made}


def _only(more: More) -> Any:
    """Return a list that has only values, and is absent without them."""
    first, *others = more.paths
    return When(Is(first), [more], When(Is(others[0]), [more])) if others else When(Is(first), [more])


def _container(container: Object, component: str) -> Object:
    args: list[Any] = list(_args(container["args"]))
    if f"{component}.logLevel" in VALUES:
        args.append(Chosen(_paths(component, "logLevel"), text="--log-level={}"))
    made = {
        **container,
        "image": Put("image") if container["image"] == IMAGE else Put(f"{component}.image"),
        "imagePullPolicy": Chosen(_paths(component, "imagePullPolicy")),
        "args": [*args, More((f"{component}.extraArgs",))],
        "resources": Chosen((f"{component}.resources",)),
    }
    if component == "controller":
        made["ports"] = [When(WEBHOOK, port) if port["name"] == "webhook" else port for port in container["ports"]]
    return made


def _args(flags: list[Any]) -> Iterator[Any]:
    for flag in flags:
        if isinstance(flag, str) and flag.startswith(WEBHOOK_FLAG):
            yield When(WEBHOOK, flag)
            yield When(Both(WEBHOOK, CERT_MANAGER), "--webhook-certificate=secret")
        elif isinstance(flag, When) and str(flag.value).startswith(MODE):
            yield replace(flag, value=Put("trainjobs", f"{MODE}{{}}"))
        else:
            yield flag


def _without_webhook_port(spec: Object) -> Object:
    (rule,) = spec["ingress"]
    ports = [When(WEBHOOK, port) if port["port"] == "webhook" else port for port in rule["ports"]]
    return {**spec, "ingress": [{**rule, "ports": ports}]}


def _asking(item: Object) -> Object:
    """Return the configuration of a webhook. Next to Kubeflow Trainer, it is asked only about the TrainJobs with our label."""
    (hook,) = item["webhooks"]
    made = {**hook, "failurePolicy": Put("webhook.failurePolicy"), "timeoutSeconds": Put("webhook.timeoutSeconds")}
    if item["metadata"]["name"] == f"{webhook.NAME}{webhook.FOR_TRAIN_JOBS}":
        narrow = webhook.train_job_configuration(hook["clientConfig"], selector={LABEL: ASKS})["webhooks"][0]
        beside = Equals("trainjobs", Mode.BESIDE.value)
        (rule,), (narrow_rule,) = hook["rules"], narrow["rules"]
        made["rules"] = [When(beside, narrow_rule, rule)]
        made["objectSelector"] = When(beside, narrow["objectSelector"])
    return {**item, "webhooks": [made]}


def certificate_objects(namespace: str) -> list[Any]:
    """Return the objects of cert-manager, with places for values."""
    named = {"name": webhook.NAME, "namespace": namespace}
    self_signed = Not(Is("webhook.issuerName"))
    asked = Both(WEBHOOK, CERT_MANAGER)
    issuer = {"apiVersion": "cert-manager.io/v1", "kind": "Issuer", "metadata": _described(named), "spec": {"selfSigned": {}}}
    spec = {
        "secretName": webhook.NAME,
        "dnsNames": [f"{webhook.NAME}.{namespace}.svc", "localhost"],
        "ipAddresses": ["127.0.0.1"],
        "issuerRef": {"name": Chosen(("webhook.issuerName",), webhook.NAME), "kind": Put("webhook.issuerKind")},
    }
    certificate = {"apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": _described(named), "spec": spec}
    return [When(Both(asked, self_signed), issuer), When(asked, certificate)]
