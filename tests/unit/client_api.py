"""An API server in memory behind `elastic.Client`, for tests."""

from __future__ import annotations

import json
from typing import Any

from kubernetes import client as official

from elastic.client.cluster import Cluster


class Api:
    """Keeps objects, and answers as the API server does."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.deleted: list[str] = []

    def get_namespaced_custom_object(self, *, name: str, **at: Any) -> dict[str, Any]:
        if name not in self.objects:
            raise refusal(404, f'pytorchjobs.kubeflow.org "{name}" not found')
        return self.objects[name]

    def create_namespaced_custom_object(
        self, group: str, version: str, namespace: str, plural: str, body: dict[str, Any], **_: Any
    ) -> dict[str, Any]:
        body["metadata"] |= {"uid": f"uid-{len(self.deleted)}", "namespace": namespace}
        self.objects[body["metadata"]["name"]] = body
        return body

    def patch_namespaced_custom_object(self, *, name: str, body: dict[str, Any], **at: Any) -> None:
        self.before_patch(name)
        there = self.objects[name]
        if body["metadata"]["uid"] != there["metadata"]["uid"]:
            raise refusal(409, "Precondition failed: UID in precondition", "Conflict")
        there["spec"] |= body["spec"]

    patch_namespaced_custom_object_scale = patch_namespaced_custom_object

    def before_patch(self, name: str) -> None:
        """Let a test change what there is."""

    def list_namespaced_custom_object(self, **at: Any) -> None: ...

    def delete_namespaced_custom_object(self, *, name: str, body: official.V1DeleteOptions, **at: Any) -> None:
        assert body.preconditions is not None
        assert body.preconditions.uid == self.objects[name]["metadata"]["uid"]
        self.deleted.append(name)
        del self.objects[name]


class Fake(Cluster):
    @property
    def jobs(self) -> Any:
        return self.api


def refusal(status: int, message: str, reason: str = "x") -> official.ApiException:
    error = official.ApiException(status=status, reason=reason)
    error.body = json.dumps({"message": message})
    return error
