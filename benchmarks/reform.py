"""Measure the changes of a world whose processes live on: milliseconds from the event until every rank has made its first step.

Each kind of change is forced on a world of real processes on this machine. The lab of the tests plays the agents and the rendezvous
server. A newcomer's time begins when it stands by. `CPU` is the processor time of all workers per change, which depends little on the
machine's load; `load` is the load at the end.

    python -m benchmarks.reform                              8 and 16 ranks, 200 random changes each
    python -m benchmarks.reform --sizes 8 --changes 1000     and say whether all were survived, and whether the weights are right
    python -m benchmarks.reform --sizes 8 --lazy             gloo connects in the first collective
    python -m benchmarks.reform --sizes 8 --peers 3          a kill, in turn by the library, by stock torchrun and by NVRx (--nvrx PYTHON)
    python -m benchmarks.reform --sizes 3 --bytes 100M 1G    how long the others wait until a newcomer has that much state
    python -m benchmarks.reform --flat 500                   threads, descriptors, memory and keys of a process over 500 worlds
    python -m benchmarks.reform --device cuda --sizes 4      with NCCL; all workers share the first GPU, and NCCL takes them for hosts
"""

from __future__ import annotations

import argparse
import collections
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.reforming import peers

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "integration")]

from training_changes import KINDS, Changes  # noqa: E402
from training_lab import Change, Lab, forking, lab  # noqa: E402

TAIL_S, STEADY_S = 0.3, 2.0
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
GOALS = {
    "add": (100, 200),
    "kill": (80, 150),
    "kill first": (80, 150),
    "kill forming": (150, 300),
    "leave": (120, 200),
    "stop": (700, 1000),
    "two": (150, 300),
}
"""Milliseconds, p50 and p95, for 8 ranks on two cores with steps of 10 ms and a load below 3."""
UNITS = {"M": 10**6, "G": 10**9}
STATE_PER_WEIGHT = 16
"""Bytes of state of one weight of the lab's model: float64, and as much momentum."""
TRANSFERS = 5
START_S = 600.0
"""Seconds that a busy machine may take for the first step with a large state."""


def summary(changes: list[Change], goals: Mapping[str, tuple[int, int]] | None = None) -> Iterator[str]:
    """Yield a line for each kind of change: milliseconds, and the goals for p50 and p95 of the kinds that have some."""
    for kind in sorted({change.kind for change in changes}):
        some = [change for change in changes if change.kind == kind]
        ms = sorted(1000 * change.seconds for change in some)
        names = {name: None for change in some for name in change.phases}
        phases = " ".join(f"{name} {1000 * statistics.median(c.phases[name] for c in some if name in c.phases):.0f}" for name in names)
        p95 = ms[int(0.95 * (len(ms) - 1) + 0.5)]
        goal = "goal {} / {}".format(*goals[kind]) if goals and kind in goals else ""
        yield f"{kind:13} n={len(ms):3} p50 {statistics.median(ms):5.0f} p95 {p95:5.0f} max {ms[-1]:5.0f}  {goal:15} {phases}"


