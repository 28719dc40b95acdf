"""Folds away what torchrun prints about itself when a worker failed: its agents' tracebacks and summaries, dozens of lines after the one
that matters. Keeps each pod's first traceback of its own program. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_START = "Traceback (most recent call last):"
_OF_RANK = re.compile(r"^\[(?:default|rank)?\d+\]: ?")
_AGENT_LOG = re.compile(r"^[EWI]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ .*torch/distributed/(?:elastic|launcher|run)")
_OF_AGENT = ("torch/distributed/run.py", "torch/distributed/launcher/api.py", "torch/distributed/elastic/agent/")
_RULE = re.compile(r"^(?:={20,}|-{20,})$")
MOST_LINES = 200
"""Of a traceback; of a longer one the middle is dropped."""


@dataclass(slots=True)
class _Pod:
    open: list[str] = field(default_factory=list)
    """The traceback that is being read."""
    in_summary: bool = False
    after_agent: bool = False
    error: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Folding:
    """What each pod prints, line by line."""

    folded: int = 0
    failed: list[str] = field(default_factory=list)
    """The pods whose own program has shown a traceback, in order."""
    _pods: dict[str, _Pod] = field(default_factory=dict)

    def lines(self, pod: str, text: str) -> list[str]:
        """What is to be printed now; a traceback waits until it is whole."""
        seen = self._pods.setdefault(pod, _Pod())
        bare = _OF_RANK.sub("", text, count=1)
        if seen.in_summary:
            seen.in_summary = not bare.startswith("====")
            return self._fold(1)
        if seen.open:
            return self._continued(pod, seen, text, bare)
        if bare.startswith(_START):
            seen.open = [text]
            return []
        if _AGENT_LOG.match(text):
            return self._fold(1)
        if seen.after_agent and _RULE.match(bare):
            seen.in_summary, seen.after_agent = True, False
            return self._fold(1)
        return [text]

    def rest(self) -> list[tuple[str, str]]:
        """What waits still, at the end."""
        left = [(pod, line) for pod, seen in self._pods.items() for line in seen.open]
        for seen in self._pods.values():
            seen.open = []
        return left

    def error(self, pod: str | None = None) -> tuple[str, list[str]] | None:
        """The first traceback of this pod's own program, or of the pod that failed first."""
        name = pod if pod in self.failed else next(iter(self.failed), None)
        return (name, self._pods[name].error) if name is not None else None

    def _continued(self, pod: str, seen: _Pod, text: str, bare: str) -> list[str]:
        seen.open.append(text)
        if len(seen.open) > MOST_LINES:
            del seen.open[MOST_LINES // 2]
        if not bare or bare[0].isspace():
            return []
        whole, seen.open = seen.open, []
        if any(part in line for line in whole for part in _OF_AGENT):
            seen.after_agent = True
            return self._fold(len(whole))
        if pod not in self.failed:
            self.failed.append(pod)
            seen.error = whole
        return whole

    def _fold(self, number: int) -> list[str]:
        self.folded += number
        return []
