"""Replay a trace for one way to train, in virtual time: a job runs on all present nodes, and its changes cost the measured seconds.

Work is counted in node-seconds of training, and all nodes count the same. `Ledger` accounts for all node-seconds.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.spot.costs import Samples
from benchmarks.spot.trace import Trace

GRACE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The way in which a job meets changes."""

    name: str
    words: str
    colour: str
    setting: str = ""
    """The setting of bench-rescale."""
    hears: bool = False
    """The job gets notice of a loss, saves, and goes on without the node at once. Otherwise a SIGKILL costs the work since a checkpoint."""
    saves: bool = False
    """The job saves before it takes a new node in."""
    restarts: bool = False
    """The job restarts as a whole at each change."""


ORACLE = Way(name="oracle", words="oracle: changes cost nothing", colour="#999999")
WAYS = (
    ORACLE,
    Way(name="warm", words="elastic, warm start", colour="#2c5f8a", setting="warm", hears=True, saves=True),
    Way(name="elastic", words="elastic, process restarts", colour="#5b8fb9", setting="elastic", hears=True, saves=True),
    Way(name="restart", words="checkpoint and restart", colour="#7a9e7e", setting="store", saves=True, restarts=True),
    Way(name="tuned", words="torchrun, tuned flags", colour="#d99a3d", setting="tuned"),
    Way(name="stock", words="torchrun, default flags", colour="#b0413e", setting="stock"),
)


@dataclass(slots=True)
class Ledger:
    """Node-seconds by their use."""

    there: float = 0.0
    """All node-seconds of the trace."""
    trained: float = 0.0
    left: float = 0.0
    """Node-seconds of nodes that the job left at a notice."""
    joining: float = 0.0
    """Node-seconds of new nodes before their first step."""
    pauses: float = 0.0
    """Node-seconds in which nobody trained."""
    repeated: float = 0.0
    """Node-seconds of work that was done again after a loss."""
    changes: int = 0

    @property
    def goodput(self) -> float:
        return self.trained / self.there if self.there else 1.0

    def add(self, other: Ledger) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(frozen=True, slots=True, order=True)
class _Event:
    """A change at `at`: the job has `nodes` more nodes, and stands still for `pause_s`. If `is_saved`, no work is repeated."""

    at: float
    nodes: int
    pause_s: float = field(compare=False)
    is_saved: bool = field(compare=False)


def replay(way: Way, trace: Trace, samples: Samples, *, seed: int, notice_s: float, checkpoint_s: float) -> Ledger:
    """Replay the trace. `checkpoint_s` is the training between two checkpoints; 0 means a checkpoint after each step."""
    ledger = Ledger(there=trace.node_s, changes=len(trace.changes) - 1)
    if way is ORACLE:
        ledger.trained = ledger.there
        return ledger
    draw = random.Random(seed)
    events = sorted(_events(way, trace, samples, draw, notice_s=notice_s))
    _walk(ledger, events, trace, checkpoint_s=checkpoint_s)
    return ledger


def _events(way: Way, trace: Trace, samples: Samples, draw: random.Random, *, notice_s: float) -> Iterator[_Event]:
    yield _Event(0.0, trace.changes[0].nodes, 0.0, True)
    for before, change in itertools.pairwise(trace.changes):
        more = change.nodes - before.nodes
        if before.nodes == 0:
            start_s = samples.draw(way.setting, "start", draw)
            yield _Event(change.at, more, start_s, True)
        elif way.restarts:
            yield _Event(change.at, more, samples.draw(way.setting, "start", draw), more > 0)
        elif more > 0:
            # The others stand still for as long as for a planned loss. The rest is the newcomer's own start.
            pause_s = samples.draw(way.setting, "sigterm" if way.hears else "add", draw)
            join_s = max(0.0, samples.draw(way.setting, "add", draw) - pause_s)
            yield _Event(change.at + join_s, more, pause_s, way.saves)
        elif way.hears:
            # If no node stays, all train on until their grace begins.
            early_s = notice_s if change.nodes else min(GRACE_S, notice_s / 2)
            yield _Event(max(0.0, change.at - early_s), more, samples.draw(way.setting, "sigterm", draw), True)
        else:
            yield _Event(change.at, more, samples.draw(way.setting, "sigkill", draw), False)


def _walk(ledger: Ledger, events: list[_Event], trace: Trace, *, checkpoint_s: float) -> None:
    nodes, at, stands_until, unsaved_s = 0, 0.0, 0.0, 0.0
    for event in (*events, _Event(trace.length_s, 0, 0.0, True)):
        until = min(event.at, trace.length_s)
        working = max(0, nodes)
        paused_s = max(0.0, min(stands_until, until) - at)
        trained_s = max(0.0, until - at - paused_s) if working else 0.0
        ledger.pauses += paused_s * working
        ledger.trained += trained_s * working
        unsaved_s = (unsaved_s + trained_s) % checkpoint_s if checkpoint_s else 0.0
        if not event.is_saved:
            again_s = min(unsaved_s, ledger.trained / working if working else 0.0)
            ledger.repeated += again_s * working
            ledger.trained -= again_s * working
        if event.pause_s:
            unsaved_s = 0.0
        nodes, at = nodes + event.nodes, max(at, until)
        stands_until = max(stands_until, until + event.pause_s)
    _attribute(ledger, events, trace)


def _attribute(ledger: Ledger, events: list[_Event], trace: Trace) -> None:
    """Count the node-seconds outside the job: of new nodes until they joined, and of nodes after the job left them."""
    changes = [(change.at, change.nodes - before.nodes) for before, change in itertools.pairwise(trace.changes)]
    own = [(min(event.at, trace.length_s), event.nodes) for event in events[1:]]

    def moment(points: list[tuple[float, int]], *, gains: bool) -> float:
        return sum(at * nodes for at, nodes in points if (nodes > 0) == gains)

    ledger.joining = moment(own, gains=True) - moment(changes, gains=True)
    ledger.left = moment(own, gains=False) - moment(changes, gains=False)
