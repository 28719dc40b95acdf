"""Bring elastic_worker into the workers that meet at the rendezvous server or in an etcd.

If an image cannot take the library, all pods are made again with c10d.
"""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import replace

from msgspec import structs

from elastic.api.job import ElasticStatus, Job, Object
from elastic.api.rendezvous_choice import obstacle_to_library
from elastic.api.words import RdzvBackend
from elastic.etcd.place import user_of
from elastic_training.controller.deciding.actions import Forget, JobEvent, Plan, normal, warning
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle.conditions import WAITS
from elastic_training.controller.deciding.objects.ownership import owned_metadata
from elastic_training.controller.deciding.rendezvous import etcd, trainer_status
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.controller.deciding.replicas.creation_backoff import LONGEST_MESSAGE
from elastic_training.controller.facts.snapshot import Pod
from elastic_training.rendezvous.delivery import (
    CA_KEY,
    ETCD_BACKEND,
    ETCD_LOGIN,
    INIT_CONTAINER,
    TOKEN_KEY,
    Delivery,
    deliver,
    is_undeliverable,
)

LAUNCHER_TOKEN_KEY = "launcher-token"


def secret_name(job: Job) -> str:
    return f"{job.metadata.name}-elastic"


def secret(view: JobView) -> Iterator[Object]:
    """Yield the Secret with the tokens by which the rendezvous server knows workers, launcher and programs, and with the server's CA.

    In an etcd the token seals the job's records.
    """
    job, rendezvous = view.job, view.snapshot.settings.rendezvous
    data = dict(trainer_status.token(view))
    if view.backend is RendezvousBackend.HOSTS:
        data[LAUNCHER_TOKEN_KEY] = view.snapshot.launcher_token
    elif view.backend.needs_library:
        data[TOKEN_KEY] = view.snapshot.token
    if rendezvous is None or not data:
        return
    if view.backend is not RendezvousBackend.ETCD or etcd.is_own(job):
        data[CA_KEY] = rendezvous.ca
    if view.backend is RendezvousBackend.ETCD and etcd.is_own(job):
        data |= {
            ETCD_LOGIN["ELASTIC_ETCD_USER"]: user_of(job.metadata.uid),
            ETCD_LOGIN["ELASTIC_ETCD_PASSWORD"]: view.snapshot.etcd_password,
        }
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    yield {"apiVersion": "v1", "kind": "Secret", "metadata": owned_metadata(job, secret_name(job)), "type": "Opaque", "data": encoded}


def delivered(view: JobView, pod: Object, index: int) -> Object:
    """Return the worker's pod with all that torchrun needs to meet its peers at our server or in an etcd."""
    job, settings = view.job, view.snapshot.settings
    assert settings.rendezvous is not None
    delivery = Delivery(
        job_uid=job.metadata.uid,
        index=index,
        image=settings.worker_image,
        endpoint=settings.rendezvous.endpoint,
        secret=secret_name(job),
        container=job.kind.container,
    )
    if view.backend is RendezvousBackend.ETCD:
        login = secret_name(job) if etcd.is_own(job) else etcd.secret_name(job)
        delivery = replace(delivery, backend=ETCD_BACKEND, endpoint=etcd.endpoint(job, settings), etcd_secret=login)
    return deliver(pod, delivery)


def events(view: JobView) -> Iterator[JobEvent]:
    """Yield the Event that says why a job that chose no rendezvous meets through c10d."""
    job, policy = view.job, view.job.elastic
    if policy is None or policy.rdzv_backend is not None or view.snapshot.settings.rendezvous is None:
        return
    if view.backend is RendezvousBackend.STORE and (reason := obstacle_to_library(job)):
        yield normal("OtherRendezvous", f"{job.kind.title} {job.metadata.name} uses rdzvBackend c10d, because {reason}.")


def wait_in_words(view: JobView) -> str:
    """Return the end of a condition's message while the init container that brings the library fails.

    It fails, for example, if --worker-image is of a release without this controller's command. The text stays the same while the kubelet
    tries again.
    """
    for pod in view.snapshot.pods:
        for container in pod.inits:
            code = container.last_exit_code if container.exit_code is None else container.exit_code
            if container.name == INIT_CONTAINER and code and not pod.is_deleting:
                lines = (container.message if container.exit_code else container.last_message).split("\n")
                said = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")[:LONGEST_MESSAGE].rstrip(".")
                return (
                    f"{WAITS}for the library in pod {pod.name}: its init container {INIT_CONTAINER} ended with exit code {code} ({said}); "
                    f"--worker-image of the controller is {view.snapshot.settings.worker_image}: set it to the image of the controller's "
                    "own release, then delete the pod."
                )
    return ""


def fall_back_to_c10d(view: JobView) -> Plan | None:
    """Return the plan that makes all workers again with c10d, if an image cannot take our library. It costs the job no restart."""
    job = view.job
    if not view.backend.needs_library or not (reason := _undeliverable(job, view.snapshot.pods)):
        return None
    message = f"{job.kind.title} {job.metadata.name} restarts with rdzvBackend c10d, because its image cannot load the library: {reason}"
    elastic = structs.replace(view.status.elastic or ElasticStatus(), backend=RdzvBackend.C10D.value, leaving=())
    return Plan((Forget(),), structs.replace(view.status, elastic=elastic), (*view.news, warning("OtherRendezvous", message)))


def _undeliverable(job: Job, pods: Sequence[Pod]) -> str:
    """Return why a worker's image cannot take our library; empty if no worker has reported that."""
    for pod in pods:
        for container in pod.containers:
            for code, message in ((container.exit_code, container.message), (container.last_exit_code, container.last_message)):
                reason = is_undeliverable({"exitCode": code, "message": message}, job.metadata.uid)
                if reason:
                    return reason
    return ""
