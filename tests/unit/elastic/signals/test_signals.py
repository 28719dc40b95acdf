"""The table of signals: what clouds and clusters write on nodes and pods is recognised, with the time that is left.

A wrong row of an installation is named, and the other rows count.
"""

import asyncio
import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as some
from job_builders import NOW, pod, snapshot, tainted

from elastic.cli.signals import signals
from elastic.kube.resources import Resource
from elastic.local.reclaim import PLAYABLE, Played, as_seen
from elastic.runtime.signal_file import table_of
from elastic.signals import page
from elastic.signals.rows import MOST_ROWS, Table, read_table
from elastic.signals.seen import on_job, on_node, on_pod
from elastic.signals.signal import Deadline, DisruptionSignal, Meaning, On
from elastic.signals.table import BUILT_IN
from elastic_training.controller.acting import table_warnings
from elastic_training.controller.acting.event_recorder import EventRecorder
from elastic_training.controller.deciding.lifecycle.disruption import Notice, notices
from elastic_training.controller.facts.snapshot import Node, Pod, node_from, pod_from

BY_NAME = {row.name: row for row in BUILT_IN}
Object = dict[str, Any]


def raw_node(played: Played) -> Object:
    taint = played.taint
    taints = [{"key": taint.key, "value": taint.value, "effect": str(taint.effect)}] if taint is not None else []
    conditions = [played.condition] if played.condition is not None else []
    metadata = {"name": "n", "labels": dict(played.labels), "annotations": dict(played.annotations)}
    return {"metadata": metadata, "spec": {"taints": taints}, "status": {"conditions": conditions}}


def notice(node: Node | None = None, one: Pod | None = None) -> Notice | None:
    found = notices(snapshot(one or pod(node="n"), nodes={"n": node} if node is not None else {}))
    return next(iter(found.values()), None)


def test_every_row_has_a_name_of_its_own_and_a_leave_says_when() -> None:
    assert len(BY_NAME) == len(BUILT_IN)
    for row in BUILT_IN:
        assert row.meaning is not Meaning.LEAVE or row.lead_s or row.deadline.value in ("toleration",), row


def test_the_page_shows_the_table() -> None:
    text = page.PAGE.read_text()
    assert page.with_table(text) == text
    for row in BUILT_IN:
        assert f"- `{row.name}` (" in text
    assert "when nothing" not in text


@pytest.mark.parametrize("name", PLAYABLE)
@pytest.mark.parametrize("left_s", [15, 120])
def test_a_clouds_signal_is_read_as_its_row_with_the_time_that_is_left(name: str, left_s: int) -> None:
    row = PLAYABLE[name]
    played = as_seen(row, now=NOW, left_s=left_s)
    sights = on_node(BUILT_IN, raw_node(played))
    assert row in [sight.signal for sight in sights]
    if row.meaning is Meaning.LEAVE:
        found = notice(node_from(raw_node(played)))
        assert found is not None
        latest_s = row.lead_s if row.deadline in (Deadline.VALUE, Deadline.LABEL) else left_s
        assert found.by == NOW + timedelta(seconds=min(left_s, latest_s) if row.deadline is not Deadline.LEAD else row.lead_s)


@pytest.mark.parametrize("label", ["", "soon", "-7", "99999999999999999999", str(int((NOW - timedelta(hours=9)).timestamp()))])
def test_a_time_that_says_nothing_leaves_the_lead_time(label: str) -> None:
    node = tainted("n", "aws-node-termination-handler/spot-itn", labels={"aws-node-termination-handler/action-time": label})
    found = notice(node)
    assert found is not None
    assert found.by == NOW + timedelta(seconds=120)


def test_a_clock_that_is_ahead_gives_nobody_more_time() -> None:
    ahead = str(int((NOW + timedelta(hours=9)).timestamp()))
    found = notice(tainted("n", f"ToBeDeletedByClusterAutoscaler={ahead}"))
    assert found is not None
    assert found.by == NOW + timedelta(seconds=60)


def test_an_azure_preemption_says_when_in_its_message() -> None:
    condition = {"type": "VMEventScheduled", "status": "True", "reason": "VMEventScheduled"}
    message = "Preempt Scheduled: Thu, 01 Jan 2026 12:00:31 GMT"
    found = notice(tainted("n", status={"conditions": [condition | {"message": message}]}))
    assert found is not None
    assert (found.signal, found.by) == ("aks-preempt", datetime(2026, 1, 1, 12, 0, 31, tzinfo=UTC))
    nonsense = {"message": "Preempt Scheduled: Thu, 01 Jan 99999999999 12:00:31 GMT"}
    unread = notice(tainted("n", status={"conditions": [condition | nonsense]}))
    assert unread is not None, "a time that nobody can read is none"
    over = {"type": "VMEventScheduled", "status": "False", "reason": "NoVMEventScheduled", "message": "VM has no scheduled event"}
    assert notice(tainted("n", status={"conditions": [over]})) is None


