"""Provide the entry points for the rendezvous backends `elastic` and `elastic-etcd` (group `torchrun.handlers`).

Importing this module is cheap: torch is imported only when torchrun, which has imported it already, asks for the handler.
"""

import typing

if typing.TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


def register() -> "typing.Callable[[RendezvousParameters], RendezvousHandler]":
    """Return the function that creates a handler from torchrun's parameters. Torchrun calls this without arguments."""
    from elastic_worker.agent import early_end
    from elastic_worker.agent.handler import create

    early_end.watch()
    return create


def register_etcd() -> "typing.Callable[[RendezvousParameters], RendezvousHandler]":
    """Return the same function for `elastic-etcd`. torch has its own backend `etcd` and refuses another backend of that name."""
    from elastic_worker.agent import early_end
    from elastic_worker.etcd.backend import create

    early_end.watch()
    return create
