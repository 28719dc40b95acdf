"""Decides which worker an elastic job's failure message names, and what it quotes of it: the line of its exception, which its agent or the
end of its log has put into the termination message. What containers write is cut and escaped.
"""

import re
from collections.abc import Iterator

from controller.deciding.compat import quotes_errors
from controller.deciding.job_view import JobView
from controller.watching.snapshot import Container, Pod
from elastic.api.template import default_container
from elastic.membership.wire import printable, with_error
from rendezvous.delivery import has_failed

_EXCEPTION = re.compile(r"\s*(?:\[(?:default|rank)?\d+\]: ?)?((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Warning)\b.*)")
_SUMMARY = "ChildFailedError"
"""torchrun's own exception about a worker's."""
_RANK = re.compile(r"^\s*(?:\[rank(\d+)\]: |rank\s+: (\d+) \(local_rank)", re.MULTILINE)


def of_job(view: JobView) -> str:
    """What a failure message ends with: the worker that failed first, its rank and error; empty where no pod says any."""
    if view.job.elastic is None or not quotes_errors(view.snapshot.settings):
        return ""
    words = [(container.ended_at is None, container.ended_at, pod.name, said) for pod, container, said in _said(view)]
    first = min(words, key=lambda item: (item[0], str(item[1]), item[2]), default=None)
    return f" First of all {first[2]} failed: {first[3]}." if first is not None else ""


def of_pod_named(view: JobView, reason: str) -> str:
    """Rank and error of the worker that this reason names, as a parenthesis behind it."""
    return next((f"{reason} ({said})" for pod, _, said in _said(view) if re.search(rf"\b{re.escape(pod.name)}(?![\w.-])", reason)), reason)


def _said(view: JobView) -> Iterator[tuple[Pod, Container, str]]:
    types = {type.lower(): spec for type, spec in view.job.replicas.items()}
    for pod in view.snapshot.pods:
        if pod.type not in types:
            continue
        name = default_container(types[pod.type].template, view.job.kind).get("name", "")
        for container in pod.containers:
            ends = ((container.exit_code, container.message), (container.last_exit_code, container.last_message))
            message = next((message for code, message in ends if code and message), "")
            if container.name == name and (said := _words(message, view.job.metadata.uid)):
                yield pod, container, said


def _words(message: str, job_uid: str) -> str:
    if agents := has_failed(message, job_uid):
        return printable(agents)
    lines = [match[1] for line in message.splitlines() if _SUMMARY not in line and (match := _EXCEPTION.match(line))]
    rank = _RANK.search(message)
    line = lines[-1].strip() if lines else ""
    if rank is None:
        return printable(line)
    return with_error("", rank=int((rank[1] or rank[2])[:9]), error=line).strip(" ()")
