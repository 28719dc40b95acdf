"""Check the words of a submission that waits for a deletion."""

from __future__ import annotations

from typing import Any

import pytest
from cli_api import job

from elastic.kube import submission
from elastic.kube.paging import Listing
from elastic.kube.submission import Submission


class Server:
    """Has a job whose pod takes a few looks to end."""

    def __init__(self) -> None:
        self.job: dict[str, Any] | None = job("train")
        self.pods = [{"metadata": {"ownerReferences": [{"uid": "uid-train"}]}}] * 3

    async def find(self, resource: Any, name: str, *, namespace: str) -> dict[str, Any] | None:
        return self.job

    async def delete(self, resource: Any, name: str, **options: Any) -> None:
        self.job = None

    async def list(self, resource: Any, **options: Any) -> Listing:
        return Listing([self.pods.pop()] if self.pods else [], "1")

    async def create(self, resource: Any, document: dict[str, Any], *, namespace: str) -> dict[str, Any]:
        self.job = document | {"metadata": document["metadata"] | {"uid": "uid-new"}}
        return self.job


async def test_the_deletion_of_what_is_replaced_or_undone_is_said_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was silent for as long as the old job's pods took to end."""
    monkeypatch.setattr(submission, "LOOK_EVERY_S", 0)
    server, said = Server(), list[str]()
    made = Submission(server, namespace="default", replace=True)  # type: ignore[arg-type]
    assert (await made.create(job("train"), said.append)).uid == "uid-new"
    assert said == ["PyTorchJob train and its pods to be gone"] * 3
    server.pods = [{"metadata": {"ownerReferences": [{"uid": "uid-new"}]}}]
    assert await made.undo(said.append) == []
    assert len(said) == 4
