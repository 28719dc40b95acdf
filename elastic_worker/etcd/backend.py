"""torchrun's backend `elastic-etcd`: the handler that all of ours share, with a presence in etcd."""

import logging
import os
import typing

from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

from elastic_worker.agent.handler import ElasticHandler, Meeting, OnSignal
from elastic_worker.agent.in_process import InProcess
from elastic_worker.etcd import settings
from elastic_worker.etcd.in_process import ChangingPresence
from elastic_worker.etcd.liveness import AlivePort
from elastic_worker.etcd.reports import Reports
from elastic_worker.settings import REPORTS

log = logging.getLogger(__name__)

BACKEND = "elastic-etcd"


def create(parameters: RendezvousParameters) -> RendezvousHandler:
    """Create the handler from torchrun's rendezvous options."""
    own = settings.read(
        os.environ,
        parameters.config,
        endpoint=parameters.endpoint,
        job=parameters.run_id,
        nodes=(parameters.min_nodes, parameters.max_nodes),
        local_address=parameters.local_addr,
    )
    reports, alive = _reports(), _alive(own.address)

    def meeting(on_signal: OnSignal) -> Meeting:
        presence = ChangingPresence(own, on_signal=on_signal, reports=reports, alive=alive)
        return presence, InProcess(presence, address=own.address, secret=presence.secret)

    return ElasticHandler(meeting, backend=BACKEND, job=own.job, address=own.address, away_s=own.away_s)


def _reports() -> typing.Optional[Reports]:
    """Return the place to which this agent's workers report their steps. They inherit the path."""
    os.environ.pop(REPORTS, None)
    try:
        reports = Reports()
    except OSError as error:
        log.warning("no steps of workers will be seen, because there is no place for a socket: %s", error)
        return None
    os.environ[REPORTS] = reports.path
    return reports


def _alive(address: str) -> typing.Optional[AlivePort]:
    """Return the port at which peers see at once that this agent has ended. Without it they wait for its lease."""
    try:
        return AlivePort(address)
    except OSError as error:
        log.info("peers will see the end of this agent by its lease alone: %s at %s", error, address)
        return None
