"""Decide whether the worker of a straggler is replaced, if the job asks for it.

The worker gets the notice that it may have to leave. So it trains on until another worker takes its place, and no restart is counted. The
log of disruptions holds each attempt, and the limits follow from it.
"""

from collections.abc import Iterable
from datetime import datetime

from elastic.api.book import Disruption, Leaving
from elastic.api.job import ElasticStatus, Job
from elastic.api.words import TAKEN_BACK, Stragglers
from elastic.membership.phases import WorldPhase
from elastic.signals.signal import Meaning
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle.disruption import Notice
from elastic_training.controller.deciding.moments import after
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.controller.facts.snapshot import Pod, PodPhase, Snapshot
from elastic_training.rendezvous.engine.messages.pace import Slowness

SIGNAL = "Straggler"
"""The name of the notice in the status."""
PATIENCE_S = 600.0
"""Seconds that a replacement has to come, for example onto a node that is added for it. Then the worker stays."""
GAP_S, MOST_AN_HOUR, HOUR_S = 600.0, 3, 3600.0
"""Seconds between the beginnings of two replacements, and the most of them in an hour. After an attempt in vain, the next hour has none."""
CURABLE = frozenset({Slowness.COMPUTE.value, Slowness.DATA.value, Slowness.THROTTLED.value})
"""Kinds of slowness that a replacement may cure.

Slow work between two steps is not one of them: it stays with the rank, whichever worker has that rank. A slow network may be that of the
receiver, which is unknown.
"""


def notices(job: Job, snapshot: Snapshot, backend: RendezvousBackend) -> dict[str, Notice]:
    """Return, by pod name, the notice of the straggler that is being replaced, or that will be from now on."""
    if not _replaces(job, backend):
        return {}
    known = job.status.elastic or ElasticStatus()
    begun = [entry for entry in known.leaving if entry.signal == SIGNAL]
    if begun:
        pods = {(pod.name, pod.uid) for pod in snapshot.pods}
        standing = [entry for entry in begun if (entry.member, entry.uid) in pods and _stands(entry, known, snapshot)]
        return {entry.member: _notice(entry.by or snapshot.now) for entry in standing}
    pod = _chosen(job, known, snapshot)
    return {} if pod is None else {pod.name: _notice(after(snapshot.now, PATIENCE_S))}


def look_again_at(view: JobView) -> datetime | None:
    """Return when the limits allow the next replacement, if there is a straggler."""
    known = view.status.elastic
    if known is None or not known.stragglers or not _replaces(view.job, view.backend):
        return None
    at = _next_at(known.disruptions)
    return at if at is not None and at > view.snapshot.now else None


def avoided_nodes(view: JobView) -> list[str]:
    """Return the nodes of the stragglers that are being replaced, unless the limit of the pod itself makes them slow."""
    known = view.job.status.elastic or ElasticStatus()
    own = {one.pod_uid for one in known.stragglers if one.kind == Slowness.THROTTLED}
    going = {name for name, notice in view.notices.items() if notice.signal == SIGNAL}
    return sorted({pod.node for pod in view.snapshot.pods if pod.name in going and pod.uid not in own and pod.node})


def _replaces(job: Job, backend: RendezvousBackend) -> bool:
    asks = job.elastic is not None and job.elastic.stragglers is Stragglers.REPLACE
    return asks and backend is RendezvousBackend.OURS


def _notice(by: datetime) -> Notice:
    return Notice(SIGNAL, by, Meaning.PREPARE, PATIENCE_S, is_of_node=True)


def _stands(entry: Leaving, known: ElasticStatus, snapshot: Snapshot) -> bool:
    """Return whether the replacement goes on. A worker that is out of the world already has its replacement there."""
    world = snapshot.world
    if world is None or world.phase != WorldPhase.RUNNING or entry.member not in world.members:
        return True
    is_late = entry.by is not None and entry.by <= snapshot.now
    return not is_late and entry.uid in {one.pod_uid for one in known.stragglers}


def _chosen(job: Job, known: ElasticStatus, snapshot: Snapshot) -> Pod | None:
    """Return the pod of the slowest straggler that can be replaced now. The job must be complete, so that only one worker changes."""
    world, at = snapshot.world, _next_at(known.disruptions)
    if world is None or world.phase != WorldPhase.RUNNING or len(world.members) != job.workers or known.leaving:
        return None
    if (at is not None and at > snapshot.now) or any(pod.phase is PodPhase.PENDING for pod in snapshot.pods):
        return None
    pods = {pod.uid: pod for pod in snapshot.pods if pod.phase is PodPhase.RUNNING and not pod.is_deleting and pod.name in world.members}
    return next((pods[one.pod_uid] for one in known.stragglers if one.kind in CURABLE and one.pod_uid in pods), None)


def _next_at(log: Iterable[Disruption]) -> datetime | None:
    """Return when the next replacement may begin; None before the first one."""
    begun = sorted((one.noticed_at, one.outcome) for one in log if one.signal == SIGNAL and one.noticed_at is not None)
    if not begun:
        return None
    at, outcome = begun[-1]
    next_at = after(at, HOUR_S if outcome == TAKEN_BACK else GAP_S)
    return max(next_at, after(begun[-MOST_AN_HOUR][0], HOUR_S)) if len(begun) >= MOST_AN_HOUR else next_at
