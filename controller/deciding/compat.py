"""Decides whether a job gets the Training Operator's exact objects.

The controller's flag decides, unless the job's annotation says otherwise. docs/compat.md lists what then differs. Each difference has a
function below; no other code reads the setting.
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
    """Return the same look with the settings that hold for this job."""
    word = job.metadata.annotations.get(ANNOTATION)
    if word is None:
        return snapshot
    if word not in tuple(Compat):
        return replace(snapshot, remarks=(*snapshot.remarks, _unknown(word, snapshot.settings)))
    return replace(snapshot, settings=replace(snapshot.settings, strict=word == Compat.STRICT))


def has_our_rendezvous(settings: Settings) -> bool:
    """Return whether elastic jobs meet at the rendezvous server instead of at a c10d store of their own."""
    return not settings.strict


def has_interchangeable_workers(settings: Settings) -> bool:
    """Return whether a lost worker may be replaced under another index if only the number of workers matters."""
    return not settings.strict


def has_gang_restarts(settings: Settings) -> bool:
    """Return whether a job restarts as a whole although its spec does not ask for it."""
    return not settings.strict


def has_disruption_budgets(settings: Settings) -> bool:
    return not settings.strict


def quotes_errors(settings: Settings) -> bool:
    """Return whether the message of a failed elastic job quotes the first worker's error."""
    return not settings.strict


def has_reports(settings: Settings) -> bool:
    """Return whether the programs of a job may report their progress to the rendezvous server in the form of Kubeflow Trainer."""
    return not settings.strict


def has_readiness_gates(settings: Settings) -> bool:
    """Return whether a worker of our rendezvous is Ready only while it is in the world."""
    return not settings.strict


def avoids_doomed_nodes(settings: Settings) -> bool:
    """Return whether a new pod prefers nodes that are not about to go."""
    return not settings.strict


def ends_doomed_pods_early(settings: Settings) -> bool:
    """Return whether a pod that cannot be asked to leave is deleted before its node goes."""
    return not settings.strict


def explains_failures(settings: Settings) -> bool:
    """Return whether a job waits for the loss that explains a failed pod, and names the node of a lost pod."""
    return not settings.strict


def records_disruptions(settings: Settings) -> bool:
    """Return whether status.elastic shows the announced disruptions."""
    return not settings.strict


def marks_spare_workers(settings: Settings) -> bool:
    """Return whether workers above minReplicas carry annotations for autoscalers."""
    return not settings.strict


def has_autoscalers_for_all_kinds(settings: Settings) -> bool:
    return not settings.strict


def paces_autoscalers(settings: Settings) -> bool:
    """Return whether an autoscaler for a user's metrics gets a behavior that fits the cost of a change of size."""
    return not settings.strict


def tells_of_autoscalers(settings: Settings) -> bool:
    """Return whether a job says why its HorizontalPodAutoscaler does not scale it."""
    return not settings.strict


def knows_kueue(settings: Settings) -> bool:
    """Return whether a job in a Kueue queue gets no autoscaler."""
    return not settings.strict


def starts_with_fewer_workers(settings: Settings) -> bool:
    """Return whether the gang scheduler starts an elastic job as soon as minReplicas workers fit."""
    return not settings.strict


def says_that_workers_are_missing(settings: Settings) -> bool:
    """Return whether an elastic job below minReplicas is not Running."""
    return not settings.strict


def says_that_the_gang_waits(settings: Settings) -> bool:
    """Return whether a condition says that the gang scheduler has not admitted a job's pod group yet."""
    return not settings.strict


def has_upstream_launcher(settings: Settings) -> bool:
    """Return whether an MPI launcher gets upstream's files, rights and environment, which only work with Open MPI 4."""
    return settings.strict


def has_upstream_events(settings: Settings) -> bool:
    """Return whether Events are those of the Training Operator: one per object, in the name of its controller."""
    return settings.strict


def _unknown(word: str, settings: Settings) -> str:
    rule = Compat.STRICT if settings.strict else Compat.DEFAULT
    choices = " or ".join(Compat)
    return f"metadata.annotations[{ANNOTATION}] is {word!r} but must be {choices}; the controller's own mode, {rule}, applies"
