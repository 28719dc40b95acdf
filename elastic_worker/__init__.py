"""What runs inside a training container: standard library and torch only, Python 3.9 syntax.

report          training programs import it: send a step, learn whether to stop or to checkpoint
torchrun        the entry point by which torchrun finds the rendezvous backend `elastic`
settings        what the pod's environment says
agent/          runs in torchrun's agent: the rendezvous handler, its connection to the server, the workers of this agent
gloo_deadlock/  finds workers that hang in torch's deadlock at the end of a gloo job
warm/           a fork server with torch imported, from which workers start
startup/        runs before the user's command: copies this package into the pod, checks the interpreter, waits for a name
mpi/            the `kubectl` of MPI launchers

`elastic_worker.report` and `elastic_worker.torchrun` are named by users' programs and by images; they must not move.
"""

__version__ = "0.4.0"
