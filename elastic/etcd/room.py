"""How much of what lies in etcds the controller holds in memory for all jobs together. Where that is too much, those that hold most go."""

MOST_OF_ALL = 128 * 1024 * 1024
LITTLE = 256 * 1024
"""Some hundred members bring so much, and always find room."""


class Room:
    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        self._all = 0

    def has(self, job: str, size: int) -> bool:
        """Whether there is room for a job that now brings so much."""
        self._all += size - self._held.get(job, 0)
        self._held[job] = size
        return size <= LITTLE or self._all <= MOST_OF_ALL or 2 * size < max(self._held.values())

    def free(self, job: str) -> None:
        """Nothing is held for it any more."""
        self._all -= self._held.pop(job, 0)
