"""Decide what to do about one TrainJob: create its jobs, change them, or say why it cannot run.

The job's number of nodes belongs to the job once it exists, so that /scale and autoscalers may change it. It changes here only if the
annotation `elastic-training/nodes` changes, or if the bounds exclude it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from elastic.api.errors import Problem
from elastic.api.job import Object
from elastic.api.kinds import WORKER, as_owned
from elastic.api.names import NODES, REPORT, STOPPED
from elastic.api.owners import controller_uid
from elastic.api.trainer.modes import Mode, serves
from elastic.api.trainer.train_job import TrainJobStatus
from elastic.membership.training import TrainingProgress
from elastic_training.controller.deciding.actions import JobEvent, warning
from elastic_training.controller.deciding.objects.differences import merge_patch
from elastic_training.controller.deciding.trainjobs import initializers, nodes
from elastic_training.controller.deciding.trainjobs import status as statuses
from elastic_training.controller.deciding.trainjobs.bounds import annotations_of
from elastic_training.controller.deciding.trainjobs.claims import CLAIM
from elastic_training.controller.deciding.trainjobs.lowering import lower, wanted_now, without_mpi
from elastic_training.controller.deciding.trainjobs.patches import PATCHES
from elastic_training.controller.deciding.trainjobs.reports import next_write, trainer_status


@dataclass(frozen=True, slots=True)
class TrainJobView:
    """A TrainJob, the runtime that it names, and the job that has its name, as far as they exist, and that job's progress.

    initializers: the PyTorchJobs that have the names of its initializers, by step.
    gang_scheduler: the scheduler for which the controller makes pod groups. serves_mpi: whether it serves MPIJobs.
    """

    train_job: Object
    runtime: Object | None
    named: Object | None
    now: datetime
    progress: TrainingProgress | None = None
    initializers: Mapping[str, Object] = field(default_factory=dict)
    gang_scheduler: str = ""
    serves_mpi: bool = True
    mode: Mode = Mode.INSTEAD

    @property
    def own(self) -> Mapping[str, Object]:
        """Return the initializers' jobs that belong to this TrainJob."""
        return {
            step: job for step, job in self.initializers.items() if controller_uid(job["metadata"]) == self.train_job["metadata"]["uid"]
        }


@dataclass(frozen=True, slots=True)
class TrainJobPlan:
    """Objects to create, a merge patch of the owned job, and the whole new status. An object that stays as it is has no entry.

    initializers: the initializers' jobs that change, each with its merge patch. delete: those to delete.
    look_again_at: when progress that is known already may be written.
    """

    create: tuple[Object, ...] = ()
    change: Object | None = None
    initializers: tuple[tuple[Object, Object], ...] = ()
    delete: tuple[Object, ...] = ()
    status: Object | None = None
    news: tuple[JobEvent, ...] = ()
    look_again_at: datetime | None = None


def plan(view: TrainJobView) -> TrainJobPlan:
    """Return what to do now."""
    metadata = view.train_job["metadata"]
    if metadata.get("deletionTimestamp") or not serves(view.mode, view.train_job):
        return TrainJobPlan()
    known, named = _known(view.train_job), view.named
    is_over = statuses.is_finished(known)
    if named is not None and controller_uid(named["metadata"]) != metadata["uid"]:
        if is_going(named):
            return TrainJobPlan()  # of a former TrainJob of this name: the garbage collector deletes it
        return _without_job(view, known, [Problem(("metadata", "name"), _blocked(named))])
    if named is None:
        if is_over:
            # The nodes' job was deleted, for example after ttlSecondsAfterFinished.
            return TrainJobPlan(delete=tuple(view.own.values()))
        return _begun(view, known)
    if is_over:
        status, _ = _status(view, known, named, ())
        return TrainJobPlan(delete=tuple(initializers.unfinished(view.own)), status=status)
    change, wanted, problems = _change(view.train_job, named, view.own)
    is_held = bool((change.get("spec", {}).get("runPolicy") or named["spec"].get("runPolicy") or {}).get("suspend"))
    missing = [wanted[step] for step in initializers.awaited(named) if step in wanted and step not in view.own]
    blocked = [
        _blocked(view.initializers[step]) for step in initializers.awaited(named) if step in view.initializers.keys() - view.own.keys()
    ]
    news = tuple(warning("InvalidTrainJob", str(problem)) for problem in (*problems, *blocked))
    status, look_again_at = _status(view, known, named, ())
    return TrainJobPlan(
        create=() if blocked else tuple(missing),
        change=change or None,
        initializers=tuple(initializers.following(view.own, wanted, is_suspended=is_held)),
        status=status,
        news=news,
        look_again_at=look_again_at,
    )


def _begun(view: TrainJobView, known: TrainJobStatus) -> TrainJobPlan:
    """Return the plan that creates the jobs of a TrainJob, or says why it cannot run."""
    objects, problems = lower(view.train_job, view.runtime, gang_scheduler=view.gang_scheduler)
    wanted = {item["metadata"]["name"] for item in objects if item["kind"] != CLAIM}
    there = [job for job in view.initializers.values() if job["metadata"]["name"] in wanted]
    others = [job for job in there if controller_uid(job["metadata"]) != view.train_job["metadata"]["uid"]]
    if any(is_going(job) for job in others):
        return TrainJobPlan()  # of a former TrainJob of this name
    if not view.serves_mpi and (lacking := without_mpi(objects)):
        objects, problems = [], lacking
    if others:
        objects, problems = [], [*problems, *(Problem(("metadata", "name"), _blocked(job)) for job in others)]
    known_jobs = {job["metadata"]["name"] for job in there}
    planned = _without_job(view, known, problems)
    # Claims come first: once the nodes' job exists, nothing looks after them.
    missing = (item for item in objects if item["kind"] == CLAIM or item["metadata"]["name"] not in known_jobs)
    create = sorted(missing, key=lambda item: item["kind"] != CLAIM)
    return TrainJobPlan(tuple(create), status=planned.status, news=planned.news)


