"""Check benchmarks/spot_replay.py: it reads published traces, generates traces with the wanted churn, and loses no second."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rescaling.scenarios import SCENARIOS
from benchmarks.rescaling.settings import SETTINGS
from benchmarks.spot import costs
from benchmarks.spot.processes import Slice, _goodput, _Job, events
from benchmarks.spot.replay import ORACLE, WAYS, Ledger, Way, replay
from benchmarks.spot.report import draw, found, of_processes, table
from benchmarks.spot.trace import CHURN_AN_HOUR, NODES, BadTrace, Change, Trace, generated, of_points, read, write

MEASURED = costs.of_page()
"""The published figures, which change with each measurement."""
BY_NAME = {way.name: way for way in WAYS}
ONE_LOSS = of_points([(0.0, 4), (1000.0, 3)], length_s=2000.0)


def costing(seconds: dict[str, float]) -> costs.Samples:
    """Return samples in which each change costs its setting's seconds."""
    measured = {(setting, scenario): (value,) for setting, value in seconds.items() for scenario in SCENARIOS}
    return costs.Samples(measured, is_summary=False, source="a test")


def run(
    way: Way, trace: Trace, *, samples: costs.Samples = MEASURED, seed: int = 0, notice_s: float = 120.0, checkpoint_s: float = 0.0
) -> Ledger:
    return replay(way, trace, samples, seed=seed, notice_s=notice_s, checkpoint_s=checkpoint_s)


