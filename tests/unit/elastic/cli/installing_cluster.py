"""Simulate an API server that stores the objects that `elastic install` applies."""

from __future__ import annotations

import copy
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cli_api import Api, elastic, served
from click.testing import Result

from elastic.cli.installing import manifests
from elastic.kube.resources import Object

IMAGE = "registry.example.com/elastic-training:1"
OURS = metadata.version("elastic-training")
SYSTEM = "elastic-system"


class Cluster(Api):
    """Stores applied objects. If `works`, all workloads are ready at once; otherwise they never become ready."""

    def __init__(self, *objects: Object, works: bool = True) -> None:
        super().__init__(*objects)
        self.works = works
        self.denied: set[tuple[str, str]] = set()
        """Pairs of verb and resource that the caller has no right to."""
        self.applied: list[tuple[str, Object]] = []
        """Applied objects with their paths. Dry runs are not included."""
        self.kubernetes = "v1.36.2"

    def answer(self, method: str, url: str, body: Any) -> tuple[int, Any]:
        split = urlsplit(url)
        query = parse_qs(split.query)
        if split.path == "/version":
            return 200, {"gitVersion": self.kubernetes}
        if split.path.endswith("/selfsubjectaccessreviews"):
            asked = body["spec"]["resourceAttributes"]
            return 201, {"status": {"allowed": (asked["verb"], asked["resource"]) not in self.denied}}
        if split.path in ("/apis/monitoring.coreos.com/v1", "/apis/cert-manager.io/v1"):
            return 404, {"kind": "Status", "code": 404, "reason": "NotFound", "message": "no such group"}
        if method != "PATCH" or query.get("fieldManager") not in (["elastic-install"], ["elastic-adopt"]):
            return super().answer(method, url, body)
        if query.get("dryRun") != ["All"]:
            self.applied.append((split.path, body))
            self.objects[split.path] = {**body, **self._status(body)}
        return 200, {**copy.deepcopy(self.objects.get(split.path, {})), **body}

    def _status(self, item: Object) -> Object:
        if item["kind"] == "CustomResourceDefinition":
            return {"status": {"conditions": [{"type": "Established", "status": "True"}]}}
        if item["kind"] in manifests.WORKLOADS and self.works:
            count = item["spec"]["replicas"]
            return {"status": {"availableReplicas": count, "updatedReplicas": count, "replicas": count}}
        return {}


def install(cluster: Cluster, folder: Path, *words: str) -> Result:
    with served(cluster, folder) as kubeconfig:
        return elastic(kubeconfig, "install", *words)


def uninstall(cluster: Cluster, folder: Path, *words: str) -> Result:
    with served(cluster, folder) as kubeconfig:
        return elastic(kubeconfig, "uninstall", *words)


MADE: dict[tuple[str, ...], dict[str, Object]] = {}
"""The objects after `elastic install` with these arguments. An installation costs half a second of CPU, so each runs only once."""


def installed(folder: Path, *words: str) -> Cluster:
    cluster = Cluster()
    if words not in MADE:
        said = install(cluster, folder, "--image", IMAGE, *words)
        assert said.exit_code == 0, said.output
        MADE[words] = copy.deepcopy(cluster.objects)
    cluster.objects = copy.deepcopy(MADE[words])
    cluster.asked.clear()
    cluster.applied.clear()
    return cluster


def names(cluster: Cluster) -> set[str]:
    return {manifests.name(one) for one in cluster.objects.values() if one["kind"] in manifests.RESOURCES}


def deployment(cluster: Cluster, name: str = "elastic-controller", home: str = SYSTEM) -> Object:
    found: Object = cluster.objects[f"/apis/apps/v1/namespaces/{home}/deployments/{name}"]
    return found
