"""The autoscaler reads the page of a pod on the laptop, from whose network no way leads to the pod's address."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from grounds import Ground
from laptop import NAMESPACE, PATIENCE_S, Object, container, until

from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.local import LocalCluster
from elastic_training.controller.facts.keys import JOBS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.sandboxes("netns", "loopback")]

VALUES = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/{NAMESPACE}/throughput"
STEPS_A_SECOND = 10
SERVER = f"""
import http.server, os, time
began = time.monotonic()
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        found = self.path == "/train?name=x"
        body = b"train_step_total %d\\n" % ((time.monotonic() - began) * {STEPS_A_SECOND})
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Page).serve_forever()
"""


@pytest.fixture(scope="module")
def cluster(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    if ground.assets is not None:
        pytest.skip("a real API server goes to pods by itself, and finds no way into the network of the laptop's")
    with ground.cluster(tmp_path_factory.mktemp("page"), nodes=1) as running:
        yield running


def job(name: str, *, port: int) -> Object:
    page = {"port": port, "path": "/train?name=x", "step": "train_step_total"}
    # At c10d the autoscaler takes all running workers for the world: nothing but the page need work.
    elastic = {"rdzvBackend": "c10d", "minReplicas": 1, "maxReplicas": 1, "scalingPolicy": {}, "progress": {"prometheus": page}}
    main = container("python", "-c", SERVER, name="pytorch")
    template = {"spec": {"terminationGracePeriodSeconds": 1, "containers": [main]}}
    workers = {"replicas": 1, "restartPolicy": "OnFailure", "template": template}
    spec = {"elasticPolicy": elastic, "pytorchReplicaSpecs": {"Worker": workers}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name}, "spec": spec}


async def test_the_throughput_of_a_job_comes_from_the_page_of_its_pod(cluster: LocalCluster, kube: Kube, unique: str) -> None:
    name = f"paged-{unique}"
    await kube.create(JOBS["PyTorchJob"], job(name, port=8000), namespace=NAMESPACE)

    async def rates() -> list[Object]:
        try:
            items: list[Object] = (await kube.request("GET", VALUES))["items"]
        except KubeError as error:
            if error.code != 404:
                raise
            return []  # the autoscaler has not registered its metrics API yet
        return [item for item in items if item["metricLabels"]["job"] == name]

    (found,) = await until(rates, "the autoscaler tells the job's throughput")
    value = found["value"]
    rate = float(value[:-1]) / 1000 if value.endswith("m") else float(value)
    assert STEPS_A_SECOND / 2 < rate < STEPS_A_SECOND * 2
    await kube.delete(JOBS["PyTorchJob"], name, namespace=NAMESPACE)


TOLD_AFTER_S = 60.0
"""Seconds after which a problem is reported."""


@pytest.mark.full
async def test_a_port_at_which_no_page_is_is_told_in_the_status(cluster: LocalCluster, kube: Kube, unique: str) -> None:
    name = f"closed-{unique}"
    await kube.create(JOBS["PyTorchJob"], job(name, port=8001), namespace=NAMESPACE)

    async def reason() -> str:
        found = await kube.get(JOBS["PyTorchJob"], name, namespace=NAMESPACE)
        told: str = found.get("status", {}).get("elastic", {}).get("autoscaler", {}).get("reason", "")
        return told if "elasticPolicy.progress.prometheus" in told else ""

    told = await until(reason, "the status tells why the page is not read", within_s=TOLD_AFTER_S + PATIENCE_S)
    assert f"default/{name}-worker-0 could not be read: error trying to reach service: dial tcp" in told
    assert "refused; correct port and path" in told
    await kube.delete(JOBS["PyTorchJob"], name, namespace=NAMESPACE)
