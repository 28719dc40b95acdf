"""A job says why its HorizontalPodAutoscaler does not scale it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from job_builders import NOW, PLAIN, Cluster, elastic_job

from elastic_training.controller.deciding.objects.hpa_trouble import PATIENCE
from elastic_training.controller.facts.settings import Settings

CPU = [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]
AMBIGUOUS = "pods by selector training.kubeflow.org/job-name=train are controlled by multiple HPAs: [team/mine team/train]"


def troubled(
    reason: str, message: str, *, settings: Settings = PLAIN, elastic: dict[str, Any] | None = None, status: str = "False"
) -> Cluster:
    """Return a running job whose HorizontalPodAutoscaler has had this condition since NOW."""
    cluster = Cluster(elastic_job(2, elastic=elastic or {"metrics": CPU}), settings=settings)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    owned = cluster.owned["HorizontalPodAutoscaler", "train"]
    condition = {"type": "ScalingActive", "status": status, "reason": reason, "message": message, "lastTransitionTime": NOW.isoformat()}
    cluster.owned["HorizontalPodAutoscaler", "train"] = replace(owned, raw={**owned.raw, "status": {"conditions": [condition]}})
    return cluster


def told(cluster: Cluster) -> tuple[str, list[str]]:
    """Return the condition's message, and the warnings."""
    (planned, *_) = cluster.settle()
    warnings = [f"{news.reason}: {news.message}" for news in planned.news if news.reason.startswith("Autoscaler")]
    return cluster.job.status.conditions[-1].message, warnings


def test_a_second_autoscaler_for_the_same_workers_is_named_with_what_to_do() -> None:
    """Kubernetes lets neither of them act. Only the HorizontalPodAutoscaler's own status said so."""
    cluster = troubled("AmbiguousSelector", AMBIGUOUS)
    cluster.now = NOW + PATIENCE
    message, (warning,) = told(cluster)
    words = (
        f"HorizontalPodAutoscaler train does not scale the job (AmbiguousSelector): {AMBIGUOUS}; "
        "remove the other HorizontalPodAutoscaler or elasticPolicy.metrics"
    )
    assert message.endswith(f"is running. {words}.")
    assert warning == f"AutoscalerInTrouble: {words}"
    assert len(cluster.names()) == 2, "the job trains on at its size"


@pytest.mark.parametrize(
    ("elastic", "field"),
    [({"metrics": CPU}, "elasticPolicy.metrics"), ({"scalingPolicy": {"through": "hpa"}}, "elasticPolicy.scalingPolicy.through")],
)
def test_a_metric_that_does_not_come_is_told_after_two_minutes(elastic: dict[str, Any], field: str) -> None:
    cluster = troubled("FailedGetResourceMetric", "unable to get metrics: no metrics returned", elastic=elastic)
    cluster.now = NOW + PATIENCE - timedelta(seconds=1)
    message, warnings = told(cluster)
    assert (message.endswith("is running."), warnings) == (True, [])
    assert cluster.round().look_again_at == NOW + PATIENCE
    cluster.now = NOW + PATIENCE
    message, warnings = told(cluster)
    assert f"(FailedGetResourceMetric): unable to get metrics: no metrics returned; mend {field}, or see to it" in message
    assert message.endswith("(kubectl -n team describe hpa train).")
    assert len(warnings) == 1
    assert cluster.round().look_again_at is None


def test_the_words_go_once_it_acts() -> None:
    cluster = troubled("AmbiguousSelector", AMBIGUOUS)
    cluster.now = NOW + PATIENCE
    told(cluster)
    owned = cluster.owned["HorizontalPodAutoscaler", "train"]
    active = {"type": "ScalingActive", "status": "True", "reason": "ValidMetricFound", "lastTransitionTime": NOW.isoformat()}
    cluster.owned["HorizontalPodAutoscaler", "train"] = replace(owned, raw={**owned.raw, "status": {"conditions": [active]}})
    assert told(cluster)[0].endswith("is running.")


@pytest.mark.parametrize("change", [{"reason": "ScalingDisabled"}, {"status": "True"}])
def test_nothing_is_told_of_an_autoscaler_that_is_well_or_switched_off(change: dict[str, Any]) -> None:
    cluster = troubled(**{"reason": "FailedGetScale", "message": "no scale"} | change)
    cluster.now = NOW + 2 * PATIENCE
    assert "does not scale the job" not in told(cluster)[0]
