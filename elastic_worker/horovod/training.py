"""Extend the state object of a training program.

The state always synchronises after a change of hosts, its commits stay in the pod, and it reports progress. It can be committed when a
change waits for a commit, and not only after a number of steps. It is made for horovod.torch's TorchState. Commits of other frameworks'
states are not kept.
"""

import copy
import os
import sys
import typing

from elastic_worker.horovod import connections
from elastic_worker.horovod.commits import Commits, folder
from elastic_worker.horovod.joining import Launcher
from elastic_worker.horovod.progress import Progress

DUE = "elastic-training.due"
COMMIT, CHECKPOINT = 1, 2
"""Requests of a worker to all others."""


def kept(hvd: typing.Any, state: typing.Any) -> typing.Any:
    """Make the state an instance of a class derived from its own class and Kept, and return it."""
    base = type(state)
    launcher = Launcher.of(os.environ)
    state._elastic = Keeper(hvd, commits() if hasattr(state, "_handlers") else None, Progress(launcher) if launcher is not None else None)
    state.__class__ = type(base.__name__, (Kept, base), {})
    if hasattr(getattr(hvd, "elastic", None), "init"):
        hvd.elastic.init = after_the_last_world(state._elastic, hvd.elastic.init)
    return state


def after_the_last_world(keeper: "Keeper", init: typing.Callable[..., typing.Any]) -> typing.Callable[..., typing.Any]:
    """Return Horovod's `init` with a clean-up before it.

    Horovod's `shutdown` leaves connections open. If a worker is lost while all shut down, the others may still wait for this worker, and
    would do so until gloo's timeout.
    """

    def begin(*arguments: typing.Any, **options: typing.Any) -> typing.Any:
        connections.shut(keeper.gloos)
        return init(*arguments, **options)

    return begin


def commits() -> Commits:
    def write(content: typing.Any, file: typing.BinaryIO) -> None:
        import torch

        torch.save(content, file)

    def read(file: typing.BinaryIO) -> typing.Any:
        import io

        import torch

        # The program's own objects, from a folder that only its user may write to.
        return torch.load(io.BytesIO(file.read()), map_location="cpu", weights_only=False)

    return Commits(folder(os.environ), write, read, log)


def log(text: str) -> None:
    print("elastic-training: " + text, file=sys.stderr, flush=True)


class Keeper:
    """The part of a kept state that is ours."""

    def __init__(self, hvd: typing.Any, commits: typing.Optional[Commits], progress: typing.Optional[Progress]) -> None:
        self.hvd = hvd
        self.commits = commits
        self.progress = progress
        self.number = 0
        """Number of the last commit, counted over the whole job."""
        self.steps = 0
        """Steps since the last commit by `step_done`."""
        self.due: typing.Any = None
        """The pending sum of the requests of all workers at the last step."""
        self.gloos: connections.Connections = dict(getattr(hvd, "elastic_connections", {}))
        """The connections of the present world."""
        self.before: typing.Optional[connections.Connections] = None
        """The connections before the next world, or None if they are not known."""


class Kept:
    """A class that comes before a class of Horovod's states in the method resolution order. Its own part is in `_elastic`."""

    _elastic: Keeper

    def save(self) -> None:
        super().save()  # type: ignore[misc]
        keeper = self._elastic
        keeper.number += 1
        if keeper.commits is not None and keeper.hvd.local_rank() == 0:
            keeper.commits.keep(keeper.number, _content(self))

    def sync(self) -> None:
        """Synchronise. If all processes are new, do it from the newest commit that a pod has kept."""
        keeper, hvd = self._elastic, self._elastic.hvd
        keeper.due, keeper.steps = None, 0
        if keeper.commits is not None:
            number, content = keeper.commits.newest() if keeper.number == 0 else (0, None)
            everyone = hvd.allgather_object((keeper.number, number))
            in_memory, (on_disk, root) = max(one for one, _ in everyone), max((one, -rank) for rank, (_, one) in enumerate(everyone))
            if on_disk > in_memory:
                _restore(self, hvd.broadcast_object(content, root_rank=-root))
                log("training goes on from commit {}, which a pod has kept".format(on_disk))
            keeper.number = max(in_memory, on_disk)
        super().sync()  # type: ignore[misc]

    def restore(self) -> None:
        """Restore after a failure, before the remaining workers meet again. Close connections, so that no worker waits for this one."""
        connections.shut(self._elastic.gloos)
        self._elastic.gloos, self._elastic.before = {}, connections.connected()
        super().restore()  # type: ignore[misc]

    def on_reset(self) -> None:
        """Note the connections of the new world, because the workers have met."""
        before, self._elastic.before = self._elastic.before, None
        self._elastic.gloos = connections.since(before) if before is not None else {}
        super().on_reset()  # type: ignore[misc]

    def check_host_updates(self) -> None:
        """Make all workers synchronise after a change of hosts.

        Workers that hear only of a removal would not synchronise, and a worker that joins meanwhile would wait for them forever.
        """
        try:
            super().check_host_updates()  # type: ignore[misc]
        except Exception as interrupt:
            if hasattr(interrupt, "skip_sync"):
                interrupt.skip_sync = False
                self._elastic.before = connections.connected()
            raise

    def step_done(self, every: int, **values: float) -> bool:
        """Commit if it is time. Every worker calls this at the end of each step.

        It commits after `every` steps, and at once if a change of hosts waits for a commit or if somebody asks for a checkpoint. It returns
        whether a checkpoint is asked for: then write one to your own storage.
        """
        keeper, hvd = self._elastic, self._elastic.hvd
        if keeper.progress is not None and hvd.rank() == 0:
            keeper.progress.send(getattr(self, "step", None), values)
        keeper.steps += 1
        asked = int(hvd.synchronize(keeper.due).item()) if keeper.due is not None else 0
        keeper.due = None
        if asked or keeper.steps >= every:
            keeper.steps = 0
            self.commit()  # type: ignore[attr-defined]
        else:
            keeper.due = self._due()
        return asked >= CHECKPOINT

    def _due(self) -> typing.Any:
        """Begin to sum up the requests of all workers. Return None if this world has ended, because a worker has shut Horovod down.

        A lost worker is found by the program's own next step.
        """
        hvd = self._elastic.hvd
        try:
            return hvd.allreduce_async(_number(self._wish()), name=DUE, op=hvd.Sum)
        except RuntimeError:  # HorovodInternalError
            return None

    def _wish(self) -> int:
        """Return this worker's request to all. Only rank 0 is notified of changes."""
        keeper = self._elastic
        if keeper.hvd.rank() != 0:
            return 0
        if keeper.progress is not None and keeper.progress.is_checkpoint_asked():
            return CHECKPOINT
        return 0 if self._host_messages.empty() else COMMIT  # type: ignore[attr-defined]


def _number(value: int) -> typing.Any:
    import torch

    return torch.tensor([value], dtype=torch.int32)


def _content(state: typing.Any) -> typing.Dict[str, typing.Any]:
    """Return the values that the last save has set aside. Its tensors are copies already, and do not change any more."""
    handlers = {
        name: {key: value for key, value in vars(one).items() if key.startswith("_saved_")} for name, one in state._handlers.items()
    }
    return {"handlers": handlers, "values": copy.deepcopy(state._saved_state)}


def _restore(state: typing.Any, content: typing.Mapping[str, typing.Any]) -> None:
    for name, saved in content["handlers"].items():
        vars(state._handlers[name]).update(saved)
    state._saved_state = content["values"]
    super(Kept, state).restore()
