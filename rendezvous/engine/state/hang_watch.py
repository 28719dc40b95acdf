"""Keep what the members say about their workers while no step comes, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping

from ..messages.doing import Doing, Hang, Watch
from ..values import dataclass, field


@dataclass(frozen=True)
class Told:
    """The last words of one member about its workers, by local rank."""

    generation: int
    at: float
    workers: tuple[Doing, ...]


@dataclass(frozen=True)
class HangWatch:
    """The watch over a world that reports no step."""

    told: Mapping[str, Told] = field(default_factory=dict)
    asks: Watch = Watch.NOT
    """the present request to the agents"""
    found: Hang | None = None
    found_at: float = 0.0
