"""The transaction by which one member writes the next state of the world: it fails if anything that it rests on has changed."""

import typing

from elastic_worker.etcd.decide import Write
from elastic_worker.etcd.gateway import Body
from elastic_worker.etcd.mirror import encoded
from elastic_worker.etcd.records import EXPECTED, MEMBERS, WORLD, Records, Seal

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
        compares.append({"key": encoded(prefix + key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)})
    put = {"key": encoded(prefix + WORLD), "value": encoded(seal.close(WORLD, write.world)), "lease": str(lease)}
    success: typing.List[Body] = [{"request_put": put}]
    success += [{"request_delete_range": {"key": encoded(prefix + key)}} for key, _ in write.deleted]
    return {"compare": compares, "success": success}
