"""The subresource scale of the laptop's API server."""

from __future__ import annotations

from pathlib import Path

import pytest
from api_in_process import served

from elastic.api.crd import crd
from elastic.api.kinds import KINDS
from elastic.kube import access
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, Object, Resource

JOB: Object = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "fit"},
    "spec": {
        "pytorchReplicaSpecs": {"Worker": {"replicas": 1, "template": {"spec": {"containers": [{"name": "pytorch", "image": "i"}]}}}},
    },
}
JOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")


async def test_a_patch_with_the_uid_of_another_object_scales_nothing(tmp_path: Path) -> None:
    """The uid was ignored, so a client could scale the object that had got the name a moment ago."""
    async with served(tmp_path) as kubeconfig, Kube(access.from_kubeconfig(kubeconfig)) as kube:
        await kube.create(CUSTOM_RESOURCE_DEFINITIONS, crd(KINDS["PyTorchJob"]))
        made = await kube.create(JOBS, JOB, namespace="default")
        for uid in ("other", made["metadata"]["uid"]):
            body = {"metadata": {"uid": uid}, "spec": {"replicas": 3}}
            patched = kube.patch(JOBS, "fit", body, namespace="default", subresource="scale")
            if uid != "other":
                await patched
                continue
            with pytest.raises(KubeError, match="Precondition failed: UID in precondition: other") as caught:
                await patched
            assert caught.value.code == 409
            assert (await kube.get(JOBS, "fit", namespace="default"))["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 1
        assert (await kube.get(JOBS, "fit", namespace="default"))["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 3