@pytest.mark.parametrize(
    ("labels", "seconds"), [({}, 20), ({"cloud.google.com/gke-spot": "true"}, 15), ({"cloud.google.com/gke-preemptible": "true"}, 15)]
)
def test_a_node_that_shuts_down_in_order_gives_notice(labels: dict[str, str], seconds: int) -> None:
    condition = {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "[node is shutting down, other]"}
    found = notice(tainted("n", labels=labels, status={"conditions": [condition]}))
    assert found is not None
    assert found.by == NOW + timedelta(seconds=seconds)
    well = {"type": "Ready", "status": "True", "message": "kubelet is posting ready status"}
    assert notice(tainted("n", labels=labels, status={"conditions": [well]})) is None


TOLERATED = [
    ([], 30),
    ([{"key": "mine", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 45}], 45),
    ([{"operator": "Exists", "tolerationSeconds": 45}, {"key": "mine", "operator": "Exists"}], 45),
    ([{"key": "mine", "operator": "Exists"}], None),
    ([{"operator": "Exists"}], None),
    ([{"key": "mine", "operator": "Exists", "effect": "NoSchedule"}], 30),
    ([{"key": "mine", "operator": "Equal", "value": "x", "tolerationSeconds": 45}], 45),
    ([{"key": "mine", "value": "x"}], None),
    ([{"key": "mine", "operator": "Equal", "value": "y"}], 30),
    ([{"key": "mine", "value": "y", "tolerationSeconds": 300}], 30),
    ([{"key": "mine", "operator": "Exists", "tolerationSeconds": 45}, {"key": "mine", "value": "y"}], 45),
    ([{"key": "mine"}], 30),
    ([{"key": "other", "operator": "Exists"}], 30),
]


@pytest.mark.parametrize(("tolerations", "seconds"), TOLERATED)
def test_any_other_no_execute_taint_counts_by_what_the_pod_tolerates(tolerations: list[Object], seconds: int | None) -> None:
    taint = {"key": "mine", "value": "x", "effect": "NoExecute", "timeAdded": NOW.strftime("%Y-%m-%dT%H:%M:%SZ")}
    node = node_from({"metadata": {"name": "n"}, "spec": {"taints": [taint]}})
    raw = {"metadata": {"name": "train-worker-0"}, "spec": {"nodeName": "n", "tolerations": tolerations}, "status": {"phase": "Running"}}
    found = notice(node, pod_from(raw))
    assert (found.by if found is not None else None) == (NOW + timedelta(seconds=seconds) if seconds is not None else None)