def is_going(job: Object) -> bool:
    """Return whether a job that is not ours will be deleted: it is being deleted, or belonged to a former TrainJob."""
    kind = nodes.kind_of(job)
    return bool(job["metadata"].get("deletionTimestamp")) or as_owned(kind, job["metadata"]) is not kind


def _without_job(view: TrainJobView, known: TrainJobStatus, problems: Sequence[Problem]) -> TrainJobPlan:
    news = tuple(warning("TrainJobResourcesCreationFailed", str(problem)) for problem in problems)
    return TrainJobPlan(status=_status(view, known, None, problems)[0], news=news)


def _blocked(named: Object) -> str:
    what = f"{nodes.kind_of(named).name} {named['metadata']['name']}"
    return f"{what} exists and does not belong to this TrainJob; delete it, or create the TrainJob under another name"


def _status(
    view: TrainJobView, known: TrainJobStatus, owned: Object | None, problems: Sequence[Problem]
) -> tuple[Object | None, datetime | None]:
    """Return the status to write, if any, and when to look again. Progress alone is written now and then, and at the end at once."""
    if statuses.is_finished(known):
        problems = ()
    is_suspended = bool((view.train_job.get("spec") or {}).get("suspend"))
    new = statuses.status_of(known, owned, view.own, is_suspended=is_suspended, problems=problems, now=view.now)
    told, look_again_at = trainer_status(known.trainer_status, view.progress, now=view.now), None
    if told != known.trainer_status:
        due = view.now if statuses.is_finished(new) else next_write(known.trainer_status, now=view.now)
        look_again_at = due if due > view.now else None
        new = new if look_again_at is not None else replace(new, trainer_status=told)
    # A merge patch keeps fields that it does not name, so an empty list removes former conditions.
    empty: Object = {"conditions": []} if known.conditions else {}
    made: Object = empty | msgspec.to_builtins(new)
    return (made if new != known else None), look_again_at


def _known(train_job: Object) -> TrainJobStatus:
    """Return the status. If it cannot be read, it is written again."""
    try:
        return msgspec.convert(train_job.get("status") or {}, TrainJobStatus)
    except msgspec.ValidationError:
        return TrainJobStatus()


def _change(train_job: Object, owned: Object, steps: Mapping[str, Object]) -> tuple[Object, Mapping[str, Object], list[Problem]]:
    """Return the merge patch that makes the owned job follow its TrainJob, the initializers' jobs as wanted, and what is not followed.

    `steps` are the initializers' jobs that exist.
    """
    spec, there = train_job["spec"], owned["spec"]
    change: dict[str, Any] = {}
    # A job that the laptop cluster stopped waits for `elastic resume`.
    known, is_suspended = annotations_of(owned), bool((there.get("runPolicy") or {}).get("suspend"))
    if STOPPED not in known and bool(spec.get("suspend")) != is_suspended:
        change["runPolicy"] = {"suspend": bool(spec.get("suspend"))}
    annotations: dict[str, str | None] = {**initializers.progress(owned, steps)}
    now, problems = wanted_now(train_job, owned)
    if now is None or problems:
        return _patch(change, annotations), {}, problems
    changed: dict[str, dict[str, Any]] = {}
    report = annotations_of(train_job).get(REPORT)
    if report is not None and report != known.get(REPORT):
        annotations[REPORT] = report
    if now.patches != known.get(PATCHES):
        # A running job keeps its pods, as at upstream.
        if is_suspended:
            annotations[PATCHES] = now.patches
            before = nodes.replicas(owned)
            changed = {type: {"template": merge_patch(before[type]["template"], new)} for type, new in now.templates.items()}
        else:
            message = "runtimePatches have changed while the TrainJob runs; suspend it to let them take effect"
            problems = [Problem(("spec", "runtimePatches"), message)]
    if (elastic := there.get("elasticPolicy")) is not None:
        wanted = {"minReplicas": now.bounds.least, "maxReplicas": now.bounds.most}
        if {key: elastic.get(key) for key in wanted} != wanted:
            change["elasticPolicy"] = wanted
        count = nodes.replicas(owned)[WORKER].get("replicas", 1)
        applied = known.get(NODES)
        asked = str(now.bounds.asked) if now.bounds.asked is not None else None
        target = now.bounds.nearest(now.bounds.asked if now.bounds.asked is not None and asked != applied else count)
        if target != count:
            changed.setdefault(WORKER, {})["replicas"] = target
        if asked != applied:
            annotations[NODES] = asked
    if changed:
        change[nodes.kind_of(owned).replica_key] = changed
    return _patch(change, annotations), now.initializers, problems


def _patch(spec: Mapping[str, Any], annotations: Mapping[str, str | None]) -> Object:
    return ({"spec": spec} if spec else {}) | ({"metadata": {"annotations": annotations}} if annotations else {})
