"""Decide how long pods wait after a node or the API server has refused them: twice as long after each try.

`loss_backoff` decides the same for replicas that were lost soon after their creation; both are combined and reported here. A pod that a
node refused keeps its place meanwhile and counts as pending, and the rest of the job goes on. The status contains the refusals, so that the
next controller waits as long. The store pod of c10d waits in the same way.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from msgspec import structs

from elastic.api.book import MOST_TIMES, Refusal
from elastic.api.job import ElasticStatus, Job, JobStatus
from elastic.kube.resources import PODS
from elastic_training.controller.deciding.actions import Action, Create, Delete, JobEvent, warning
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle.conditions import WAITS, with_words_at_end
from elastic_training.controller.deciding.lifecycle.end_reasons import is_refused
from elastic_training.controller.deciding.moments import after
from elastic_training.controller.deciding.pauses import next_pause_s, pause_end, start_of
from elastic_training.controller.deciding.replicas import loss_backoff
from elastic_training.controller.deciding.replicas.loss_backoff import STORE
from elastic_training.controller.deciding.status_room import with_counted
from elastic_training.controller.facts.snapshot import NotCreated, Pod, PodPhase, Snapshot, pod_from

FIRST_PAUSE_S = 2
LONGEST_NODE_PAUSE_S = 300
"""Each try on a node costs a pod and some Events. The kubelet waits as long before it starts a container that keeps failing."""
LONGEST_API_PAUSE_S = 60
"""A refused request costs little, and no watch reports when a quota has room again."""
LONGEST_MESSAGE = 300


def noted(job: Job, snapshot: Snapshot, status: JobStatus) -> JobStatus:
    """Return the status with the new refusals and losses, and without those whose pods have been created since."""
    status = loss_backoff.noted(job, snapshot, status)
    known, types = status.elastic or ElasticStatus(), {"": STORE, **{type.lower(): type for type in job.replicas}}
    left = (entry for entry in known.refused if not _is_over(job, snapshot, entry))
    entries = {(entry.type, entry.node != ""): _dated(entry, snapshot.now) for entry in left}
    before = set(known.counted)
    refused_now = {pod.uid: pod for pod in _refused(snapshot) if pod.type in types and pod.uid not in before}
    # A refusal without room waits for the next reconcile, and so does its pod: it is deleted once its end is counted.
    counted = with_counted(known.counted, refused_now)
    new = [refused_now[uid] for uid in counted[len(known.counted) :]]
    for pod in new:
        entries[types[pod.type], True] = _counted(
            entries.get((types[pod.type], True)), type=types[pod.type], node=pod.node, words=_reason(pod), now=snapshot.now
        )
    for message, type in ((refusal.message, types[refusal.type]) for refusal in snapshot.not_created if _is_refusal(refusal, types)):
        entries[type, False] = _counted(entries.get((type, False)), type=type, node="", words=message, now=snapshot.now)
    refused = tuple(entries.values())
    if (refused, counted) == (known.refused, known.counted):
        return status
    return structs.replace(status, elastic=structs.replace(known, refused=refused, counted=counted))


def _dated(entry: Refusal, now: datetime) -> Refusal:
    return structs.replace(entry, at=start_of(entry.at, _pause_s(entry), now=now))


def _is_refusal(one: NotCreated, types: Mapping[str, str]) -> bool:
    """Return whether the pod has to wait. A taken name needs no wait: a watch reports when its owner is gone."""
    return not one.is_taken and one.type in types


def _refused(snapshot: Snapshot) -> Iterator[Pod]:
    return (pod for pod in _all_pods(snapshot) if is_refused(pod) and not pod.is_deleting)


def _all_pods(snapshot: Snapshot) -> Iterator[Pod]:
    yield from snapshot.pods
    yield from (pod_from(owned.raw) for owned in snapshot.owned if owned.kind == "Pod")


def _reason(pod: Pod) -> str:
    return f"{pod.reason}: {pod.message}" if pod.message else pod.reason


def _counted(before: Refusal | None, *, type: str, node: str, words: str, now: datetime) -> Refusal:
    """Return the entry after one more refusal. All refusals before its time has passed belong to the same try."""
    message = words[:LONGEST_MESSAGE]
    if before is None:
        return Refusal(type=type, node=node, message=message, count=1, at=now, pause_seconds=FIRST_PAUSE_S)
    count = min(before.count + 1, MOST_TIMES)
    if _is_waiting(before, now):
        return structs.replace(before, node=node, message=message, count=count)
    pause_s = next_pause_s(_pause_s(before), first_s=FIRST_PAUSE_S, longest_s=_longest_s(before))
    return structs.replace(before, node=node, message=message, count=count, at=now, pause_seconds=pause_s)


def _is_over(job: Job, snapshot: Snapshot, entry: Refusal) -> bool:
    """Return whether all pods that the job should have were created and found a node."""
    if entry.type not in (STORE, *job.replicas):
        return True
    type, count = ("", 1) if entry.type == STORE else (entry.type.lower(), job.replicas[entry.type].replicas)
    pods = _pods(snapshot, type)
    return not _is_waiting(entry, snapshot.now) and len(pods) >= count and (_have_begun(pods) or not entry.node)


def _pods(snapshot: Snapshot, type: str) -> list[Pod]:
    return [pod for pod in _all_pods(snapshot) if pod.type == type and not pod.is_deleting]


def _have_begun(pods: Iterable[Pod]) -> bool:
    return not any(is_refused(pod) or pod.phase is PodPhase.PENDING for pod in pods)


def with_waiting(snapshot: Snapshot, status: JobStatus) -> Snapshot:
    """Return the same look, in which pods that were refused and wait are pending."""
    types = {entry.type.lower() for entry in _waiting(status, snapshot.now) if entry.node}
    waiting = {pod.uid for pod in _refused(snapshot) if pod.type in types}
    pods = tuple(replace(pod, phase=PodPhase.PENDING) if pod.uid in waiting else pod for pod in snapshot.pods)
    return replace(snapshot, pods=pods) if waiting else snapshot


def made_now(view: JobView, missing: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the missing replicas that need not wait: the API server takes their pods, and they were not lost again and again."""
    held_back = frozenset(entry.type for entry in _waiting(view.status, view.snapshot.now) if not entry.node)
    return loss_backoff.made_now(view, (place for place in missing if place[0] not in held_back))


