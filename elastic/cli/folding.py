"""Leave out the lines that torch prints about itself if a worker failed, or its command is wrong.

These are agents' tracebacks, summaries and usage, and frames in C++: dozens of lines around the one that matters. Tracebacks of ranks that
lost a peer are left out too. Tracebacks of a pod's own program stay. If one was shown before, only its last line is shown. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from elastic_training.rendezvous.engine.peer_errors import tells_of_peer

_START = "Traceback (most recent call last):"
_SYNTAX_ERROR = re.compile(r'^  File ".+", line \d+$')
"""How one begins: it has no traceback."""
_CHAINED = ("During handling of the above exception, another exception", "The above exception was the direct cause of the following")
_OF_RANK = re.compile(r"^\[(?:default|rank)?\d+\]: ?")
_AGENT_LOG = re.compile(r"^[EWI]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ .*torch/distributed/(?:elastic|launcher|run)")
_OF_AGENT = ('/bin/torchrun"', "torch/distributed/run.py", "torch/distributed/launcher/api.py", "torch/distributed/elastic/agent/")
_OF_TORCHRUN = "torch.distributed.elastic."
"""How torchrun's own exceptions begin. The others that its tracebacks end with are of its command."""
_SIGNAL = "torch.distributed.elastic.multiprocessing.api.SignalException"
"""The exception that an agent's handler of SIGTERM raises, wherever it is then."""
_USAGE = re.compile(r"usage: (torchrun|run\.py)\b")
_USAGE_ERROR = re.compile(r"(torchrun|run\.py): error: ")
_FRAME = re.compile(r"^(?:frame #\d+: |<omitting python frames>$|Exception raised from \S+ at .*\(most recent call first\):$)")
"""Lines of a C++ backtrace, which torch prints with a warning, as when rank 0 has ended before the others."""
_RULE = re.compile(r"^(?:={20,}|-{20,})$")
MOST_LINES = 200
"""Lines of a traceback that are kept; the middle of a longer one is dropped."""
MOST_ERRORS = 16
"""Errors of a pod that are kept; later ones are not."""
MOST_KNOWN = 256
"""Different tracebacks that are known again."""


@dataclass(slots=True)
class _Pod:
    open: dict[str, list[str]] = field(default_factory=dict)
    """Lines that are being read: tracebacks by the rank that begins their lines, and torchrun's usage."""
    in_summary: bool = False
    after_agent: bool = False
    after_frame: bool = False
    after_peer: bool = False
    errors: list[list[str]] = field(default_factory=list)


