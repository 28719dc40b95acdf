"""List the parts of the control plane that can be chosen, under the names that deploy/ has for them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

STANDALONE, NAMESPACED = "standalone", "namespaced"
OVERLAYS = {STANDALONE: "for all namespaces", NAMESPACED: "for the jobs of one namespace, without cluster-wide rights"}
NONE = "none"
TRAIN_JOBS = "trainjobs"


@dataclass(frozen=True, slots=True)
class Component:
    what: str
    overlays: tuple[str, ...] = (STANDALONE, NAMESPACED)
    needs: tuple[str, ...] = ()
    group: str = ""
    """An API group that the cluster must serve, and who brings it."""
    brought_by: str = ""


COMPONENTS = {
    "without-mpi": Component("no MPIJobs, and none of the rights that only they need"),
    "etcd": Component("an etcd for jobs with rdzvBackend: etcd"),
    "autoscaler": Component("elastic-autoscaler", (STANDALONE,)),
    "autoscaler-metrics-api": Component("its figures for HorizontalPodAutoscalers", (STANDALONE,), ("autoscaler",)),
    "dashboard": Component("elastic-dashboard", (STANDALONE,)),
    TRAIN_JOBS: Component("TrainJobs, which --trainjobs chooses", (STANDALONE,)),
    "monitoring": Component(
        "monitors, alerts and a Grafana dashboard", group="monitoring.coreos.com", brought_by="the Prometheus operator"
    ),
}

BY_NAME = tuple(name for name in COMPONENTS if name != TRAIN_JOBS)
"""Components that `--component` chooses."""


def problems(overlay: str, chosen: Sequence[str]) -> Iterator[str]:
    """Yield the reasons why these components cannot be installed together."""
    for name in chosen:
        one = COMPONENTS[name]
        if overlay not in one.overlays:
            yield f"component {name} needs the overlay {one.overlays[0]}; it does not work with {overlay}"
        for needed in one.needs:
            if needed not in chosen:
                yield f"component {name} needs component {needed}; add it"


def in_order(chosen: Iterable[str]) -> tuple[str, ...]:
    """Return each component once, after the components that it needs."""
    there = set(chosen)
    return tuple(name for name in COMPONENTS if name in there)
