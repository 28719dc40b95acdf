"""Find the mistakes in a HorizontalPodAutoscaler, in a real server's order and words (tests/conformance, scenario autoscalers)."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from elastic.kube import quantity
from elastic.local.apiserver.errors import Cause, Json, bad, forbidden_field, required, unsupported

LONGEST_WINDOW_S, LONGEST_PERIOD_S = 3600, 1800
TYPES = {"ContainerResource": "containerResource", "External": "external", "Object": "object", "Pods": "pods", "Resource": "resource"}
EXAMINED = ("object", "external", "pods", "resource", "containerResource")
"""Fields of a metric. The first that it has is checked."""
_BOTH = "may not set both a target"


def causes(spec: Json) -> Iterator[Cause]:
    most, least = spec.get("maxReplicas", 0), spec.get("minReplicas", 1)
    if least < 1:
        yield bad("spec.minReplicas", least, "must be greater than or equal to 1")
    if most == 0:
        yield required("spec.maxReplicas", "must be set and greater than 0")
    elif most < 1:
        yield bad("spec.maxReplicas", most, "must be greater than or equal to 1")
    if most < least:
        yield bad("spec.maxReplicas", most, "must be greater than or equal to `minReplicas`")
    target = spec.get("scaleTargetRef") or {}
    yield from _reference(target, "spec.scaleTargetRef")
    yield from _api_version(target.get("apiVersion", ""), "spec.scaleTargetRef.apiVersion")
    metrics = spec.get("metrics") or []
    for index, metric in enumerate(metrics):
        yield from _metric(metric, f"spec.metrics[{index}]")
    if least == 0 and not any(metric.get("type") in ("Object", "External") for metric in metrics):
        yield forbidden_field("spec.metrics", "must specify at least one Object or External metric to support scaling to zero replicas")
    behavior = spec.get("behavior") or {}
    for way in ("scaleUp", "scaleDown"):
        yield from _rules(behavior.get(way) or {}, f"spec.behavior.{way}") if way in behavior else ()


def _reference(reference: Json, path: str) -> Iterator[Cause]:
    for key in ("kind", "name"):
        yield from _segment(reference.get(key, ""), f"{path}.{key}", "")


def _segment(text: str, path: str, if_missing: str) -> Iterator[Cause]:
    """Check a text that becomes a part of a path of the API."""
    if not text:
        yield required(path, if_missing)
    elif text in (".", ".."):
        yield bad(path, text, f"may not be '{text}'")
    else:
        wrong = [f"may not contain '{character}'" for character in "/%" if character in text]
        yield from (bad(path, text, why) for why in wrong)


def _api_version(text: str, path: str) -> Iterator[Cause]:
    if text.count("/") > 1:
        yield bad(path, text, f"unexpected GroupVersion string: {text}")
    elif text != "v1" and not text.partition("/")[1]:
        yield bad(path, text, "apiVersion must specify API group")


def _metric(metric: Json, path: str) -> Iterator[Cause]:
    kind, present = metric.get("type", ""), [key for key in EXAMINED if metric.get(key) is not None]
    if not kind:
        yield required(f"{path}.type", "must specify a metric source type")
    if kind not in TYPES:
        yield unsupported(f"{path}.type", kind, TYPES)
    if present:
        yield from _SOURCES[present[0]](metric[present[0]], f"{path}.{present[0]}")
    if kind in TYPES and TYPES[kind] not in present:
        yield required(f"{path}.{TYPES[kind]}", "must populate information for the given metric source")
    if len(present) > 1:
        others = sorted(key for key in present if key != TYPES.get(kind))
        yield from (forbidden_field(f"{path}.{key}", "must populate the given metric source only") for key in others)


def _object(source: Json, path: str) -> Iterator[Cause]:
    target = source.get("target") or {}
    yield from _reference(source.get("describedObject") or {}, f"{path}.describedObject")
    yield from _identifier(source, path)
    yield from _target(target, f"{path}.target")
    if not _has(target, "value") and not _has(target, "averageValue"):
        yield required(f"{path}.target.averageValue", "must set either a target value or averageValue")


def _external(source: Json, path: str) -> Iterator[Cause]:
    target = source.get("target") or {}
    yield from _identifier(source, path)
    yield from _target(target, f"{path}.target")
    if not _has(target, "value") and not _has(target, "averageValue"):
        yield required(f"{path}.target.averageValue", "must set either a target value for metric or a per-pod target")
    if _has(target, "value") and _has(target, "averageValue"):
        yield forbidden_field(f"{path}.target.value", f"{_BOTH} value for metric and a per-pod target")


def _pods(source: Json, path: str) -> Iterator[Cause]:
    target = source.get("target") or {}
    yield from _identifier(source, path)
    yield from _target(target, f"{path}.target")
    if not _has(target, "averageValue") or _amount(target["averageValue"]) <= 0:
        yield required(f"{path}.target.averageValue", "must specify a positive target averageValue")


def _resource(source: Json, path: str) -> Iterator[Cause]:
    target = source.get("target") or {}
    if not source.get("name"):
        yield required(f"{path}.name", "must specify a resource name")
    if path.endswith(".containerResource") and not source.get("container"):
        yield required(f"{path}.container", "must specify a container")
    yield from _target(target, f"{path}.target")
    if not _has(target, "averageUtilization") and not _has(target, "averageValue"):
        yield required(f"{path}.target.averageUtilization", "must set either a target raw value or a target utilization")
    if _has(target, "averageUtilization") and _has(target, "averageValue"):
        yield forbidden_field(f"{path}.target.averageValue", f"{_BOTH} raw value and a target utilization")


_SOURCES = {"object": _object, "external": _external, "pods": _pods, "resource": _resource, "containerResource": _resource}


def _identifier(source: Json, path: str) -> Iterator[Cause]:
    yield from _segment((source.get("metric") or {}).get("name", ""), f"{path}.metric.name", "must specify a metric name")


def _has(target: Json, key: str) -> bool:
    return target.get(key) is not None


def _amount(value: Any) -> Fraction:
    try:
        return quantity.parse(value)
    except ValueError:
        return Fraction(-1)


def _target(target: Json, path: str) -> Iterator[Cause]:
    """Check a target. It must be positive, because the autoscaler divides by it."""
    kind, share = target.get("type", ""), target.get("averageUtilization")
    if not kind:
        yield required(f"{path}.type", "must specify a metric target type")
    if kind not in ("Utilization", "Value", "AverageValue"):
        yield bad(f"{path}.type", kind, "must be either Utilization, Value, or AverageValue")
    for name in ("value", "averageValue"):
        if _has(target, name) and _amount(target[name]) <= 0:
            yield bad(f"{path}.{name}", target[name], "must be positive")
    if share is not None and share < 1:
        yield bad(f"{path}.averageUtilization", share, "must be greater than 0")


def _rules(rules: Json, path: str) -> Iterator[Cause]:
    window, choice, tolerance = rules.get("stabilizationWindowSeconds"), rules.get("selectPolicy"), rules.get("tolerance")
    if window is not None and window < 0:
        yield bad(f"{path}.stabilizationWindowSeconds", window, "must be greater than or equal to zero")
    elif window is not None and window > LONGEST_WINDOW_S:
        yield bad(f"{path}.stabilizationWindowSeconds", window, f"must be less than or equal to {LONGEST_WINDOW_S}")
    if choice is not None and choice not in ("Max", "Min", "Disabled"):
        yield unsupported(f"{path}.selectPolicy", choice, ("Disabled", "Max", "Min"))
    if not rules.get("policies"):
        yield required(f"{path}.policies", "must specify at least one Policy")
    for index, policy in enumerate(rules.get("policies") or ()):
        yield from _policy(policy, f"{path}.policies[{index}]")
    if tolerance is not None and _amount(tolerance) < 0:
        yield bad(f"{path}.tolerance", tolerance, "must be greater than or equal to 0")


def _policy(policy: Json, path: str) -> Iterator[Cause]:
    kind, value, period = policy.get("type", ""), policy.get("value", 0), policy.get("periodSeconds", 0)
    if kind not in ("Pods", "Percent"):
        yield unsupported(f"{path}.type", kind, ("Percent", "Pods"))
    if value <= 0:
        yield bad(f"{path}.value", value, "must be greater than zero")
    if period <= 0:
        yield bad(f"{path}.periodSeconds", period, "must be greater than zero")
    elif period > LONGEST_PERIOD_S:
        yield bad(f"{path}.periodSeconds", period, f"must be less than or equal to {LONGEST_PERIOD_S}")
