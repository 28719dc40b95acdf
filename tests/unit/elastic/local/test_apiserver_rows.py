"""Tables of kubectl for kinds that are only stored: a column for each cell, and the numbers that people look for."""

from __future__ import annotations

from typing import Any

import pytest

from elastic.local.apiserver import kinds

OBJECTS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "ResourceQuota": ({"spec": {"hard": {"pods": "5", "limits.cpu": "2"}}}, ["n", "pods: 0/5", "limits.cpu: 0/2", "<unknown>"]),
    "RoleBinding": (
        {
            "roleRef": {"kind": "Role", "name": "r"},
            "subjects": [{"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "namespace": "s", "name": "a"}],
        },
        ["n", "Role/r", "<unknown>", "u", "", "s/a"],
    ),
    "ValidatingWebhookConfiguration": ({"webhooks": [{}, {}]}, ["n", 2, "<unknown>"]),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_cells_tell_what_a_real_server_tells(kind: str) -> None:
    given, expected = OBJECTS[kind]
    strategy = next(t.strategy for t in kinds.built_in() if t.kind == kind)
    assert strategy.cells({"metadata": {"name": "n"}, **given}) == expected


def test_every_kind_has_a_cell_for_each_column() -> None:
    for served in kinds.built_in():
        if "list" in served.verbs:
            empty = {"metadata": {"name": "n", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}, "involvedObject": {}}
            assert len(served.strategy.cells(empty)) == len(served.strategy.columns()), served.kind
