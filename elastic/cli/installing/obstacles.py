"""Decide whether the control plane can be installed in a cluster, and read what an earlier installation left there. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic.api.rights import CONTROLLER, MANAGED_BY
from elastic.cli.adopting import plan as adopting
from elastic.cli.installing.components import BY_NAME, NAMESPACED, STANDALONE, in_order, with_components
from elastic.cli.installing.values.given import Values, read
from elastic.kube.resources import Object

MANAGER = "elastic-install"
"""The field manager, and the value of the label MANAGED_BY on the objects that it creates."""
VERSION = "app.kubernetes.io/version"
GIVEN = "elastic-training/values"
"""Annotation of the controller's deployment that holds the given values as JSON."""
CHOSEN = "elastic-training/components"
"""The same for release 0.4.0, which knew only components."""
RELEASE = re.compile(r"v?(\d+\.\d+\.\d+)")
OUR_LABEL = f"app={CONTROLLER}"
OLDEST_KUBERNETES = (1, 27)


@dataclass(frozen=True, slots=True)
class Seen:
    """Facts about the cluster."""

    kubernetes: str
    """Version of the cluster, such as `v1.36.2`; empty if it is not known."""
    controllers: Sequence[Object]
    """Deployments of our controllers."""
    operators: Sequence[Object]
    webhooks: Sequence[Object]
    definitions: Sequence[Object]
    """Definitions of the kinds that we control."""
    missing_groups: frozenset[str] = frozenset()
    """API groups that a component needs and that the cluster does not serve."""
    missing_kinds: tuple[str, ...] = ()
    """Kinds that are not defined, and that the overlay does not define either."""


@dataclass(frozen=True, slots=True)
class Wanted:
    overlay: str
    namespace: str
    groups: tuple[tuple[str, str, str], ...]
    """API groups that the values need, each with what needs it and who brings it."""
    version: str
    upgrades: bool = False
    takes_over: bool = False


def obstacle(seen: Seen, wanted: Wanted) -> str | None:
    """Return the first reason why the control plane cannot be installed, with a remedy; None if it can."""
    return next(_obstacles(seen, wanted), None)


def _obstacles(seen: Seen, wanted: Wanted) -> Iterator[str]:
    if (found := _version(seen.kubernetes)) and found < OLDEST_KUBERNETES:
        yield f"this cluster is Kubernetes {seen.kubernetes}, but {'.'.join(map(str, OLDEST_KUBERNETES))} or later is needed"
    yield from _of_operators(seen)
    if wanted.overlay == STANDALONE and not wanted.takes_over:
        yield from _of_definitions(seen)
    if seen.missing_kinds:
        names = ", ".join(seen.missing_kinds)
        yield (
            f"{names} unknown: the overlay {NAMESPACED} does not define kinds; let an administrator run "
            "`elastic crds | kubectl apply --server-side -f -` once"
        )
    yield from _of_controllers(seen, wanted)
    for group, what, brought_by in wanted.groups:
        if group in seen.missing_groups:
            yield f"{what} needs {brought_by} ({group} is not served here); install it first, or leave this out"


def _of_operators(seen: Seen) -> Iterator[str]:
    running = [one for one in seen.operators if replicas(one)]
    if running or seen.webhooks:
        what = f"deployment {where(running[0])}" if running else f"its webhook {seen.webhooks[0]['metadata']['name']}"
        yield (
            f"the Training Operator is here ({what}) and controls the same kinds; take its jobs over with `elastic adopt` "
            "(docs/migration.md), then install"
        )
    yield from adopting.obstacles(adopting.Seen(seen.operators, seen.webhooks, seen.definitions, ()))


def _of_definitions(seen: Seen) -> Iterator[str]:
    if others := [definition["metadata"]["name"] for definition in seen.definitions if not is_ours(definition)]:
        yield (
            f"another operator has defined {', '.join(others)}; if it runs, stop it first (docs/migration.md). --force-conflicts replaces "
            "the definitions; stored jobs stay"
        )


