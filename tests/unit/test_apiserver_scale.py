"""The subresource scale of the laptop's API server."""

from __future__ import annotations

from pathlib import Path

import pytest
from api_in_process import served

from elastic.kube import access
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import Object, Resource

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")


def deployment() -> Object:
    labels = {"app": "one"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    return {"metadata": {"name": "one"}, "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}}


async def test_a_patch_with_the_uid_of_another_object_scales_nothing(tmp_path: Path) -> None:
    """The uid was ignored, so a client could scale the object that had got the name a moment ago."""
    async with served(tmp_path) as kubeconfig, Kube(access.from_kubeconfig(kubeconfig)) as kube:
        made = await kube.create(DEPLOYMENTS, deployment(), namespace="default")
        for uid in ("other", made["metadata"]["uid"]):
            body = {"metadata": {"uid": uid}, "spec": {"replicas": 3}}
            patched = kube.patch(DEPLOYMENTS, "one", body, namespace="default", subresource="scale")
            if uid != "other":
                await patched
                continue
            with pytest.raises(KubeError, match="Precondition failed: UID in precondition: other") as caught:
                await patched
            assert caught.value.code == 409
            assert (await kube.get(DEPLOYMENTS, "one", namespace="default"))["spec"]["replicas"] == 1
        assert (await kube.get(DEPLOYMENTS, "one", namespace="default"))["spec"]["replicas"] == 3
