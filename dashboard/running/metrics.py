"""How each job trains, for Prometheus. Job names are private: serve this port to Prometheus only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from elastic_training.dashboard.serving.shown import JobRow
from elastic_training.dashboard.serving.views import Views
from elastic_training.dashboard.watching.observer import Observer

LABELS = ["namespace", "kind", "job"]
GAUGES: Mapping[str, tuple[str, Callable[[JobRow], float | None]]] = MappingProxyType(
    {
        "elastic_job_world_size": ("Workers that train together", lambda job: job.world),
        "elastic_job_step": ("The newest step that was reported", lambda job: job.step),
        "elastic_job_loss": ("The newest loss that was reported", lambda job: job.loss),
    }
)


class ProgressCollector(Collector):
    """The progress of jobs that train, made for each scrape, so that nothing of a gone, finished or suspended job is left."""

    def __init__(self, observer: Observer, views: Views) -> None:
        self._observer, self._views = observer, views

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        rows = [row for row in map(self._views.row, self._observer.jobs()) if not (row.is_over or row.is_suspended)]
        for name, (text, value_of) in GAUGES.items():
            family = GaugeMetricFamily(name, text, labels=LABELS)
            for row in rows:
                if (value := value_of(row)) is not None:
                    family.add_metric([row.namespace, row.kind, row.name], value)
            yield family
        speed = GaugeMetricFamily("elastic_job_speed", "Samples, tokens or steps a second", labels=[*LABELS, "unit"])
        for row in rows:
            if row.rate is not None:
                speed.add_metric([row.namespace, row.kind, row.name, row.unit], row.rate)
        yield speed
