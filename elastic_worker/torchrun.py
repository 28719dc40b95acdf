"""The entry point by which torchrun finds the rendezvous backend `elastic` (group `torchrun.handlers`).

Importing this module costs nothing: torch is imported when torchrun, which has it already, asks for the handler.
"""

import typing

if typing.TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


def register() -> "typing.Callable[[RendezvousParameters], RendezvousHandler]":
    """Called by torchrun without arguments; returns what makes a handler from torchrun's parameters."""
    from elastic_worker.handler import create

    return create
