"""Print a job for `elastic run`: a line for each thing that happens, with the seconds since the start, and at the end the first error."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import click

from elastic.api.counting import counted
from elastic.cli.folding import Folding
from elastic.cli.passing import Passing
from elastic.cli.printing import colour_of, coloured, plain
from elastic.kube.following import ConditionNews, Event, FollowedJob, Happening, Line, Outcome, Ranks

ERROR_LINES = 20
MOST_HELD = 1000
"""Lines that wait while the user is asked something; of more, the newest."""
OF_PROCESS = re.compile(r"\[(rank|default|)(\d{1,6})\]:")
"""How a line begins that torch's exception hook wrote, with the rank, or torchrun's `--tee`, with the local one."""


@dataclass(slots=True)
class Printer:
    """`folds`: torchrun's own tracebacks are counted and not shown."""

    folds: bool = False
    start: float = field(default_factory=time.monotonic)
    told: set[tuple[str, str]] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)
    """By job uid, the message of its newest condition."""
    ranks: dict[str, Mapping[str, int]] = field(default_factory=dict)
    processes: dict[str, int | None] = field(default_factory=dict)
    """By job uid, how many each pod has."""
    pods: list[str] = field(default_factory=list)
    folding: dict[str, Folding] = field(default_factory=dict)
    passing: Passing = field(default_factory=Passing)
    _held: deque[str] | None = None
    _dropped: int = 0

    def say(self, text: str, colour: str | None = None) -> None:
        self._write(coloured(plain(text, keep="\t"), colour) if sys.stdout.isatty() else text)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold back all lines meanwhile, so that a question stays in sight."""
        self._held, self._dropped = deque(maxlen=MOST_HELD), 0
        try:
            yield
        finally:
            lines, self._held = self._held, None
            if self._dropped:
                self.say(f"{counted(self._dropped, 'line', 'is', 'are')} left out, which came while the question stood")
            for line in lines:
                self._put(line)

    def tell(self, job: FollowedJob, happening: Happening) -> bool:
        """Show a happening. Return whether anything was printed."""
        match happening:
            case Line(pod, text, True):
                if not self.passing.is_due(pod, time.monotonic()):
                    return False
                self._line(job, pod, text)
            case Line(pod, text):
                lines = self.folding.setdefault(job.uid, Folding()).lines(pod, text) if self.folds else [text]
                for line in lines:
                    self._line(job, pod, line)
                return bool(lines)
            case Ranks(by_pod, processes):
                if by_pod:  # at the end of a job nobody has a rank, and what its workers wrote last is still to come
                    self.ranks[job.uid] = by_pod
                    self.processes[job.uid] = processes
                return False
            case ConditionNews(type, _, message):
                self.told.add((job.uid, message))
                self.reasons[job.uid] = message
                self.say(
                    f"{job.name} {type}: {message}", "red" if type == Outcome.FAILED else "green" if type == Outcome.SUCCEEDED else None
                )
            case Event() as event if (job.uid, event.message) not in self.told:  # a condition's Event repeats its words
                mark = "warning" if event.is_warning else "event"
                self.say(f"{event.about} {mark} {event.reason}: {event.message}", "yellow" if event.is_warning else None)
            case Event():
                return False
        return True

    def end(self, job: FollowedJob, outcome: Outcome) -> None:
        """Print the last lines about a job: the first error of a failed job with its rank, and the newest error of a job that succeeded."""
        folding = self.folding.get(job.uid, Folding())
        for pod, line in folding.rest():
            self._line(job, pod, line)
        if folding.folded:
            self.say(f"{folding.folded} lines of torch about itself are folded; --all-output shows them")
        if folding.of_peers:
            self.say(f"{folding.of_peers} lines of ranks whose peer was lost are folded; --all-output shows them")
        reason = self.reasons.get(job.uid, "")
        blamed = {pod for pod in {*self.pods, *self.ranks.get(job.uid, {})} if re.search(rf"\b{re.escape(pod)}(?![\w-])", reason)}
        named = next((pod for pod in folding.failed if pod in blamed), None)
        error = folding.error(named, reason, blames_other=bool(blamed) and named is None)
        if outcome is Outcome.FAILED and error is not None:
            pod, lines = error
            self.say(f"the first error, of {self._title(job, pod, lines[0])}:")
            for line in lines[-ERROR_LINES:]:
                self._line(job, pod, line)
        elif outcome is Outcome.SUCCEEDED and (newest := folding.newest()) is not None:
            pod, line = newest
            self.say(f"errors stand in its output; the newest, of {self._title(job, pod, line)}:", "yellow")
            self._line(job, pod, line)
        last = f": {reason}" if outcome is Outcome.FAILED and reason else ""
        self.say(f"{job.kind.name} {job.name}: {outcome.lower()}{last}", "red" if outcome is Outcome.FAILED else None)

    def _line(self, job: FollowedJob, pod: str, text: str) -> None:
        if pod not in self.pods:
            self.pods.append(pod)
        title = self._title(job, pod, text)
        if sys.stdout.isatty():
            self._write(f"{coloured(f'{title} |', colour_of(pod, self.pods))} {plain(text, keep=chr(9))}")
        else:
            self._write(f"{title} | {text}")

    def _title(self, job: FollowedJob, pod: str, text: str) -> str:
        """Return the pod's name with the rank of the process, or with all ranks of the pod if the line does not say which one wrote it."""
        agent, each = self.ranks.get(job.uid, {}).get(pod), self.processes.get(job.uid, 1)
        if agent is None:
            return pod
        if each is None:
            return f"{pod} group rank {agent}"
        first = agent * each
        if (of := OF_PROCESS.match(text)) is not None:
            return f"{pod} rank {int(of[2]) + (0 if of[1] == 'rank' else first)}"
        return f"{pod} rank {first}" if each == 1 else f"{pod} ranks {first}-{first + each - 1}"

    def _write(self, text: str) -> None:
        line = f"{time.monotonic() - self.start:7.1f} s  {text}"
        if self._held is None:
            self._put(line)
            return
        self._dropped += len(self._held) == MOST_HELD
        self._held.append(line)

    def _put(self, line: str) -> None:
        try:
            click.echo(line, color=None if sys.stdout.isatty() else True)
            sys.stdout.flush()
        except BrokenPipeError:
            # The program that read the output has ended. The job goes on, and this command still waits for its outcome.
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
