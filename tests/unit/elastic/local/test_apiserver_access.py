"""Check the API server's tokens, roles and bindings, and its faults on purpose."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic import certificates
from elastic.local.apiserver.auth import ISSUER, Tokens
from elastic.local.apiserver.calls import User
from elastic.local.apiserver.errors import StatusError
from elastic.local.apiserver.faults import Faults
from elastic.local.apiserver.rbac import GROUP, Rbac
from elastic.local.apiserver.store import Store

Json = dict[str, Any]
ADMIN = "the-admin-token"


def tokens(alive: bool = True) -> Tokens:
    return Tokens(certificates.new_key(), ADMIN, lambda *_: alive)


def test_the_admin_token_is_a_master_and_others_are_nobody() -> None:
    found = tokens().user(ADMIN)
    assert found is not None
    assert "system:masters" in found[0].groups
    for wrong in ("", "x", "a.b.c", "the-admin-tokem", ADMIN + "x", "ü", "\udcfc", "\udcfc.b.c"):
        assert tokens().user(wrong) is None


def test_an_accounts_token_names_the_account_and_its_groups() -> None:
    made = tokens()
    token, _ = made.account_token("default", "robot", "uid-1", seconds=600)
    found = made.user(token)
    assert found is not None
    user, audiences = found
    assert user.name == "system:serviceaccount:default:robot"
    assert user.groups == ("system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated")
    assert audiences == [ISSUER]


def test_a_token_for_another_audience_opens_only_that() -> None:
    made = tokens()
    token, _ = made.account_token("default", "robot", "uid-1", seconds=600, audiences=["elastic-rendezvous"])
    assert made.user(token) is None
    found = made.user(token, ["elastic-rendezvous", "other"])
    assert found is not None
    assert found[1] == ["elastic-rendezvous"]


def test_a_token_ends_with_its_time_its_account_and_its_key() -> None:
    made = tokens()
    assert made.user(made.account_token("default", "robot", "u", seconds=-1)[0]) is None
    gone = tokens(alive=False)
    assert gone.user(gone.account_token("default", "robot", "u", seconds=600)[0]) is None
    assert tokens().user(made.account_token("default", "robot", "u", seconds=600)[0]) is None


def test_a_changed_token_is_refused() -> None:
    made = tokens()
    head, body, signature = made.account_token("default", "robot", "u", seconds=600)[0].split(".")
    other = made.account_token("default", "root", "u", seconds=600)[0].split(".")[1]
    assert made.user(f"{head}.{other}.{signature}") is None
    assert made.user(f"{head}.{body}.{signature[:-4]}AAAA") is None


# ---------------------------------------------------------------------- roles
@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "objects.db", lambda *_: {})
    yield made
    made.close()


ROBOT = User("system:serviceaccount:default:robot", ("system:serviceaccounts", "system:authenticated"))
SUBJECT = {"kind": "ServiceAccount", "name": "robot", "namespace": "default"}


def grant(store: Store, rule: Json, *, namespace: str = "default", subject: Json = SUBJECT, name: str = "r") -> None:
    cluster = not namespace
    kind = "clusterroles" if cluster else "roles"
    reference = {"kind": "ClusterRole" if cluster else "Role", "name": name, "apiGroup": GROUP}
    store.put(f"{kind}.{GROUP}", namespace, name, obj={"metadata": {"name": name}, "rules": [rule]}, expected=None)
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    store.put(f"{'clusterrolebindings' if cluster else 'rolebindings'}.{GROUP}", namespace, name, obj=binding, expected=None)


def may(rbac: Rbac, verb: str, resource: str, *, namespace: str = "default", name: str = "", sub: str = "", group: str = "") -> bool:
    attributes = {"verb": verb, "group": group, "resource": resource, "subresource": sub, "namespace": namespace, "name": name}
    return rbac.allows(ROBOT, attributes)[0]


def test_a_role_holds_in_its_namespace_for_its_verbs_and_resources(store: Store) -> None:
    rbac = Rbac(store)
    assert not may(rbac, "get", "pods")
    grant(store, {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get"]})
    assert may(rbac, "get", "pods")
    assert may(rbac, "get", "pods", sub="log")
    assert not may(rbac, "get", "pods", sub="exec")
    assert not may(rbac, "list", "pods")
    assert not may(rbac, "get", "pods", namespace="other")
    assert not may(rbac, "get", "pods", group="other.io")


def test_a_cluster_role_bound_to_the_cluster_holds_everywhere(store: Store) -> None:
    rbac = Rbac(store)
    grant(store, {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}, namespace="")
    assert may(rbac, "delete", "jobs", namespace="any", group="batch")
    assert not rbac.allows(ROBOT, {"verb": "get", "path": "/metrics"})[0]


def test_names_restrict_and_groups_count(store: Store) -> None:
    rbac = Rbac(store)
    group = {"kind": "Group", "name": "system:serviceaccounts", "apiGroup": GROUP}
    grant(store, {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["one"], "verbs": ["get"]}, subject=group)
    assert may(rbac, "get", "configmaps", name="one")
    assert not may(rbac, "get", "configmaps", name="two")
    assert not may(rbac, "get", "configmaps")


def test_nobody_hands_out_more_than_they_have(store: Store) -> None:
    rbac = Rbac(store)
    grant(store, {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]})
    less = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
    more = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "delete"]}
    assert rbac.lacking(ROBOT, [less, more], "default") == [more]
    assert rbac.lacking(ROBOT, [less], "other") == [less]
    assert rbac.lacking(User("root", ("system:masters",)), [more], "default") == []


# ---------------------------------------------------------------------- faults
def test_a_fault_meets_only_the_chosen_requests_and_no_longer_than_asked() -> None:
    faults = Faults(seed=1)
    faults.replace(json.dumps([{"method": "GET", "path": "/api/v1/pods", "agent": "kopf", "status": 409, "times": 2}]).encode())
    assert faults.meet("GET", "/api/v1/pods", "kubectl/1").error is None
    assert faults.meet("PUT", "/api/v1/pods", "kopf/1").error is None
    met = [faults.meet("GET", "/api/v1/pods", "kopf/1").error for _ in range(3)]
    assert [e.code if e else None for e in met] == [409, 409, None]


def test_the_same_seed_meets_the_same_requests() -> None:
    def run() -> list[bool]:
        faults = Faults(seed=7)
        faults.replace(b'[{"drop": true, "probability": 0.5}]')
        return [faults.meet("GET", "/", "").drop for _ in range(50)]

    assert run() == run()
    assert 5 < sum(run()) < 45


@pytest.mark.parametrize("body", [b"{}", b'[{"colour": 1}]', b'[{"path": "("}]', b"", b"[1]"])
def test_invalid_rules_are_refused(body: bytes) -> None:
    with pytest.raises(StatusError, match="expected a list of rules"):
        Faults(seed=1).replace(body)
