"""Keep what this agent tells about its workers, and decide when that is written.

A job costs its etcd one write for each member when a standstill begins or ends, and otherwise about six writes a second at most, however
large it is: members of a large job write less often.
News that stay true are written again once a minute.
"""

import dataclasses
import typing

from elastic_worker._engine.hang import IDLE_CPU
from elastic_worker._engine.messages.doing import LOOK_S, STILL_LOOKS, Doing
from elastic_worker._engine.messages.saves import Saves
from elastic_worker.etcd.fields import Fields
from elastic_worker.etcd.news_records import News, doings_of, paces_of, saves_of

FREE_MEMBERS = 64
"""Members of a world that may all write at each look at their workers."""
PACED_MEMBERS = 10
"""Members of a world whose windows are as long as the controller asks. Windows come all the time, and each is kept until a compaction."""
LEAST_GAP_S = 1.0
AGAIN_S = 60.0
REFUSED_S = 30.0
KINDS = ("doings", "paces", "saves")
"""Messages of an agent that are news."""


class Due(typing.NamedTuple):
    """The news to write now, or the time to look again. Both are None if nothing waits."""

    news: typing.Optional[News] = None
    look_again_at: typing.Optional[float] = None


class LocalNews:
    """The news of one agent. `begin`, `take`, `in_world` and `due` need the lock; the presence's thread alone calls the others."""

    def __init__(self, name: str) -> None:
        """Begin without news."""
        self._news = News(name)
        self._written = News(name)
        self._written_at = self._not_before = float("-inf")

    def begin(self) -> None:
        """Forget the workers, because other processes take their places."""
        self._news = News(self._news.name, window=self._news.window)

    def take(self, message: typing.Mapping[str, typing.Any]) -> None:
        """Take a message of the agent. Raise Unusable if it is invalid."""
        fields = Fields(dict(message))
        if message["t"] == "doings":
            self._news = dataclasses.replace(self._news, doings=doings_of(fields))
        elif message["t"] == "paces":
            self._news = dataclasses.replace(self._news, paces=paces_of(fields), window=self._news.window + 1)
        else:
            self._news = dataclasses.replace(self._news, saves=saves_of(fields))

    def in_world(self, generation: int, *, is_watched: bool) -> None:
        """Forget what workers did before the watch began, and in other worlds."""
        known = self._news
        if known.doings is not None and (not is_watched or known.doings.generation != generation):
            known = dataclasses.replace(known, doings=None)
        if known.paces is not None and known.paces.generation != generation:
            known = dataclasses.replace(known, paces=None)
        self._news = known

    def due(self, now: float, *, incarnation: str, members: int) -> Due:
        """Return the news that this run of the member has to write, in a world of so many members."""
        wanted = dataclasses.replace(self._news, incarnation=incarnation)
        is_same = _signature(wanted) == _signature(self._written)
        if wanted == self._written or (is_same and wanted.doings is None):
            return Due()
        at = self._written_at + (AGAIN_S if is_same else max(LEAST_GAP_S, LOOK_S * members / FREE_MEMBERS))
        at = max(at, self._not_before)
        return Due(wanted) if now >= at else Due(look_again_at=at)

    def note_written(self, news: News, now: float) -> None:
        """Note that etcd has this news."""
        self._written, self._written_at = news, now

    def forget_written(self) -> None:
        """Note that the record is gone, with the lease that it was on."""
        self._written, self._written_at = News(self._news.name), float("-inf")

    def put_off(self, now: float) -> None:
        """Wait before the next attempt, because etcd refused the write."""
        self._not_before = now + REFUSED_S


def _signature(news: News) -> typing.Tuple[object, ...]:
    """Return all that other members must hear soon. A record without news is like none."""
    workers = tuple(map(_of_doing, news.doings.workers)) if news.doings is not None else ()
    window = news.window if news.paces is not None else 0
    has_news = bool(workers or window or news.saves != Saves())
    return (news.incarnation, workers, window, news.saves) if has_news else ()


def _of_doing(doing: Doing) -> typing.Tuple[object, ...]:
    return doing.kind, doing.looks >= STILL_LOOKS, doing.does, doing.place, doing.code, doing.cpu < IDLE_CPU
