"""Carry out a plan: messages to the rendezvous server first, then objects, then one status patch, then Events.

If the API server shows that an action was carried out earlier, it counts as done. The outcome reports each failure. The next reconcile
reads the objects again and plans from them.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

import msgspec

from elastic.api.job import JobStatus
from elastic.api.names import REPLICA_TYPE
from elastic.api.owners import controller_of, controller_uid
from elastic.kube.client import Patch
from elastic.kube.errors import KubeError
from elastic.kube.resources import (
    CONFIG_MAPS,
    PLUGIN_POD_GROUPS,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    VOLCANO_POD_GROUPS,
    Object,
    Resource,
)
from elastic.runtime.fence import is_lapse
from elastic.runtime.terminating import is_terminating
from elastic.runtime.writers import Writer
from elastic_training.controller.acting.event_recorder import EventRecorder
from elastic_training.controller.acting.outbox import Membership
from elastic_training.controller.deciding.actions import (
    Action,
    Create,
    Delete,
    DeleteJob,
    Forget,
    JobEvent,
    Plan,
    SetCondition,
    SetExpectation,
    Update,
    normal,
    warning,
)
from elastic_training.controller.deciding.objects.differences import merge_patch
from elastic_training.controller.deciding.rendezvous import trainer_status
from elastic_training.controller.deciding.replicas import loss_backoff
from elastic_training.controller.facts.keys import JOBS, Key
from elastic_training.controller.facts.owned import OWNED_LABEL
from elastic_training.controller.facts.snapshot import NotCreated
from elastic_training.controller.watching.observe import WatchScope

AT_ONCE = 32
"""Largest number of requests in flight, for all jobs together. An API server keeps up with this many, and they need few connections."""
NAMED = {PODS: "Pod", SERVICES: "Service"}
GROUPS = {VOLCANO_POD_GROUPS: "PodGroup", PLUGIN_POD_GROUPS: "PodGroup"}
"""Kinds for which we write an Event when an object is deleted, but none when it is created, as upstream does."""
TOLD_AS_PODS = frozenset({"PyTorchJob", "PaddleJob", "JAXJob"})
"""Kinds of jobs whose deletion after ttlSecondsAfterFinished has the Event reason SuccessfulDeletePod, as upstream."""
NEEDED_BY_PODS = frozenset({SECRETS, CONFIG_MAPS, SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS})
"""Objects that pods use. If the controller cannot create one of them, it creates no pod.

The pod would otherwise use an object of the same name that has another owner, or get the rights of that object.
"""
STAGES = (ROLE_BINDINGS, PODS)
"""Resources to create after all others, in this order. The API server refuses a binding until its role exists, and pods need both."""
REFUSALS = (400, 403, 409, 422)
"""HTTP codes of refusals that a retry does not change: the name is taken, the quota is used up, or admission denies the object."""


@dataclass(slots=True)
class Outcome:
    """Result of a reconcile: the newest version written per kind, the Events to write, and the failures."""

    written: dict[WatchScope, str] = field(default_factory=dict)
    news: list[JobEvent] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    status: JobStatus | None = None
    """The status that was written, if one was."""
    secrets: list[Object] = field(default_factory=list)
    """Secrets as the API server returned them. Keep them here, because we do not watch Secrets."""
    not_created: list[NotCreated] = field(default_factory=list)
    """Pods that the API server refused, and objects whose name belongs to an object of another owner, with the reason."""
    job_is_gone: bool = False
    is_waiting: bool = False
    """Whether pods were not deleted yet, because the rendezvous server must answer first. Its answer puts the job into the queue again."""
    is_terminating: bool = False
    """Whether objects were not created because the job's namespace is being deleted. The caller tries again later."""

    def wrote(self, resource: Resource, item: Object) -> None:
        if resource == SECRETS:
            self.secrets.append(item)
            return
        metadata = item.get("metadata") or {}
        version, seen = str(metadata.get("resourceVersion", "")), WatchScope(resource, OWNED_LABEL in (metadata.get("labels") or {}))
        if version.isdigit() and int(version) > int(self.written.get(seen, "0")):
            self.written[seen] = version


