"""The change in process that a job is in, or was in last."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..messages.in_place import Stage
from ..values import dataclass, field


@dataclass(frozen=True)
class InPlace:
    """The change in process. `round` only rises; `stage` is None while the world does not change in process."""

    round: int = 0
    world_round: int = 0
    """The round in which the present world was formed. A change that is called off makes `round` the higher one."""
    stage: Stage | None = None
    until: float = math.inf
    """A world that is still forming at this time counts as failed."""
    step: int | None = None
    """The steps that all make before they stop, or the step of the state that the world began with."""
    donors: tuple[int, ...] = ()
    holds: Mapping[str, int] = field(default_factory=dict)
    """The steps that the members promised not to begin."""
    formed: frozenset[str] = frozenset()
    trouble: str = ""
    """The reason why the world could not be formed."""
    attempts: int = 0
    """The number of worlds in a row that could not be formed."""
    why_plain: str = ""
    """The reason why the world restarts its processes at a change, although some of its workers could live on."""
    able_since: float | None = None
    """The time when the first member of the world said that its workers can change worlds."""
    has_trained: bool = False
    """The members have had a state of training in a world of this kind, so a world without a state is a loss."""
    is_adopted: bool = False
    """An earlier server formed the world, and its members have yet to say that they are in it."""
    blip_step: int | None = None
    """The step at which the communication last broke though nobody was lost."""

    breaks: int = 0
    """Restarts of all processes in a row because of broken communication that nobody explains, without a step forward."""
    reached: int | None = None
    """The highest step that training had reported at the last of them."""

    @property
    def stands(self) -> bool:
        """Return whether the world that its processes formed still trains."""
        return self.stage in (Stage.HOLD, Stage.STOP, Stage.RUN)

    @property
    def told(self) -> tuple[object, ...]:
        """Return the parts of the change that members hear."""
        return self.round, self.stage, self.step, self.donors, self.why_plain, self.is_adopted
