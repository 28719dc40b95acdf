"""Explain why a job has its size, what it waits for, and what its last change cost. Pure: it reads what the API server sends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from elastic.api.counting import asked_to_save, continued, counted, ended_early, killed_late
from elastic.api.reasons import BY_NAME, Severity
from elastic.api.scaling import PolicyName
from elastic.api.words import CHARGED, GPU, TAKEN_BACK, WORLD_STANDS, Cause
from elastic.client.ages import age
from elastic.client.summary import Summary, budget_used, in_world_reason, pod_state, unscheduled
from elastic.kube.resources import Object
from elastic_training.rendezvous.engine.messages.doing import HangState
from elastic_training.rendezvous.engine.words import tells_of_broken_communication

PHASES = {
    "notice": "until the workers that left were notified",
    "detect": "until the loss was noticed",
    "pause": "pause before a job that keeps failing starts again",
    "drain": "for the workers to stop",
    "round": "at the rendezvous",
    "start": "until all processes ran",
    "firstStep": "until the first step",
}
BEFORE_START = ("detect", "notice", "drain")
"""Phases that are one wait for workers if no group was there before: nothing had to be noticed or stopped."""
PHASES_OF_START = PHASES | {"drain": "until enough workers had come"}
SETTING_UP = ("Pending", "ContainerCreating", "PodInitializing")
IMAGE = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "RegistryUnavailable")
UNSTARTED = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CreatePodSandboxError")
"""Why the kubelet did not start a container: its spec or its node do not allow it, and a message says what."""
MOST_NAMES = 3
UNSEEN = ". The rendezvous server was started during it, and does not know for how long training had stood still"
POD_DELETION = "pod-deletion"
"""The signal of a pod that was deleted (elastic.signals.table): nobody gave notice of it."""
SHORT_MS, SMALL_PART = 50, 0.05
"""A phase of a change is left out if it is shorter, and a smaller part of the change."""


class Finding(NamedTuple):
    """One sentence about a job. The reason is a word for programs (elastic.api.reasons), and empty if the sentence only describes."""

    message: str
    reason: str = ""
    is_end: bool = False
    """The job has failed for this reason."""

    @property
    def severity(self) -> Severity:
        known = BY_NAME.get(self.reason)
        return Severity.ERROR if self.is_end else known.severity if known is not None else Severity.INFO

    def remedy(self, job: str) -> str:
        """Return what to do about it; empty if there is nothing to do, or nobody knows."""
        known = BY_NAME.get(self.reason)
        return known.remedy_for(job) if known is not None else ""

    @property
    def is_open(self) -> bool:
        """Return whether somebody should do something now. A change that is over has its remedy in the log, and the job goes on."""
        return self.is_end or (self.severity is Severity.WARNING and self.reason not in tuple(Cause))

    def for_program(self, job: str) -> dict[str, str]:
        """Return the finding as `-o json` has it."""
        return {"reason": self.reason, "severity": self.severity.value, "message": self.message, "remedy": self.remedy(job)}


def explained(job: Summary, pods: Sequence[Object], spec: Mapping[str, object], now: datetime, *, progress: str = "") -> Iterator[str]:
    """Yield the sentences about a job, and what to do. progress: the newest report of its training."""
    yield from sentences(job, list(findings(job, pods, spec, now, progress=progress)))


def sentences(job: Summary, found: Sequence[Finding]) -> Iterator[str]:
    """Yield the findings as sentences, each open one followed by what to do."""
    for finding in found:
        yield finding.message
        if finding.is_open and (remedy := finding.remedy(job.name)):
            yield f"To do: {remedy}"


def findings(job: Summary, pods: Sequence[Object], spec: Mapping[str, object], now: datetime, *, progress: str = "") -> Iterator[Finding]:
    """Yield the sentences about a job with their reasons."""
    yield Finding(_size(job))
    if progress:
        yield Finding(f"It {'ended' if job.is_over else 'is'} at {progress}.")
    yield from _since(job, now)
    if job.ended_early:
        yield Finding(f"{ended_early(job.ended_early)}.", "EndedEarly")
    if not job.is_over and _is_scaled_by_metrics(spec):
        yield Finding(
            f"A HorizontalPodAutoscaler chooses its size by elasticPolicy.metrics; its events and conditions say why: "
            f"`kubectl describe hpa {job.name} -n {job.namespace}`."
        )
    yield from (Finding(words, Cause.DISRUPTION) for words in _disruption(job, now))
    if job.state == "Failed":
        yield Finding(f"It failed: {job.message}", _cause_of_end(job), is_end=True)
    elif job.state == "Succeeded":
        yield Finding("It has succeeded.")
    else:
        for reason, waits in awaited(job, pods, now):
            yield Finding(f"It waits for {waits.rstrip('.')}.", reason)
        if job.hang:
            yield Finding(f"`elastic stacks {job.name}` shows the stacks of its ranks.")
        for one in job.stragglers:
            since = f" It has been slow for {age(one['since'], now)}." if one.get("since") else ""
            message = str(one.get("message")).rstrip(".")
            yield Finding(f"{message[:1].upper()}{message[1:]}.{since}", "Straggler")
        for one in job.failed_saves:
            message = str(one.get("message")).rstrip(".")
            yield Finding(f"{message[:1].upper()}{message[1:]}.", "SaveFailed")
        if job.fault:
            yield Finding(f"RendezvousFault: {job.fault.rstrip('.')}.", "RendezvousFault")
        if job.unfollowed:
            words = f"{job.unfollowed.rstrip('.')}. Whether its workers have met, they say themselves: `elastic logs {job.name}`."
            yield Finding(words, "WorldUnreadable")
    yield from map(Finding, _cost(job))
    if not progress and (words := unreported(job, pods)):
        yield Finding(f"It {words}.", "NoSteps")
    yield from map(Finding, _restarts(job, spec))


def _cause_of_end(job: Summary) -> str:
    """Return the only cause that counted against a failed job, or the reason of its condition if no cause or several causes counted."""
    charged = [cause for cause, number in job.restarts.items() if number and cause in CHARGED]
    return charged[0] if len(charged) == 1 else "Failed"


def _size(job: Summary) -> str:
    workers = counted(job.wanted, "worker")
    bounds = " Its size is fixed: it has no elasticPolicy."
    if job.is_elastic:
        allowed = (
            f"Between {job.least} and {job.most} are allowed."
            if job.least != job.most
            else f"minReplicas and maxReplicas are both {job.least}."
        )
        bounds = f" {allowed}"
    if job.is_over:
        return f"{job.kind.title} {job.name} has {job.state.lower()}. It asked for {workers}.{bounds}"
    world = "" if job.world is None else f"; {job.world or 'none'} of them train together"
    return (
        f"{job.kind.title} {job.name} is {job.state.lower()} with {job.running} of {counted(job.wanted, 'wanted worker')}{world}.{bounds}"
    )


def _since(job: Summary, now: datetime) -> Iterator[Finding]:
    if job.rescale:
        before, after = job.rescale.get("fromSize"), job.rescale.get("toSize")
        ago, sizes = f"was {age(job.rescale.get('at'), now)} ago", f" from {before} to {after}" if before else f" to {after}"
        cause = str(job.rescale.get("cause") or "unknown")
        what = f"The last change of its size {ago},{sizes}" if before != after else f"Its last restart {ago}, with {after}"
        if cause == Cause.START:
            what = f"Its group {ago.replace('was', 'was formed', 1)}, with {after}"
        reason = str(job.rescale.get("reason", ""))
        yield Finding(f"{what}: {reason} (cause {cause}).{_rung(job)}", cause)
        if tells_of_broken_communication(reason) and job.rescale.get("rung") != "in-process":
            yield Finding(
                "All processes restarted, because workers could not reach each other, though nobody was lost.", "BrokenCommunication"
            )
        if steps := continued(_step(job, "stepBefore"), _step(job, "stepAfter"), state_lost=job.rescale.get("stateLost") is True):
            yield Finding(f"After it, training {_past(steps)}.", "StepsLost" if job.rescale.get("stepsLost") else "")
        killed = job.rescale.get("killed")
        if isinstance(killed, int) and killed > 0:
            yield Finding(f"Before it, {killed_late(killed)}; raise scaleInGraceSeconds.", "WorkersKilled")
    elif job.is_elastic and not job.is_over:
        yield Finding("Its size has not changed yet.")
    if job.autoscaler and not job.is_over:
        decided = f"{age(job.autoscaler.get('at'), now)} ago" if job.autoscaler.get("at") else "lately"
        workers = counted(job.autoscaler.get("workers", 0), "worker")
        yield Finding(f"The autoscaler decided {decided} on {workers}: {job.autoscaler.get('reason', '')}.")


def _past(steps: str) -> str:
    """Return the words of `continued` in the past tense."""
    return steps.replace("continues", "continued", 1).replace("begins", "began", 1)


RUNGS = {
    "in-process": "its processes lived on",
    "warm-restart": "its processes were restarted from the fork server",
    "restart": "its processes were restarted",
    "new-pods": "no worker of the world before was left",
}


def _rung(job: Summary) -> str:
    """Return how the processes came into the newest world, as a sentence."""
    words = RUNGS.get(str(job.rescale.get("rung", "")), "")
    return f" {words[0].upper()}{words[1:]}." if words else ""


def _is_scaled_by_metrics(spec: Mapping[str, object]) -> bool:
    policy = spec.get("elasticPolicy")
    if not isinstance(policy, dict) or not policy.get("metrics"):
        return False
    scaling = policy.get("scalingPolicy")
    return not isinstance(scaling, dict) or scaling.get("policy") == PolicyName.HPA.value


def _step(job: Summary, field: str) -> int | None:
    step = job.rescale.get(field)
    return step if isinstance(step, int) else None


def _disruption(job: Summary, now: datetime) -> Iterator[str]:
    """Explain the newest disruption that was announced. The change that stands above may be the return of a worker after it."""
    if not job.disruptions:
        return
    last = job.disruptions[-1]
    ago, what = age(last.noticed_at, now), f"{last.node or 'a node'} ({last.signal})"
    if last.outcome == TAKEN_BACK:
        yield f"The notice for {what} of {ago} ago was taken back."
        return
    is_told_above = last.rescale == job.rescale.get("id")
    least = "at least " if is_told_above and job.rescale.get("beganUnseen") else ""
    paused = f", for which training paused {least}{_time(last.pause_milliseconds)}" if last.pause_milliseconds else ""
    came = f"{ago} ago a notice came for {what}: {counted(last.workers, 'worker')} {'had to' if last.ended_at else 'must'} leave"
    if last.signal == POD_DELETION:
        came = f"{ago} ago {counted(last.workers, 'worker', 'was', 'were')} deleted on {last.node or 'a node'}"
    yield f"{came}{paused}."
    if last.steps_lost and not is_told_above:
        yield f"After it, training {_past(continued(last.step_before, last.step_after, state_lost=last.state_lost))}."
    if last.asked_to_save_at is not None:
        words = asked_to_save(at=last.asked_to_save_at, by=last.by)
        yield f"{words[0].upper()}{words[1:]}."


def has_told_no_step(job: Summary) -> bool:
    """Return whether the status has no step since a change started the job's processes again."""
    phases = job.rescale.get("phases") or {}
    return bool(not job.is_over and job.world and job.step is None and job.rescale.get("fromSize") and "firstStep" not in phases)