class Applier:
    def __init__(self, kube: Writer, events: EventRecorder, membership: Membership | None) -> None:
        self._kube = kube
        self._events = events
        self._membership = membership
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def carry_out(self, key: Key, job: Object, plan: Plan, *, old: JobStatus, now: datetime) -> Outcome:
        outcome = Outcome()
        if not await self._holds(key, plan, outcome):
            return outcome
        departs = any(map(_deletes_pod, plan.actions))
        if departs and not await self._is_as_seen(key, job, outcome):
            return outcome
        if not self._speak(job, plan.actions, is_awaited=departs) and departs:
            # The server must know that a member leaves before the pod is deleted. Delete the pods in the reconcile after the server's
            # answer, and do everything else now.
            plan, outcome.is_waiting = _without_pod_deletions(plan), True
        unmade = [action for action in plan.actions if isinstance(action, Create) and action.resource == PODS]
        not_deleted = 0
        for stage in _stages(plan.actions):
            stage = _without_last_pods(stage, not_deleted)
            done = await self._act_all(key, job, stage, outcome)
            made = {id(action) for action, is_done in zip(stage, done, strict=True) if is_done}
            unmade = [action for action in unmade if id(action) not in made]
            not_deleted += sum(_makes_room(action) and not is_done for action, is_done in zip(stage, done, strict=True))
            if not all(is_done for action, is_done in zip(stage, done, strict=True) if _is_needed_by_pods(action)):
                break
        if plan.status is not None and unmade:
            plan = replace(plan, status=loss_backoff.without_unmade(plan.status, (action.object for action in unmade)))
        if plan.status is not None and plan.status != old and not (plan.is_written_last and (outcome.errors or outcome.is_waiting)):
            await self._write(key, job, plan.status, old=old, outcome=outcome)
        # Always write Events about finished actions. Write Events about a new status only after the status is stored.
        is_said = plan.status is None or plan.status == old or outcome.status is not None
        await self._events.tell(job, (*outcome.news, *(plan.news if is_said else ())), now=now)
        if any(isinstance(action, DeleteJob) for action in plan.actions) and not outcome.errors and not outcome.is_waiting:
            await self._act(key, job, DeleteJob(), outcome)
            await self._events.tell(job, outcome.news, now=now)
        return outcome

    def forget(self, job_uid: str) -> None:
        """Forget a job that was deleted. The rendezvous server need not hear of it now, because no member joins this job any more."""
        self._events.forget(job_uid)
        if self._membership is not None:
            self._membership.drop(job_uid)

    async def _is_as_seen(self, key: Key, job: Object, outcome: Outcome) -> bool:
        """Return whether the job's spec in the API server is the one that was planned for.

        Ask this before a pod is deleted: an outdated spec must not cost a worker.
        """
        seen, there = job["metadata"], {}
        try:
            there = (await self._kube.get(JOBS[key.kind], key.name, namespace=key.namespace))["metadata"]
        except KubeError as error:
            if error.code != 404:
                outcome.errors.append(error)
                return False
        if (there.get("uid"), there.get("generation")) != (seen.get("uid"), seen.get("generation")):
            outcome.errors.append(KubeError(code=409, reason="Conflict", message="the job changed after it was read"))
        return not outcome.errors

    async def _holds(self, key: Key, plan: Plan, outcome: Outcome) -> bool:
        """Return whether every object in `plan.rests_on` still has the version that the plan was made from."""
        for seen in plan.rests_on:
            there = None
            try:
                there = await self._kube.get(seen.resource, seen.name, namespace=key.namespace)
            except KubeError as error:
                if error.code != 404:
                    outcome.errors.append(error)
                    return False
            if there is None or there["metadata"].get("resourceVersion") != seen.version:
                changed = f"{seen.resource.plural} {seen.name} changed after it was read"
                outcome.errors.append(KubeError(code=409, reason="Conflict", message=changed))
                return False
        return True

    def _speak(self, job: Object, actions: Iterable[Action], *, is_awaited: bool) -> bool:
        """Send the rendezvous server its messages before pods are deleted. Return True if the server has acknowledged them."""
        if self._membership is None:
            return True
        uid, is_heard = job["metadata"]["uid"], True
        for action in actions:
            if isinstance(action, SetExpectation):
                is_heard = self._membership.tell(uid, action, is_awaited=is_awaited)
            elif isinstance(action, Forget):
                self._membership.forget(uid, is_awaited=action.is_awaited, place=action.place)
        return is_heard

    async def _act_all(self, key: Key, job: Object, actions: Iterable[Action], outcome: Outcome) -> list[bool]:
        """Carry out the actions at the same time. If an action raises, cancel the rest, so that nothing is written after the reconcile."""
        async with asyncio.TaskGroup() as tasks:
            acting = [tasks.create_task(self._act(key, job, action, outcome)) for action in actions]
        return [task.result() for task in acting]

    async def warn(self, job: Object, reason: str, error: KubeError, *, now: datetime) -> None:
        """Write an Event that says why the controller cannot reconcile the job."""
        await self._events.tell(job, [warning(reason, error.message, about=error.message)], now=now)

    async def _act(self, key: Key, job: Object, action: Action, outcome: Outcome) -> bool:
        """Carry out one action. Return whether it is done."""
        async with self._gate:
            try:
                match action:
                    case Create(resource, item):
                        await self._create(key, job, resource, item, outcome)
                    case Update(resource, name, change):
                        outcome.wrote(resource, await self._kube.patch(resource, name, change, namespace=key.namespace))
                    case Delete():
                        await self._delete(key, action, outcome)
                    case SetCondition():
                        await self._set_condition(key, action, outcome)
                    case DeleteJob():
                        await self._delete_job(key, job["metadata"]["uid"], outcome)
                    case SetExpectation() | Forget():
                        pass
            except KubeError as error:
                if isinstance(action, Create) and is_terminating(error):
                    outcome.is_terminating = True
                    return False
                if not (error.code == 404 and isinstance(action, Delete | SetCondition | DeleteJob)):
                    outcome.errors.append(error)
                    return False
        return True

    async def _create(self, key: Key, job: Object, resource: Resource, item: Object, outcome: Outcome) -> None:
        word, name = NAMED.get(resource), item["metadata"]["name"]
        try:
            made = await self._kube.create(resource, item, namespace=key.namespace)
        except KubeError as error:
            if is_terminating(error):
                raise  # write no Event and remember no refusal: the namespace takes no new objects, and the job is not the cause
            there = await self._named(key, resource, name) if _may_exist(error) else None
            if there is not None and controller_uid(there["metadata"]) == str(job["metadata"]["uid"]):
                # Our view is outdated, or the answer was lost. The next reconcile must see this object, or it creates another pod under a
                # free name.
                outcome.wrote(resource, there)
                return
            if there is not None and error.reason == "AlreadyExists":
                outcome.not_created.append(NotCreated(resource.kind, f"{error.message}; {_owner_in_words(key, there)}", is_taken=True))
            if word is not None or error.code in REFUSALS:
                outcome.news.append(warning(f"FailedCreate{resource.kind}", f"Error creating: {error.message}", about=error.message))
            if resource == PODS and error.code in REFUSALS and error.code != 409:
                outcome.not_created.append(NotCreated(item["metadata"]["labels"].get(REPLICA_TYPE, ""), error.message))
            raise
        outcome.wrote(resource, made)
        if word is not None:
            outcome.news.append(normal(f"SuccessfulCreate{word}", f"Created {word.lower()}: {name}", about=made["metadata"]["uid"]))

    async def _named(self, key: Key, resource: Resource, name: str) -> Object | None:
        """Return the object of this name; None if it does not exist or cannot be read."""
        try:
            return await self._kube.get(resource, name, namespace=key.namespace)
        except KubeError:
            return None

    async def _delete(self, key: Key, action: Delete, outcome: Outcome) -> None:
        word = NAMED.get(action.resource) or GROUPS.get(action.resource)
        try:
            answer = await self._kube.delete(
                action.resource, action.name, namespace=key.namespace, uid=action.uid, grace_s=action.grace_s, propagation="Background"
            )
        except KubeError as error:
            if error.code == 404:
                return
            # A conflict may mean that another object has the name by now, or only that the server wants us to try again.
            if word is not None and error.reason != "Conflict":
                outcome.news.append(warning(f"FailedDelete{word}", f"Error deleting: {error.message}", about=error.message))
            raise
        outcome.wrote(action.resource, answer)
        if word is not None:
            noun = word if action.resource in GROUPS else word.lower()
            outcome.news.append(normal(f"SuccessfulDelete{word}", f"Deleted {noun}: {action.name}", about=action.uid))

    async def _set_condition(self, key: Key, action: SetCondition, outcome: Outcome) -> None:
        """Write one condition of the pod. The uid in the patch is a precondition: a new pod of the same name does not get the condition."""
        metadata = {"uid": action.uid} | ({"annotations": dict(action.annotations)} if action.annotations else {})
        body = {"metadata": metadata, "status": {"conditions": [dict(action.condition)]}}
        patched = self._kube.patch(PODS, action.pod, body, namespace=key.namespace, kind=Patch.STRATEGIC, subresource="status")
        outcome.wrote(PODS, await patched)

    async def _delete_job(self, key: Key, uid: str, outcome: Outcome) -> None:
        await self._kube.delete(JOBS[key.kind], key.name, namespace=key.namespace, uid=uid, propagation="Background")
        outcome.job_is_gone = True
        word = "Pod" if key.kind in TOLD_AS_PODS else "Job"
        outcome.news.append(normal(f"SuccessfulDelete{word}", f"Deleted job: {key.name}", about=uid))

    async def _write(self, key: Key, job: Object, status: JobStatus, *, old: JobStatus, outcome: Outcome) -> None:
        change = merge_patch(msgspec.to_builtins(old), msgspec.to_builtins(status))
        # Send the resourceVersion that we read, so that a second writer or an outdated view cannot overwrite counts.
        body = {"metadata": {"resourceVersion": job["metadata"]["resourceVersion"]}, "status": change}
        resource = JOBS[key.kind]
        try:
            outcome.wrote(resource, await self._kube.patch(resource, key.name, body, namespace=key.namespace, subresource="status"))
            outcome.status = status
        except KubeError as error:
            if error.code != 404:
                outcome.errors.append(error)


