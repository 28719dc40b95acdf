"""Run inside a training container, with the standard library and torch only, in Python 3.9 syntax.

report          training programs import it: send a step, learn whether to stop or to checkpoint
torchrun        the entry point by which torchrun finds the rendezvous backend `elastic`
settings        the environment of the pod
agent/          runs in torchrun's agent: the rendezvous handler, its connection to the server, the workers of this agent
gloo_deadlock/  finds workers that hang in torch's deadlock at the end of a gloo job
warm/           a fork server with torch imported, from which workers start
integrations/   callbacks for Hugging Face's and Lightning's Trainers
startup/        runs before the user's command: copies this package into the pod, checks the interpreter, waits for a name
mpi/            the `kubectl` of MPI launchers

Users' programs and images name `elastic_worker.report`, `elastic_worker.integrations` and `elastic_worker.torchrun`; they must not move.
"""

__version__ = "0.4.0"
