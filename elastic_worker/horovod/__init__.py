"""Run elastic Horovod with the rendezvous server's list of hosts.

The launcher and its workers need no change. A training program gains more by two lines:

from elastic_worker import horovod as elastic

elastic.init(hvd)                                                              # instead of hvd.init()
state = elastic.state(hvd, hvd.elastic.TorchState(model=..., optimizer=...))   # the same state, which survives more
"""

import typing

__all__ = ["init", "state"]


def init(hvd: typing.Any, *arguments: typing.Any, **options: typing.Any) -> None:
    """Call `hvd.init` once the whole world is ready. The other workers go on training while this one starts."""
    from elastic_worker.horovod.joining import init as join

    join(hvd, *arguments, **options)


def state(hvd: typing.Any, given: typing.Any) -> typing.Any:
    """Return the same state, which now keeps its commits in the pod and reports progress.

    `state.step_done(every)` can commit it early.
    """
    from elastic_worker.horovod.training import kept

    return kept(hvd, given)
