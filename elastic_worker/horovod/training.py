"""What a training program's own state gains.

It always synchronises after a change of hosts, its commits stay in the pod, it reports progress, and it can be committed when a change
waits for it instead of every so many steps only. Made for horovod.torch's TorchState; of a state of another framework commits are not kept.
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
"""What a worker asks all others for."""


def kept(hvd: typing.Any, state: typing.Any) -> typing.Any:
    """Return the state as an instance of a class derived from its own class and Kept."""
    base = type(state)
    launcher = Launcher.of(os.environ)
    state._elastic = Keeper(hvd, commits() if hasattr(state, "_handlers") else None, Progress(launcher) if launcher is not None else None)
    state.__class__ = type(base.__name__, (Kept, base), {})
    if hasattr(getattr(hvd, "elastic", None), "init"):
        hvd.elastic.init = after_the_last_world(state._elastic, hvd.elastic.init)
    return state


def after_the_last_world(keeper: "Keeper", init: typing.Callable[..., typing.Any]) -> typing.Callable[..., typing.Any]:
    """Horovod's `init` between two worlds.

    Its `shutdown` leaves connections open: where a worker is lost while all shut down, those that still wait for this one would do so until
    gloo's timeout.
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
    """What a kept state holds beside its own."""

    def __init__(self, hvd: typing.Any, commits: typing.Optional[Commits], progress: typing.Optional[Progress]) -> None:
        self.hvd = hvd
        self.commits = commits
        self.progress = progress
        self.number = 0
        """Of the last commit, counted over the whole job."""
        self.steps = 0
        """Since the last commit by `step_done`."""
        self.due: typing.Any = None
        """The sum of what all workers asked for at the last step, under way."""
        self.gloos: connections.Connections = dict(getattr(hvd, "elastic_connections", {}))
        """The connections of the present world."""
        self.before: typing.Optional[connections.Connections] = None
        """What was there before the next one; None where that is not known."""


class Kept:
    """Before a class of Horovod's states in the order of methods; its own part is in `_elastic`."""

    _elastic: Keeper

    def save(self) -> None:
        super().save()  # type: ignore[misc]
        keeper = self._elastic
        keeper.number += 1
        if keeper.commits is not None and keeper.hvd.local_rank() == 0:
            keeper.commits.keep(keeper.number, _content(self))

    def sync(self) -> None:
        """Synchronise; where all processes are new, from the newest commit that a pod has kept."""
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
        """After a failure, before the workers that are left meet again: lets those that still wait for this one know."""
        connections.shut(self._elastic.gloos)
        self._elastic.gloos, self._elastic.before = {}, connections.connected()
        super().restore()  # type: ignore[misc]

    def on_reset(self) -> None:
        """The workers have met."""
        before, self._elastic.before = self._elastic.before, None
        self._elastic.gloos = connections.since(before) if before is not None else {}
        super().on_reset()  # type: ignore[misc]

    def check_host_updates(self) -> None:
        """Workers that hear of a removal only would not synchronise, and one that joins meanwhile would wait for them for ever."""
        try:
            super().check_host_updates()  # type: ignore[misc]
        except Exception as interrupt:
            if hasattr(interrupt, "skip_sync"):
                interrupt.skip_sync = False
                self._elastic.before = connections.connected()
            raise

    def step_done(self, every: int, **values: float) -> bool:
        """At the end of each step, on every worker.

        Commits after so many steps, and at once where a change of hosts waits for a commit or a checkpoint is asked for. True if it is:
        then a checkpoint to a storage of your own is worth its time.
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
        """The sum of all wishes, under way; None where this world is over: a worker whose training has ended has shut Horovod down.

        A lost one is found by the program's own next step.
        """
        hvd = self._elastic.hvd
        try:
            return hvd.allreduce_async(_number(self._wish()), name=DUE, op=hvd.Sum)
        except RuntimeError:  # HorovodInternalError
            return None

    def _wish(self) -> int:
        """What this worker asks all for; rank 0 alone is notified of changes."""
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
    """What the last save has set aside. Tensors there are copies already, and are not changed any more."""
    handlers = {
        name: {key: value for key, value in vars(one).items() if key.startswith("_saved_")} for name, one in state._handlers.items()
    }
    return {"handlers": handlers, "values": copy.deepcopy(state._saved_state)}


def _restore(state: typing.Any, content: typing.Mapping[str, typing.Any]) -> None:
    for name, saved in content["handlers"].items():
        vars(state._handlers[name]).update(saved)
    state._saved_state = content["values"]
    super(Kept, state).restore()
