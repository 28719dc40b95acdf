"""Check the rules of elasticPolicy.scalingPolicy that types cannot express: the fields that each policy needs or ignores."""

from __future__ import annotations

from datetime import datetime

import msgspec

from elastic.api.errors import Path, Warning, shown
from elastic.api.job import ElasticPolicy
from elastic.api.log_pattern import mistake, parts_of, remark
from elastic.api.names import LABEL
from elastic.api.reader import Findings
from elastic.api.scaling import PolicyName, ProgressSource, ScalingPolicy
from elastic.api.windows import without_effect
from elastic.api.words import Through

BOTH_WRITE = "scalingPolicy and metrics would both set Worker.replicas; remove one, or write scalingPolicy.through: hpa"
LOOKED_AT: dict[PolicyName, tuple[str, ...]] = {
    PolicyName.THROUGHPUT: ("min_gain_percent",),
    PolicyName.CAPACITY: (),
    PolicyName.DEADLINE: ("finish_by", "total_steps", "total_samples"),
    PolicyName.COST: ("price_label",),
    PolicyName.SCHEDULE: ("windows",),
    PolicyName.HPA: (),
}
"""The fields that only one policy looks at."""
NOT_LOOKED_AT: dict[PolicyName, tuple[str, ...]] = {
    PolicyName.SCHEDULE: ("cooldown_seconds",),
    PolicyName.HPA: ("cooldown_seconds", "hold_seconds"),
}
"""Other fields that a policy does not use: windows begin on time, and the autoscaler stays out of policy hpa."""


def check_scaling(policy: ScalingPolicy, *, has_metrics: bool, at: Path, findings: Findings) -> None:
    """Note the fields that the policy lacks, and those that it ignores."""
    if findings.blames((*at, "policy")):
        return
    _check_writers(policy, has_metrics=has_metrics, at=at, findings=findings)
    _check_needs(policy, at=at, findings=findings)
    default, name = ScalingPolicy(), policy.policy
    others = {field for fields in LOOKED_AT.values() for field in fields} - set(LOOKED_AT[name]) | set(NOT_LOOKED_AT.get(name, ()))
    for field in msgspec.structs.fields(ScalingPolicy):
        if field.name in others and getattr(policy, field.name) != getattr(default, field.name):
            message = f"{field.encode_name} has no effect with policy {name.value}; remove it or choose another policy"
            findings.warning((*at, field.encode_name), message)
    if name is PolicyName.COST and policy.price_label and not LABEL.match(policy.price_label):
        message = f"priceLabel is {shown(policy.price_label)}, which is no name of a label; write the one that nodes have their price in"
        findings.warning((*at, "priceLabel"), message)
    if name is PolicyName.SCHEDULE:
        for place in without_effect(policy.windows):
            message = "the windows before this one hold all of its time, so it has no effect; put it before them or change its times"
            findings.warning((*at, "windows", place), message)


def too_late(policy: ScalingPolicy, since: datetime, *, at: Path) -> Warning | None:
    """`since`: when the job is, or was, made."""
    if policy.policy is not PolicyName.DEADLINE or policy.finish_by is None or policy.finish_by >= since:
        return None
    message = f"finishBy is {_as_text(policy.finish_by)}, before {_as_text(since)}, when the job is made; write a later time"
    return Warning((*at, "finishBy"), message)


def check_progress(source: ProgressSource, *, policy: ScalingPolicy | None, at: Path, findings: Findings) -> None:
    """Check that there is a single source of progress, and that it names the step."""
    given = [name for name, found in (("logPattern", source.log_pattern), ("prometheus", source.prometheus)) if found is not None]
    if len(given) != 1 and not findings.blames(at):
        findings.problem(at, f"progress needs one of logPattern and prometheus, and {'both are set' if given else 'none is set'}; set one")
    elif source.log_pattern is not None and (wrong := mistake(source.log_pattern)):
        findings.problem((*at, "logPattern"), wrong)
    elif policy is None:
        findings.warning(at, "progress has no effect without scalingPolicy; add one or remove progress")
    elif not findings.blames(at):
        _check_source(source, policy, at=at, findings=findings)


