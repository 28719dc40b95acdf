"""torchrun's backend `elastic-etcd`: the handler that all of ours share, with a presence in etcd."""

import os

from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

from elastic_worker.agent.handler import ElasticHandler, OnSignal
from elastic_worker.agent.view import Rendezvous
from elastic_worker.etcd import settings
from elastic_worker.etcd.presence import EtcdPresence

BACKEND = "elastic-etcd"


def create(parameters: RendezvousParameters) -> RendezvousHandler:
    """torchrun calls this with its rendezvous options."""
    own = settings.read(
        os.environ,
        parameters.config,
        endpoint=parameters.endpoint,
        job=parameters.run_id,
        nodes=(parameters.min_nodes, parameters.max_nodes),
        local_address=parameters.local_addr,
    )

    def presence(on_signal: OnSignal) -> Rendezvous:
        return EtcdPresence(own, on_signal=on_signal)

    return ElasticHandler(presence, backend=BACKEND, job=own.job, address=own.address, away_s=own.away_s)
