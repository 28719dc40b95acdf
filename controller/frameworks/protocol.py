"""What differs between the kinds, behind one small protocol: what a replica's processes are told, and whose end is the job's end.
A framework knows nothing of rounds, budgets or other objects' lives.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from controller.snapshot import Pod, Snapshot
from elastic.api.job import Job, Object


@dataclass(frozen=True, slots=True)
class Replica:
    """One place in the job: its canonical type and index."""

    type: str
    index: int


class Framework(Protocol):
    def dress(self, job: Job, pod: Object, replica: Replica, snapshot: Snapshot) -> Object:
        """Completes the replica's plain pod, which it may change, with environment, init containers and volumes."""

    def head(self, job: Job) -> str | None:
        """The type whose success is the job's success and whose running is the job's running; None: the workers together."""

    def has_succeeded(self, job: Job, pods: Sequence[Pod]) -> bool | None:
        """A rule of its own for success; None: the common rule for the head or the workers."""

    def tolerates(self, job: Job, type: str) -> bool:
        """May a replica of this type fail for good without an effect on the job?"""

    def objects(self, job: Job, snapshot: Snapshot) -> Sequence[Object]:
        """Other objects the job needs while it is active, in the order they should be made."""