def test_a_trace_of_bamboo_is_read_the_last_of_equal_times_counts(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("100,0\n121,0\n121,4\n130,4\n130,12\n160,12\n")
    trace = read(tmp_path / "t.csv", nodes=10)
    assert trace.changes == (Change(0.0, 0), Change(21.0, 4), Change(30.0, 10))
    assert trace.length_s == 60
    assert trace.node_s == 9 * 4 + 30 * 10


def test_a_trace_of_skypilot_is_read(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"metadata": {"gap_seconds": 300}, "data": [0, 5, 5, 16]}')
    trace = read(tmp_path / "t.json")
    assert trace.changes == (Change(0.0, 0), Change(300.0, 5), Change(900.0, 16))
    assert trace.length_s == 1200


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("t.csv", "time,nodes\n0,4\nx,3\n", "line 3: 'x,3' is not SECONDS,NODES"),
        ("t.csv", "0,4\n7\n", "line 2: '7' is not SECONDS,NODES"),
        ("t.csv", "9,4\n7,3\n", "line 2: seconds must not go back"),
        ("t.csv", "0,4\n7,-1\n", "line 2: seconds must not go back, nor nodes below 0"),
        ("t.csv", "time,nodes\n", "it has 0 points; a trace needs two"),
        ("t.json", "[1]", "it needs metadata.gap_seconds and data"),
        ("t.json", '{"metadata": {"gap_seconds": 0}, "data": [1, 2]}', "gap_seconds must be above 0"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_the_line(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadTrace) as refused:
        read(tmp_path / name)
    assert words in str(refused.value)


def test_a_written_trace_is_read_again(tmp_path: Path) -> None:
    trace = generated(hours=3, seed=1)
    write(trace, tmp_path / "t.csv")
    again = read(tmp_path / "t.csv")
    assert [change.nodes for change in again.changes] == [change.nodes for change in trace.changes]
    assert again.length_s == pytest.approx(trace.length_s)


def test_generated_traces_have_the_churn_and_the_nodes_that_are_asked_for() -> None:
    traces = [generated(hours=24, seed=seed) for seed in range(20)]
    churn = sum(trace.churn_an_hour for trace in traces) / len(traces)
    assert churn == pytest.approx(CHURN_AN_HOUR, rel=0.05)
    assert all(1 <= change.nodes <= NODES for trace in traces for change in trace.changes)
    assert generated(hours=1, seed=3) == generated(hours=1, seed=3)


def test_a_part_of_a_trace_begins_with_the_nodes_that_are_there() -> None:
    part = ONE_LOSS.part(900.0, 1100.0)
    assert part.changes == (Change(0.0, 4), Change(100.0, 3))
    assert part.scaled(2).changes == (Change(0.0, 2),)


def test_a_loss_costs_the_measured_seconds() -> None:
    there = 1000 * 4 + 1000 * 3
    samples = costing({BY_NAME["elastic"].setting: 2.7, BY_NAME["stock"].setting: 46.4})
    elastic, stock = (run(BY_NAME[name], ONE_LOSS, samples=samples) for name in ("elastic", "stock"))
    assert elastic.left == 120, "the node was left at the notice"
    assert elastic.pauses == pytest.approx(3 * 2.7)
    assert elastic.trained == pytest.approx(there - elastic.left - elastic.pauses)
    assert stock.left == 0
    assert stock.pauses == pytest.approx(3 * 46.4)
    assert run(BY_NAME["stock"], ONE_LOSS, samples=samples, checkpoint_s=300).repeated == pytest.approx(4 * 100), (
        "the last checkpoint was at 900 s"
    )
    assert run(BY_NAME["elastic"], ONE_LOSS, samples=samples, checkpoint_s=300).repeated == 0, "the script saved at the notice"


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
@pytest.mark.parametrize("checkpoint_s", [0.0, 60.0])
def test_every_second_of_every_node_is_accounted_for(way: Way, checkpoint_s: float) -> None:
    for seed in range(5):
        ledger = run(way, generated(hours=12, seed=seed), seed=seed, checkpoint_s=checkpoint_s)
        parts = ledger.trained + ledger.left + ledger.joining + ledger.pauses + ledger.repeated
        assert parts == pytest.approx(ledger.there, rel=0.001)
        assert min(ledger.trained, ledger.left, ledger.joining, ledger.pauses, ledger.repeated) >= 0


def test_the_aim_is_met_with_process_restarts_and_nobody_beats_the_oracle() -> None:
    traces = [generated(hours=24, seed=seed) for seed in range(5)]
    results = [found(way, [run(way, trace, seed=n) for n, trace in enumerate(traces)]) for way in WAYS]
    goodput = {one.way.name: one.ledger.goodput for one in results}
    assert goodput["elastic"] >= 0.97
    assert goodput["oracle"] == 1.0 == max(goodput.values())
    assert goodput["stock"] < goodput["elastic"] < goodput["warm"]
    text = table({0.0: results})
    assert all(way.words in text for way in WAYS)
    assert draw(results, "title").count("<rect") >= 5 * len(WAYS)


def test_the_oracle_loses_nothing_and_a_job_that_begins_without_nodes_starts_with_the_first() -> None:
    late = of_points([(0.0, 0), (100.0, 4)], length_s=200.0)
    assert run(ORACLE, late).goodput == 1.0
    samples = costing({BY_NAME["elastic"].setting: 3.6})
    assert run(BY_NAME["elastic"], late, samples=samples).trained == pytest.approx(4 * (100 - 3.6))


def test_with_processes_a_loss_is_announced_before_it_comes() -> None:
    trace = of_points([(0.0, 4), (10.0, 3), (100.0, 2), (150.0, 4)], length_s=200.0)
    assert [(one.at, one.what, one.count) for one in events(trace, notice_s=30.0)] == [
        (0.0, "notice", 1),
        (10.0, "loss", 1),
        (70.0, "notice", 1),
        (100.0, "loss", 1),
        (150.0, "gain", 2),
    ]


def test_with_processes_as_many_nodes_are_there_as_the_trace_says() -> None:
    """Two of the four lost nodes came after the notice. They stayed, and their steps counted, but not their time."""
    agents = Nodes()
    job = _Job(next(iter(SETTINGS)), agents, None, most=6, notice_s=30.0)  # type: ignore[arg-type]
    trace = of_points([(0.0, 3), (100.0, 5), (110.0, 1), (200.0, 2)], length_s=300.0)
    job.start(3)
    for event, nodes in zip(events(trace, notice_s=30.0), (3, 5, 1, 2), strict=True):
        job.take(event)
        assert len(agents.here) == nodes, event
    assert agents.here == {"worker-0", "worker-5"}


class Nodes:
    def __init__(self) -> None:
        self.here: set[str] = set()

    def start(self, name: str) -> None:
        self.here.add(name)

    def kill(self, name: str) -> None:
        self.here.remove(name)


def test_with_processes_a_step_counts_once_for_all_nodes_that_took_it() -> None:
    done = [(1.0, 1, 2), (2.0, 2, 2), (3.0, 3, 2), (6.0, 3, 2), (7.0, 4, 2), (8.0, 5, 2)]
    assert _goodput(done, of_points([(0.0, 2)], length_s=8.0)) == pytest.approx(5 * 2 * 1.0 / 16)
    assert _goodput([], ONE_LOSS) == 0.0


def test_with_processes_the_report_names_load_and_slices_and_what_it_does_not_say() -> None:
    slices = [Slice("elastic", 0.9, 90, 3, 1.0), Slice("stock", 0.5, 50, 3, 2.0), Slice("elastic", 0.8, 80, 4, 3.0)]
    text = of_processes(slices, slice_s=900.0, workers=6, processors=2)
    assert text.splitlines()[0] == "elastic: goodput 0.850 (0.800 to 0.900), 2 slices of 15 min, 7 changes, load 2.0 (1.0 to 3.0)"
    assert text.splitlines()[1].startswith("stock: goodput 0.500")
    assert "2 processors" in text
    assert text.endswith("Not said: anything about GPUs, larger models, networks between machines, or more than 6 nodes.")
    assert of_processes(slices, slice_s=180.0, workers=6, processors=2).endswith("no figure here is a claim.")
