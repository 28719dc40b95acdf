"""Check that the controller's series begin at 0, so that Prometheus' increase() sees everything that is counted."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from elastic.api.job import Condition, JobStatus
from elastic_training.controller.running.metrics import Metrics

CREATED = JobStatus(conditions=(Condition(type="Created", status="True"),))


def scraped(metrics: Metrics) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    return {(s.name, *sorted(s.labels.values())): s.value for family in families for s in family.samples}


def test_a_namespaces_first_job_is_an_increase() -> None:
    clock = [1000.0]
    metrics = Metrics(CollectorRegistry(), waiting=lambda: 0, sent={}, clock=lambda: clock[0])
    for _ in range(8):
        metrics.changed(namespace="team", framework="pytorch", old=JobStatus(), new=CREATED)
    name = ("training_operator_jobs_created_total", "pytorch", "team")
    seen = []
    for clock[0] in (2000.0, 2000.1, 2060.0, 2060.1, 2120.0):  # two Prometheus servers that scrape every 60 s
        seen.append(scraped(metrics)[name])
    assert seen == [0, 0, 0, 0, 8], "each of the two sees 0 first"
    assert scraped(metrics)["training_operator_jobs_failed_total", "pytorch", "team"] == 0


def test_series_whose_labels_are_known_are_there_from_the_start() -> None:
    found = scraped(Metrics(CollectorRegistry(), waiting=lambda: 0, sent={}, leads=lambda: False))
    assert found["elastic_controller_admissions_total", "false", "mpi"] == 0
    assert found["elastic_controller_api_requests_total", "PATCH"] == 0
    assert found["elastic_controller_leads",] == 0
