"""Check the table of reasons: it has every word that the code says to programs, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_api import PYTORCH, running
from cli_api import job as served
from job_builders import NOW

from elastic.api.reasons import PAGE, REASONS, ReasonPlace, Severity, as_tables, with_tables
from elastic.api.words import Cause
from elastic.client import explanation
from elastic.client.explanation import IMAGE, UNSTARTED, explained, findings
from elastic.client.summary import summary
from elastic_training.rendezvous.engine.messages.doing import HangState

ROOT = Path(__file__).resolve().parents[4]
WORD = re.compile(r"[A-Z][A-Za-z]+$")
BOUNDS = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 4}}


def names(place: ReasonPlace) -> set[str]:
    return {reason.name for reason in REASONS if place in reason.places}


def told(function: str) -> set[str]:
    """Return the constant reasons of Events that the controller makes with this function."""
    found = set[str]()
    for path in (ROOT / "controller").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function and node.args:
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str) and WORD.match(first.value):
                    found.add(first.value)
    return found


def of_findings() -> Iterator[str]:
    """Yield the constant reasons of findings: second values of a Finding, and first values of a returned pair."""
    for node in ast.walk(ast.parse(Path(explanation.__file__).read_text())):
        values: list[ast.expr] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
            values = node.args[1:]
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            values = node.value.elts[:1]
        for value in values:
            constants = [part.value for part in ast.walk(value) if isinstance(part, ast.Constant)]
            yield from (constant for constant in constants if isinstance(constant, str) and WORD.match(constant))


def test_each_event_is_in_the_table_under_its_type() -> None:
    of_lease = {"TrainJobsNotServed"}
    assert told("warning") | {HangState.SUSPECTED.value} | of_lease == names(ReasonPlace.WARNING)
    assert told("normal") | {"TrainingMoves"} == names(ReasonPlace.EVENT)


def test_each_cause_is_in_the_table() -> None:
    assert {cause.value for cause in Cause} == names(ReasonPlace.CAUSE)


def test_each_finding_is_in_the_table() -> None:
    causes = {cause.value for cause in Cause}
    fixed = {*of_findings(), *IMAGE, *UNSTARTED, *(state.value for state in HangState), *causes, "Failed"}
    assert fixed == names(ReasonPlace.FINDING)


def test_no_name_has_two_meanings() -> None:
    assert len({reason.name for reason in REASONS}) == len(REASONS)


def test_the_page_shows_the_table() -> None:
    assert as_tables() in PAGE.read_text()
    assert with_tables(PAGE.read_text()) == PAGE.read_text()


UNREACHED = "w0 could not reach a peer, and no peer was lost or failed; 3 members"


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"hang": {"state": "SuspectedHang", "message": "rank 3 sleeps"}, "worldSize": 3}, "SuspectedHang"),
        ({"hang": {"state": "Waiting", "message": "no step has come for 40 s"}, "worldSize": 3}, "Waiting"),
        ({"lastRescale": {"cause": "outOfMemory", "reason": "a worker ended", "fromSize": 3, "toSize": 3}, "worldSize": 3}, "outOfMemory"),
        ({"lastRescale": {"cause": "plan", "stepBefore": 9, "stepAfter": 1, "stepsLost": 9}, "worldSize": 3}, "StepsLost"),
        ({"lastRescale": {"cause": "disruption", "reason": UNREACHED, "rung": "warm-restart"}, "worldSize": 3}, "BrokenCommunication"),
        ({"lastRescale": {"cause": "disruption", "reason": UNREACHED, "rung": "in-process"}, "worldSize": 3}, "disruption"),
        ({"waitsFor": "train-worker-2 has no node", "worldSize": 2}, "MissingWorkers"),
        ({"worldSize": 0}, "NotMet"),
    ],
)
def test_a_program_finds_the_reason(status: dict[str, object], reason: str) -> None:
    of = served(status=running(**status), **BOUNDS)
    assert reason in [finding.reason for finding in findings(summary(PYTORCH, of), [], of["spec"], NOW)]


def test_a_program_learns_how_bad_it_is_and_what_to_do() -> None:
    lost = {"lastRescale": {"cause": "plan", "stepBefore": 9, "stepAfter": 1, "stepsLost": 9}, "worldSize": 3}
    of = served(status=running(**lost), **BOUNDS)
    job = summary(PYTORCH, of)
    found = {one.reason: one.for_program(job.name) for one in findings(job, [], of["spec"], NOW)}
    assert found["plan"]["severity"] == Severity.INFO
    assert found["StepsLost"]["severity"] == Severity.WARNING
    remedy = "Save before a step is reported, and load the save at the start (docs/own-script.md)."
    assert found["StepsLost"]["remedy"] == remedy
    assert f"To do: {remedy}" in list(explained(job, [], of["spec"], NOW))


def test_a_failed_job_is_an_error_and_its_remedy_names_the_job() -> None:
    status = {"conditions": [{"type": "Failed", "status": "True", "message": "it failed"}], "elastic": {"restarts": {"user": 1}}}
    of = served(status=status, **BOUNDS)
    job = summary(PYTORCH, of)
    (found,) = [one.for_program(job.name) for one in findings(job, [], of["spec"], NOW) if one.is_end]
    assert (found["reason"], found["severity"]) == ("user", Severity.ERROR)
    assert found["remedy"].endswith("`elastic logs train`.")


def test_no_remedy_shows_markdown_to_a_program() -> None:
    for reason in REASONS:
        assert "](" not in reason.remedy_for("train"), reason.name
        assert "JOB" not in reason.remedy_for("train"), reason.name


@pytest.mark.parametrize(
    ("restarts", "reason"),
    [({"user": 4}, "user"), ({"outOfMemory": 2, "disruption": 9}, "outOfMemory"), ({"user": 1, "hang": 1}, "Failed"), ({}, "Failed")],
)
def test_a_failed_job_names_the_only_cause_that_counted(restarts: dict[str, int], reason: str) -> None:
    status = {"conditions": [{"type": "Failed", "status": "True", "message": "it failed"}], "elastic": {"restarts": restarts}}
    of = served(status=status, **BOUNDS)
    found = {finding.message: finding.reason for finding in findings(summary(PYTORCH, of), [], of["spec"], NOW)}
    assert found["It failed: it failed"] == reason
