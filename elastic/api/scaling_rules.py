"""The rules of elasticPolicy.scalingPolicy that one field's type cannot say: what each policy needs, and what it does not look at."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from elastic.api.errors import Path
from elastic.api.job import ElasticPolicy
from elastic.api.log_pattern import mistake
from elastic.api.reader import Findings
from elastic.api.scaling import PolicyName, ProgressSource, ScalingPolicy, Window
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


def check_scaling(policy: ScalingPolicy, *, has_metrics: bool, at: Path, findings: Findings) -> None:
    """Notes what the policy lacks, and what it does not look at."""
    if findings.blames((*at, "policy")):
        return
    _check_writers(policy, has_metrics=has_metrics, at=at, findings=findings)
    _check_needs(policy, at=at, findings=findings)
    default, name = ScalingPolicy(), policy.policy
    others = {field for fields in LOOKED_AT.values() for field in fields} - set(LOOKED_AT[name])
    for field in msgspec.structs.fields(ScalingPolicy):
        if field.name in others and getattr(policy, field.name) != getattr(default, field.name):
            message = f"{field.encode_name} has no effect with policy {name.value}; remove it or choose another policy"
            findings.warning((*at, field.encode_name), message)


def check_progress(source: ProgressSource, *, has_policy: bool, at: Path, findings: Findings) -> None:
    """One source, that names the step."""
    given = [name for name, found in (("logPattern", source.log_pattern), ("prometheus", source.prometheus)) if found is not None]
    if len(given) != 1 and not findings.blames(at):
        findings.problem(at, f"progress needs one of logPattern and prometheus, and {'both are set' if given else 'none is set'}; set one")
    elif source.log_pattern is not None and (wrong := mistake(source.log_pattern)):
        findings.problem((*at, "logPattern"), wrong)
    elif not has_policy:
        findings.warning(at, "progress has no effect without scalingPolicy; add one or remove progress")


def check_windows(windows: Sequence[Window], elastic: ElasticPolicy, *, bounds: tuple[int, int], at: Path, findings: Findings) -> None:
    """What a window asks for, and the job may not have."""
    least, most = bounds
    for index, window in enumerate(windows):
        count, where = window.replicas, (*at, "windows", index, "replicas")
        if not least <= count <= most:
            name, bound = ("maxReplicas", most) if count > most else ("minReplicas", least)
            findings.warning(where, f"replicas is {count} but {name} is {bound}, which the job has then; change one of them")
        elif not elastic.is_allowed(count):
            field = "allowedSizes" if elastic.allowed_sizes else "sizeStep"
            findings.warning(
                where, f"replicas is {count}, which {field} does not allow; the job has {max(least, elastic.largest_allowed(count))} then"
            )


def _check_writers(policy: ScalingPolicy, *, has_metrics: bool, at: Path, findings: Findings) -> None:
    """One writer of the number of workers."""
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
