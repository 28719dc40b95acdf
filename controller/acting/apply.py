"""Carry out a plan: messages to the rendezvous server first, then objects, then one status patch, then Events.

An action that is already done counts as done. A failure is reported, and the next reconcile starts from the objects that really exist.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

import msgspec

from controller.acting.event_recorder import EventRecorder
from controller.acting.outbox import Membership
from controller.deciding.actions import (
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
from controller.deciding.objects.differences import merge_patch
from controller.deciding.rendezvous import trainer_status
from controller.deciding.replicas import loss_backoff
from controller.facts.keys import JOBS, Key
from controller.facts.owned import OWNED_LABEL
from controller.facts.snapshot import NotCreated
from controller.watching.observe import WatchScope
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

AT_ONCE = 32
"""The most requests in flight for all jobs together: an API server keeps up with them, and they need few connections."""
NAMED = {PODS: "Pod", SERVICES: "Service"}
GROUPS = {VOLCANO_POD_GROUPS: "PodGroup", PLUGIN_POD_GROUPS: "PodGroup"}
"""Upstream has Events for the deletion of these, not for their creation."""
TOLD_AS_PODS = frozenset({"PyTorchJob", "PaddleJob", "JAXJob"})
"""Upstream reports their deletion by ttlSecondsAfterFinished under the reason of pods."""
NEEDED_BY_PODS = frozenset({SECRETS, CONFIG_MAPS, SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS})
"""No pod is created while one of these cannot be: another owner's object of that name would go into the pod, or give it rights."""
STAGES = (ROLE_BINDINGS, PODS)
"""Objects that are made after all others, in this order. A binding is refused until its role exists, and pods need both."""
REFUSALS = (400, 403, 409, 422)
"""Answers that do not change by themselves: a name is taken, a quota used up, admission says no."""


@dataclass(slots=True)
class Outcome:
    """Result of a reconcile: the newest version written per kind, the Events to write, and the failures."""

    written: dict[WatchScope, str] = field(default_factory=dict)
    news: list[JobEvent] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    status: JobStatus | None = None
    """The status that was written, if one was."""
    secrets: list[Object] = field(default_factory=list)
    """As they were written: no watch will show them."""
    not_created: list[NotCreated] = field(default_factory=list)
    """Pods that the API server does not take, for another reason than their names, which are free once others have gone."""
    job_is_gone: bool = False
    is_waiting: bool = False
    """Pods that should go are still there: the rendezvous server has not answered yet. The job comes back when it does."""
    is_terminating: bool = False
    """Objects were not created, because the job's namespace is being deleted. The job comes back when it is time to ask again."""

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
            # No member may lose its pod before the server knows. The pods go in the reconcile after its answer; all else is done now.
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
        # Events about finished actions are always written; those about a new status only once the status is stored.
        is_said = plan.status is None or plan.status == old or outcome.status is not None
        await self._events.tell(job, (*outcome.news, *(plan.news if is_said else ())), now=now)
        if any(isinstance(action, DeleteJob) for action in plan.actions) and not outcome.errors and not outcome.is_waiting:
            await self._act(key, job, DeleteJob(), outcome)
            await self._events.tell(job, outcome.news, now=now)
        return outcome

    def forget(self, job_uid: str) -> None:
        """Forget a job that is gone. A server that cannot be reached now does no harm: no member joins any more."""
        self._events.forget(job_uid)
        if self._membership is not None:
            self._membership.drop(job_uid)

    async def _is_as_seen(self, key: Key, job: Object, outcome: Outcome) -> bool:
        """Before a pod goes, the API server's own word: no worker is lost to a spec that has been changed since we saw it."""
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
        """Return whether everything that the plan rests on is still as the plan saw it."""
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
        """Send the rendezvous server what it must know before pods go. Return True if it has acknowledged that."""
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
        """Carry out the actions at the same time. If one raises, the others are cancelled, so nothing is written after the reconcile."""
        async with asyncio.TaskGroup() as tasks:
            acting = [tasks.create_task(self._act(key, job, action, outcome)) for action in actions]
        return [task.result() for task in acting]

    async def warn(self, job: Object, reason: str, error: KubeError, *, now: datetime) -> None:
        """Write an Event that says why the job cannot go on."""
        await self._events.tell(job, [warning(reason, error.message, about=error.message)], now=now)

    async def _act(self, key: Key, job: Object, action: Action, outcome: Outcome) -> bool:
        """Carry out one action; return whether it is done."""
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
                raise  # no Event and no refusal to remember: nothing can be created there, and nothing is wrong with the job
            there = await self._named(key, resource, name) if _may_exist(error) else None
            if there is not None and controller_uid(there["metadata"]) == str(job["metadata"]["uid"]):
                # Our view is old, or the answer was lost. The next reconcile must see it, or it makes another pod of a free name.
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
            # A conflict may mean that another has the name by now, or nothing but that the server asks to be asked again.
            if word is not None and error.reason != "Conflict":
                outcome.news.append(warning(f"FailedDelete{word}", f"Error deleting: {error.message}", about=error.message))
            raise
        outcome.wrote(action.resource, answer)
        if word is not None:
            noun = word if action.resource in GROUPS else word.lower()
            outcome.news.append(normal(f"SuccessfulDelete{word}", f"Deleted {noun}: {action.name}", about=action.uid))

    async def _set_condition(self, key: Key, action: SetCondition, outcome: Outcome) -> None:
        """Write one condition of this very pod: the uid in the patch is a precondition."""
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
        # With the version that was seen: two writers, or an old view, must not undo each other's counts.
        body = {"metadata": {"resourceVersion": job["metadata"]["resourceVersion"]}, "status": change}
        resource = JOBS[key.kind]
        try:
            outcome.wrote(resource, await self._kube.patch(resource, key.name, body, namespace=key.namespace, subresource="status"))
            outcome.status = status
        except KubeError as error:
            if error.code != 404:
                outcome.errors.append(error)


def _owner_in_words(key: Key, there: Object) -> str:
    """Return, in words, the owner of an object whose name we need."""
    owner = controller_of(there["metadata"])
    if owner is None:
        return "it has no owner: delete it, or set its ownerReferences to this job"
    if (owner.kind, owner.name) == (key.kind, key.name):
        return f"it belongs to an earlier {key.kind} {key.name} and is deleted with it"
    return f"it belongs to {owner.kind} {owner.name}: rename one of the two"


def _may_exist(error: KubeError) -> bool:
    """Return whether the object may exist after this answer to its creation, or after no answer."""
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
    """Return the actions in stages. A stage begins when the stage before it is done."""
    stages: list[list[Action]] = [[] for _ in (None, *STAGES)]
    for action in actions:
        if isinstance(action, Create) and action.resource in STAGES:
            stages[1 + STAGES.index(action.resource)].append(action)
        elif not isinstance(action, DeleteJob):
            stages[0].append(action)
    return stages