def _owner_in_words(key: Key, there: Object) -> str:
    """Say who owns an object whose name this job needs, and what the user can do."""
    owner = controller_of(there["metadata"])
    if owner is None:
        return "it has no owner: delete it, or set its ownerReferences to this job"
    if (owner.kind, owner.name) == (key.kind, key.name):
        return f"it belongs to an earlier {key.kind} {key.name} and is deleted with it"
    return f"it belongs to {owner.kind} {owner.name}: rename this job or that {owner.kind}"


def _may_exist(error: KubeError) -> bool:
    """Return whether the object may exist although its creation failed with this error. Error code 0 means that no answer came."""
    return error.reason == "AlreadyExists" or ((error.code == 0 or error.code >= 500) and not is_lapse(error))


def _without_pod_deletions(plan: Plan) -> Plan:
    return replace(plan, actions=tuple(a for a in plan.actions if not _deletes_pod(a)))


def _deletes_pod(action: Action) -> bool:
    return isinstance(action, Delete) and action.resource == PODS


def _makes_room(action: Action) -> bool:
    return isinstance(action, Delete) and action.makes_room


def _without_last_pods(stage: list[Action], count: int) -> list[Action]:
    """Return the stage without the last `count` pods that it creates."""
    pods = [action for action in stage if isinstance(action, Create) and action.resource == PODS]
    without = {id(action) for action in pods[max(0, len(pods) - count) :]}
    return [action for action in stage if id(action) not in without]


def _is_needed_by_pods(action: Action) -> bool:
    return isinstance(action, Create) and action.resource in NEEDED_BY_PODS and not trainer_status.is_only_for_reports(action.object)


def _stages(actions: Iterable[Action]) -> list[list[Action]]:
    """Return the actions in stages. Each stage begins when the stage before it is done."""
    stages: list[list[Action]] = [[] for _ in (None, *STAGES)]
    for action in actions:
        if isinstance(action, Create) and action.resource in STAGES:
            stages[1 + STAGES.index(action.resource)].append(action)
        elif not isinstance(action, DeleteJob):
            stages[0].append(action)
    return stages