def unreported(job: Summary, pods: Sequence[Object]) -> str:
    """Say that a job reports no steps, and after a change that only its script knows where it continues.

    Its workers are Ready because their world has stood for long enough.
    """
    if job.is_over or not job.world or job.step is not None or "firstStep" in (job.rescale.get("phases") or {}):
        return ""
    if {reason for pod in pods if (reason := in_world_reason(pod))} != {WORLD_STANDS}:
        return ""
    if not has_told_no_step(job):
        return "reports no steps, so nobody sees whether it gets on (docs/own-script.md)"
    return (
        "reports no steps: a change starts its processes again, and they go on where they were only if the script saves its state and "
        "loads it at its start (docs/own-script.md)"
    )


def waits_for(job: Summary, pods: Sequence[Object], now: datetime | None = None) -> str:
    """Return what a job waits for; empty if it waits for nothing that the API shows. Without now, it has no times."""
    return "; ".join(words.rstrip(".") for _, words in awaited(job, pods, now))


def awaited(job: Summary, pods: Sequence[Object], now: datetime | None = None) -> Sequence[tuple[str, str]]:
    """Return what a job waits for, each with a word for programs: what keeps workers away, and what keeps its world from a step.

    A suspected hang is first, because the workers that are away help nobody.
    """
    workers, steps = _awaited(job, pods), (str(job.hang.get("state", "")), "" if job.state == "Suspended" else job.next_step(now))
    both = (steps, workers) if steps[0] == HangState.SUSPECTED else (workers, steps)
    return [one for one in both if one[1]]


