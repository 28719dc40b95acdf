"""How much of a spot cluster's time becomes training: replays a trace of nodes for our backend, stock torchrun, checkpoint-and-restart, and
an oracle whose changes cost nothing.

Run it as `python -m benchmarks.spot_replay`. It simulates; what a change costs is drawn from what bench-rescale measured. Without
`--trace` it generates traces of 24 nodes with 14.3 changes an hour; `--trace` takes a CSV of seconds and nodes, as Bamboo's, or a JSON
file of SkyPilot's spot-traces. `--write` renews docs/spot-replay.md and its picture.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.spot import costs, report
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
    parser.add_argument("--write", action="store_true", help="renew docs/spot-replay.md and docs/spot-replay.svg")
    chosen = parser.parse_args()
    try:
        traces = _traces(chosen)
    except (BadTrace, OSError) as error:
        parser.error(str(error))
    if chosen.save:
        write(traces[0], chosen.save)
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