def _of_controllers(seen: Seen, wanted: Wanted) -> Iterator[str]:
    for one in seen.controllers:
        overlay, namespace = overlay_of(one), one["metadata"]["namespace"]
        if namespace != wanted.namespace and STANDALONE in (overlay, wanted.overlay):
            yield (
                f"a control plane ({overlay}) is in namespace {namespace} already, and two would act on the same jobs; "
                f"change it with --overlay {overlay} --namespace {namespace}, or remove it with `elastic uninstall -n {namespace}`"
            )
        elif namespace == wanted.namespace:
            yield from _of_installed(one, overlay, wanted)


def _of_installed(controller: Object, overlay: str, wanted: Wanted) -> Iterator[str]:
    title = f"deployment {where(controller)}"
    if not is_managed(controller) and not wanted.takes_over:
        yield (
            f"{title} is here, but this command did not create it; upgrade it with the tool that installed it "
            "(kubectl or Helm, docs/deploy.md), or let this command take it over with --force-conflicts"
        )
    if overlay != wanted.overlay:
        yield f"{title} is of the overlay {overlay}, not {wanted.overlay}; give --overlay {overlay}, or run `elastic uninstall` first"
    installed = version_of(controller)
    if installed is None:
        return
    if _version(installed) > _version(wanted.version):
        yield (f"version {installed} is installed, and this command is {wanted.version}; take the command of release {installed}")
    elif _version(installed) < _version(wanted.version) and not wanted.upgrades:
        yield (
            f"version {installed} is installed, and this command is {wanted.version}; upgrade with "
            f"`elastic install --upgrade --image IMAGE`, an image of {wanted.version}; training goes on"
        )


def is_ours(definition: Object) -> bool:
    """Return whether a definition is ours: only our definitions have `status.elastic`."""
    for version in (definition.get("spec") or {}).get("versions") or ():
        schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
        status = (schema.get("properties") or {}).get("status") or {}
        if "elastic" in (status.get("properties") or {}):
            return True
    return False


def is_managed(item: Object) -> bool:
    """Return whether `elastic install` made the object."""
    return bool((item["metadata"].get("labels") or {}).get(MANAGED_BY) == MANAGER)


def version_of(controller: Object) -> str | None:
    found = (controller["metadata"].get("labels") or {}).get(VERSION)
    return str(found) if found and is_managed(controller) else None


def given_of(controller: Object) -> Values:
    """Return the values that were given when the controller was installed. Raise BadValues if this release does not know them."""
    noted = controller["metadata"].get("annotations") or {}
    if GIVEN in noted:
        return read(f"annotation {GIVEN} of deployment {where(controller)}", str(noted[GIVEN]))
    return with_components({}, in_order(name for name in str(noted.get(CHOSEN, "")).split(",") if name in BY_NAME))


def of_another_release(image: str, version: str) -> str:
    """Return that the tag of an image names another release than this command's; empty if it names none, or this one."""
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    found = RELEASE.fullmatch(tag)
    if found is None or _version(tag) == _version(version):
        return ""
    return (
        f"warning: the image is {image}, but this command is {version}, and the objects that it makes fit only its own release. "
        f"Give an image of {version}, or take the command of release {found[1]}"
    )


def image_of(controller: Object) -> str:
    return str(_container(controller).get("image", ""))


def overlay_of(controller: Object) -> str:
    return NAMESPACED if any(str(flag).startswith("--namespace=") for flag in _container(controller).get("args") or ()) else STANDALONE


def marked(item: Object, version: str, given: Mapping[str, Any]) -> Object:
    """Return the object with the labels and annotations that a later run needs."""
    metadata = item["metadata"]
    labels = {**(metadata.get("labels") or {}), MANAGED_BY: MANAGER, VERSION: version}
    made = {**metadata, "labels": labels}
    if item["kind"] == "Deployment" and metadata["name"] == CONTROLLER:
        made["annotations"] = {**(metadata.get("annotations") or {}), GIVEN: json.dumps(given, sort_keys=True)}
    return {**item, "metadata": made}


def replicas(deployment: Object) -> int:
    count = (deployment.get("spec") or {}).get("replicas")
    return count if isinstance(count, int) else 1


def where(item: Object) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


def _container(deployment: Object) -> Object:
    pod = ((deployment.get("spec") or {}).get("template") or {}).get("spec") or {}
    return next(iter(pod.get("containers") or ()), {})


def _version(text: str) -> tuple[int, ...]:
    """Return the numbers of a version; a cloud's `v1.29.3-eks-1` counts as 1.29.3."""
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])
