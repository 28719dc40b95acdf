"""Run elastic Horovod with the control plane's list of hosts.

In the launcher, this package runs horovodrun with the rendezvous server's list of hosts. In a training program two lines use it:

from elastic_worker import horovod as elastic

elastic.init(hvd)                                                              # instead of hvd.init()
state = elastic.state(hvd, hvd.elastic.TorchState(model=..., optimizer=...))   # the same state, which survives more
"""

import typing

__all__ = ["init", "state"]


def init(hvd: typing.Any, *arguments: typing.Any, **options: typing.Any) -> None:
    """`hvd.init`, once the whole world is there to do so: the other workers train on while this one starts."""
    from elastic_worker.horovod.joining import init as join

    join(hvd, *arguments, **options)


def state(hvd: typing.Any, given: typing.Any) -> typing.Any:
    """Return the same state, which now keeps its commits in the pod and reports progress.

    `state.step_done(every)` can commit it early.
    """
    from elastic_worker.horovod.training import kept

    return kept(hvd, given)
