"""Check the rights that the control plane's accounts get on the laptop, and in a cluster of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from elastic.api import rights
from elastic.local.accounts import PAGES, Accounts


class Admin:
    def __init__(self) -> None:
        self.applied: list[tuple[str, str]] = []

    async def patch(self, _: object, name: str, body: dict[str, Any], **__: object) -> None:
        self.applied.append((body["kind"], name))

    async def token_of(self, account: str, **_: object) -> str:
        return f"token of {account}"


@pytest.mark.parametrize("is_guest", [True, False])
async def test_pages_of_pods_may_be_read_through_the_laptops_own_api_server_only(tmp_path: Path, *, is_guest: bool) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    clusters = [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}]
    kubeconfig.write_text(yaml.safe_dump({"current-context": "c", "contexts": [context], "clusters": clusters}))
    admin = Admin()
    await Accounts(kubeconfig, tmp_path, is_guest=is_guest).make(admin)  # type: ignore[arg-type]
    given = {kind for kind, name in admin.applied if name == PAGES.name}
    assert given == (set() if is_guest else {"ClusterRole", "ClusterRoleBinding"})
    assert ("ClusterRole", rights.AUTOSCALER) in admin.applied


def test_in_a_cluster_nobody_may_read_pages_through_the_api_server() -> None:
    for role in (*rights.roles(), *rights.autoscaler_roles(), *rights.metrics_api_roles(), *rights.dashboard_roles()):
        assert not any("pods/proxy" in right.resources for right in role.rights), role.name
