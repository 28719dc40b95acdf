"""Deliver elastic_worker into containers of unmodified images by changes to the pod, and read the messages of containers where that fails.

An init container copies the library into a separate volume. A short shell wrapper before the container's command checks the interpreter
under which torchrun will run, appends the folder to PYTHONPATH, and starts the fork server that gives torchrun warm workers.
If the interpreter does not fit, the container ends with a reserved status and a message that names the job. A controller that sees both
restarts the group with another backend.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic.api.rendezvous_choice import container_named, obstacle

Pod = dict[str, Any]

BACKEND = "elastic"
ETCD_BACKEND = "elastic-etcd"
IMAGE_USER = 65532
"""The user of our image."""
VOLUME = "elastic-library"
INIT_CONTAINER = "elastic-library"
TOKEN_KEY, CA_KEY = "token", "ca.crt"
MAX_RESTARTS = "1000000"
"""Out of the agents' reach: the budget is kept by the rendezvous engine, per job and by cause."""
UNDELIVERABLE_STATUS = 119
UNDELIVERABLE_PREFIX = "elastic-training cannot deliver its library to job"
CLOSED_PREFIX = "elastic-training closed the rendezvous of job"
"""How an agent in an etcd begins the last words of its container; elastic_worker.agent.last_words writes them."""
FAILED_PREFIX = "elastic-training saw a worker fail in job"
"""The line in which an agent says how its own worker failed."""
UNMET_PREFIX = "elastic-training did not meet the other workers of job"
"""The line in which an agent, or the wrapper, says why it ended without meeting the others: one of the words below, and more."""
USAGE, REFUSED, UNREACHABLE = "usage", "refused", "unreachable"
NOT_FOUND_STATUS = 127
"""A shell's for a command that is not there."""
ETCD_LOGIN = {
    "ELASTIC_ETCD_USER": "user",
    "ELASTIC_ETCD_PASSWORD": "password",
    "ELASTIC_ETCD_CA": "ca.crt",
    "ELASTIC_ETCD_CERT": "tls.crt",
    "ELASTIC_ETCD_KEY": "tls.key",
}
"""Variables and the keys of the user's Secret that they come from, as far as it has them."""

WRAPPER = f"""\
give_up() {{
  printf '{UNDELIVERABLE_PREFIX} %s: %s' "$ELASTIC_JOB_UID" "$1" > "$ELASTIC_TERMINATION_LOG" 2>/dev/null
  printf '{UNDELIVERABLE_PREFIX} %s: %s\\n' "$ELASTIC_JOB_UID" "$1" >&2
  exit {UNDELIVERABLE_STATUS}
}}
command -v "$1" > /dev/null || {{
  printf '{UNMET_PREFIX} %s: {USAGE}: %s' "$ELASTIC_JOB_UID" "$1: command not found" > "$ELASTIC_TERMINATION_LOG" 2>/dev/null
  printf '%s: command not found\\n' "$1" >&2
  exit {NOT_FOUND_STATUS}
}}
python_of_torchrun() {{
  line=
  IFS= read -r line < "$1"
  case "$line" in
    '#!'*/env\\ *) command -v "${{line##* }}" ;;
    '#!'*python*) line=${{line#'#!'}}; line=${{line# }}; printf '%s\\n' "${{line%% *}}" ;;
    *) for name in python3 python; do [ -x "${{1%/*}}/$name" ] && printf '%s\\n' "${{1%/*}}/$name" && return; done ;;
  esac
}}
case "${{1##*/}}" in
  python*) python=$1 ;;
  torchrun) found=$(command -v "$1") && python=$(python_of_torchrun "$found") ;;
  *) found=$(command -v torchrun) && python=$(python_of_torchrun "$found") ;;
esac
[ -n "$python" ] || python=$(command -v python3) || python=$(command -v python) || give_up 'no Python was found on PATH'
verdict=$("$python" "$ELASTIC_LIBRARY/elastic_worker/startup/check.py" 2>&1) || give_up "${{verdict:-$python could not be run}}"
[ "$verdict" = own ] || export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}$ELASTIC_LIBRARY"
warm=$("$python" -IS "$ELASTIC_LIBRARY/elastic_worker/warm/launch.py" $$ "$@") && eval "$warm"
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class Delivery:
    """The parts of a delivery to a worker's pod.

    `endpoint` is the server or the etcd as pods reach it; `secret` holds `token`, and for the server `ca.crt`; `etcd_secret` is the user's
    own, with a login.
    """

    job_uid: str
    index: int
    image: str
    endpoint: str
    secret: str
    container: str = "pytorch"
    pull_policy: str = "IfNotPresent"
    max_restarts: str = MAX_RESTARTS
    backend: str = BACKEND
    etcd_secret: str = ""

    @property
    def folder(self) -> str:
        """Unique on a machine, so that pods without a mount namespace of their own can share /tmp."""
        return f"/tmp/elastic-{self.job_uid}-{self.index}"


def deliver(pod: Pod, delivery: Delivery) -> Pod:
    """Return the pod with the library and everything that torchrun in it needs for its backend. The given pod stays as it is."""
    pod = copy.deepcopy(pod)
    spec = pod["spec"]
    container = container_named(pod, delivery.container)
    if container is None or not container.get("command"):
        raise ValueError(obstacle(pod, container=delivery.container))
    spec.setdefault("volumes", []).append({"name": VOLUME, "emptyDir": {"sizeLimit": "16Mi"}})
    spec.setdefault("initContainers", []).append(_init_container(delivery, spec))
    container.setdefault("volumeMounts", []).append({"name": VOLUME, "mountPath": delivery.folder, "readOnly": True})
    container["command"] = ["/bin/sh", "-c", WRAPPER, "elastic", *container["command"]]
    _add_env(container, _env(delivery, container))
    return pod


def is_undeliverable(terminated: Mapping[str, Any], job_uid: str) -> str:
    """Return why the delivery failed, as a container's `terminated` state says; empty if the container did not end because of it."""
    start = f"{UNDELIVERABLE_PREFIX} {job_uid}: "
    message = str(terminated.get("message") or "")
    return message[len(start) :] if terminated.get("exitCode") == UNDELIVERABLE_STATUS and message.startswith(start) else ""