def _awaited(job: Summary, pods: Sequence[Object]) -> tuple[str, str]:
    """Return the first thing that keeps workers away; both are empty if nothing does."""
    if job.is_over:
        return "", ""
    if job.state == "Suspended":
        return "Suspended", f"`elastic resume {job.name}`: it is suspended"
    if job.state == "Pending" and not pods:
        return "NotServed", "the controller, which has not looked at it yet; see whether it runs with `elastic doctor`"
    if without_room := [(pod, words) for pod in pods if (words := unscheduled(pod))]:
        words = without_room[0][1]
        return "Unschedulable", f"room for {_names([pod for pod, _ in without_room])}: {_short(words)}{_gpu_hint(words)}"
    if refused := [pod for pod in pods if pod_state(pod).removeprefix("Init:") in IMAGE]:
        words = _waiting_words(refused[0], IMAGE, with_image=True) or "it cannot be pulled"
        return pod_state(refused[0]).removeprefix("Init:"), f"the image of {_names(refused)}: {words}"
    if unstarted := [pod for pod in pods if pod_state(pod).removeprefix("Init:") in UNSTARTED]:
        words = _waiting_words(unstarted[0], UNSTARTED) or pod_state(unstarted[0])
        return pod_state(unstarted[0]).removeprefix("Init:"), f"the start of {_names(unstarted)}, which fails: {words}"
    if (waiting := [pod for pod in pods if pod_state(pod) == "CrashLoopBackOff"]) and not job.waits_for:
        return "CrashLoopBackOff", f"the next start of {_names(waiting)}, which ended again and again; see `elastic logs {job.name}`"
    if setting_up := [pod for pod in pods if _is_set_up(pod)]:
        return "SettingUp", f"the set-up of {_names(setting_up)} (image, volumes, init containers)"
    if going := [pod for pod in pods if pod_state(pod) == "Terminating"]:
        return "Terminating", f"{_names(going)} to end"
    if job.waits_for:
        return "MissingWorkers", job.waits_for
    if job.state == "Waiting":
        return "BelowMinimum", job.message.removeprefix("Waiting for ").rstrip(".")
    if job.state in ("Pending", "Created"):
        return "SettingUp", "its pods to run"
    return _of_world(job)


