"""Decides whether a job gets the Training Operator's exact objects.

As the controller was started, unless the job says otherwise. docs/compat.md lists what then differs. Each difference has a function of its
name below; no other code reads the setting.
"""

from dataclasses import replace
from enum import StrEnum

from controller.deciding.settings import Settings
from controller.watching.snapshot import Snapshot
from elastic.api.job import Job

ANNOTATION = "elastic-training/compat"


class Compat(StrEnum):
    DEFAULT = "default"
    STRICT = "strict"


def as_chosen(job: Job, snapshot: Snapshot) -> Snapshot:
    """The same look, with the settings that hold for this job."""
    word = job.metadata.annotations.get(ANNOTATION)
    if word is None:
        return snapshot
    if word not in tuple(Compat):
        return replace(snapshot, remarks=(*snapshot.remarks, _unknown(word, snapshot.settings)))
    return replace(snapshot, settings=replace(snapshot.settings, strict=word == Compat.STRICT))


def has_our_rendezvous(settings: Settings) -> bool:
    """Do elastic jobs meet at the rendezvous server, or at a c10d store of their own?"""
    return not settings.strict


def has_interchangeable_workers(settings: Settings) -> bool:
    """May a lost worker be replaced under another index, where only the number of workers matters?"""
    return not settings.strict


def has_gang_restarts(settings: Settings) -> bool:
    """Does a job restart as a whole although its spec does not ask for it?"""
    return not settings.strict


def has_disruption_budgets(settings: Settings) -> bool:
    return not settings.strict


def quotes_errors(settings: Settings) -> bool:
    """Does the message of a failed elastic job quote the first worker's error?"""
    return not settings.strict


def has_readiness_gates(settings: Settings) -> bool:
    """Does a worker of our rendezvous count as Ready only while it is in the world?"""
    return not settings.strict


def avoids_doomed_nodes(settings: Settings) -> bool:
    """Does a new pod prefer nodes that are not about to go?"""
    return not settings.strict


def ends_doomed_pods_early(settings: Settings) -> bool:
    """Is a pod deleted before its node goes, where it cannot be asked to leave?"""
    return not settings.strict


def records_disruptions(settings: Settings) -> bool:
    """Does status.elastic show which disruptions were announced?"""
    return not settings.strict


def marks_spare_workers(settings: Settings) -> bool:
    """Do workers above minReplicas carry annotations for autoscalers?"""
    return not settings.strict


def has_autoscalers_for_all_kinds(settings: Settings) -> bool:
    return not settings.strict


def paces_autoscalers(settings: Settings) -> bool:
    """Has an autoscaler for a user's metrics a behavior that fits what a change of size costs?"""
    return not settings.strict


def tells_of_autoscalers(settings: Settings) -> bool:
    """Does a job say why its HorizontalPodAutoscaler does not scale it?"""
    return not settings.strict


def knows_kueue(settings: Settings) -> bool:
    """Has a job in a queue of Kueue's no autoscaler?"""
    return not settings.strict


def starts_with_fewer_workers(settings: Settings) -> bool:
    """Is minReplicas enough for the gang scheduler to start an elastic job?"""
    return not settings.strict


def says_that_workers_are_missing(settings: Settings) -> bool:
    """Is an elastic job below minReplicas not Running?"""
    return not settings.strict


def says_that_the_gang_waits(settings: Settings) -> bool:
    """Does a condition say that the gang scheduler has yet to admit a job's pod group?"""
    return not settings.strict


def has_upstream_launcher(settings: Settings) -> bool:
    """Does an MPI launcher get upstream's files, rights and environment, which serve Open MPI 4 alone?"""
    return settings.strict


def has_upstream_events(settings: Settings) -> bool:
    """Are Events written as by the Training Operator: one for each object, in the name of its controller?"""
    return settings.strict


def _unknown(word: str, settings: Settings) -> str:
    rule = Compat.STRICT if settings.strict else Compat.DEFAULT
    choices = " or ".join(Compat)
    return f"metadata.annotations[{ANNOTATION}] is {word!r} but must be {choices}; the controller's own mode, {rule}, applies"