@dataclass(slots=True)
class Folding:
    """Follow the output of each pod, line by line."""

    folded: int = 0
    """Lines of torch about itself."""
    of_peers: int = 0
    """Lines of ranks whose peer was lost."""
    failed: list[str] = field(default_factory=list)
    """The pods whose own program has shown an error, in order."""
    _times: dict[int, int] = field(default_factory=dict)
    """How often each traceback has come, by its hash."""
    _pods: dict[str, _Pod] = field(default_factory=dict)
    _newest: tuple[str, str] | None = None

    def lines(self, pod: str, text: str) -> list[str]:
        """Return the lines to print now; a traceback waits until it is whole."""
        seen = self._pods.setdefault(pod, _Pod())
        of_rank = _OF_RANK.match(text)
        rank = of_rank.group() if of_rank else ""
        bare = text[len(rank) :]
        if seen.in_summary:
            seen.in_summary = not bare.startswith("====")
            return self._fold(1)
        if rank in seen.open:
            return self._continued(pod, seen, text, rank)
        if _begins(bare) or _USAGE.match(text):
            seen.open[rank] = [text]
            return []
        seen.after_peer = seen.after_peer and (not bare or bare.startswith(_CHAINED))
        if seen.after_peer:
            self.of_peers += 1
            return []
        if _USAGE_ERROR.match(text):
            return self._shown(pod, seen, [text])
        is_below_frames, seen.after_frame = seen.after_frame and not bare, bool(_FRAME.match(bare))
        if _AGENT_LOG.match(text) or seen.after_frame or is_below_frames:
            return self._fold(1)
        if seen.after_agent and _RULE.match(bare):
            seen.in_summary, seen.after_agent = True, False
            return self._fold(1)
        return [text]

    def rest(self) -> list[tuple[str, str]]:
        """Return the lines that still wait at the end. The end of the pod may have cut a traceback off."""
        left: list[tuple[str, str]] = []
        for pod, seen in self._pods.items():
            for lines in seen.open.values():
                left += [(pod, line) for line in (self._fold(len(lines)) if _is_of_agent(lines) else lines)]
            seen.open = {}
        return left

    def error(self, pod: str | None = None, reason: str = "", *, blames_other: bool = False) -> tuple[str, list[str]] | None:
        """Return the error of this pod or any failed pod that the reason quotes; otherwise the first one that is not about a lost peer.

        blames_other: the reason names a worker that wrote no error, such as one that the kernel killed. Then the error of a rank that lost
        its peer is not the first one.
        """
        named = [pod] if pod in self.failed else self.failed
        found = [(name, error) for name in named for error in self._pods[name].errors]
        quoted = [(name, error) for name, error in found if _last(error) and _last(error) in reason]
        own = [(name, error) for name, error in found if not tells_of_peer(_last(error))]
        return next(iter(quoted or own or ([] if blames_other else found)), None)

    def newest(self) -> tuple[str, str] | None:
        """Return the newest exception of a program that tells of no lost peer, with its pod; None without one."""
        return self._newest

    def _continued(self, pod: str, seen: _Pod, text: str, rank: str) -> list[str]:
        bare, whole = text[len(rank) :], seen.open[rank]
        is_usage = bool(_USAGE.match(whole[0]))
        if not is_usage or bare[:1].isspace():
            whole.append(text)
        if len(whole) > MOST_LINES:
            del whole[MOST_LINES // 2]
        if bare[:1].isspace() or (not bare and not is_usage):
            return []
        del seen.open[rank]
        if is_usage:
            return self._after_usage(pod, seen, whole, text)
        if bare.startswith(_SIGNAL) or _is_of_agent(whole):
            seen.after_agent = not bare.startswith(_SIGNAL)
            self._fold(len(whole) if bare.startswith(_OF_TORCHRUN) else len(whole) - 1)
            return [] if bare.startswith(_OF_TORCHRUN) else self._shown(pod, seen, [text])
        shown = self._shown(pod, seen, whole)
        seen.after_peer = tells_of_peer(bare)
        if seen.after_peer:
            self.of_peers += len(whole)
            return []
        self._newest = pod, text
        times = self._count(whole)
        return shown if times == 1 else [f"{text} (the same traceback for the {_ordinal(times)} time)"]

    def _count(self, traceback: list[str]) -> int:
        """Return how often this traceback has come, of any rank."""
        key = hash(tuple(_OF_RANK.sub("", line, count=1) for line in traceback))
        if key in self._times or len(self._times) < MOST_KNOWN:
            self._times[key] = self._times.get(key, 0) + 1
        return self._times.get(key, 1)

    def _after_usage(self, pod: str, seen: _Pod, usage: list[str], text: str) -> list[str]:
        """Torchrun's usage is followed by the error, or was asked for."""
        if not _USAGE_ERROR.match(text):
            return [*usage, text]
        self._fold(len(usage))
        return self._shown(pod, seen, [text])

    def _shown(self, pod: str, seen: _Pod, error: list[str]) -> list[str]:
        if pod not in self.failed:
            self.failed.append(pod)
        if len(seen.errors) < MOST_ERRORS:
            seen.errors.append(error)
        return error

    def _fold(self, number: int) -> list[str]:
        self.folded += number
        return []


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _begins(bare: str) -> bool:
    """Return whether an error begins. Text that the program wrote without an end of the line stands before it."""
    return (bare.endswith(_START) and not bare[:1].isspace()) or _SYNTAX_ERROR.match(bare) is not None


def _is_of_agent(traceback: list[str]) -> bool:
    return any(part in line for line in traceback for part in _OF_AGENT)


def _last(error: list[str]) -> str:
    """Return the exception of a traceback, without its rank."""
    return next((_OF_RANK.sub("", line, count=1) for line in reversed(error) if line.strip()), "")
