"""What the end of a failed pod can mean for its job. `failure` decides which of these holds."""

from dataclasses import dataclass
from enum import Enum, auto

from controller.watching.snapshot import Pod
from elastic.api.words import Cause

FIRST_RETRYABLE_CODE = 128
"""Below it the program itself chose to end; from it on, a signal ended the program."""


class Fate(Enum):
    AGAIN = auto()
    """The pod is deleted and made again."""
    FATAL = auto()
    """The job has failed."""
    STAYS = auto()
    """The pod stays as it is and the job goes on."""


@dataclass(frozen=True, slots=True)
class Verdict:
    pod: Pod
    type: str
    cause: Cause
    fate: Fate
    exit_code: int | None
    is_refused: bool = False
    """A node refused the pod: no container of it ever began."""
