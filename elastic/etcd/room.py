"""Limit the memory that records from etcds take in the controller, for all jobs together. Above it, the largest jobs find no room."""

MOST_OF_ALL = 128 * 1024 * 1024
LITTLE = 256 * 1024
"""Bytes for which there is always room. The records of some hundred members have this size."""


class Room:
    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        self._all = 0

    def has(self, job: str, size: int) -> bool:
        """Return whether there is room for a job with records of this size, and note the size."""
        self._all += size - self._held.get(job, 0)
        self._held[job] = size
        return size <= LITTLE or self._all <= MOST_OF_ALL or 2 * size < max(self._held.values())

    def free(self, job: str) -> None:
        """Note that nothing is held for this job any more."""
        self._all -= self._held.pop(job, 0)
