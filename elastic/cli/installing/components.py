"""List the parts of the control plane that can be chosen, under the names that deploy/ has for them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic.cli.installing.values.given import Values, joined, placed, without
from elastic.cli.installing.values.nodes import holds
from elastic.cli.installing.values.places import CERT_MANAGER, SWITCHES, WEBHOOK
from elastic.cli.installing.values.table import SECTIONS

STANDALONE, NAMESPACED = "standalone", "namespaced"
OVERLAYS = {STANDALONE: "for all namespaces", NAMESPACED: "for the jobs of one namespace, without cluster-wide rights"}
NONE = "none"
TRAIN_JOBS = "trainjobs"


@dataclass(frozen=True, slots=True)
class Component:
    overlays: tuple[str, ...] = (STANDALONE, NAMESPACED)
    needs: tuple[str, ...] = ()
    group: str = ""
    """An API group that the cluster must serve, and who brings it."""
    brought_by: str = ""


COMPONENTS = {
    "without-mpi": Component(),
    "etcd": Component(),
    "autoscaler": Component((STANDALONE,)),
    "autoscaler-metrics-api": Component((STANDALONE,), ("autoscaler",)),
    "dashboard": Component((STANDALONE,)),
    TRAIN_JOBS: Component((STANDALONE,)),
    "monitoring": Component(group="monitoring.coreos.com", brought_by="the Prometheus operator"),
}

_SWITCH_OF = {
    "without-mpi": ("mpi", False),
    "etcd": ("etcd.enabled", True),
    "autoscaler": ("autoscaler.enabled", True),
    "autoscaler-metrics-api": ("autoscaler.metricsApi", True),
    "dashboard": ("dashboard.enabled", True),
    "monitoring": ("monitoring.enabled", True),
}
"""The value that switches a component on."""
BY_NAME = tuple(name for name in COMPONENTS if name != TRAIN_JOBS)
"""Components that `--component` chooses."""


def misplaced(overlay: str, given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the given values that this overlay has no place for."""
    for section in SECTIONS:
        if overlay != STANDALONE and section.needs_standalone and section.name in given:
            yield f"{section.name}: this needs the overlay {STANDALONE}; it has no effect with {overlay}, so leave it out"


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


def chosen_by(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the components that these values switch on."""
    asked = (name for name in COMPONENTS if holds(SWITCHES[name], values))
    return in_order([*asked, *(["autoscaler-metrics-api"] if values["autoscaler"]["metricsApi"] else [])])


def with_components(given: Values, chosen: Iterable[str]) -> Values:
    """Return the values with exactly these components switched on. TrainJobs stay as they are."""
    made, names = given, set(chosen)
    for name, (path, on) in _SWITCH_OF.items():
        made = joined(made, placed(path, on)) if name in names else without(made, path)
    return made


def groups_needed(values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield each API group that the cluster must serve for these values, with what needs it and who brings it."""
    for name in chosen_by(values):
        if (one := COMPONENTS[name]).group:
            yield one.group, f"component {name}", one.brought_by
    if holds(WEBHOOK, values) and holds(CERT_MANAGER, values):
        yield "cert-manager.io", "webhook.certificates: certManager", "cert-manager"
