"""Hold what the rendezvous server found out about a job that makes no more steps."""

from dataclasses import dataclass
from datetime import datetime

from elastic_training.rendezvous.engine.messages.doing import Hang


@dataclass(frozen=True, slots=True)
class HangSeen:
    """A standstill as the rendezvous server found it at this time."""

    hang: Hang
    at: datetime
