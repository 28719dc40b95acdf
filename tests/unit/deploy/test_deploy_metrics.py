"""The metrics of the control plane's processes: the dashboard asks for them, and a page names each."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from elastic_training.autoscale.running.book import Book
from elastic_training.autoscale.running.metrics import Metrics as AutoscalerMetrics
from elastic_training.controller.running.metrics import Metrics
from elastic_training.dashboard.running.metrics import ProgressCollector
from elastic_training.rendezvous.server.metrics import metrics_of

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"


def autoscalers() -> AutoscalerMetrics:
    return AutoscalerMetrics(CollectorRegistry(), Book(is_ready=lambda: True), leads=lambda: True, sent={"GET": 1})


def dashboards() -> set[str]:
    observer = SimpleNamespace(jobs=lambda: ())
    return {metric.name for metric in ProgressCollector(observer, SimpleNamespace(row=None)).collect()}  # type: ignore[arg-type]


def exported() -> set[str]:
    """Return all names that Prometheus finds at the processes of the control plane, and its own names about them."""
    metrics = Metrics(CollectorRegistry(), waiting=lambda: 0, sent={"GET": 1})
    text = (
        generate_latest(metrics.registry) + generate_latest(autoscalers().registry) + metrics_of(lambda: (), counts=lambda: (0, 0))()[0]
    ).decode()
    names = {family.name for family in text_string_to_metric_families(text)}
    kinds = dict(re.findall(r"# TYPE (\S+) (\S+)", text))
    return (
        names
        | dashboards()
        | {"up"}
        | set(kinds)
        | {f"{name}{end}" for name, kind in kinds.items() if kind == "histogram" for end in ("_bucket", "_sum", "_count")}
    )


WORDS = {"sum", "min", "max", "by", "le", "for", "absent", "vector", "or", "and", "offset", "rate", "increase", "changes"}
WORDS |= {"histogram_quantile"}
"""Of PromQL, as far as the rules use it."""


def test_the_rules_ask_for_metrics_that_are_exported_by_labels_that_they_have() -> None:
    rules = [rule for group in rule_groups() for rule in group["rules"]]
    for rule in rules:
        bare = re.sub(r'"[^"]*"|\[[^]]*\]|\b\d\S*', " ", rule["expr"])
        labels = {name for group in re.findall(r"by \(([^)]*)\)|\{([^}]*)\}", bare) for name in re.findall(r"\w+", " ".join(group))}
        assert labels <= {"le", "namespace", "kind", "job", "job_namespace", "framework"}, rule
        named = set(re.findall(r"[a-z_]{2,}", bare)) - WORDS - labels
        assert named, rule
        assert named <= exported(), rule
        assert labels >= set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"]))) or "elastic_job_" in rule["expr"]


def test_an_alert_says_what_is_wrong_and_what_to_do() -> None:
    rules = [rule for group in rule_groups() for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 10
    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["annotations"]["description"].endswith("."), rule
        assert f"`{rule['alert']}`" in (DEPLOY.parent / "docs" / "metrics.md").read_text(), "the page lists each"


def rule_groups() -> list[dict[str, Any]]:
    made = yaml.safe_load((DEPLOY / "components" / "monitoring" / "rules.yaml").read_text())
    assert (made["apiVersion"], made["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    groups: list[dict[str, Any]] = made["spec"]["groups"]
    return groups


def test_the_dashboard_asks_for_metrics_that_are_exported() -> None:
    dashboard = json.loads((DEPLOY / "components" / "monitoring" / "dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    named = {name for text in asked for name in re.findall(r"\b(?:training_operator|elastic)_\w+", text)}
    assert len(named) >= 14
    assert named <= exported()


def test_figures_of_jobs_are_not_added_up_over_the_replicas_that_each_export_them() -> None:
    """The panel of where time goes showed two seconds a second for each job: one of each autoscaler."""
    dashboard = json.loads((DEPLOY / "components" / "monitoring" / "dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"] if "elastic_job_" in target["expr"]]
    assert asked
    assert [text for text in asked if not re.search(r"max by \(namespace, kind, job[^)]*\) \((rate\()?elastic_job_", text)] == []


def test_every_metric_stands_on_the_page_about_them_and_no_other() -> None:
    named = set(re.findall(r"`((?:training_operator|elastic)_\w+)`", (DEPLOY.parent / "docs" / "metrics.md").read_text()))
    text = (
        generate_latest(Metrics(CollectorRegistry(), waiting=lambda: 0, sent={"GET": 1}).registry)
        + metrics_of(lambda: (), counts=lambda: (0, 0))()[0]
    )
    text += generate_latest(autoscalers().registry)
    made = {*re.findall(r"# TYPE (\S+)", text.decode()), *dashboards()}
    assert named == {name for name in made if not name.endswith("_created") and not name.startswith("process_")}