def has_closed(message: str, job_uid: str) -> str:
    """Return why the agents of this job have closed their rendezvous, as a container's message says; "" if it does not say so."""
    return _line(message, f"{CLOSED_PREFIX} {job_uid}: ")


def has_failed(message: str, job_uid: str) -> str:
    """Return rank and error of the worker that failed, as its agent wrote them into the container's message; "" if it did not."""
    return _line(message, f"{FAILED_PREFIX} {job_uid}: ")


def unmet(message: str, job_uid: str) -> tuple[str, str]:
    """Return why an agent ended without meeting the others, as a word and as a sentence; two empty texts if its container does not say."""
    why, _, words = _line(message, f"{UNMET_PREFIX} {job_uid}: ").partition(": ")
    return (why, words) if why in (USAGE, REFUSED, UNREACHABLE) else ("", "")


def _line(message: str, start: str) -> str:
    """Return the rest of the line that begins so. An agent writes its own lines first; a worker's come after them."""
    return next((line[len(start) :] for line in message.split("\n")[:2] if line.startswith(start)), "")


def _init_container(delivery: Delivery, spec: Mapping[str, Any]) -> dict[str, Any]:
    command = ["python3", "-m", "elastic_worker.startup.deliver", delivery.folder]
    made = init_container(INIT_CONTAINER, image=delivery.image, command=command, spec=spec, pull_policy=delivery.pull_policy)
    return made | {"volumeMounts": [{"name": VOLUME, "mountPath": delivery.folder}]}


def init_container(
    name: str, *, image: str, command: Sequence[str], spec: Mapping[str, Any], pull_policy: str = "IfNotPresent"
) -> dict[str, Any]:
    """Return an init container of our own image for a pod of this spec: small, and admitted where only restricted pods are."""
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": pull_policy,
        "command": list(command),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "500m", "memory": "128Mi"}},
        "securityContext": restricted(spec),
    }


def restricted(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the security context of a container of our own image. If the pod runs as root, it names a user, or the kubelet refuses it."""
    context: dict[str, Any] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    is_roots = (spec.get("securityContext") or {}).get("runAsUser") == 0
    return context | ({"runAsUser": IMAGE_USER, "runAsGroup": IMAGE_USER} if is_roots else {})


def _env(delivery: Delivery, container: Mapping[str, Any]) -> list[dict[str, Any]]:
    def secret(name: str, key: str) -> dict[str, Any]:
        return {"name": name, "valueFrom": {"secretKeyRef": {"name": delivery.secret, "key": key}}}

    def login(name: str, key: str) -> dict[str, Any]:
        return {"name": name, "valueFrom": {"secretKeyRef": {"name": delivery.etcd_secret, "key": key, "optional": True}}}

    def field(name: str, path: str) -> dict[str, Any]:
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}

    return [
        {"name": "PET_RDZV_BACKEND", "value": delivery.backend},
        {"name": "PET_RDZV_ENDPOINT", "value": delivery.endpoint},
        {"name": "PET_RDZV_ID", "value": delivery.job_uid},
        {"name": "PET_MAX_RESTARTS", "value": delivery.max_restarts},
        secret("ELASTIC_TOKEN", TOKEN_KEY),
        *([secret("ELASTIC_CA", CA_KEY)] if delivery.backend == BACKEND else []),
        *([login(name, key) for name, key in ETCD_LOGIN.items()] if delivery.etcd_secret else []),
        field("ELASTIC_MEMBER", "metadata.name"),
        field("ELASTIC_POD_UID", "metadata.uid"),
        field("ELASTIC_POD_IP", "status.podIP"),
        {"name": "ELASTIC_JOB_UID", "value": delivery.job_uid},
        {"name": "ELASTIC_LIBRARY", "value": delivery.folder},
        {"name": "ELASTIC_TERMINATION_LOG", "value": container.get("terminationMessagePath") or "/dev/termination-log"},
    ]


def _add_env(container: dict[str, Any], wanted: Sequence[dict[str, Any]]) -> None:
    """Add variables to the container. They replace its variables of the same names, because all of the rendezvous must be ours."""
    ours = {entry["name"] for entry in wanted}
    kept = [entry for entry in container.get("env") or [] if entry.get("name") not in ours]
    container["env"] = [*kept, *wanted]
