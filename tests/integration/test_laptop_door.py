"""On the laptop as in a cluster: the webhook refuses a bad job with its fields, and the control plane acts under accounts of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from written_jobs import job

from elastic.api import webhook
from elastic.kube import connect
from elastic.kube.client import Kube, Patch
from elastic.kube.errors import KubeError
from elastic.kube.resources import VALIDATING_WEBHOOK_CONFIGURATIONS, Object, Resource
from elastic.local import LocalCluster
from elastic_training.controller.facts.keys import JOBS

pytestmark = pytest.mark.integration

REVIEWS = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", namespaced=False)
PATIENCE_S = 60
NOTHING = {"metadata": {"name": "nobody", "namespace": "default"}, "spec": {"jaxReplicaSpecs": {"Worker": {"replicas": 0}}}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(data_dir=tmp_path_factory.mktemp("door"), nodes=0) as running:
        yield running


async def refused(kube: Kube, body: Object) -> KubeError:
    """Return the refusal of the API server, once the webhook has answered: it may be late on a busy machine."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with pytest.raises(KubeError) as found:
                await kube.create(JOBS[body["kind"]], body, namespace="default")
            if found.value.code != 500:
                return found.value


async def test_a_job_that_cannot_run_is_refused_with_its_fields_for_every_caller(cluster: LocalCluster) -> None:
    async with connect(cluster.kubeconfig) as kube:
        # This test wants to hear of a late webhook, and users do not.
        patient = {"webhooks": [{"name": "jobs.elastic-training.kubeflow.org", "failurePolicy": "Fail", "timeoutSeconds": 30}]}
        await kube.patch(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook.NAME, patient, kind=Patch.STRATEGIC)
        said = await refused(kube, job("jax", NOTHING))
        assert (said.code, said.reason) == (422, "Invalid")
        assert f'admission webhook "{patient["webhooks"][0]["name"]}" denied the request' in said.message
        (cause,) = said.body["details"]["causes"]
        assert cause["field"] == "spec.jaxReplicaSpecs.Worker.replicas"
        assert cause["message"] == "there are no replicas at all; a job needs at least one"
        await kube.create(JOBS["JAXJob"], job("jax", {"metadata": {"name": "good", "namespace": "default"}}), namespace="default")


@pytest.mark.parametrize("name", ["controller", "rendezvous"])
async def test_controller_and_rendezvous_server_act_under_accounts_of_their_own(cluster: LocalCluster, name: str) -> None:
    command = Path(f"/proc/{cluster.state.processes[name]}/cmdline").read_text().split("\0")
    given = Path(command[command.index("--kubeconfig") + 1])
    assert str(cluster.kubeconfig) not in command
    assert given.stat().st_mode & 0o777 == 0o600
    async with connect(given) as kube:
        said = await kube.create(REVIEWS, {"apiVersion": REVIEWS.api_version, "kind": "SelfSubjectReview"})
        assert said["status"]["userInfo"]["username"] == f"system:serviceaccount:elastic-system:elastic-{name}"
        with pytest.raises(KubeError, match="Forbidden"):
            await kube.get(VALIDATING_WEBHOOK_CONFIGURATIONS, "somebody-elses")
