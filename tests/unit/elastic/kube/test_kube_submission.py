"""Check which job a submission creates, and its words while it waits for a deletion."""

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


class Crowded(Server):
    """Has jobs that run and jobs that have ended."""

    def __init__(self, **jobs: bool) -> None:
        super().__init__()
        over = {"conditions": [{"type": "Failed", "status": "True"}]}
        self.jobs = {name.replace("_", "-"): job(name.replace("_", "-"), status=over if is_over else {}) for name, is_over in jobs.items()}

    async def find(self, resource: Any, name: str, *, namespace: str) -> dict[str, Any] | None:
        return self.jobs.get(name)

    async def delete(self, resource: Any, name: str, **options: Any) -> None:
        del self.jobs[name]

    async def list(self, resource: Any, **options: Any) -> Listing:
        return Listing([], "1")


@pytest.mark.parametrize(
    ("there", "name"),
    [
        ({}, "train"),
        ({"train": False}, "train-2"),
        ({"train": True}, "train"),
        ({"train": False, "train_2": False}, "train-3"),
        ({"train": False, "train_2": True}, "train-3"),
    ],
)
async def test_a_job_whose_name_is_taken_gets_a_number(there: dict[str, bool], name: str) -> None:
    """A script that ran twice at the same time was refused the second time."""
    server = Crowded(**there)
    made = await Submission(server, namespace="default", replace_over=True, numbers=True).create(job("train"))  # type: ignore[arg-type]
    assert made.name == name
    assert ("train-2" in server.jobs) == ("train_2" in there), "a job of a numbered name may be another script's"


async def test_names_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "MOST_NUMBERED", 2)
    made = Submission(Crowded(train=False, train_2=False), namespace="default", numbers=True)  # type: ignore[arg-type]
    with pytest.raises(submission.SubmissionRefused, match="train and 1 numbered names belong to unfinished jobs; give this one a --name"):
        await made.create(job("train"))