def _of_world(job: Summary) -> tuple[str, str]:
    """Return what a job waits for whose pods run. Whether their processes train together is another question."""
    if not job.is_elastic or job.world is None:
        return "", ""
    if job.running and not job.world:
        return "NotMet", f"the rendezvous of its {counted(job.running, 'worker')}"
    if job.world < job.running:
        return "NotMet", f"the rendezvous: {job.world} of {job.running} running workers train together"
    return "", ""


def _cost(job: Summary) -> Iterator[str]:
    phases = {name: ms for name, ms in (job.rescale.get("phases") or {}).items() if isinstance(ms, int)}
    is_start = job.rescale.get("cause") == Cause.START
    what, names = ("Its start took", PHASES_OF_START) if is_start else ("The last change cost", PHASES)
    if is_start and (waited := [phases.pop(name) for name in BEFORE_START if name in phases]):
        phases = {"drain": sum(waited), **phases}
    if phases:
        total = sum(phases.values())
        told = {name: ms for name, ms in phases.items() if ms >= min(SHORT_MS, SMALL_PART * total) and ms}
        parts = [f"{_time(ms)} {names.get(name, name)}" for name, ms in told.items()]
        rest_ms = total - sum(told.values())
        parts += [f"{_time(rest_ms)} for the rest"] if parts and rest_ms else []
        least, why = ("at least ", UNSEEN) if job.rescale.get("beganUnseen") is True else ("", "")
        if parts:
            yield f"{what} {least}{_time(total)}: {', '.join(parts)}{why}."


def _time(ms: int) -> str:
    return f"{ms} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def _restarts(job: Summary, spec: Mapping[str, object]) -> Iterator[str]:
    ends = {cause: number for cause, number in job.restarts.items() if number}
    if not ends:
        return
    total, charged = sum(ends.values()), sum(number for cause, number in ends.items() if cause in CHARGED)
    words = ", ".join(f"{number} {cause}" for cause, number in sorted(ends.items()))
    against = f"{charged or 'none'} of them {'count' if charged > 1 else 'counts'} against the job"
    within = f", in {counted(job.restart_count, 'restart')}" if 0 < job.restart_count < total else ""
    yield f"Workers failed or were lost {_times(total)}{within}: {words}; {against}.{_budget(ends, spec)}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _budget(counted: Mapping[str, int], spec: Mapping[str, object]) -> str:
    budget = budget_used(counted, spec.get("elasticPolicy"))
    if budget is None:
        return ""
    used, limit = budget
    if not limit:
        return " maxRestarts allows none."
    if used >= limit:
        return f" {'The one' if limit == 1 else f'All {limit}'} that maxRestarts allows {'is' if limit == 1 else 'are'} used up."
    return f" {used} of the {limit} that maxRestarts allows {'is' if used == 1 else 'are'} used up."


def _is_set_up(pod: Object) -> bool:
    state = pod_state(pod)
    return state in SETTING_UP or state.startswith("Init:")


def _waiting_words(pod: Object, reasons: Sequence[str], *, with_image: bool = False) -> str:
    """Return the kubelet's words about the first container that waits for one of these reasons."""
    status = pod.get("status") or {}
    for container in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in reasons:
            words = str(waiting.get("message") or waiting["reason"])
            return _short(f"{container.get('image', '')}: {words}" if with_image else words)
    return ""


def _gpu_hint(words: str) -> str:
    if GPU not in words:
        return ""
    return "; on the laptop, `elastic node add spare --gpus 1` adds a node that claims to have one, but it adds no GPU to the machine"


def _names(pods: Sequence[Object]) -> str:
    names = [str(pod["metadata"]["name"]) for pod in pods]
    more = len(names) - MOST_NAMES
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:MOST_NAMES])} and {more} more"


def _short(words: str) -> str:
    return words.rstrip(".") if len(words) <= 300 else words[:297] + "..."
