"""Code for training containers: standard library and torch only, Python 3.9 syntax.

report          training programs import it: send a step, learn whether to stop or to checkpoint
training        training programs import it: a loop whose processes live on while workers come and go
torchrun        the entry point by which torchrun finds the rendezvous backend `elastic`
settings        reads the pod's environment
agent/          runs in torchrun's agent: the rendezvous handler, its connection to the server, the workers of this agent
stack_signal    lets a training process show its Python stacks when a signal asks for them
flight_recorder lets it say what torch's flight recorder knows
stacks          `python -m elastic_worker.stacks` prints what the processes of a container do
looking/        says what a training process does, from /proc and its Python stacks
gloo_deadlock/  finds workers that hang in torch's deadlock at the end of a gloo job
warm/           a fork server with torch imported, from which workers start
integrations/   callbacks for Hugging Face's and Lightning's Trainers
startup/        runs before the user's command: copies this package into the pod, checks the interpreter, waits for a name
mpi/            the `kubectl` of MPI launchers

Users' programs and images name `elastic_worker.report`, `elastic_worker.training`, `elastic_worker.Run`, `elastic_worker.Pod`,
`elastic_worker.integrations` and `elastic_worker.torchrun`. They must not move.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from elastic_worker.training.fsdp import Pod as Pod
    from elastic_worker.training.run import Run as Run

__version__ = "0.4.0"


def __getattr__(name: str) -> typing.Any:
    """Import Run and Pod at their first use, because they import torch."""
    if name in ("Run", "Pod"):
        return getattr(importlib.import_module("elastic_worker.training"), name)
    raise AttributeError("module {!r} has no attribute {!r}".format(__name__, name))