def _check_source(source: ProgressSource, policy: ScalingPolicy, *, at: Path, findings: Findings) -> None:
    """Note a source that finds nothing, or nothing that the policy uses."""
    pattern, page = source.log_pattern, source.prometheus
    if pattern is not None and (words := remark(pattern)):
        findings.warning((*at, "logPattern"), words)
    if page is not None and page.samples == page.step:
        message = f"samples is {shown(page.samples)}, which step is, too; name the metric that counts samples, or remove samples"
        findings.warning((*at, "prometheus", "samples"), message)
    if page is not None and "#" in page.path:
        findings.warning((*at, "prometheus", "path"), f"path is {shown(page.path)}; no server is told what follows #, remove it")
    counts_samples = policy.policy is PolicyName.DEADLINE and policy.total_samples is not None
    if counts_samples and pattern is not None and not any(part.is_field and part.text == "samples" for part in parts_of(pattern)):
        message = "logPattern has no {samples}, which policy deadline counts by totalSamples; add it, or write totalSteps"
        findings.warning((*at, "logPattern"), message)
    if counts_samples and page is not None and page.samples is None:
        message = "samples is missing, which policy deadline counts by totalSamples; name their metric, or write totalSteps"
        findings.warning((*at, "prometheus"), message)


def check_range(elastic: ElasticPolicy, *, bounds: tuple[int, int], at: Path, findings: Findings) -> None:
    """Note numbers of workers that the policy or a window asks for and the job may not have."""
    least, most = bounds
    policy = elastic.scaling_policy
    field = "allowedSizes" if elastic.allowed_sizes else "sizeStep"
    if policy is None or findings.blames((*at, "policy")) or findings.blames((*at[:-1], field)):
        return
    if not _has_choice(elastic, least, most):
        names = f"minReplicas, maxReplicas and {field}" if elastic.allowed_sizes or elastic.size_step else "minReplicas and maxReplicas"
        unset = next(
            (name for name, limit in (("maxReplicas", elastic.max_replicas), ("minReplicas", elastic.min_replicas)) if not limit), ""
        )
        remedy = f"set {unset}" if unset else "allow others or remove scalingPolicy"
        findings.warning(at, f"scalingPolicy has no effect, because {names} allow no number of workers but {least}; {remedy}")
    elif policy.policy is PolicyName.SCHEDULE:
        for place, window in enumerate(policy.windows):
            count, where = window.replicas, (*at, "windows", place, "replicas")
            had = max(least, elastic.largest_allowed(min(count, most)))
            if not least <= count <= most:
                name, bound = ("maxReplicas", most) if count > most else ("minReplicas", least)
                findings.warning(where, f"replicas is {count} but {name} is {bound}; the job has {had} then, change one of them")
            elif had != count:
                findings.warning(where, f"replicas is {count}, which {field} does not allow; the job has {had} then")


def _has_choice(elastic: ElasticPolicy, least: int, most: int) -> bool:
    if elastic.allowed_sizes:
        return any(least < size <= most for size in elastic.allowed_sizes)
    return elastic.largest_allowed(most) > least


def _as_text(time: datetime) -> str:
    return time.isoformat(timespec="seconds").replace("+00:00", "Z")


def _check_writers(policy: ScalingPolicy, *, has_metrics: bool, at: Path, findings: Findings) -> None:
    """Check that only one writer sets the number of workers."""
    is_users = policy.policy is PolicyName.HPA
    if is_users and not has_metrics:
        message = (
            "policy hpa needs elasticPolicy.metrics, by which the HorizontalPodAutoscaler scales; add metrics or choose another policy"
        )
        findings.problem((*at, "policy"), message)
    elif is_users and policy.through is Through.HPA:
        findings.warning((*at, "through"), "through has no effect with policy hpa, where only elasticPolicy.metrics decide; remove it")
    elif has_metrics and not is_users and policy.through is None:
        findings.problem(at, BOTH_WRITE)


def _check_needs(policy: ScalingPolicy, *, at: Path, findings: Findings) -> None:
    name = policy.policy
    if name is PolicyName.DEADLINE:
        if policy.finish_by is None and not findings.blames((*at, "finishBy")):
            findings.problem((*at, "finishBy"), "finishBy is missing; policy deadline needs the time by which the work should be done")
        given = [
            field for field in ("totalSteps", "totalSamples") if getattr(policy, _snake(field)) is not None or findings.blames((*at, field))
        ]
        if len(given) != 1:
            found = "both are set" if given else "both are missing"
            findings.problem((*at, "totalSamples"), f"policy deadline needs one of totalSamples and totalSteps, and {found}; set one")
    elif name is PolicyName.COST and policy.price_label is None and not findings.blames((*at, "priceLabel")):
        findings.problem((*at, "priceLabel"), "priceLabel is missing; policy cost needs the label of nodes that holds their price")
    elif name is PolicyName.SCHEDULE and not policy.windows and not findings.blames((*at, "windows")):
        findings.problem((*at, "windows"), "windows is empty; policy schedule needs at least one window")


def _snake(name: str) -> str:
    return next(field.name for field in msgspec.structs.fields(ScalingPolicy) if field.encode_name == name)
