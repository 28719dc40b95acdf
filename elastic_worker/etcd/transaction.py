"""Make the writes of members: their own records, and those of the whole job, which fail if anything they rest on has changed."""

import typing

from elastic_worker.etcd.change_records import EXCHANGE, Values
from elastic_worker.etcd.decide import Write
from elastic_worker.etcd.gateway import Body
from elastic_worker.etcd.mirror import encoded
from elastic_worker.etcd.news_records import FINDINGS, NEWS, Findings, News
from elastic_worker.etcd.records import EXPECTED, MEMBERS, PROGRESS, WORLD, Member, Progress, Records, Seal

MOST_COMPARED = 100
"""etcd allows 128 comparisons in a transaction, unless told otherwise."""


def transaction(records: Records, write: Write, *, prefix: str, seal: Seal, lease: int) -> Body:
    """Write this world where the records are still these. The world lies on this lease."""
    unchanged = [(WORLD, records.world_written), (EXPECTED, records.expected_written), *write.deleted]
    compares: typing.List[Body] = []
    if len(write.unchanged) <= MOST_COMPARED:
        unchanged += write.unchanged
    else:  # nothing under members/ may be newer than what was seen; a member that is gone since is missed in the new world
        newest = max(present.written for present in records.members.values())
        everybody = {"key": encoded(prefix + MEMBERS), "range_end": encoded(prefix + MEMBERS[:-1] + "0")}
        compares.append(dict(everybody, target="MOD", result="LESS", mod_revision=str(newest + 1)))
    for key, revision in unchanged:
        compares.append(_unchanged(prefix + key, revision))
    put = {"key": encoded(prefix + WORLD), "value": encoded(seal.close(WORLD, write.world)), "lease": str(lease)}
    success: typing.List[Body] = [{"request_put": put}]
    success += [{"request_delete_range": {"key": encoded(prefix + key)}} for key, _ in write.deleted]
    return {"compare": compares, "success": success}


def put_member(member: Member, *, prefix: str, seal: Seal, lease: int) -> Body:
    """Write a member's own record, which nobody else writes."""
    key = MEMBERS + member.name
    return {"key": encoded(prefix + key), "value": encoded(seal.close(key, member)), "lease": str(lease)}


def put_values(values: Values, *, prefix: str, seal: Seal, lease: int) -> Body:
    """Write a member's own values of the exchange."""
    key = EXCHANGE + values.name
    return {"key": encoded(prefix + key), "value": encoded(seal.close(key, values)), "lease": str(lease)}


def put_progress(records: Records, progress: Progress, *, prefix: str, seal: Seal, lease: int) -> Body:
    """Write this where nobody has written another since."""
    put = {"key": encoded(prefix + PROGRESS), "value": encoded(seal.close(PROGRESS, progress)), "lease": str(lease)}
    return {"compare": [_unchanged(prefix + PROGRESS, records.progress_written)], "success": [{"request_put": put}]}


def put_news(news: News, *, prefix: str, seal: Seal, lease: int) -> Body:
    """Write a member's own news."""
    key = NEWS + news.name
    return {"key": encoded(prefix + key), "value": encoded(seal.close(key, news)), "lease": str(lease)}


def put_findings(records: Records, findings: Findings, *, prefix: str, seal: Seal, lease: int) -> Body:
    """Write the findings if nobody has written others since."""
    put = {"key": encoded(prefix + FINDINGS), "value": encoded(seal.close(FINDINGS, findings)), "lease": str(lease)}
    return {"compare": [_unchanged(prefix + FINDINGS, records.findings_written)], "success": [{"request_put": put}]}


def remove_member(name: str, revision: int, *, prefix: str) -> Body:
    """Remove the record of a member where it is still this one."""
    key = prefix + MEMBERS + name
    return {"compare": [_unchanged(key, revision)], "success": [{"request_delete_range": {"key": encoded(key)}}]}


def _unchanged(key: str, revision: int) -> Body:
    return {"key": encoded(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}
