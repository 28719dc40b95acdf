"""Check the answers of the metrics APIs from jobs' figures, and their questions to the API server about the caller's rights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from multidict import CIMultiDict

from elastic_training.autoscale.deciding.cluster import PodSeen
from elastic_training.autoscale.deciding.signals import Bounds
from elastic_training.autoscale.figures import JobFigures, JobName
from elastic_training.autoscale.serving.access import Question, attributes
from elastic_training.autoscale.serving.answers import CUSTOM, EXTERNAL, VERSIONS, Known, Reply, document, parsed, values
from elastic_training.autoscale.serving.applied import applied
from elastic_training.autoscale.serving.identity import Caller, Headers, told
from elastic_training.autoscale.serving.tolerated import ToleratedSize
from elastic_training.autoscale.serving.values import NAMES
from elastic_training.autoscale.watching.projections import shape_of

NOW = 1_800_000_000.0
ONE = JobFigures(key=JobName("PyTorchJob", "ns", "one"), uid="1", replicas=2, bounds=Bounds(1, 8), working=2, wanted=3, throughput=12.5)
TWO = replace(ONE, key=JobName("JAXJob", "ns", "two"), wanted=None, throughput=None)


@dataclass
class Book:
    """The figures that a test sets."""

    all: Sequence[JobFigures] = (ONE, TWO)
    is_known: bool = True

    def of(self, key: JobName) -> JobFigures | None:
        return next((job for job in self.all if job.key == key), None)

    def jobs(self, namespace: str | None = None) -> Sequence[JobFigures]:
        return [job for job in self.all if namespace in (None, job.key.namespace)]


def ask(path: str, book: Book | None = None, pods: Sequence[PodSeen] = (), **query: str) -> Reply:
    asked = parsed(path)
    assert asked is not None
    known = Known(book or Book(), lambda job: ToleratedSize(job.wanted or 0, "why"), lambda uid: [pod for pod in pods if pod.owner == uid])
    return values(asked, query, known, now=NOW)


def test_every_group_version_is_discovered_before_any_job_is_known() -> None:
    for group, versions in VERSIONS.items():
        for version in versions:
            found = document(f"/apis/{group}/{version}")
            assert found is not None
            assert found.body["groupVersion"] == f"{group}/{version}"
            assert all(entry["verbs"] == ["get"] for entry in found.body["resources"])
        listed = document(f"/apis/{group}")
        assert listed is not None
        assert listed.body["preferredVersion"]["version"] == versions[0]
    assert document("/apis/apps/v1") is None


def test_values_that_are_not_known_yet_are_a_temporary_failure() -> None:
    found = ask(f"/apis/{EXTERNAL}/v1beta1/namespaces/ns/desired_workers", Book(is_known=False))
    assert (found.status, found.body["reason"]) == (503, "ServiceUnavailable")


def test_an_external_metric_is_of_the_jobs_that_its_selector_chooses() -> None:
    path = f"/apis/{EXTERNAL}/v1beta1/namespaces/ns/desired_workers"
    item = {"metricName": "desired_workers", "timestamp": "2027-01-15T08:00:00Z", "value": "3"}
    labels = {"kind": "PyTorchJob", "job": "one", "reason": "why"}
    for selector in ("job=one", "job in (one,two),kind!=JAXJob", "", "!nothing"):
        assert ask(path, labelSelector=selector).body["items"] == [item | {"metricLabels": labels}], selector
    assert ask(path, labelSelector="job=two").body["items"] == [], "nothing is wanted for it yet"
    assert ask(path, labelSelector="job=").body["items"] == []
    refused = ask(path, labelSelector="job in one")
    assert (refused.status, refused.body["message"].partition(":")[0]) == (400, "labelSelector")


@pytest.mark.parametrize("version", VERSIONS[CUSTOM])
def test_a_custom_metric_is_of_one_job(version: str) -> None:
    found = ask(f"/apis/{CUSTOM}/{version}/namespaces/ns/pytorchjobs.kubeflow.org/one/throughput")
    (item,) = found.body["items"]
    described = {"kind": "PyTorchJob", "namespace": "ns", "name": "one", "apiVersion": "kubeflow.org/v1"}
    assert (item["describedObject"], item["value"]) == (described, "12500m")
    assert item.get("metricName", item.get("metric", {}).get("name")) == "throughput"


JOBS = f"/apis/{CUSTOM}/v1beta2/namespaces/ns/pytorchjobs.kubeflow.org"


def names(found: Reply) -> list[str]:
    assert found.status == 200, found.body
    return [item["describedObject"]["name"] for item in found.body["items"]]


def test_a_custom_metric_of_all_jobs_is_of_those_that_the_selector_chooses_by_their_labels() -> None:
    book = Book([replace(ONE, labels={"team": "a", "tier": "x"}), replace(ONE, key=JobName("PyTorchJob", "ns", "plain")), TWO])
    for selector, chosen in (("team=a", ["one"]), ("team in (a,b),tier", ["one"]), ("!team", ["plain"]), ("team=b", []), ("job=one", [])):
        assert names(ask(f"{JOBS}/*/throughput", book, labelSelector=selector)) == chosen, selector
    assert names(ask(f"{JOBS}/*/throughput", book)) == ["one", "plain"]
    assert names(ask(f"{JOBS}/plain/throughput", book, labelSelector="team=a")) == ["plain"], "a name is a name"


def test_a_selector_of_metrics_that_requires_a_label_matches_none_of_ours() -> None:
    for selector in ("quantile=p99", "quantile"):
        assert names(ask(f"{JOBS}/*/throughput", metricLabelSelector=selector)) == []
        refused = ask(f"{JOBS}/one/throughput", metricLabelSelector=selector)
        assert (refused.status, refused.body["message"]) == (
            404,
            f"throughput has no labels, but metricLabelSelector is '{selector}'; leave metricLabelSelector out",
        )
    for selector in ("", "!quantile", "quantile!=p99"):
        assert names(ask(f"{JOBS}/one/throughput", metricLabelSelector=selector)) == ["one"]
        assert names(ask(f"{JOBS}/*/throughput", metricLabelSelector=selector)) == ["one"]


PODS = f"/apis/{CUSTOM}/v1beta2/namespaces/ns/pods"


def worker(name: str, *, owner: str = "1", namespace: str = "ns", **more: Any) -> PodSeen:
    labels = {"training.kubeflow.org/job-name": "one", "training.kubeflow.org/replica-index": name[-1]}
    made = PodSeen(key=(namespace, name), node="n", shape=shape_of({}), owner=owner, is_worker=True, is_running=True, labels=labels)
    return replace(made, **more)


def test_the_workers_that_a_selector_chooses_have_their_part_of_the_throughput() -> None:
    """The controller of HorizontalPodAutoscalers asks like this for a metric of type Pods, and takes the mean."""
    pods = [worker("one-0"), worker("one-1")]
    query = {"labelSelector": "training.kubeflow.org/job-name=one", "metricLabelSelector": ""}
    found = ask(f"{PODS}/*/throughput", pods=pods, **query)
    described = {"kind": "Pod", "namespace": "ns", "name": "one-0", "apiVersion": "v1"}
    assert found.body["items"][0] | {"timestamp": ""} == {
        "describedObject": described,
        "metric": {"name": "throughput"},
        "timestamp": "",
        "value": "6250m",
    }
    assert names(found) == ["one-0", "one-1"]
    assert names(ask(f"{PODS}/*/throughput", pods=pods, labelSelector="training.kubeflow.org/replica-index=1")) == ["one-1"]
    assert names(ask(f"{PODS}/*/throughput", pods=pods, labelSelector="app=other")) == []
    assert names(ask(f"{PODS}/*/throughput", pods=pods, metricLabelSelector="quantile")) == []
    assert names(ask(f"{PODS}/one-1/throughput", pods=pods)) == ["one-1"]


def test_a_pod_that_does_not_train_with_its_job_has_no_metric() -> None:
    pods = [worker("a-0", is_running=False), worker("a-1", is_leaving=True), worker("a-2", owner="x"), worker("a-3", namespace="other")]
    assert names(ask(f"{PODS}/*/throughput", pods=pods)) == []


def test_pods_have_no_value_before_their_jobs_throughput_is_known() -> None:
    book, pods = Book([replace(ONE, throughput=None)]), [worker("one-0")]
    assert names(ask(f"{PODS}/*/throughput", book, pods)) == []
    found = ask(f"{PODS}/one-0/throughput", book, pods)
    assert (found.status, found.body["message"]) == (404, "throughput of Pod ns/one-0 is not known yet")


def test_discovery_lists_what_pods_have() -> None:
    found = document(f"/apis/{CUSTOM}/v1beta2")
    assert found is not None
    listed = [entry["name"] for entry in found.body["resources"] if entry["name"].startswith("pods/")]
    assert listed == ["pods/throughput"]


@pytest.mark.parametrize("field", ["labelSelector", "metricLabelSelector"])
@pytest.mark.parametrize("name", ["*", "one"])
def test_a_selector_that_cannot_be_read_is_refused_with_its_field(field: str, name: str) -> None:
    refused = ask(f"{JOBS}/{name}/throughput", **{field: "a in b"})
    assert (refused.status, refused.body["reason"]) == (400, "BadRequest")
    assert refused.body["message"].startswith(f"{field}: 'a in b' is no term of a selector")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (
            f"/apis/{CUSTOM}/v1beta1/namespaces/ns/pytorchjobs.kubeflow.org/none/throughput",
            "does not exist, has no scalingPolicy, or has no figures yet",
        ),
        (f"/apis/{CUSTOM}/v1beta1/namespaces/ns/jaxjobs.kubeflow.org/two/throughput", "throughput of JAXJob ns/two is not known yet"),
        (f"/apis/{CUSTOM}/v1beta1/namespaces/ns/services/one/throughput", "there are no metrics for services; only jobs (such as"),
        (f"/apis/{CUSTOM}/v1beta1/namespaces/ns/pods/one/throughput", "pod ns/one is not a running worker of a job with a scalingPolicy"),
        (f"/apis/{CUSTOM}/v1beta2/namespaces/ns/pods/*/goodput", "use a metric of type Object or External, or throughput"),
        (f"/apis/{EXTERNAL}/v1beta1/namespaces/ns/loss", "there is no metric loss"),
    ],
)
def test_a_missing_metric_is_told_in_words(path: str, words: str) -> None:
    found = ask(path)
    assert found.status == 404
    assert words in found.body["message"]


def test_every_metric_has_a_value_or_none_for_any_figures() -> None:
    odd = replace(ONE, throughput=float("nan"), efficiency=float("inf"), goodput=0.25, left_s=1e300)
    for name in NAMES:
        found = ask(f"/apis/{CUSTOM}/v1beta1/namespaces/ns/pytorchjobs.kubeflow.org/*/{name}", Book([odd]))
        assert found.status == 200
        assert all("nan" not in item["value"] and "inf" not in item["value"] for item in found.body["items"])


MEASURED = ("throughput", "throughput_per_worker", "scaling_efficiency", "marginal_efficiency", "seconds_to_target")
WHOLE = replace(ONE, efficiency=0.9, marginal_efficiency=0.8, goodput=0.7, rescale_s=3.0, left_s=60.0, measured_at=NOW - 3600)


@pytest.mark.parametrize("name", NAMES)
def test_a_value_has_the_time_at_which_it_was_measured(name: str) -> None:
    """All values had the time of the answer, also a throughput from before the last three changes of size."""
    expected = "2027-01-15T07:00:00Z" if name in MEASURED else "2027-01-15T08:00:00Z"
    (external,) = ask(f"/apis/{EXTERNAL}/v1beta1/namespaces/ns/{name}", Book([WHOLE])).body["items"]
    (custom,) = ask(f"{JOBS}/one/{name}", Book([WHOLE])).body["items"]
    assert (external["timestamp"], custom["timestamp"]) == (expected, expected)


@pytest.mark.parametrize("at", [NOW + 600, 0.0, None])
def test_a_time_that_is_not_known_or_to_come_is_the_present(at: float | None) -> None:
    (item,) = ask(f"{JOBS}/one/throughput", Book([replace(WHOLE, measured_at=at)])).body["items"]
    assert item["timestamp"] == "2027-01-15T08:00:00Z"


@pytest.mark.parametrize("name", NAMES)
def test_the_measures_of_a_job_that_has_fallen_silent_are_no_values_any_more(name: str) -> None:
    silent, pods = Book([replace(WHOLE, is_silent=True)]), [worker("one-0")]
    external = ask(f"/apis/{EXTERNAL}/v1beta1/namespaces/ns/{name}", silent)
    assert len(external.body["items"]) == (0 if name in MEASURED else 1)
    custom = ask(f"{JOBS}/one/{name}", silent)
    if name in MEASURED:
        assert (custom.status, custom.body["message"]) == (
            404,
            f"{name} of PyTorchJob ns/one is not known (last measured at 2027-01-15T07:00:00Z): the job reports no progress any more",
        )
        assert names(ask(f"{PODS}/*/throughput", silent, pods)) == []
    else:
        assert custom.status == 200


HEADERS = Headers("ca", ("front",), ("X-Remote-User",), ("X-Remote-Group",), ("X-Remote-Uid",), ("X-Remote-Extra-",))


def test_headers_are_believed_from_the_allowed_certificate_only() -> None:
    given = CIMultiDict([("X-Remote-User", "ann"), ("X-Remote-Group", "a"), ("X-Remote-Group", "b"), ("X-Remote-Extra-Scopes%2fX", "s")])
    assert told(HEADERS, given, frozenset({"front"})) == Caller("ann", ("a", "b"), "", (("scopes/x", ("s",)),))
    assert told(HEADERS, given, frozenset({"other"})) is None
    assert told(replace(HEADERS, allowed=()), given, frozenset({"any"})) is not None
    assert told(HEADERS, CIMultiDict(), frozenset({"front"})) is None, "a certificate without a user is nobody"


def reviewed(path: str) -> dict[str, str]:
    asked = parsed(path)
    assert asked is not None
    found: dict[str, str] = attributes(Question(Caller("ann"), asked))["resourceAttributes"]
    return found


def test_the_api_server_is_asked_about_the_very_request() -> None:
    path = f"/apis/{CUSTOM}/v1beta1/namespaces/ns/pytorchjobs.kubeflow.org/one/goodput"
    assert reviewed(path) == {
        "group": CUSTOM,
        "version": "v1beta1",
        "namespace": "ns",
        "verb": "get",
        "resource": "pytorchjobs.kubeflow.org",
        "name": "one",
        "subresource": "goodput",
    }
    path = f"/apis/{EXTERNAL}/v1beta1/namespaces/ns/goodput"
    assert reviewed(path)["verb"] == "list"


def hpa(**behavior: object) -> dict[str, object]:
    metric = {
        "type": "External",
        "external": {"metric": {"name": "desired_workers"}, "target": {"type": "AverageValue", "averageValue": "1"}},
    }
    target = {"kind": "PyTorchJob", "name": "one", "apiVersion": "kubeflow.org/v1"}
    return {"spec": {"minReplicas": 2, "maxReplicas": 8, "scaleTargetRef": target, "metrics": [metric], "behavior": behavior}}


def test_a_tolerance_counts_once_the_api_server_shows_it_for_both_directions() -> None:
    for up, down, is_exact in (("0", "0", True), ("0", None, False), (None, None, False), ("100m", "0", False), ("0.0", "0", True)):
        rules = {way: {"tolerance": value} for way, value in (("scaleUp", up), ("scaleDown", down)) if value is not None}
        found = applied(hpa(**rules))
        assert found is not None
        assert (found.least, found.most, found.is_exact) == (2, 8, is_exact)
    other = hpa()
    other["spec"]["metrics"] = [{"type": "Resource", "resource": {"name": "cpu"}}]  # type: ignore[index]
    assert applied(other) is None
