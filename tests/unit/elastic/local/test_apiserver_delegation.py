"""Check the indirect powers of accounts: the rights that they hand out, and the owners whose deletion they hold up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_apiserver_access import ROBOT, Json, grant

from elastic.local.apiserver import kinds
from elastic.local.apiserver.audit import Audit
from elastic.local.apiserver.calls import Call, User
from elastic.local.apiserver.delegation import Delegation
from elastic.local.apiserver.errors import StatusError
from elastic.local.apiserver.rbac import GROUP, Rbac
from elastic.local.apiserver.resources import Registry
from elastic.local.apiserver.store import Store

OWNER = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "u", "controller": True, "blockOwnerDeletion": True}
FINALIZERS = {"apiGroups": ["apps"], "resources": ["deployments/finalizers"], "verbs": ["update"]}


class Server:
    def __init__(self, folder: Path, *, guards_owners: bool = True) -> None:
        self.store = Store(folder / "objects.db", lambda *_: {})
        self.registry = Registry()
        self.registry.add(*kinds.built_in())
        self._audit = folder / "audit.jsonl"
        self._delegation = Delegation(Rbac(self.store), self.registry, audit=Audit(self._audit), guards_owners=guards_owners)

    def check(self, obj: Json, old: Json | None = None, *, of: tuple[str, str, str] = ("", "v1", "configmaps"), user: User = ROBOT) -> None:
        kind = self.registry.find(*of)
        assert kind is not None
        self._delegation.check(Call("create", kind, "default", "x", "", {}, user), obj, old)

    def refuses(self, obj: Json, old: Json | None = None) -> str:
        with pytest.raises(StatusError) as refused:
            self.check(obj, old)
        assert refused.value.code == 403
        return refused.value.message

    @property
    def asked(self) -> list[Json]:
        return [json.loads(line) for line in self._audit.read_text().splitlines()] if self._audit.exists() else []


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.store.close()


def owned(*owners: Json) -> Json:
    return {"metadata": {"name": "x", "ownerReferences": list(owners)}}


def test_an_account_that_may_not_set_finalizers_of_an_owner_may_not_hold_up_its_deletion(server: Server) -> None:
    assert "a resource you can't set finalizers on" in server.refuses(owned(OWNER))
    grant(server.store, FINALIZERS)
    server.check(owned(OWNER))
    asked = [(line["verb"], line["group"], line["resource"], line["subresource"], line["allowed"]) for line in server.asked]
    assert asked == [("update", "apps", "deployments", "finalizers", allowed) for allowed in (False, True)]


def test_an_owner_that_is_not_held_up_and_a_master_need_no_right(server: Server) -> None:
    server.check(owned(OWNER | {"blockOwnerDeletion": False}))
    server.check(owned(OWNER), user=User("root", ("system:masters",)))
    assert server.asked == []


def test_an_owner_of_a_kind_that_nobody_serves_is_refused(server: Server) -> None:
    assert "cannot find RESTMapping for APIVersion example.com/v1 Kind Owner" in server.refuses(
        owned(OWNER | {"apiVersion": "example.com/v1", "kind": "Owner"})
    )


def test_an_account_that_may_not_delete_an_object_may_not_give_it_to_another_owner(server: Server) -> None:
    grant(server.store, FINALIZERS)
    assert "an ownerRef on a resource you can't delete" in server.refuses(owned(OWNER), owned())
    server.check(owned(OWNER) | {"data": {"a": "b"}}, owned(OWNER))
    grant(server.store, {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["delete"]}, name="deletes")
    server.check(owned(OWNER), owned())


def test_owners_are_guarded_only_if_that_was_asked_for(tmp_path: Path) -> None:
    server = Server(tmp_path, guards_owners=False)
    server.check(owned(OWNER))
    server.store.close()


def test_a_right_that_is_handed_on_counts_as_used(server: Server) -> None:
    grant(server.store, {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]})
    role = {
        "metadata": {"name": "x"},
        "rules": [{"apiGroups": [""], "resources": ["pods/exec"], "resourceNames": ["p"], "verbs": ["create"]}],
    }
    server.check(role, of=(GROUP, "v1", "roles"))
    assert [(line["verb"], line["resource"], line["subresource"], line["allowed"]) for line in server.asked] == [
        ("create", "pods", "exec", True)
    ]


def test_a_binding_to_a_role_that_is_not_there_needs_the_right_to_bind_it(server: Server) -> None:
    binding = {"metadata": {"name": "x"}, "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": "gone"}, "subjects": []}
    bindings = (GROUP, "v1", "rolebindings")
    with pytest.raises(StatusError, match=r'roles\.rbac\.authorization\.k8s\.io "gone" not found') as refused:
        server.check(binding, of=bindings)
    assert refused.value.code == 404
    server.check(binding, of=bindings, user=User("admin", ("system:masters",)))