@pytest.mark.parametrize("row", [row for row in BUILT_IN if row.on is On.POD_CONDITION and row.reason])
def test_each_reason_of_a_disrupted_pod_is_a_row(row: DisruptionSignal) -> None:
    raw = {"metadata": {}, "status": {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": row.reason}]}}
    assert [sight.signal for sight in on_pod(BUILT_IN, raw)] == [row]


@pytest.mark.parametrize(
    "taint", ["node.kubernetes.io/not-ready", "kubernetes.azure.com/scalesetpriority=spot", "mine", "karpenter.sh/disruption=other"]
)
def test_a_taint_that_takes_nobody_away_is_no_notice(taint: str) -> None:
    assert notice(tainted("n", taint)) is None


@pytest.mark.parametrize("spec", [{}, None, 7, {"runPolicy": 7}, {"runPolicy": {}}, {"runPolicy": {"suspend": False}}])
def test_a_job_that_nobody_has_suspended_shows_nothing(spec: Any) -> None:
    labels = {"kueue.x-k8s.io/queue-name": "team"}
    assert on_job(BUILT_IN, {"metadata": {"labels": labels}, "spec": spec}) == ()
    assert [
        sight.signal.name for sight in on_job(BUILT_IN, {"metadata": {"labels": labels}, "spec": {"runPolicy": {"suspend": True}}})
    ] == ["kueue-eviction"]


def test_another_queue_may_be_named_by_a_row_of_the_installation() -> None:
    row = "{name: our-queue, seenIn: job suspension, key: example.com/queue, meaning: leave, leadSeconds: 30}"
    raw = {"metadata": {"labels": {"example.com/queue": "a"}}, "spec": {"runPolicy": {"suspend": True}}}
    assert [sight.signal.name for sight in on_job(read_table(f"signals: [{row}]", name="f").rows, raw)] == ["our-queue"]


def test_the_signal_with_less_time_counts() -> None:
    both = tainted("n", "aws-node-termination-handler/spot-itn", "cloud.google.com/impending-node-termination")
    found = notice(both)
    assert found is not None
    assert found.signal == "gke-termination"
    lost = notice(tainted("n", "aws-node-termination-handler/spot-itn", "node.kubernetes.io/unreachable"))
    assert lost is not None
    assert (lost.meaning, lost.by) == (Meaning.GONE, NOW)


ROWS = """
signals:
- {name: our-reclaim, seenIn: node taint, key: example.com/reclaim, meaning: leave, leadSeconds: 45}
- {name: our-wish, seenIn: node annotation, key: example.com/leave-by, meaning: leave, deadline: moment, leadSeconds: 60}
- {name: aws-rebalance, seenIn: node taint, key: aws-node-termination-handler/rebalance-recommendation, meaning: inform}
"""


def test_an_installation_adds_rows_and_changes_what_built_in_ones_mean() -> None:
    table = read_table(ROWS, name="signals.yaml")
    assert table.problems == ()
    assert len(table.rows) == len(BUILT_IN) + 2
    raw = {"metadata": {"name": "n"}, "spec": {"taints": [{"key": "example.com/reclaim", "effect": "NoExecute"}]}}
    assert [sight.signal.name for sight in on_node(table.rows, raw)] == ["our-reclaim"]
    found = notice(node_from(raw, table.rows))
    assert found is not None
    assert found.by == NOW + timedelta(seconds=45)
    annotated = {"metadata": {"name": "n", "annotations": {"example.com/leave-by": "2026-01-01T12:07:00Z"}}}
    assert [sight.by for sight in on_node(table.rows, annotated)] == [datetime(2026, 1, 1, 12, 7, tzinfo=UTC)]
    rebalance = node_from(raw_node(as_seen(BY_NAME["aws-rebalance"], now=NOW, left_s=None)), table.rows)
    assert [sight.signal.meaning for sight in rebalance.sights] == [Meaning.INFORM]


WRONG = [
    ("{seenIn: node taint, key: a, meaning: inform}", "row 2, name: it is missing; add it"),
    ("{name: a, key: a, meaning: inform}", "row 2 (a), seenIn: it is missing; use one of node taint, node condition"),
    ("{name: a, seenIn: event, key: a, meaning: inform}", "row 2 (a), seenIn: it is 'event'; use one of node taint"),
    ("{name: a, seenIn: node taint, meaning: inform}", "row 2 (a), key: it is missing; add it"),
    ("{name: a, seenIn: node taint, key: a}", "row 2 (a), meaning: it is missing; use one of gone, leave, prepare, inform"),
    ("{name: a, seenIn: node taint, key: a, meaning: leave}", "row 2 (a), leadSeconds: it is missing, and meaning is leave"),
    ("{name: a, seenIn: node taint, key: a, meaning: leave, leadSeconds: soon}", "leadSeconds: it is 'soon' but must be a number"),
    ("{name: a, seenIn: node taint, key: a, meaning: leave, leadSeconds: -1}", "leadSeconds: it is -1 but must be a number"),
    ("{name: a, seenIn: node taint, key: a, meaning: leave, leadSeconds: .nan}", "leadSeconds: it is nan but must be a number"),
    ("{name: a, seenIn: node taint, key: a, meaning: inform, effect: Never}", "effect: 'Never' is not an effect of a taint; use one of"),
    ("{name: a, seenIn: pod condition, key: a, meaning: inform, effect: NoExecute}", "effect: only a taint has one"),
    ("{name: a, seenIn: node taint, key: 7, meaning: inform}", "key: it is 7 but must be text; put it in quotes"),
    ("{name: a, seenIn: node taint, key: a, meaning: leave, leadSeconds: 9, deadline: label}", "deadlineKey: it is missing"),
    ("{name: a, seenIn: node taint, key: a, meaning: inform, nodeLabel: a}", "nodeLabel: 'a' is not KEY=VALUE"),
    ("{name: a, seenIn: node taint, key: a, meaning: inform, colour: red}", "field 'colour': it is unknown; use name, seenIn"),
    ("{name: ok, seenIn: node taint, key: a, meaning: inform}", "row 2 (ok), name: 'ok' is there twice"),
    ("7", "row 2, which is 7: it must be a map of fields"),
]


@pytest.mark.parametrize(("row", "words"), WRONG)
def test_a_wrong_row_is_named_and_the_others_count(row: str, words: str) -> None:
    good = "{name: ok, seenIn: node taint, key: x, meaning: inform}"
    later = "{name: later, seenIn: node taint, key: y, meaning: inform}"
    table = read_table(f"signals:\n- {good}\n- {row}\n- {later}\n", name="signals.yaml")
    (problem,) = table.problems
    assert words in problem
    assert problem.startswith("signals.yaml: row 2")
    assert [added.name for added in table.rows[:2]] == ["ok", "later"]
    assert set(BUILT_IN) <= set(table.rows)


@pytest.mark.parametrize("text", ["[", "7", "signals: 7", "rows: []", "a: &a [*a]", "[" * 300 + "]" * 300, "x" * 300_000])
def test_a_file_that_is_no_table_costs_the_built_in_rows_nothing(text: str) -> None:
    table = read_table(text, name="signals.yaml")
    assert table.rows == BUILT_IN
    assert len(table.problems) == 1
    assert table.problems[0].startswith("signals.yaml")


def test_a_file_of_too_many_rows_is_cut() -> None:
    rows = "".join(f"- {{name: r{n}, seenIn: node taint, key: k{n}, meaning: inform}}\n" for n in range(MOST_ROWS + 1))
    table = read_table(f"signals:\n{rows}", name="f")
    assert len(table.rows) == len(BUILT_IN) + MOST_ROWS
    assert table.problems == (f"f: only the first {MOST_ROWS} rows count; leave out others",)


ODD = some.fixed_dictionaries(
    {"metadata": some.just({"name": "n"})},
    optional={
        "spec": some.fixed_dictionaries(
            {
                "taints": some.lists(
                    some.fixed_dictionaries({}, optional={w: some.text(max_size=9) for w in ("key", "value", "effect", "timeAdded")})
                )
            }
        ),
        "status": some.fixed_dictionaries(
            {
                "conditions": some.lists(
                    some.fixed_dictionaries({}, optional={w: some.text(max_size=9) for w in ("type", "status", "message")})
                )
            }
        ),
    },
)


@given(ODD)
def test_any_node_can_be_read(raw: Object) -> None:
    for sight in on_node(BUILT_IN, raw):
        assert sight.signal in BUILT_IN


def test_the_command_lists_the_table_and_checks_a_file(tmp_path: Any) -> None:
    (tmp_path / "right.yaml").write_text(ROWS)
    (tmp_path / "wrong.yaml").write_text("signals:\n- {name: a}\n")
    plain, right, wrong = (CliRunner().invoke(signals, given) for given in ([], [f"{tmp_path}/right.yaml"], [f"{tmp_path}/wrong.yaml"]))
    assert "aws-spot " in plain.stdout
    assert (plain.exit_code, right.exit_code, wrong.exit_code) == (0, 0, 1)
    assert "our-reclaim" in right.stdout
    assert "row 1 (a), seenIn: it is missing" in wrong.stderr


def test_a_file_that_is_missing_or_wrong_leaves_the_built_in_rows(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("signals:\n- {name: a}\n")
    assert table_of(None) == table_of(tmp_path / "missing.yaml") == Table(BUILT_IN)
    folder, wrong = table_of(tmp_path), table_of(tmp_path / "wrong.yaml")
    assert folder.rows == wrong.rows == BUILT_IN
    assert "only the built-in rows count" in folder.problems[0]
    assert "row 1 (a), seenIn: it is missing" in wrong.problems[0]


async def test_wrong_rows_are_an_event_about_the_config_map_for_as_long_as_this_process_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Object] = []
    twice = asyncio.Event()

    async def create(_: Resource, body: Object, *, namespace: str) -> Object:
        assert namespace == "elastic-system"
        written.append(body)
        if len(written) == 2:
            twice.set()
        return body

    monkeypatch.setattr(table_warnings, "LOOK_S", 0.001)
    monkeypatch.setattr(table_warnings, "AGAIN_S", 0.002)
    leading = [False]
    problems = ("signals.yaml: row 1, key: it is missing; add it", "signals.yaml: row 2, name: it is missing; add it")
    recorder = EventRecorder(SimpleNamespace(create=create))  # type: ignore[arg-type]
    now = iter(NOW + timedelta(seconds=index) for index in itertools.count())
    warning = asyncio.create_task(
        table_warnings.warn_of_rows(recorder, problems, namespace="elastic-system", leads=lambda: leading[0], now=lambda: next(now))
    )
    await asyncio.sleep(0.05)
    assert written == [], "another process leads"
    leading[0] = True
    async with asyncio.timeout(10):
        await twice.wait()
    warning.cancel()
    event = written[0]
    about = event["involvedObject"]
    assert (about["apiVersion"], about["kind"], about["name"]) == ("v1", "ConfigMap", "elastic-signals")
    assert (event["type"], event["reason"]) == ("Warning", "SignalRowIgnored")
    assert "row 1, key: it is missing" in event["message"]
    assert "row 2, name: it is missing" in event["message"]
    assert event["metadata"]["name"] != written[1]["metadata"]["name"], "the first is gone after an hour"
