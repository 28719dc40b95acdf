"""Says nothing to the rendezvous server once the Lease may be another's."""

from typing import Protocol

from controller.deciding.actions import SetExpectation
from elastic.runtime.fence import Left, in_time


class Membership(Protocol):
    """The rendezvous server, as far as a plan speaks to it."""

    async def tell(self, job_uid: str, told: SetExpectation) -> None: ...

    async def forget(self, job_uid: str) -> None: ...


class FencedMembership:
    def __init__(self, membership: Membership, left: Left) -> None:
        self._membership = membership
        self._left = left

    async def tell(self, job_uid: str, told: SetExpectation) -> None:
        await in_time(self._left, lambda: self._membership.tell(job_uid, told))

    async def forget(self, job_uid: str) -> None:
        await in_time(self._left, lambda: self._membership.forget(job_uid))
