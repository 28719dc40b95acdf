"""Put what the members tell about their workers into the engine's state of the job. Pure.

A member's news lies in the etcd for as long as it is true, so it counts as heard at this moment. A window of paces counts once.
"""

import typing

from elastic_worker._engine import failing_saves, hang, stragglers
from elastic_worker._engine.state.hang_watch import HangWatch
from elastic_worker._engine.state.job import JobState
from elastic_worker._engine.values import replace
from elastic_worker.etcd.news_records import News
from elastic_worker.etcd.records import Records

Windows = typing.Mapping[str, typing.Tuple[str, int]]
"""The newest window of each member: its run and the number of the window."""


def with_news(job: JobState, records: Records, *, before: typing.Optional[JobState], is_same_world: bool) -> JobState:
    """Return the job with the doings and saves of its members. before: the state before, whose watch and paces go on."""
    if before is not None:
        watch = replace(before.hang_watch, told={}) if is_same_world else HangWatch()
        job = replace(job, paces=before.paces, hang_watch=watch)
    for news in _present(job, records):
        if news.saves.failed:
            job = failing_saves.heard(job, news.name, news.saves)
        if news.doings is not None:
            job = hang.heard(job, news.name, news.doings)
    return job


def with_windows(job: JobState, records: Records, known: typing.Optional[Windows]) -> typing.Tuple[JobState, Windows]:
    """Return the job with the windows that are new, and all that have been heard. known: None if nobody knows which ones were heard."""
    present = [news for news in _present(job, records) if news.paces is not None]
    windows = {news.name: (news.incarnation, news.window) for news in present}
    for news in present:
        if known is not None and news.paces is not None and known.get(news.name) != windows[news.name]:
            job = stragglers.heard(job, news.name, news.paces)
    return job, windows


def _present(job: JobState, records: Records) -> typing.List[News]:
    """Return the news of the members that are here in the same run."""
    members = job.membership.members
    return [news for name, news in records.news.items() if name in members and members[name].incarnation == news.incarnation]
