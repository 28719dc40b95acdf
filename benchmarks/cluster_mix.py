"""Let a hundred elastic jobs share a cluster, once under each policy of the autoscaler, and say how long jobs take and what they cost.

`python -m benchmarks.cluster_mix [--jobs 100] [--nodes 16] [--gpus 4] [--rescale 12]` simulates: jobs, arrivals and scaling curves are
drawn from a seed, the same for each policy; the numbers of workers come from the autoscaler's own decisions, and what a change costs is
an option. `--write` renews the table in docs/cluster-mix.md.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from benchmarks.mix.cluster import BEGIN as START
from benchmarks.mix.cluster import PRICE, Cluster, Plan, nodes
from benchmarks.mix.workload import Submitted, submitted
from elastic.api.scaling import PolicyName, ScalingPolicy

PAGE = Path(__file__).parents[1] / "docs" / "cluster-mix.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
PLANS = (
    Plan(name="fixed: minReplicas", fixed="least"),
    Plan(name="fixed: maxReplicas", fixed="most"),
    Plan(name="throughput, 50 %", policy=ScalingPolicy()),
    Plan(name="throughput, 80 %", policy=ScalingPolicy(min_gain_percent=80)),
    Plan(name="capacity", policy=ScalingPolicy(policy=PolicyName.CAPACITY)),
    Plan(name="deadline", policy=ScalingPolicy(policy=PolicyName.DEADLINE, total_samples=1)),
    Plan(name="cost", policy=ScalingPolicy(policy=PolicyName.COST, price_label=PRICE)),
)
HEAD = ("policy", "mean completion", "longest", "mean wait for the first worker", "GPU-hours", "money", "changes")


def row(plan: Plan, queue: list[Submitted], *, machines: int, gpus: int, rescale_s: float, seed: int) -> tuple[str, ...]:
    cluster = Cluster(plan, nodes(machines, gpus), rescale_s=rescale_s, seed=seed)
    cluster.run(queue)
    took, waited = [], []
    for job in cluster.jobs:
        if job.ended is None or job.began is None:
            raise SystemExit(f"{plan.name}: {job.of.name} did not end")
        took.append(job.ended - START - job.of.at)
        waited.append(job.began - START - job.of.at)
    return (
        plan.name,
        f"{statistics.mean(took) / 60:.0f} min",
        f"{max(took) / 60:.0f} min",
        f"{max(0.0, statistics.mean(waited)):.0f} s",
        f"{cluster.gpu_s / 3600:.0f}",
        f"{cluster.money:.0f}",
        str(cluster.changes),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--gpus", type=int, default=4, help="of each node")
    parser.add_argument("--rescale", type=float, default=12.0, help="seconds without training after each change of a job's workers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="renew docs/cluster-mix.md")
    chosen = parser.parse_args()
    queue = submitted(chosen.jobs, seed=chosen.seed)
    lines = [HEAD, ("---",) * len(HEAD)]
    for plan in PLANS:
        lines.append(row(plan, queue, machines=chosen.nodes, gpus=chosen.gpus, rescale_s=chosen.rescale, seed=chosen.seed))
        print(" | ".join(lines[-1]), flush=True)
    hours = sum(one.work for one in queue) / 3600
    words = (
        f"{chosen.jobs} jobs with {hours:.0f} GPU-hours of work at one worker each arrive within {queue[-1].at / 3600:.1f} hours at "
        f"{chosen.nodes} nodes of {chosen.gpus} GPUs; a change costs {chosen.rescale:g} s; seed {chosen.seed}."
    )
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    print(table, words, sep="\n\n")
    if chosen.write:
        text = PAGE.read_text()
        head, tail = text.partition(BEGIN)[0], text.partition(END)[2]
        PAGE.write_text(f"{head}{BEGIN}\n{table}\n\n{words}\n{END}{tail}")


if __name__ == "__main__":
    main()
