"""One step of the training loop."""

import types
import typing

import torch

from elastic_worker.training.control import Over
from elastic_worker.training.data import Micro
from elastic_worker.training.pace import now
from elastic_worker.training.sampler import weight
from elastic_worker.training.uncaught import first_line
from elastic_worker.training.whole import ReplicaLost

if typing.TYPE_CHECKING:
    from elastic_worker.training.run import Run


class Step:
    """A step of the loop as a context: it commits at its end, and swallows the end of a world."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self.number = run.committed
        """Number of the step, counted from 0."""
        self.is_entered = self.is_broken = False
        self._is_stand_in = self._is_committed = False
        self.gave_batches = self.was_weighted = False
        """Whether `batches` was used, and whether `backward` was."""
        self._values = {}  # type: typing.Dict[str, float]

    @property
    def is_committed(self) -> bool:
        """Return whether the step counts. It is false before the end of the block, and after a step that broke off and is tried again."""
        return self._is_committed

    @property
    def is_first_rank(self) -> bool:
        """Return whether this is rank 0 and the step did not break off."""
        return self._run.rank == 0 and not self.is_broken

    def batches(self) -> "typing.Iterator[typing.Any]":
        """Yield this rank's micro-batches. Gradients are averaged in the backward of the last one only."""
        if self._run._loader is None:
            raise RuntimeError("Run has no data. Pass data=..., or make your own batches from step.number, run.rank and run.size.")
        self.gave_batches = True
        for micro in self.micros():
            self.use(micro)
            yield micro.values

    def micros(self) -> "typing.Iterator[Micro]":
        """Yield this rank's micro-batches with their weights, for the loops of other frameworks. Call `use` before each forward."""
        assert self._run._loader is not None
        return self._run._pace.loading(self._run._loader.batches(self.number, self._run.rank, self._run.size))

    def use(self, micro: Micro) -> None:
        """Prepare the forward and backward of a micro-batch: only the last one of the step averages the gradients."""
        self._is_stand_in = micro.samples == 0
        self._run._replica.sync(micro.is_last)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Add the values up over all ranks, in place. Every rank must call it equally often in a step."""
        began = now()
        added = self._run._replica.sum(values)
        self._run._pace.waited(began)
        return added

    def report(self, **values: float) -> None:
        """Give values, such as the loss, that are reported with this step. The values of rank 0 count."""
        self._values.update(values)

    def backward(self, loss: torch.Tensor, *, samples: int) -> None:
        """Compute gradients of a loss that is the mean over so many samples, so that all ranks together average over the global batch."""
        run = self._run
        run._replica.begin_backward()
        self.was_weighted = True
        factor = weight(0 if self._is_stand_in else samples, run.batch, run.size)
        (loss if factor == 1.0 else loss * factor).backward()  # type: ignore[no-untyped-call]
        run._pace.averaged()
        run._replica.end_backward()

    def __enter__(self) -> "Step":
        """Begin the step, in the next world if the present one ends here."""
        self.is_entered = True
        self._run._enter()
        self._run._open = self
        self.number = self._run.committed
        return self

    def __exit__(
        self,
        kind: "typing.Optional[typing.Type[BaseException]]",
        error: typing.Optional[BaseException],
        trace: typing.Optional[types.TracebackType],
    ) -> bool:
        """Commit the step, or form the next world and swallow the error."""
        self._run._open = None
        try:
            if error is None:
                self._run._replica.check_step(is_written=self._run._worlds.is_writing)
        except (ReplicaLost, Over) as lost:
            self.is_broken = True
            if not self._run._failed(lost):
                raise
            return False
        if error is None:
            self._run._commit(self._values)
            self._is_committed = True
            return False
        self.is_broken = True
        is_survived = self._run._failed(error)
        if not is_survived:
            self._run._error = first_line(error)  # the loop's generator is closed before any hook, and it sees another exception
        return is_survived
