"""Check that docs/autoscaling.md's rule for prometheus-adapter names figures and labels that the autoscaler exports."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import yaml
from prometheus_client import CollectorRegistry, generate_latest

from elastic.api.scaling import DESIRED
from elastic_training.autoscale.deciding.signals import Bounds
from elastic_training.autoscale.figures import JobFigures, JobName
from elastic_training.autoscale.running.metrics import Metrics

PAGE = Path(__file__).resolve().parents[4] / "docs" / "autoscaling.md"


class One:
    """The figures of one job."""

    is_known = True
    found = JobFigures(key=JobName("PyTorchJob", "team", "train"), uid="u", replicas=2, bounds=Bounds(1, 8), working=2, wanted=3)

    def of(self, key: JobName) -> JobFigures | None:
        return self.found if key == self.found.key else None

    def jobs(self, namespace: str | None = None) -> Sequence[JobFigures]:
        return [self.found]


def test_the_rule_for_prometheus_adapter_answers_the_autoscalers_metric() -> None:
    (block,) = re.findall(r"^  ```\n(.*?)^  ```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (rule,) = yaml.safe_load(block)
    registry = CollectorRegistry()
    Metrics(registry, One(), leads=lambda: True, sent={})
    (line,) = [text for text in generate_latest(registry).decode().splitlines() if text.startswith(rule["seriesQuery"] + "{")]
    labels = set(re.findall(r'(\w+)="', line))
    assert line.endswith(" 3.0")
    assert rule["name"] == {"matches": rule["seriesQuery"], "as": DESIRED}
    grouped = re.search(r"by \((.*)\)", rule["metricsQuery"])
    assert grouped is not None
    assert {*grouped[1].split(", "), *rule["resources"]["overrides"]} == labels, "the selector of our HorizontalPodAutoscaler finds its job"
