"""Says in the container's termination message why the agents have closed their rendezvous, for a controller that does not read the etcd."""

import logging
import typing

log = logging.getLogger(__name__)

PREFIX = "elastic-training closed the rendezvous of job"


def write(environment: typing.Mapping[str, str], reason: str) -> None:
    """Write it where the control plane delivered this library; by hand there is no such file."""
    path, job = environment.get("ELASTIC_TERMINATION_LOG"), environment.get("ELASTIC_JOB_UID")
    if not path or not job:
        return
    try:
        with open(path, "w") as file:
            file.write("{} {}: {}".format(PREFIX, job, reason))
    except OSError as error:
        log.warning("the termination message could not be written: %s", error)
