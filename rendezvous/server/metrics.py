"""The server's own metrics, counted from the hub when asked. None is per job, because anyone may read them and job names are private."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from elastic_training.rendezvous.engine.state.job import JobState
from elastic_training.rendezvous.engine.views import summary


class Membership(Collector):
    """Count jobs by phase, members by phase, restarts by cause, and decisions that failed."""

    def __init__(self, jobs: Callable[[], Iterable[JobState]], counts: Callable[[], tuple[int, int]]) -> None:
        self._jobs = jobs
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        failed, dropped = self._counts()
        yield CounterMetricFamily("elastic_rendezvous_failed_decisions", "Decisions about a job that raised: a bug each", value=failed)
        words = "States of jobs that were dropped because three decisions in a row raised"
        yield CounterMetricFamily("elastic_rendezvous_dropped_states", words, value=dropped)
        jobs = list(self._jobs())
        yield _gauge("elastic_rendezvous_jobs", "Jobs by the phase of their world", "phase", Counter(summary(job).phase for job in jobs))
        phases = Counter(member.phase.value for job in jobs for member in job.membership.members.values())
        yield _gauge("elastic_rendezvous_members", "Members by phase", "phase", phases)
        restarts: Counter[str] = Counter()
        for job in jobs:
            restarts.update(job.accounting.restarts)
        family = CounterMetricFamily("elastic_rendezvous_restarts", "Ends of workers by cause, over the jobs held now", labels=["cause"])
        for cause, count in sorted(restarts.items()):
            family.add_metric([cause], count)
        yield family


def _gauge(name: str, text: str, label: str, counts: Counter[str]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([value], count)
    return family


def metrics_of(jobs: Callable[[], Iterable[JobState]], *, counts: Callable[[], tuple[int, int]]) -> Callable[[], tuple[bytes, str]]:
    """Return a function that renders the metrics and their content type. `counts`: of failed decisions and of dropped states."""
    registry = CollectorRegistry()
    registry.register(Membership(jobs, counts))
    ProcessCollector(registry=registry)
    return lambda: (generate_latest(registry), CONTENT_TYPE_LATEST)
