"""Hold what the rendezvous server reports about a job."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from elastic.api.book import Rescale
from elastic.membership.hosts import HostState
from elastic.membership.wire import Restart
from elastic_training.controller.facts.hang_seen import HangSeen
from elastic_training.rendezvous.engine.messages.pace import Straggler
from elastic_training.rendezvous.engine.messages.saves import FailingRank


@dataclass(frozen=True, slots=True)
class WorldSeen:
    """The job's world, as the rendezvous server reports it."""

    generation: int
    members: frozenset[str]
    phase: str = ""
    ranked: tuple[str, ...] = ()
    """The members by rank."""
    size: int | None = None
    """How many seats it has, also of members that have not yet come back to a restarted server; None if the server does not report it."""
    incarnations: Mapping[str, str] = field(default_factory=dict)
    """By member, its pod's uid and which start of its agent is in this world: `uid/start`, empty if the server does not report it."""
    waiting: frozenset[str] = frozenset()
    """Workers that wait at the rendezvous while a world stands."""
    since: datetime | None = None
    """When a world that stands was formed, or was first seen."""
    has_stepped: bool = False
    """Training reported a step in this world."""
    reason: str = ""
    closed: str = ""
    unacknowledged_restarts: tuple[Restart, ...] = ()
    explained: tuple[str, ...] = ()
    fruitless: int | None = None
    step: int | None = None
    """The highest that was reported before the last restart."""
    highest: int | None = None
    """The highest that was ever reported, while no world works."""
    rescale: Rescale | None = None
    hosts: HostState | None = None
    """Pods on the list of hosts, and pods in which workers may run, for a job whose launcher starts the workers."""
    fault: str = ""
    """A bug in the rendezvous server because of which it does not decide about the job."""
    hang: HangSeen | None = None
    stragglers: tuple[Straggler, ...] | None = None
    """Ranks that the others wait for; None if the server does not know (yet)."""
    ended_early: str = ""
    """The first workers that ended with status 0 while others failed."""
    failing_saves: tuple[FailingRank, ...] = ()
    """Ranks whose newest save failed."""
    silent: Mapping[str, datetime] = field(default_factory=dict)
    """Expected members that the server has dropped and that have not come back, and when each was last heard."""
    trouble: str = ""
    """Why the server's newest message about the job could not be read; all else is from the last readable one."""