def main() -> None:
    """Measure what the options name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 16], help="workers at the start")
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, help="only these kinds, in turn with an addition; by default random ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--step-ms", type=float, default=10.0, help="milliseconds of each step in which a worker waits, as for a GPU")
    parser.add_argument("--lazy", action="store_true", help="let gloo connect in the first collective")
    parser.add_argument("--flat", type=int, default=0, help="only change the world so many times, and look at one process")
    parser.add_argument("--bytes", nargs="+", default=[], help="only send a state of about this size to newcomers, such as 100M 1G")
    parser.add_argument("--peers", type=int, default=0, help="only kill a worker so many times, here and under other launchers in turn")
    parser.add_argument("--nvrx", help="a Python interpreter that has nvidia-resiliency-ext, for --peers")
    parser.add_argument("--device", default="cpu", help="where the workers train: cpu, or cuda:0 and NCCL for cuda")
    given = parser.parse_args()
    for size in given.sizes[:1] if given.flat or given.bytes or given.peers else given.sizes:
        print(
            f"{size} ranks, {'lazy' if given.lazy else 'eager'}, steps of {given.step_ms:g} ms, load {os.getloadavg()[0]:.1f}", flush=True
        )
        if given.peers:
            compare(size, given)
        for amount in given.bytes:
            width = round((float(amount[:-1]) * UNITS[amount[-1]] / STATE_PER_WEIGHT) ** 0.5)
            with _world(size, given, width=width, bucket_mb=25) as one:
                transfer(one, amount)
        if not (given.peers or given.bytes):
            with _world(size, given) as one:
                if given.flat:
                    flat(one, given.flat)
                else:
                    measure(one, size, given)


@contextmanager
def _world(size: int, given: argparse.Namespace, **options: float) -> Iterator[Lab]:
    """Start workers that train."""
    environment = {"TORCH_GLOO_LAZY_INIT": "1" if given.lazy else "0"}
    if given.device != "cpu":
        environment["NCCL_SOCKET_IFNAME"] = environment["GLOO_SOCKET_IFNAME"] = "lo"
    with (
        tempfile.TemporaryDirectory() as folder,
        forking(environment) as zygote,
        lab(Path(folder), size, zygote, plain=None, compute_s=given.step_ms / 1000, device=given.device, **options) as one,
    ):
        for _ in range(size):
            one.start()
        one.settle(START_S)
        yield one


def compare(size: int, given: argparse.Namespace) -> None:
    """Kill a worker by each launcher in turn, and print the medians."""
    found: dict[str, list[float]] = {"ours": [], "stock": []}
    if given.nvrx:
        found["nvrx"] = []
    for number in range(given.peers):
        for kind, ms in found.items():
            try:
                ms.append(_killed(kind, number, size, given))
            except peers.Lost as lost:
                print(f"{kind}: {lost}")
                continue
            print(f"kill, {kind}: {ms[-1]:.0f} ms, load {os.getloadavg()[0]:.1f}", flush=True)
    ours = statistics.median(found["ours"])
    for kind, ms in found.items():
        if ms:
            print(f"{kind:6} p50 {statistics.median(ms):6.0f} ms, n={len(ms)}, {statistics.median(ms) / ours:.1f} times ours")
    for kind, words in peers.HOW.items():
        if kind not in found:
            print(words)


def _killed(kind: str, number: int, size: int, given: argparse.Namespace) -> float:
    """Return the milliseconds from a kill until every rank has made its first step again."""
    if kind == "ours":
        with _world(size, given) as one:
            changes = Changes(one, size, seed=number)
            time.sleep(peers.STEADY_S)
            changes.one("kill")
            return 1000 * one.plane.changes[-1].seconds
    with tempfile.TemporaryDirectory() as folder:
        python = given.nvrx if kind == "nvrx" else sys.executable
        return peers.kill(kind, Path(folder) / kind, size, step_ms=given.step_ms, python=python)


def transfer(one: Lab, amount: str) -> None:
    """Add a worker again and again, and print how long the others waited for it."""
    pauses = []
    for _ in range(TRANSFERS):
        one.start_standing_by()
        one.settle(START_S)
        phases = one.plane.changes[-1].phases
        pauses.append(1000 * (phases["formed"] - phases["stopped"]))
        one.plane.leave(one.plane.world[-1])
        one.settle(START_S)
    goal = {"100M": "goal 250", "1G": "goal 2500"}.get(amount, "")
    print(f"{amount:>5} to a newcomer: the others waited {statistics.median(pauses):.0f} ms (most {max(pauses):.0f}) {goal}", end="")
    print(f", n={len(pauses)}, load {os.getloadavg()[0]:.1f}", flush=True)


def measure(one: Lab, size: int, given: argparse.Namespace) -> None:
    """Change the world, and print what each kind cost."""
    changes, tails = Changes(one, size, seed=given.seed), []
    print(f"a step without a change takes {_step_ms(one):.0f} ms", flush=True)
    used, began, sampled = collections.Counter[int](), time.monotonic(), 0
    for number in range(given.changes):
        changes.pause()
        before, at = _cpu(one), len(one.plane.changes)
        kind = None if given.kinds is None else given.kinds[number // 2 % len(given.kinds)] if number % 2 else "add"
        changes.one(kind)
        after = _cpu(one)
        used.update({pid: after[pid] - before[pid] for pid in after.keys() & before.keys()})
        sampled += len(after.keys() & before.keys())
        tails += [(change, one.plane.unformed[-3:]) for change in one.plane.changes[at:] if change.seconds > TAIL_S]
    print("\n".join(summary(one.plane.changes, GOALS if size == 8 else None)))
    ms = 1000 * used.total() / max(1, sampled) / TICKS
    print(
        f"{given.changes} changes in {time.monotonic() - began:.0f} s, CPU {ms:.0f} ms per worker and change, {len(tails)} above"
        f" {1000 * TAIL_S:.0f} ms, {len(one.plane.unformed)} attempts failed, {one.plane.pulled} survivors were level again,"
        f" load {os.getloadavg()[0]:.0f}"
    )
    stuck = sum("is stuck" in one.stderr(pid) for pid in one.pids)
    print(f"workers that ended themselves because gloo had forgotten an operation: {stuck}")
    for change, words in sorted(tails, key=lambda tail: -tail[0].seconds)[:10]:
        phases = " ".join(f"{name} {1000 * at:.0f}" for name, at in change.phases.items())
        print(f"  {change.kind}, {change.size} ranks: {1000 * change.seconds:.0f} ms: {phases}; {'; '.join(words)}"[:300])
    results = one.finish(START_S)
    wrong, steps = sum(result["wrong"] for result in results), {result["steps"] for result in results}
    is_equal = all(result["vector"] == results[0]["vector"] for result in results)
    print(f"{given.changes} changes survived, weights of all ranks {'equal' if is_equal else 'DIFFERENT'};", end=" ")
    print(f"{len(results)} ranks after {steps} steps: {wrong} samples not used exactly as often as they should", flush=True)
    expected = one.reference(max(steps), within_s=START_S)
    far = max(abs(a - b) for result in results for a, b in zip(result["vector"], expected, strict=True))
    print(f"largest difference of a weight from a single process {far:.1e}", flush=True)


def _step_ms(one: Lab) -> float:
    """Return the milliseconds of a step, which are a part of each change's."""
    seen: list[tuple[float, int]] = []
    while len(seen) < 2 or seen[-1][0] - seen[0][0] < STEADY_S:
        one.until(lambda: (one.folder / "step").exists() and (not seen or int((one.folder / "step").read_text()) > seen[-1][1]))
        seen.append((time.monotonic(), int((one.folder / "step").read_text())))
    return 1000 * (seen[-1][0] - seen[0][0]) / (seen[-1][1] - seen[0][1])


