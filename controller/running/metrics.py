"""Count the controller's metrics: those of the Training Operator under its names, for existing dashboards, and a few of our own."""

import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from elastic.api.job import JobStatus
from elastic.api.kinds import KINDS
from elastic.api.words import Cause, ConditionType
from elastic_training.controller.deciding.lifecycle.conditions import holds

LABELS = ("job_namespace", "framework")
METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
UPSTREAM = "training_operator_jobs"
COUNTED = {
    "created": "Jobs that were accepted.",
    "deleted": "Jobs that were deleted because of ttlSecondsAfterFinished.",
    "successful": "Jobs that succeeded.",
    "failed": "Jobs that failed, for any reason.",
    "restarted": "Pods that were made again because they ended early.",
}
SHOWS_0_S = 75.0
"""Longer than the usual longest interval of a Prometheus server, a minute, and its jitter."""
OF_NO_ACCOUNT = frozenset({Cause.PLAN.value, Cause.COLLATERAL.value})


class Metrics:
    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        waiting: Callable[[], int],
        sent: Mapping[str, int],
        leads: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.registry = registry
        self._jobs = _JobCounts(clock)
        registry.register(self._jobs)
        self._seconds = Histogram("elastic_controller_round_seconds", "Duration of a reconcile.", registry=registry)
        self._errors = Counter("elastic_controller_round_errors", "Reconciles that must be repeated.", registry=registry)
        self._late = Histogram(
            "elastic_controller_wait_seconds",
            "How long a job waited for its reconcile.",
            registry=registry,
            buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
        )
        self._judged = Counter(
            "elastic_controller_admissions", "Jobs that the webhook judged.", ("framework", "allowed"), registry=registry
        )
        for kind in KINDS.values():
            for allowed in ("true", "false"):
                self._judged.labels(kind.framework, allowed)
        registry.register(_Requests(sent))
        Gauge("elastic_controller_leads", "1 if this controller holds the Lease, or needs none.", registry=registry).set_function(
            lambda: float(leads())
        )
        Gauge("elastic_controller_waiting", "Jobs that wait for their reconcile.", registry=registry).set_function(waiting)

    def reconciled(self, *, seconds: float, waited: float, failed: bool) -> None:
        self._seconds.observe(seconds)
        self._late.observe(waited)
        if failed:
            self._errors.inc()

    def changed(self, *, namespace: str, framework: str, old: JobStatus, new: JobStatus) -> None:
        """Count the conditions that became true between two statuses that were written one after the other."""
        for type, word in ((ConditionType.CREATED, "created"), (ConditionType.SUCCEEDED, "successful"), (ConditionType.FAILED, "failed")):
            if holds(new, type) and not holds(old, type):
                self._jobs.count(word, namespace, framework)
        self._jobs.count("restarted", namespace, framework, more=max(0, _restarts(new) - _restarts(old)))

    def judged(self, kind: str, *, allowed: bool) -> None:
        """Count a verdict of the webhook. Kinds that are not ours are left out."""
        if kind in KINDS:
            self._judged.labels(KINDS[kind].framework, str(allowed).lower()).inc()

    def deleted(self, *, namespace: str, framework: str) -> None:
        self._jobs.count("deleted", namespace, framework)


class _JobCounts(Collector):
    """Upstream's counters.

    Once a namespace and framework have any counter, all are shown, each as 0 for SHOWS_0_S from the first scrape on. Prometheus' increase()
    does not see the first value of a series, and each of several Prometheus servers must see the 0.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._counts: dict[tuple[str, str], dict[str, int]] = {}
        self._first_scraped: dict[tuple[str, str], float] = {}

    def count(self, word: str, namespace: str, framework: str, *, more: int = 1) -> None:
        self._counts.setdefault((namespace, framework), dict.fromkeys(COUNTED, 0))[word] += more

    def collect(self) -> Iterator[Metric]:
        now = self._clock()
        for labels in self._counts:
            self._first_scraped.setdefault(labels, now)
        for word, help in COUNTED.items():
            family = CounterMetricFamily(f"{UPSTREAM}_{word}", help, labels=LABELS)
            for labels, counts in self._counts.items():
                family.add_metric(labels, counts[word] if now - self._first_scraped[labels] > SHOWS_0_S else 0)
            yield family


class _Requests(Collector):
    """Reads the client's own count when it is scraped."""

    def __init__(self, sent: Mapping[str, int]) -> None:
        self._sent = sent

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily("elastic_controller_api_requests", "Requests to the API server, without watches.", labels=["method"])
        for method, number in sorted({**dict.fromkeys(METHODS, 0), **self._sent}.items()):
            family.add_metric([method], number)
        yield family


def _restarts(status: JobStatus) -> int:
    """Return the restarts, without planned ones and those that followed from another restart."""
    counts = status.elastic.restarts if status.elastic is not None else {}
    return sum(count for cause, count in counts.items() if cause not in OF_NO_ACCOUNT)
