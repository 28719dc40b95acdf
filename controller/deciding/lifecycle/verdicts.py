"""Define the meanings that the end of a failed pod can have for its job. `failure` and `collateral` choose among them."""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

from elastic.api.words import Cause
from elastic_training.controller.facts.snapshot import Pod

FIRST_RETRYABLE_CODE = 128
"""Below it the program itself chose to end; from it on, a signal ended the program."""


class Fate(Enum):
    AGAIN = auto()
    """The pod is deleted and made again."""
    FATAL = auto()
    """The job has failed."""
    STAYS = auto()
    """The failed pod is not replaced, and the job goes on."""


@dataclass(frozen=True, slots=True)
class Verdict:
    pod: Pod
    type: str
    cause: Cause
    fate: Fate
    exit_code: int | None
    is_refused: bool = False
    """A node refused the pod: no container of it ever began."""
    why: str = ""
    """Addition to the Event about the pod's replacement: the pod that was lost, and its node."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A pod that its node or the cluster took, or is about to take."""

    pod: str
    uid: str
    words: str
    at: datetime | None = None
    """Time of the loss; None if the loss can be seen now."""
    is_end: bool = False
    """The pod itself has ended or is being deleted, so that nothing shows the loss once the pod is replaced."""
