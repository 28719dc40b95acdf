"""Choose the troubles of jobs that Events report: troubles that last for a while, each once, and only some of one job."""

from collections.abc import Container
from dataclasses import dataclass

PATIENCE_S = 60.0
AGAIN_S = 600.0
"""Between two of one job, whose words may change all the time."""


@dataclass(slots=True)
class _Trouble:
    since: float
    told: str = ""
    told_at: float = float("-inf")
    is_due: bool = False


class Troubles:
    def __init__(self) -> None:
        self._of_job: dict[str, _Trouble] = {}

    def forget_others(self, uids: Container[str]) -> None:
        self._of_job = {uid: trouble for uid, trouble in self._of_job.items() if uid in uids}

    def is_told(self, uid: str, words: str, now: float) -> bool:
        """Return whether the present trouble needs no further report."""
        if not words:
            self._of_job.pop(uid, None)
            return True
        trouble = self._of_job.setdefault(uid, _Trouble(now))
        if words != trouble.told and now - trouble.since >= PATIENCE_S and now - trouble.told_at >= AGAIN_S:
            trouble.told, trouble.told_at, trouble.is_due = words, now, True
        return not trouble.is_due

    def to_tell(self, uid: str) -> str:
        """Return the words, once."""
        trouble = self._of_job.get(uid)
        if trouble is None or not trouble.is_due:
            return ""
        trouble.is_due = False
        return trouble.told
