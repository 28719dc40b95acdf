"""What `elastic.Client` shows of a job, and gives back: logs, the result, a line or a table, and how training goes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from client_api import Api, Fake
from kubernetes import client as official

from elastic.api.kinds import KINDS
from elastic.client import errors, live, page
from elastic.client.cluster import Cluster, checked_dashboard
from elastic.client.job import Job
from elastic.client.sample import Sample
from elastic.client.summary import Summary, summary
from elastic.kube.lines import LONGEST


def test_what_a_notebook_shows_is_escaped_and_without_one_it_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    status = {"conditions": [{"type": "Failed", "status": "True", "message": "<script>alert(1)</script>\x1b[2J"}]}
    told = summary(KINDS["PyTorchJob"], {"metadata": {"name": "a"}, "status": status})
    assert "<script>" not in page.as_html(told, "<b>")
    page.show([told], lambda: None)
    assert capsys.readouterr().out == "PyTorchJob a  Failed  0 of 0 workers  world -  0 restarts  <script>alert(1)</script>\\x1b[2J\n"


class Cored(Fake):
    """Has pods with logs."""

    @property
    def core(self) -> Any:
        return self.api


def logged(name: str, index: int, log: bytes, owner: str = "uid-0") -> dict[str, Any]:
    labels = {"training.kubeflow.org/job-name": "train", "training.kubeflow.org/replica-index": str(index)}
    labels["training.kubeflow.org/replica-type"] = "worker"
    metadata = {"name": name, "labels": labels, "ownerReferences": [{"uid": owner}]}
    spec = {"containers": [{"name": "pytorch"}]}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Succeeded"}, "log": log}


def finished(*pods: dict[str, Any]) -> Job:
    class Logs(Api):
        def list_namespaced_pod(self, namespace: str, **_: Any) -> Any:
            return {"items": list(pods)}

        def sanitize_for_serialization(self, found: Any) -> Any:
            return found

        def read_namespaced_pod_log(self, name: str, namespace: str, **_: Any) -> Any:
            log = next(pod["log"] for pod in pods if pod["metadata"]["name"] == name)
            pieces = (log[at : at + 65536] for at in range(0, len(log), 65536))
            return SimpleNamespace(stream=lambda: pieces, close=lambda: None)

    api = Logs()
    status = {"conditions": [{"type": "Succeeded", "status": "True"}], "elastic": {"ranks": "0,1"}}
    api.objects["train"] = {"metadata": {"name": "train", "uid": "uid-0", "resourceVersion": "1"}, "status": status}
    return Job(Cored(api, "default", False), KINDS["PyTorchJob"], "train")


def test_a_line_that_says_nothing_new_is_not_printed_again(capsys: pytest.CaptureFixture[str]) -> None:
    told = summary(KINDS["PyTorchJob"], {"metadata": {"name": "a"}, "status": {"elastic": {"worldSize": 1}}})
    page.show([told, told, told], lambda: None)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_result_comes_from_the_jobs_own_pods() -> None:
    """Any pod of the namespace with the job's label was asked, that of a job of another kind with its name too."""
    forged = logged("a-first", 0, b"elastic-result: 666\n", owner="another")
    job = finished(forged, logged("train-worker-0", 0, b"some words\nelastic-result: 7\n"), logged("train-worker-1", 1, b""))
    assert job.result() == 7
    assert [pod["metadata"]["name"] for pod in job.pods()] == ["train-worker-0", "train-worker-1"]
    assert list(job.logs(rank=0)) == ["some words", "elastic-result: 7"]


@pytest.mark.parametrize("text", [b"{", b"[" * 100_000])
def test_a_result_that_cannot_be_read_is_an_error_of_ours(text: bytes) -> None:
    with pytest.raises(errors.NoResult, match="has 'elastic-result: ', but behind it no JSON"):
        finished(logged("train-worker-0", 0, b"elastic-result: " + text + b"\n")).result()


def test_a_log_without_ends_of_lines_is_read_in_parts() -> None:
    lines = list(finished(logged("train-worker-0", 0, b"x" * 1_000_000)).logs())
    assert "".join(lines) == "x" * 1_000_000
    assert max(map(len, lines)) == LONGEST


def running_job() -> Summary:
    status = {
        "conditions": [{"type": "Running", "status": "True"}],
        "replicaStatuses": {"Worker": {"active": 2}},
        "elastic": {"worldSize": 2},
    }
    return summary(KINDS["PyTorchJob"], {"metadata": {"name": "a"}, "status": status})


def test_the_table_of_a_notebook_goes_on_while_only_the_step_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    over = threading.Event()

    class Handle:
        def update(self, table: page.Table) -> None:
            shown.append(table._repr_html_())
            if len(shown) > 3:
                over.set()

    def display(table: page.Table, *, display_id: bool) -> Handle:
        shown.append(table._repr_html_())
        return Handle()

    def changes() -> Iterator[Summary]:
        yield running_job()
        assert over.wait(60)

    steps = itertools.count(100)
    monkeypatch.setattr(page, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(page, "_display", lambda: display)
    page.show(changes(), lambda: Sample(uid="u", step=next(steps), rate=128.0, unit="samples", loss=0.5, world=3))
    for at, html in enumerate(shown[:4]):
        assert f"<td>{100 + at}</td><td>128 samples/s</td><td>0.5</td>" in html
        assert "<td>3</td>" in html, "the world as the rendezvous server has it"


def test_what_breaks_while_a_job_is_shown_reaches_the_caller(capsys: pytest.CaptureFixture[str]) -> None:
    def changes() -> Iterator[Summary]:
        yield running_job()
        raise errors.JobFailed("a was deleted", name="a")

    with pytest.raises(errors.JobFailed, match="a was deleted"):
        page.show(changes(), lambda: Sample(uid="u", step=7))
    assert capsys.readouterr().out == "PyTorchJob a  Running  0 of 0 workers  world 2  step 7  0 restarts\n"


def test_a_dashboard_that_was_named_must_be_safe_and_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.NoCluster, match=r"dashboard is 'http://training\.example' but must begin with https://"):
        checked_dashboard("http://training.example")
    monkeypatch.setenv("ELASTIC_DASHBOARD", "http://localhost:1")
    assert checked_dashboard(None) == "http://localhost:1"

    class Silent(Api):
        configuration = official.Configuration()

    def refuse(of: live.Dashboard) -> dict[str, Sample]:
        asked.append(of)
        raise live.NoAnswer("it answers 401")

    asked: list[live.Dashboard] = []
    monkeypatch.setattr(live, "asked", refuse)
    Silent.configuration.api_key["BearerToken"] = "Bearer mine"
    with pytest.raises(errors.Unreachable, match=r"the dashboard at http://localhost:1 does not say how jobs train: it answers 401"):
        Cluster(Silent(), "default", False, dashboard="http://localhost:1").sample("u")
    assert asked == [live.Dashboard("http://localhost:1", {"Authorization": "Bearer mine"})]
    assert "mine" not in repr(asked)
    assert Cluster(Silent(), "default", False).sample("u") is None
