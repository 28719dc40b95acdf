"""How often the members of one job may join, so that a job whose connections come and go does not keep the server busy.

All members of a job may join twice at any moment, because a new server meets all of them at once. Beyond that, the rate follows from the
number of members that the job has.
"""

from collections.abc import Callable

from elastic.membership.bounds import MAX_MEMBERS
from elastic_training.rendezvous.engine.presented import members_of
from elastic_training.rendezvous.engine.state.job import JobState
from elastic_training.rendezvous.server.metered import Use

SPARE = 64
"""Joins at once of a job without members. The controller announces members before it creates their pods."""
PER_S = 2.0
PER_MEMBER_S = 0.2
"""Joins a second of a job, and for each of its members."""
FIRST_MINUTE_S = 60.0
MOST_KEPT = 20_000


class JoinRates:
    """Counts the joins of each job."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._up_since = clock()
        self._used: dict[str, Use] = {}
        """The use of each job. The job that joined longest ago is first."""

    def allows(self, uid: str, job: JobState | None) -> bool:
        """Return whether a member of this job may join now, and count it if so."""
        now, members = self._clock(), members_of(job) if job is not None else 0
        used = self._used.pop(uid, None) or Use(now)
        self._used[uid] = used
        while len(self._used) > MOST_KEPT:
            del self._used[next(iter(self._used))]
        if used.drained(now=now, per_s=PER_S + members * PER_MEMBER_S) >= self._at_once(job, members, now=now):
            return False
        used.add(1.0)
        return True

    def _at_once(self, job: JobState | None, members: int, *, now: float) -> float:
        """Return how many joins the job may make at once."""
        is_unknown = job is None or job.membership.expectation is None
        if is_unknown and now < self._up_since + FIRST_MINUTE_S:
            return MAX_MEMBERS + SPARE  # a new server meets jobs of any size before the controller has spoken about them
        return SPARE + 2 * members
