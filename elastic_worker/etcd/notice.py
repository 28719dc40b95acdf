"""Read whether the controller asks this member to leave, and by when."""

import typing

from elastic_worker.etcd.records import Leaving, Records


class OwnNotice:
    """The notice of one member, used by one thread."""

    def __init__(self) -> None:
        self._leaving: typing.Optional[Leaving] = None
        self._by = 0.0

    def read(self, records: Records, member: str, now: float) -> None:
        """Read the notice of this member. Its time counts from the first reading, because clocks of two hosts are never compared."""
        leaving = records.expected.leaving if records.expected is not None else ()
        own = next((one for one in leaving if one.member == member), None)
        if own is not None and own != self._leaving:
            self._by = now + own.by_s
        self._leaving = own

    def left_s(self, now: float) -> typing.Optional[float]:
        """Return the seconds that are left, or None if the member need not leave, as after the time of a notice for a replacement."""
        if self._leaving is None or (self._leaving.when_replaced and now >= self._by):
            return None
        return max(0.0, round(self._by - now, 3))
