"""A rule with resourceNames allows a list of these names, if the request asks for one of them by its field selector, as in Kubernetes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from api_in_process import served

from elastic.kube import access
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, LEASES, SERVICE_ACCOUNTS

RBAC = "rbac.authorization.k8s.io"


async def test_a_list_by_name_needs_only_the_right_to_this_name(tmp_path: Path) -> None:
    async with served(tmp_path) as kubeconfig, Kube(access.from_kubeconfig(kubeconfig)) as admin:
        for name in ("one", "two"):
            await admin.create(LEASES, {"metadata": {"name": name}}, namespace="default")
        rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["one"], "verbs": ["list"]}
        await admin.create(SERVICE_ACCOUNTS, {"metadata": {"name": "robot"}}, namespace="default")
        await admin.create(CLUSTER_ROLES, {"metadata": {"name": "lists-one"}, "rules": [rule]})
        reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "lists-one"}
        subjects = [{"kind": "ServiceAccount", "name": "robot", "namespace": "default"}]
        await admin.create(CLUSTER_ROLE_BINDINGS, {"metadata": {"name": "lists-one"}, "roleRef": reference, "subjects": subjects})
        config = yaml.safe_load(kubeconfig.read_text())
        token = await admin.token_of("robot", namespace="default", lasts_s=600)
        for user in config["users"]:
            user["user"] = {"token": token}
        (tmp_path / "robot").write_text(yaml.safe_dump(config))
        async with Kube(access.from_kubeconfig(tmp_path / "robot")) as robot:
            for fields in ("metadata.name=one", "metadata.name==one", "metadata.namespace=default,metadata.name=one"):
                assert [lease["metadata"]["name"] for lease in (await robot.list(LEASES, fields=fields)).items] == ["one"]
            for other in (None, "metadata.name=two", "metadata.name!=one"):
                with pytest.raises(KubeError, match="cannot list resource"):
                    await robot.list(LEASES, fields=other)