def types_held_back(view: JobView, missing: Iterable[tuple[str, int]], made: Collection[tuple[str, int]]) -> frozenset[str]:
    """Return the types of missing replicas that are not made now, and of the store pod if it is missing."""
    types = {type for type, index in missing if (type, index) not in made}
    if types and view.restarts_as_a_whole:
        types.update(view.job.replicas)
    return frozenset({*types, STORE})


def without_waiting(actions: Iterator[Action], status: JobStatus, now: datetime) -> Iterator[Action]:
    """Yield these actions, without those that would create the store pod again while it must wait."""
    is_waiting = any(entry.type == STORE for entry in _waiting(status, now)) or loss_backoff.holds_back(status, STORE, now)
    return (action for action in actions if not (is_waiting and isinstance(action, Create | Delete) and action.resource == PODS))


def next_try(status: JobStatus, now: datetime) -> datetime | None:
    ends = [_end(entry) for entry in _waiting(status, now)]
    return min(filter(None, (*ends, loss_backoff.next_try(status, now))), default=None)


def in_words(status: JobStatus, snapshot: Snapshot, *, held: Collection[str]) -> str:
    """Return the end of a condition's message while pods wait: missing pods of the types `held`, and pods that nodes refused.

    It stays the same for as long as they do.
    """
    now, taken = snapshot.now, sorted(one.message for one in snapshot.not_created if one.is_taken)
    by_name = f"{WAITS}for a name: {taken[0].rstrip('.')}." if taken else ""
    lost = (f"{WAITS}{words}" for words in loss_backoff.in_words(status, now, held=held))
    refused = (entry for entry in _waiting(status, now) if (_keeps_a_place(snapshot, entry) if entry.node else entry.type in held))
    return by_name + "".join((*map(_pause_in_words, refused), *lost))


def _keeps_a_place(snapshot: Snapshot, entry: Refusal) -> bool:
    return not _have_begun(_pods(snapshot, "" if entry.type == STORE else entry.type.lower()))


def waiting_for_right(status: JobStatus, message: str, *, now: datetime) -> JobStatus:
    """Return the status with the words that the controller may not read the job's Secret. The next plan takes them back."""
    words = f"{WAITS}for the right to read its Secret: {message[:LONGEST_MESSAGE].rstrip('.')}."
    return with_words_at_end(status, words, now=now)


def _pause_in_words(entry: Refusal) -> str:
    return f"{WAITS}{_pause_s(entry)} s, until {_end(entry):%H:%M:%S} UTC, to create pods again: {_who(entry)}"


def _who(entry: Refusal) -> str:
    refuser = f"node {entry.node}" if entry.node else "the API server"
    return f"{refuser} refused the last {entry.count} ({entry.type}): {entry.message.rstrip('.')}."


def events(job: Job, snapshot: Snapshot) -> Iterator[JobEvent]:
    for pod in _refused(snapshot):
        yield warning("PodRefused", f"Error pod {pod.name} was refused by node {pod.node}: {_reason(pod)}", about=pod.uid)


def _waiting(status: JobStatus, now: datetime) -> Iterator[Refusal]:
    return (entry for entry in (status.elastic.refused if status.elastic is not None else ()) if _is_waiting(entry, now))


def _is_waiting(entry: Refusal, now: datetime) -> bool:
    return pause_end(entry.at, _pause_s(entry), now=now) is not None


def _end(entry: Refusal) -> datetime:
    return after(entry.at, _pause_s(entry))


def _pause_s(entry: Refusal) -> int:
    return max(FIRST_PAUSE_S, min(entry.pause_seconds, _longest_s(entry)))


def _longest_s(entry: Refusal) -> int:
    return LONGEST_NODE_PAUSE_S if entry.node else LONGEST_API_PAUSE_S
