"""Compute how much of a spot cluster's time becomes training.

A trace of nodes is replayed for our backend, stock torchrun, checkpoint-and-restart, and an oracle whose changes cost nothing.

Run it as `python -m benchmarks.spot_replay`. It simulates, and draws the cost of each change from what bench-rescale measured. Without
`--trace` it generates traces of 24 nodes with 14.3 changes an hour; `--trace` takes a CSV of seconds and nodes, as Bamboo's, or a JSON
file of SkyPilot's spot-traces. `--write` renews docs/spot-replay.md and its picture.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from benchmarks.spot import costs, report
from benchmarks.spot.processes import play
from benchmarks.spot.replay import WAYS, replay
from benchmarks.spot.trace import CHURN_AN_HOUR, NODES, BadTrace, Trace, generated, read, write

DOCS = Path(__file__).parents[1] / "docs"
INTERVALS_S = (0.0, 60.0, 300.0)
PICTURED_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="a file to replay in place of generated traces")
    parser.add_argument("--nodes", type=int, default=NODES, help="of generated traces; of others at most so many are used")
    parser.add_argument("--churn", type=float, default=CHURN_AN_HOUR, help="changes an hour of generated traces")
    parser.add_argument("--hours", type=float, default=24.0, help="length of generated traces")
    parser.add_argument("--runs", type=int, default=20, help="how many traces, or draws of one trace's costs")
    parser.add_argument("--notice", type=float, default=120.0, help="seconds from a notice to the loss")
    parser.add_argument("--raw", type=Path, help="samples of benchmarks.rescale --raw, in place of docs/rescale.md")
    parser.add_argument("--save", type=Path, help="write the first trace to this CSV")
    parser.add_argument("--processes", action="store_true", help="with real processes: ours and stock torchrun in turn, for hours")
    parser.add_argument("--slice-minutes", type=float, default=15.0, help="with --processes: how long each plays; 3 minutes claim nothing")
    parser.add_argument("--slices", type=int, default=4, help="with --processes: how many slices of the trace")
    parser.add_argument("--workers", type=int, default=6, choices=range(2, 7), help="with --processes: the most that there are")
    parser.add_argument("--settings", default="elastic,stock", help="with --processes: which of bench-rescale's settings, or library")
    parser.add_argument("--kills", type=float, default=0.0, help="with --processes: share of the losses that come without a notice")
    parser.add_argument("--compress", type=float, default=1.0, help="with --processes: play so many seconds of the trace in one")
    parser.add_argument(
        "--undisturbed", action="store_true", help="with --processes: play each slice without its changes, too, and compare"
    )
    parser.add_argument("--write", action="store_true", help="renew docs/spot-replay.md and docs/spot-replay.svg")
    chosen = parser.parse_args()
    try:
        traces = _traces(chosen)
    except (BadTrace, OSError) as error:
        parser.error(str(error))
    if chosen.save:
        write(traces[0], chosen.save)
    if chosen.processes:
        _with_processes(chosen)
        return
    samples = costs.of_raw(chosen.raw) if chosen.raw else costs.of_page()
    results = {
        interval_s: [
            report.found(
                way,
                [replay(way, one, samples, seed=n, notice_s=chosen.notice, checkpoint_s=interval_s) for n, one in enumerate(traces)],
            )
            for way in WAYS
        ]
        for interval_s in INTERVALS_S
    }
    words = _words(chosen, traces, samples.source)
    print(report.table(results), words, sep="\n\n")
    if chosen.write:
        page = DOCS / "spot-replay.md"
        text = page.read_text()
        head, tail = text.partition(report.BEGIN)[0], text.partition(report.END)[2]
        page.write_text(f"{head}{report.BEGIN}\n{report.table(results)}\n\n{words}\n{report.END}{tail}")
        title = f"Where the time of the nodes goes; a checkpoint each {PICTURED_S:g} s, {chosen.notice:g} s of notice"
        (DOCS / "spot-replay.svg").write_text(report.draw(results[PICTURED_S], title))


def _with_processes(chosen: argparse.Namespace) -> None:
    """Play each slice by each setting, one after the other, so that a slow moment of the machine meets all of them.

    A generated trace has the same churn with fewer nodes; another is scaled down.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the agents are ended, too
    length_s = chosen.slice_minutes * 60 / chosen.compress
    notice_s = chosen.notice / chosen.compress
    drawn = generated(hours=chosen.hours, seed=0, nodes=chosen.workers, churn_an_hour=chosen.churn)
    scaled = read(chosen.trace).scaled(chosen.workers) if chosen.trace else drawn
    scaled = scaled.faster(chosen.compress)
    played = []
    for number in range(min(chosen.slices, int(scaled.length_s // length_s))):
        part = scaled.part(number * length_s, (number + 1) * length_s)
        for name in chosen.settings.split(","):
            one = play(name, part, most=chosen.workers, notice_s=notice_s, kills=chosen.kills)
            played.append(one)
            print(
                f"slice {number}, {one.setting:8} goodput {one.goodput:.3f}, {one.steps} steps, {one.changes} changes, "
                f"{part.node_s / length_s:.1f} nodes, load {one.load:.1f}",
                flush=True,
            )
            if chosen.undisturbed:
                calm = play(name, part.calm(), most=chosen.workers, notice_s=notice_s)
                lost = 1 - one.steps / calm.steps  # what the changes cost, at `compress` times the pace of the trace
                print(
                    f"slice {number}, {one.setting:8} {calm.steps} steps without changes, load {calm.load:.1f}; with them {1 - lost:.4f}"
                    f" of these; {1 - lost / chosen.compress:.4f} at the pace of the trace; goal 0.99",
                    flush=True,
                )
    print(report.of_processes(played, slice_s=length_s, workers=chosen.workers, processors=os.cpu_count() or 1))


def _traces(chosen: argparse.Namespace) -> list[Trace]:
    if chosen.trace:
        return [read(chosen.trace, nodes=chosen.nodes)] * chosen.runs
    return [generated(hours=chosen.hours, seed=seed, nodes=chosen.nodes, churn_an_hour=chosen.churn) for seed in range(chosen.runs)]


def _words(chosen: argparse.Namespace, traces: list[Trace], source: str) -> str:
    hours = sum(trace.length_s for trace in traces) / 3600
    mean = sum(trace.node_s for trace in traces) / hours / 3600
    churn = sum(len(trace.changes) - 1 for trace in traces) / hours
    what = f"{chosen.trace.name}, {len(traces)} times" if chosen.trace else f"{len(traces)} generated traces of {chosen.hours:g} hours"
    return (
        f"Mean (least to most) of {what}: {mean:.1f} nodes on average, {churn:.1f} changes an hour, {chosen.notice:g} s of notice. "
        f"Costs from {source}."
    )


if __name__ == "__main__":
    main()
