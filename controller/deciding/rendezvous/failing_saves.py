"""Write into a job's status which ranks fail to save, and report each of them with an Event."""

from collections.abc import Iterator

from msgspec.structs import replace

from elastic.api.book import FailedSave
from elastic.api.job import ElasticStatus, Job
from elastic.membership.bounds import clipped
from elastic_training.controller.deciding.actions import JobEvent, warning
from elastic_training.controller.facts.snapshot import Snapshot
from elastic_training.rendezvous.engine.failing_saves import sentence
from elastic_training.rendezvous.engine.messages.saves import LASTING


def recorded(status: ElasticStatus, snapshot: Snapshot) -> ElasticStatus:
    """Return the status with the ranks whose newest save failed, as far as the rendezvous server knows."""
    seen = snapshot.world.failing_saves if snapshot.world is not None else ()
    uids, known = {pod.name: pod.uid for pod in snapshot.pods}, {_place(one): one for one in status.failed_saves}
    found = []
    for one in seen:
        entry = FailedSave(
            rank=one.rank,
            local_rank=one.save.local_rank,
            pod=one.member,
            pod_uid=uids.get(one.member, ""),
            step=one.save.step,
            last_step=one.save.last,
            failures=one.save.failures,
            since=snapshot.now.replace(microsecond=0),
            message=clipped(sentence(one)),
        )
        before = known.get(_place(entry))
        found.append(entry if before is None else replace(entry, since=before.since))
    return replace(status, failed_saves=tuple(found)) if tuple(found) != status.failed_saves else status


def events(job: Job, *, known: ElasticStatus, new: ElasticStatus) -> Iterator[JobEvent]:
    """Yield an Event for each rank whose saves begin to fail, and one more if they fail again and again."""
    before = {_place(one): one for one in known.failed_saves}
    for one in new.failed_saves:
        former = before.get(_place(one))
        if former is None or (one.failures >= LASTING > former.failures):
            words = f"{job.kind.title} {job.metadata.name}: {one.message}"
            yield warning("SaveFailed", words, about=f"{one.pod_uid}/{one.local_rank}/{one.step}")


def _place(one: FailedSave) -> tuple[str, int]:
    """Return the process. Its rank changes with the world."""
    return one.pod_uid, one.local_rank
