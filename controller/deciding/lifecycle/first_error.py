"""Decide which replica a job's failure message names, and which of its words the message quotes.

The words are the line of its exception, which an elastic job's agent or the end of the log put into the termination message, else the exit
code. Texts of containers are cut and escaped.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from elastic.api.template import default_container
from elastic.api.words import FAILED_FIRST
from elastic.membership.bounds import printable
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle import end_reasons, usage_errors
from elastic_training.controller.deciding.lifecycle.verdicts import Fate
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.controller.facts.snapshot import Container, Pod
from elastic_training.rendezvous.delivery import has_failed, unmet
from elastic_training.rendezvous.engine.exit_status import with_error
from elastic_training.rendezvous.engine.peer_errors import tells_of_peer

_EXCEPTION = re.compile(r"\s*(?:\[(?:default|rank)?\d+\]: ?)?((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Warning)\b.*)")
_SUMMARY = "ChildFailedError"
"""torchrun's own exception about a worker's."""
_LATEST = datetime.max.replace(tzinfo=UTC)
_OF_RANK = re.compile(r"^rank \d|\(rank \d")
_RANK = re.compile(r"^\s*(?:\[rank(\d+)\]: |rank\s+: (\d+) \(local_rank)", re.MULTILINE)


def of_job(view: JobView) -> str:
    """Return the end of a failure message: the replica that failed first, with its rank and error or its exit code."""
    said = _said(view) if view.job.elastic is not None else ()
    found = [(pod, container, f": {words}", words) for pod, container, words in said] or list(_ended(view))
    words = [(tells_of_peer(line), str(container.ended_at or _LATEST), pod.name, how) for pod, container, how, line in found]
    return f"{FAILED_FIRST}{min(words)[2]} failed{min(words)[3].rstrip('.')}." if words else ""


def of_usage(view: JobView, reason: str) -> str:
    """Return the end of a failure message if an agent could not start.

    The first such end, of a worker that the reason names if it names one.
    """
    if _OF_RANK.search(reason):
        return ""  # about a worker of a world
    found = _misused(view)
    named = [entry for entry in found if _names(reason, entry[1].name)]
    if not found or (not named and any(_names(reason, pod.name) for pod in view.snapshot.pods)):
        return ""
    _, pod, _, words = min(named or found, key=_order)
    return f" {pod.name} could not start: {words.rstrip('.')}."


def of_unstarted(view: JobView) -> tuple[int, str]:
    """Count the workers that a wrong command or a refusal keeps from the rendezvous, and quote the first one's agent.

    Until their restarts are used up, their pods run like other pods that wait to be started again.
    """
    world, known = view.snapshot.world, view.status.elastic
    met = world.members | world.waiting if world is not None else frozenset()
    # If the members of the world are unknown, or a world has existed, a running agent may be in it, whatever its container's last end was.
    may_have_met = view.backend is RendezvousBackend.STORE or (known is not None and known.generation > 0)
    ends = [*_misused(view), *_refused(view)]
    found = [entry for entry in ends if entry[1].name not in met and not (may_have_met and entry[2].is_running)]
    if not found or view.closed:
        return 0, ""
    _, pod, _, words = min(found, key=_order)
    return len(found), f"{pod.name} could not start: {words.rstrip('.')}"


def _misused(view: JobView) -> list[tuple[str, Pod, Container, str]]:
    """Return the workers whose newest end with an error came from a wrong command: when, which, and the words."""
    uid, is_at_store = view.job.metadata.uid, view.backend is RendezvousBackend.STORE
    return [
        (str(container.ended_at), pod, container, words)
        for pod, container, code, message in _messages(view)
        if (words := usage_errors.by_log(code, message) if is_at_store else usage_errors.by_agent(message, uid))
    ]


def _refused(view: JobView) -> list[tuple[str, Pod, Container, str]]:
    """Return the workers whose agent was refused. If nobody knows the members, a worker that runs again may train by now."""
    return [
        (str(container.ended_at), pod, container, words)
        for pod, container, _, message in _messages(view)
        if (view.sees_members or not container.is_running) and (words := usage_errors.of_refused(message, view.job.metadata.uid))
    ]


def _order(entry: tuple[str, Pod, Container, str]) -> tuple[str, str, str]:
    at, pod, _, words = entry
    return at, pod.name, words


def of_pod_named(view: JobView, reason: str) -> str:
    """Return the reason behind the rank and error of the worker that it names, unless it has them."""
    said = next((said for pod, _, said in _said(view) if _names(reason, pod.name)), "")
    return f"{said.rstrip('.')}. {reason[:1].upper()}{reason[1:]}" if said and said not in reason else reason


def _names(reason: str, pod: str) -> bool:
    return re.search(rf"\b{re.escape(pod)}(?![\w.-])", reason) is not None


def _said(view: JobView) -> Iterator[tuple[Pod, Container, str]]:
    for pod, container, _, message in _messages(view):
        if said := _words(message, view.job.metadata.uid):
            yield pod, container, said


def _ended(view: JobView) -> Iterator[tuple[Pod, Container, str, str]]:
    """Yield the replicas that ended with an error, those for good if there are any: how, and the last line that each said."""
    fatal = {verdict.pod.uid for verdict in view.verdicts if verdict.fate is Fate.FATAL}
    for pod, container in _training(view):
        ends = (
            (container.exit_code, container.exit_reason, container.message),
            (container.last_exit_code, container.last_exit_reason, container.last_message),
        )
        code, reason, message = next((end for end in ends if end[0]), (0, "", ""))
        is_disruption = bool(pod.disruption) or end_reasons.of_container(reason) is end_reasons.Meaning.DISRUPTION
        if not code or is_disruption or (fatal and pod.uid not in fatal):
            continue
        line = _words(message, view.job.metadata.uid) or printable(message.rstrip().rpartition("\n")[2].strip())
        if pod.exceeded:
            yield pod, container, f" with exit code {code} (Evicted): {printable(pod.exceeded)}", ""
            continue
        why = f" ({reason})" if reason not in ("", "Error") else ""
        yield pod, container, f" with exit code {code}{why}{': ' if line else ''}{line}", line


def _messages(view: JobView) -> Iterator[tuple[Pod, Container, int, str]]:
    """Yield the message and the exit code of the newest failed run of each container that trains."""
    for pod, container in _training(view):
        ends = ((container.exit_code, container.message), (container.last_exit_code, container.last_message))
        code, message = next(((code, message) for code, message in ends if code and message), (0, ""))
        if message:
            yield pod, container, code, message


def _training(view: JobView) -> Iterator[tuple[Pod, Container]]:
    types = {type.lower(): spec for type, spec in view.job.replicas.items()}
    for pod in view.snapshot.pods:
        if pod.type not in types:
            continue
        name = default_container(types[pod.type].template, view.job.kind).get("name", "")
        yield from ((pod, container) for container in pod.containers if container.name == name)


def _words(message: str, job_uid: str) -> str:
    if agents := has_failed(message, job_uid) or unmet(message, job_uid)[1]:
        return printable(agents)
    lines = [match[1] for line in message.splitlines() if _SUMMARY not in line and (match := _EXCEPTION.match(line))]
    rank = _RANK.search(message)
    line = lines[-1].strip() if lines else ""
    if rank is None:
        return printable(line)
    return with_error("", rank=int((rank[1] or rank[2])[:9]), error=line).strip(" ()")
