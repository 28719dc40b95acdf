"""Keep what the members say about their workers while no step comes, and what follows from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastic.membership.doing import Doing, Hang, Watch


@dataclass(frozen=True, slots=True)
class Told:
    """The last words of one member about its workers, by local rank."""

    generation: int
    at: float
    workers: tuple[Doing, ...]


@dataclass(frozen=True, slots=True)
class HangWatch:
    """The watch over a world that reports no step."""

    told: Mapping[str, Told] = field(default_factory=dict)
    asks: Watch = Watch.NOT
    """the present request to the agents"""
    found: Hang | None = None
    found_at: float = 0.0
