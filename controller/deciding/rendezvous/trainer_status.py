"""Let the training programs of new pods report their progress in the form of Kubeflow Trainer: three variables, a token and the CA.

The variables and files are no reason to replace a pod: a pod without them stays until it goes for another reason.
"""

from collections.abc import Iterator

from elastic.api.job import Object
from elastic.api.names import REPORT, REPORT_OFF
from elastic.api.template import default_container
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.rendezvous.delivery import CA_KEY

TOKEN_KEY = "status-token"
VOLUME = "elastic-status"
URL, CA_CERT, TOKEN = "KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_CA_CERT", "KUBEFLOW_TRAINER_SERVER_TOKEN"
"""The last two are paths of files."""
BACKENDS = (RendezvousBackend.OURS, RendezvousBackend.STORE, RendezvousBackend.NONE)
"""Backends of jobs that report. A job in an etcd may have no way to the rendezvous server."""
NOT_YET = "MPIJob"
"""Its launcher starts the processes, which may not have the variables of their pods."""


def is_heard(view: JobView) -> bool:
    """Return whether the rendezvous server takes the job's reports."""
    settings, job = view.snapshot.settings, view.job
    is_off = job.metadata.annotations.get(REPORT) == REPORT_OFF or job.kind.name == NOT_YET
    return settings.rendezvous is not None and view.backend in BACKENDS and not is_off


def is_only_for_reports(secret: Object) -> bool:
    """Return whether a job works without this Secret."""
    return set(secret.get("data") or ()) == {TOKEN_KEY, CA_KEY}


def token(view: JobView) -> Iterator[tuple[str, str]]:
    """Yield the key and the token with which the job's program may report, for the job's Secret."""
    if is_heard(view):
        yield TOKEN_KEY, view.snapshot.status_token


def with_reports(view: JobView, pod: Object, *, place: str, secret: str) -> Object:
    """Return the pod with all that its program needs to report. If the user named a server or its files, the pod stays as it is.

    place: replica type and index.
    """
    container, rendezvous = default_container(pod, view.job.kind), view.snapshot.settings.rendezvous
    env = container.get("env") or []
    if not is_heard(view) or rendezvous is None or any(entry.get("name") in (URL, CA_CERT, TOKEN) for entry in env):
        return pod
    uid = view.job.metadata.uid
    folder = f"/tmp/elastic-{uid}-{place}-status"  # unique on a machine, because pods of a laptop may share /tmp
    items = [{"key": key, "path": key} for key in (TOKEN_KEY, CA_KEY)]
    # Optional, because a pod must also start if an older controller has written the Secret.
    source = {"secretName": secret, "items": items, "optional": True}
    spec = pod["spec"]
    spec["volumes"] = [*(spec.get("volumes") or ()), {"name": VOLUME, "secret": source}]
    container["volumeMounts"] = [*(container.get("volumeMounts") or ()), {"name": VOLUME, "mountPath": folder, "readOnly": True}]
    url = f"https://{rendezvous.endpoint}/v1/jobs/{uid}/trainer-status"
    values = {URL: url, CA_CERT: f"{folder}/{CA_KEY}", TOKEN: f"{folder}/{TOKEN_KEY}"}
    container["env"] = [*env, *({"name": name, "value": value} for name, value in values.items())]
    return pod
