"""The log lines of a job: one per change of its state, never per message."""

import logging

from elastic_training.rendezvous.engine.state.job import JobState

log = logging.getLogger(__name__)


def log_changes(before: JobState, after: JobState) -> None:
    was, group = before.membership, after.membership
    world, forming = group.world, group.round
    if world is not None and not world.adopted and (was.world is None or world.id != was.world.id):
        log.info(
            "world sealed",
            extra={"uid": after.uid, "generation": world.generation, "id": world.id, "size": world.size, "reason": world.reason},
        )
    elif forming is not None and group.is_draining and not was.is_draining:
        log.info("round began", extra={"uid": after.uid, "reason": forming.reason, "cause": forming.cause})
    doubted_since, doubts_since = before.timings.doubt_since, after.timings.doubt_since
    if doubts_since is not None and doubted_since is None:
        log.warning("members and the controller are silent: this server may be cut off, and decides nothing", extra={"uid": after.uid})
    elif doubted_since is not None and doubts_since is None:
        log.info("this server is reached again", extra={"uid": after.uid, "doubted_s": round(after.now - doubted_since, 1)})
    if after.accounting.closed and not before.accounting.closed:
        log.warning("world closed", extra={"uid": after.uid, "reason": after.accounting.closed})
