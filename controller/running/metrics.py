"""What the controller counts, under the names that dashboards for the Training Operator know, and a few of our own."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from controller.deciding.lifecycle.conditions import holds
from elastic.api.job import JobStatus
from elastic.api.kinds import KINDS
from elastic.api.words import Cause, ConditionType

LABELS = ("job_namespace", "framework")
UPSTREAM = "training_operator_jobs"
OF_NO_ACCOUNT = frozenset({Cause.PLAN.value, Cause.COLLATERAL.value})


class Metrics:
    def __init__(self, registry: CollectorRegistry, *, waiting: Callable[[], int], sent: Mapping[str, int]) -> None:
        def jobs(word: str, help: str) -> Counter:
            return Counter(f"{UPSTREAM}_{word}", help, LABELS, registry=registry)

        self.registry = registry
        self._created = jobs("created", "Jobs that were accepted.")
        self._deleted = jobs("deleted", "Jobs that were deleted because their time after the end was over.")
        self._successful = jobs("successful", "Jobs that succeeded.")
        self._failed = jobs("failed", "Jobs that failed, for whatever reason.")
        self._restarted = jobs("restarted", "Pods that were made again because they ended early.")
        self._seconds = Histogram("elastic_controller_round_seconds", "Time from taking a job up to having it done.", registry=registry)
        self._errors = Counter("elastic_controller_round_errors", "Rounds that must be repeated.", registry=registry)
        self._late = Histogram(
            "elastic_controller_wait_seconds",
            "Time a job waited for its round.",
            registry=registry,
            buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
        )
        self._judged = Counter("elastic_controller_admissions", "Jobs that asked to come in.", ("framework", "allowed"), registry=registry)
        registry.register(_Requests(sent))
        Gauge("elastic_controller_waiting", "Jobs that wait for their round.", registry=registry).set_function(waiting)

    def round(self, *, seconds: float, waited: float, failed: bool) -> None:
        self._seconds.observe(seconds)
        self._late.observe(waited)
        if failed:
            self._errors.inc()

    def changed(self, *, namespace: str, framework: str, old: JobStatus, new: JobStatus) -> None:
        """Counts what became true between two statuses that were written one after the other."""
        for type, counter in (
            (ConditionType.CREATED, self._created),
            (ConditionType.SUCCEEDED, self._successful),
            (ConditionType.FAILED, self._failed),
        ):
            if holds(new, type) and not holds(old, type):
                counter.labels(namespace, framework).inc()
        more = _restarts(new) - _restarts(old)
        if more > 0:
            self._restarted.labels(namespace, framework).inc(more)

    def judged(self, kind: str, *, allowed: bool) -> None:
        """By the webhook, which may be asked about kinds of somebody else's."""
        if kind in KINDS:
            self._judged.labels(KINDS[kind].framework, str(allowed).lower()).inc()

    def deleted(self, *, namespace: str, framework: str) -> None:
        self._deleted.labels(namespace, framework).inc()


class _Requests(Collector):
    """Reads the client's own count when it is scraped."""

    def __init__(self, sent: Mapping[str, int]) -> None:
        self._sent = sent

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily("elastic_controller_api_requests", "Requests to the API server, without watches.", labels=["method"])
        for method, number in sorted(self._sent.items()):
            family.add_metric([method], number)
        yield family


def _restarts(status: JobStatus) -> int:
    """Without those that somebody asked for, and those that only followed from another."""
    counts = status.elastic.restarts if status.elastic is not None else {}
    return sum(count for cause, count in counts.items() if cause not in OF_NO_ACCOUNT)