def flat(one: Lab, worlds: int) -> None:
    """Break the world off and form it again, and print what the oldest process holds.

    A process may end itself because gloo has forgotten an operation. Then a new one takes its place.
    """
    looks, size = max(1, worlds // 10), len(one.plane.world)
    for number in range(worlds):
        one.plane.note("again")
        with one.plane.news:
            one.plane._abort()
        one.settle()
        while len(one.plane.world) < size:
            one.start_standing_by("again, after an end")
            one.settle()
        pid = min(one.plane.world)
        if number % looks == 0 or number == worlds - 1:
            threads, descriptors = (len(os.listdir(f"/proc/{pid}/{kind}")) for kind in ("task", "fd"))
            resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
            held = f"{threads} threads, {descriptors} descriptors, {resident >> 20} MB, {len(one.plane._keys)} keys in the exchange"
            print(f"world {number}: process {pid}: {held}", flush=True)
    ended = [pid for pid in one.pids if pid not in one.plane.world]
    print(f"{len(ended)} processes ended: {'; '.join(one.stderr(pid)[:200] for pid in ended)}")
    print("\n".join(summary(one.plane.changes)), f"load {os.getloadavg()[0]:.0f}")


def _cpu(one: Lab) -> dict[int, int]:
    """Return the clock ticks that each worker has used."""
    found = {}
    for pid in one.plane.world:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[pid] = int(fields[11]) + int(fields[12])
    return found


if __name__ == "__main__":
    main()
