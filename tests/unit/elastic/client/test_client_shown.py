"""Check the views of a job that `elastic.Client` gives: logs, the result, a line or a table, and the progress of training."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cli_api import Api, job, pod
from client_api import Open
from kubernetes import client as official

from elastic.api.kinds import KINDS
from elastic.client import errors, live, page
from elastic.client.cluster import Cluster, checked_dashboard
from elastic.client.job import Job
from elastic.client.sample import Sample
from elastic.client.summary import Summary, summary
from elastic.kube.lines import LONGEST


def test_the_view_in_a_notebook_is_escaped_and_elsewhere_it_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    status = {"conditions": [{"type": "Failed", "status": "True", "message": "<script>alert(1)</script>\x1b[2J"}]}
    told = summary(KINDS["PyTorchJob"], {"metadata": {"name": "a"}, "status": status})
    assert "<script>" not in page.as_html(told, "<b>")
    page.show([told], lambda: None)
    assert capsys.readouterr().out == "PyTorchJob a  Failed  0 of 0 workers  world -  0 restarts  <script>alert(1)</script>\\x1b[2J\n"


def logged(name: str, index: int, log: str, owner: str = "uid-train") -> tuple[dict[str, Any], str]:
    made = pod(index, phase="Succeeded")
    made["metadata"] |= {"name": name, "ownerReferences": [{"uid": owner}]}
    return made, log


Finished = Callable[..., Job]


@pytest.fixture
def finished(opened: Open) -> Finished:
    def job_with(*pods: tuple[dict[str, Any], str]) -> Job:
        status = {"conditions": [{"type": "Succeeded", "status": "True"}], "elastic": {"ranks": "0,1"}}
        api = Api(job(status=status), *(pod for pod, _ in pods))
        api.logs = {pod["metadata"]["name"]: log for pod, log in pods}
        return opened(api).get("train")

    return job_with


def test_a_line_that_says_nothing_new_is_not_printed_again(capsys: pytest.CaptureFixture[str]) -> None:
    told = summary(KINDS["PyTorchJob"], {"metadata": {"name": "a"}, "status": {"elastic": {"worldSize": 1}}})
    page.show([told, told, told], lambda: None)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_result_comes_from_the_jobs_own_pods(finished: Finished) -> None:
    """Any pod of the namespace with the job's label was asked, even a pod of another kind of job with the same name."""
    forged = logged("a-first", 0, "elastic-result: 666\n", owner="another")
    found = finished(forged, logged("train-worker-0", 0, "some words\nelastic-result: 7\n"), logged("train-worker-1", 1, ""))
    assert found.result() == 7
    assert [pod["metadata"]["name"] for pod in found.pods()] == ["train-worker-0", "train-worker-1"]
    assert list(found.logs(rank=0)) == ["some words", "elastic-result: 7"]
    assert list(found.logs(tail=1)) == ["train-worker-0 | elastic-result: 7"]
    with pytest.raises(errors.NotFound, match=r"has no worker 2; pods: train-worker-0 \(rank 0\), train-worker-1 \(rank 1\)"):
        list(found.logs(worker=2))


@pytest.mark.parametrize("text", ["{", "[" * 100_000])
def test_a_result_that_cannot_be_read_is_an_error_of_ours(finished: Finished, text: str) -> None:
    with pytest.raises(errors.NoResult, match="has 'elastic-result: ', but behind it no JSON"):
        finished(logged("train-worker-0", 0, f"elastic-result: {text}\n")).result()


def test_a_log_without_ends_of_lines_is_read_in_parts(finished: Finished) -> None:
    lines = list(finished(logged("train-worker-0", 0, "x" * 1_000_000)).logs())
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

    def changes() -> Iterator[Summary | None]:
        yield running_job()
        while not over.is_set():
            yield None

    steps = itertools.count(100)
    monkeypatch.setattr(page, "_display", lambda: display)
    page.show(changes(), lambda: Sample(uid="u", step=next(steps), rate=128.0, unit="samples", loss=0.5, world=3))
    for at, html in enumerate(shown[:4]):
        assert f"<td>{100 + at}</td><td>128 samples/s</td><td>0.5</td>" in html
        assert "<td>3</td>" in html, "the world as the rendezvous server has it"


def test_an_error_while_a_job_is_shown_reaches_the_caller(capsys: pytest.CaptureFixture[str]) -> None:
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

    async def refuse(of: live.Dashboard) -> dict[str, Sample]:
        asked.append(of)
        raise live.NoAnswer("it answers 401")

    asked: list[live.Dashboard] = []
    monkeypatch.setattr(live, "ask", refuse)
    configuration = official.Configuration()
    configuration.api_key["BearerToken"] = "Bearer mine"
    api = official.ApiClient(configuration)
    with pytest.raises(errors.Unreachable, match=r"the dashboard at http://localhost:1 does not say how jobs train: it answers 401"):
        asyncio.run(Cluster(api, "default", False, dashboard="http://localhost:1").sample("u"))
    assert asked == [live.Dashboard("http://localhost:1", {"Authorization": "Bearer mine"})]
    assert "mine" not in repr(asked)
    assert asyncio.run(Cluster(api, "default", False).sample("u")) is None
