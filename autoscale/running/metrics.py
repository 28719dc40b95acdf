"""Metrics of the autoscaler, and each job's figures. Job names are private: serve this port to Prometheus only."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from elastic_training.autoscale.deciding.cluster import NodeSeen, PodSeen, Room
from elastic_training.autoscale.figures import Figures, JobFigures

LABELS = ["namespace", "kind", "job"]
GAUGES: dict[str, tuple[str, Callable[[JobFigures], float | None]]] = {
    "workers": ("Workers that train together", lambda job: job.working),
    "wanted_workers": ("Workers that the job should have", lambda job: job.wanted),
    "throughput": ("Work a second: samples, or steps times workers", lambda job: job.throughput),
    "scaling_efficiency": ("Throughput of a worker as a part of that at minReplicas", lambda job: job.efficiency),
    "marginal_efficiency": ("What the last worker adds, in the same unit", lambda job: job.marginal_efficiency),
    "goodput": ("Part of its time in which training came forward", lambda job: job.goodput),
    "rescale_seconds": ("What a change of the number of workers costs", lambda job: job.rescale_s),
    "seconds_to_target": ("Until the work that the policy names is done", lambda job: job.left_s),
}


class Metrics:
    def __init__(
        self,
        registry: CollectorRegistry,
        figures: Figures,
        *,
        leads: Callable[[], bool],
        sent: Mapping[str, int],
        cluster: Callable[[], tuple[Sequence[NodeSeen], Sequence[PodSeen]]] = lambda: ((), ()),
    ) -> None:
        self.registry = registry
        self.changes = Counter("elastic_autoscaler_changes", "Changes of a number of workers", ["policy", "direction"], registry=registry)
        self.failures = Counter("elastic_autoscaler_failed_rounds", "Rounds and decisions that ended with a defect", registry=registry)
        self.rounds = Histogram(
            "elastic_autoscaler_round_cpu_seconds",
            "CPU time of a round of decisions",
            buckets=(0.001, 0.005, 0.02, 0.1, 0.3, 1, 3, 10),
            registry=registry,
        )
        leader = Gauge("elastic_autoscaler_leader", "1 while this process acts on its decisions", registry=registry)
        leader.set_function(lambda: 1.0 if leads() else 0.0)
        registry.register(_Jobs(figures, sent))
        registry.register(_Cluster(cluster))


class _Jobs(Collector):
    """Each job's figures, made for each scrape, so that nothing is left of jobs that are gone."""

    def __init__(self, figures: Figures, sent: Mapping[str, int]) -> None:
        self._figures = figures
        self._sent = sent

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("elastic_autoscaler_requests", "Requests to the API server", labels=["method"])
        for method, count in sorted(self._sent.items()):
            requests.add_metric([method], count)
        yield requests
        jobs = self._figures.jobs()
        for name, (text, value_of) in GAUGES.items():
            family = GaugeMetricFamily(f"elastic_job_{name}", text, labels=LABELS)
            for job in jobs:
                if (value := value_of(job)) is not None and math.isfinite(value):
                    family.add_metric([job.key.namespace, job.key.kind, job.key.name], value)
            yield family
        spent = CounterMetricFamily(
            "elastic_job_spent_seconds", "Where a job's time went while this process ran", labels=[*LABELS, "phase"]
        )
        for job in jobs:
            for phase, seconds in sorted(job.seconds.items()):
                spent.add_metric([job.key.namespace, job.key.kind, job.key.name, phase], seconds)
        yield spent


class _Cluster(Collector):
    """The room of the cluster, by group of nodes."""

    def __init__(self, cluster: Callable[[], tuple[Sequence[NodeSeen], Sequence[PodSeen]]]) -> None:
        self._cluster = cluster

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        nodes, pods = self._cluster()
        free = GaugeMetricFamily("elastic_cluster_free", "Amounts that no pod has asked for", labels=["group", "capacity", "resource"])
        for key, amount in sorted(Room(nodes, pods).by_group().items()):
            free.add_metric(list(key), amount)
        yield free
        waiting = sum(1 for pod in pods if pod.unschedulable_since is not None and not pod.node)
        yield GaugeMetricFamily("elastic_cluster_pods_without_room", "Pods that the scheduler finds no room for", value=waiting)
