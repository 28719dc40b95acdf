"""The training loop of a program whose world changes while its processes live on.

    run = Run(model, optimizer, data=dataset, batch=256)
    for step in run.steps(10_000):
        with step:
            for x, y in step.batches():
                step.backward(loss_of(run.model(x), y), samples=len(x))
            optimizer.step()
            optimizer.zero_grad()

Each step is reported to the control plane, and a notice makes it save the state in time.

Only the main thread forms and leaves process groups: at a step's boundary, or after a collective has raised. A step counts once it is
committed. A step that breaks off is tried again in the next world.
"""

import logging
import sys
import traceback
import typing

import torch
import torch.distributed as dist

from elastic_worker.report import Reporter
from elastic_worker.training import environment, mistakes
from elastic_worker.training.boundary import Boundary
from elastic_worker.training.connections import Connections
from elastic_worker.training.control import Control
from elastic_worker.training.data import loader_of
from elastic_worker.training.group import Group
from elastic_worker.training.pace import Pace
from elastic_worker.training.saves import Saves
from elastic_worker.training.sigterm import STATUS, Sigterm
from elastic_worker.training.step import Step
from elastic_worker.training.uncaught import Uncaught, first_line
from elastic_worker.training.whole import ReplicaLost, Whole
from elastic_worker.training.worlds import Worlds

if typing.TYPE_CHECKING:
    from elastic_worker.training.fsdp import Unit

log = logging.getLogger(__name__)

VERDICT_S = 1.0
"""Seconds that a RuntimeError of the program waits for the news that the world has ended."""
LOST_PEER_S = 180.0
"""The same for an error of gloo's connections, which says itself that a peer is gone. Its loss may be noticed later.

A rendezvous server takes 19 s to miss a silent member, has a start of 15 s, and doubts for up to 2 minutes whether it is cut off itself.
"""
LAST_SAVE_S = 600.0
"""Seconds that the save at the end of the loop may take."""
NOTICE_SHARE = 0.8
"""The part of the time left by a notice that a save may take."""
SIGTERM_S, SIGTERM_OUTSIDE_S = 1.0, 10.0
"""Seconds that a worker may go on after SIGTERM: in a step, on top of twice its longest step, and outside, to save or to evaluate."""
LOST_PEER = ("gloo/transport", "Connection closed by peer", "Connection reset by peer")


class Run:
    """Training with one model and one optimizer, in one process, under torchrun, or in worlds that change."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        batch: int,
        data: typing.Any = None,
        seed: int = 0,
        extra: "typing.Optional[typing.Mapping[str, typing.Any]]" = None,
        save: typing.Optional[str] = None,
        save_every_s: float = 300.0,
        ddp: "typing.Optional[typing.Mapping[str, typing.Any]]" = None,
        shards: "typing.Optional[Unit]" = None,
        backend: typing.Optional[str] = None,
    ) -> None:
        """Describe the training. Nothing waits before `steps`.

        data: a dataset with indices, or a Loader; without it, feed your own batches by step.number, run.rank and run.size.
        batch: samples of one step, of all ranks together, at every size of the world.
        extra: more objects with state_dict and load_state_dict, by name; they are saved and sent to newcomers.
        ddp: arguments of DistributedDataParallel.
        shards: the `Pod` over whose mesh the model is sharded (FSDP2); without it, each worker has the whole model (DDP).
        backend: nccl or gloo; by default nccl for a model on a GPU. NCCL needs a GPU of its own for each worker.
        """
        mistakes.check_arguments(model, optimizer, batch, extra)
        if shards is not None and ddp:
            raise ValueError("ddp is given, but a sharded model has no DistributedDataParallel. Remove ddp=, or shards= and fully_shard.")
        self.size = environment.own("WORLD_SIZE", 1)
        """Number of workers in the present world. Read it in each step."""
        self.rank = environment.own("RANK", 0)
        self.batch = batch
        self._loader = None if data is None else loader_of(data, batch, seed)
        if shards is not None:
            shards.hold(model, optimizer)
        self._replica = Whole(model, optimizer, ddp or {}) if shards is None else shards
        self._replica.watch(self._check, self._settle)
        self._pace = Pace(model, marks_gradients=shards is None)
        self._replica.waited = self._pace.waited
        if self._loader is not None:
            self._loader.is_even = self._replica.count > 1
        self._uncaught = Uncaught(self._end_by)
        self._error = ""
        """First line of the exception that left a step, and that the change of a world did not explain."""
        self._group = Group(model, self._replica, backend)
        self._boundary = Boundary(model, optimizer)
        sampler = None if self._loader is None else self._loader.sampler
        self._worlds = Worlds(self, self._group, sampler=sampler, extra=extra or {})
        self._worlds.is_unit = self._replica.count > 1
        self._control = None  # type: typing.Optional[Control]
        own = self._replica
        self._saves = None if save is None else Saves(save, save_every_s, shard=(own.index, own.count), agree=own.tag, is_any=own.agree)
        self.save_last = self._save_last  # type: typing.Callable[[], typing.Any]
        """Saves the state on the first rank before SIGTERM ends its process."""
        self._sigterm = Sigterm()
        self._reporter = Reporter.from_environment()
        self.is_noticed = False
        """Whether this worker must leave soon, and no other one will have the state. Without `save`, save it yourself then."""
        self._committed = self._until = 0
        self._optimizer = optimizer
        self._open = None  # type: typing.Optional[Step]
        """The step whose block is open."""
        self._is_looping = self._is_leaving = self._is_complete = False
        optimizer.register_step_pre_hook(lambda *_: self._begin_writing())

    @property
    def model(self) -> typing.Any:
        """Return the model to call in a step: the program's own, or one that averages gradients over the present world."""
        return self._replica.model

    def on_resize(self, rule: "typing.Callable[[int, int], typing.Any]") -> "typing.Callable[[int, int], typing.Any]":
        """Call `rule(old, new)` on every rank whenever the size of the world has changed, for example to adapt a learning rate."""
        self._worlds.rules.append(rule)
        return rule

    def steps(self, until: int, *, restored: typing.Optional[int] = None) -> "typing.Iterator[Step]":
        """Yield steps until so many are committed, counted from the beginning of the training.

        restored: the number of committed steps of a state that the program itself has loaded; Run's own saves come first.
        """
        self._until = until
        mistakes.check_scheduler(self._optimizer, self._worlds.objects["extra"])
        self._begin(restored)
        self._is_looping = True
        try:
            while not self._is_finished():
                step = Step(self)
                yield step
                if self._is_leaving:
                    raise SystemExit(STATUS)
                if not step.is_entered:
                    raise RuntimeError("The body of a step must be inside `with step:`. Without it no step is counted.")
            self._save_last(is_writer=self._replica.is_first(self.rank))
            self._is_complete = True
        finally:
            self._is_looping = False
            self._sigterm.give_back()
            if self._control is not None:
                self._control.done(early=not self._is_complete, error=self._error or first_line(sys.exc_info()[1]))
            self._group.end()

    @property
    def is_in_process(self) -> bool:
        """Return whether the world of this worker changes while its process runs. It is known once the loop has begun."""
        return self._control is not None

    def stop(self) -> None:
        """End the loop after the steps that are committed. All ranks must stop after the same step."""
        self._until = min(self._until, self.committed)

    @property
    def committed(self) -> int:
        """Return the number of committed steps."""
        return self._control.step if self._control is not None else self._committed

    def _end_by(self, error: str) -> None:
        """Tell the agent that this exception ends the program. The process may live on for a while, as for a logger that flushes."""
        if self._is_looping and self._control is not None:
            self._control.done(early=True, error=error)

    # --- the environment

    def _begin(self, step: typing.Optional[int]) -> None:
        if self._loader is not None:
            self._loader.start()  # before there are sockets, which its workers would inherit
        if self._saves is not None:
            self._saves.check(self._worlds.objects)
            if environment.own("RANK", 0) == 0:
                self._saves.check_place()
            saved = self._saves.restore(self._worlds.objects)
            step = step if saved is None else saved
            if saved is not None and environment.own("RANK", 0) == 0:
                log.warning("The save of step %d in %s was loaded. A newer state of another worker wins.", step, self._saves.target)
        self._committed = step or 0
        if step is not None and not step < self._until and environment.own("RANK", 0) == 0:
            log.warning(
                "All %d steps were done before this start, so nothing is trained. Ask for more steps, or remove the save.", self._until
            )
        path = environment.take_door()
        why_plain = "no agent of ours has started it" if path is None else self._group.obstacle()
        if path is None or why_plain:
            self._begin_plain(why_plain)
            return
        connections = Connections()
        self._control = control = Control(path, connections)
        if self._saves is not None:
            self._saves.news.listener = lambda **news: control.send("save", **news)
        self._pace.sending_s = connections.sending_s
        self._sigterm.take(lambda: SIGTERM_S + 2 * (control.longest_step_s or 0.0) if control.is_inside else SIGTERM_OUTSIDE_S)
        why = self._sigterm.unless_it_comes(lambda: self._worlds.begin(control, connections, step=step))
        if self._sigterm.has_come:
            raise SystemExit(STATUS)
        if why is not None:
            self._sigterm.give_back()
            self._control = None
            self._begin_plain(why)

    def _begin_plain(self, why: str) -> None:
        if not environment.is_distributed():
            return
        if environment.is_provisional():
            raise RuntimeError("This worker cannot join a world that changes while its processes run: {}.".format(why))
        log.warning("This job does not change its world while its processes run: %s.", why)
        self._group.form_from_environment()
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    # --- one step

    def _enter(self) -> None:
        control = self._control
        if control is not None:
            self._end_if_asked()  # a shard waits here, outside of the step, until another one has done its work between two steps
            # A shard that has heard of the world's end goes with one that has not: the step then ends in `check_step` for both.
            while not self._replica.agree(control.begin_step()):
                self._change()
            self._pace.begin(control)
            self._boundary.note()
        self._replica.begin_step()

    def _check(self) -> None:
        """Raise RuntimeError if no step is open, or if the open one cannot be committed any more, because its world has ended."""
        mistakes.check_call(self._open)
        if self._control is not None:
            self._control.check_step()

    def _settle(self) -> None:
        """Raise RuntimeError if the world has ended, and a collective of a GPU may have ended with it: that one raises no error."""
        if self._control is not None and self._group.settle():
            self._control.check_step()

    def _begin_writing(self) -> None:
        if self._is_looping:
            mistakes.check_writing(self._open)
        self._pace.averaged()
        self._replica.check_step(is_written=False)
        self._worlds.is_writing = True

    def _commit(self, values: "typing.Mapping[str, float]") -> None:
        self._worlds.is_writing = False
        if self._control is None:
            self._committed += 1
        else:
            self._control.commit()
            self._worlds.note_step()
            if self._pace.is_on:
                self._pace.end(self._control)
        is_writer = self._replica.is_first(self.rank)
        if self._saves is not None:
            self._saves.maybe(self.committed, self._worlds.objects, is_writer=is_writer)
        if is_writer:
            self._report(values)
        self._is_leaving = self._is_asked_to_end()  # once the code after the step's block has run, too

    def _change(self) -> None:
        """Enter the next world, or end if SIGTERM comes: a worker that waits for a world is not in any, and may never be again."""
        self._sigterm.unless_it_comes(self._worlds.change)
        self._end_if_asked()

    def _end_if_asked(self) -> None:
        """End this process if SIGTERM has come."""
        if self._is_asked_to_end():
            raise SystemExit(STATUS)

    def _is_asked_to_end(self) -> bool:
        """Return whether SIGTERM has come. The first replica saves: all workers may have to leave, as those of a suspended job."""
        if self._control is None or not self._replica.agree(self._sigterm.has_come):
            return False
        self._sigterm.heed()
        self._control.done()
        if self._replica.is_first(self.rank) and self._worlds.step is not None:
            self.save_last()
        return True

    def _save_last(self, *, is_writer: bool = True) -> None:
        if self._saves is not None:
            self._saves.now(self.committed, self._worlds.objects, LAST_SAVE_S, is_writer=is_writer)

    def _report(self, values: "typing.Mapping[str, float]") -> None:
        """Report the committed step. If this worker must leave and no other one will have the state, save it in the time that is left."""
        left_s = self._reporter.send(self.committed, **values).checkpoint_s if self.rank == 0 else None
        left_ms = self._replica.tag(-1 if left_s is None else int(1000 * left_s))
        if left_ms >= 0 and not self.is_noticed and self._saves is not None:
            self._saves.now(self.committed, self._worlds.objects, NOTICE_SHARE * left_ms / 1000)
        self.is_noticed = left_ms >= 0

    def _failed(self, error: BaseException) -> bool:
        """Return whether the step's error was the end of its world. Then the next world is there, and the step can be tried again."""
        control = self._control
        if control is None:
            return False
        if not (isinstance(error, RuntimeError) and self._has_ended(control, error)):
            control.give_up_step()
            return False
        if not isinstance(error, ReplicaLost):
            self._replica.give_up()
        traceback.clear_frames(error.__traceback__)  # they refer to the old group
        self._boundary.put_back()
        if not self._replica.put_back():
            return False
        self._end_if_asked()
        self._change()
        return True

    def _has_ended(self, control: Control, error: RuntimeError) -> bool:
        """Wait until the agent says whether the world has ended, or until the error counts as the program's own.

        SIGTERM ends the world too: all workers may have got it, and then no agent says anything more.
        """
        return self._sigterm.unless_it_comes(lambda: self._is_told_of_end(control, error)) is not False

    def _is_told_of_end(self, control: Control, error: RuntimeError) -> bool:
        if control.is_ending():
            return True
        words = "{}: {}".format(type(error).__name__, error)
        if any(sign in words for sign in LOST_PEER):
            control.complain(words)
        elif not isinstance(error, ReplicaLost):
            return control.is_ending(VERDICT_S)  # without a complaint: an error of the program would change the world again and again
        return control.is_ending(LOST_PEER_S)

    def _is_finished(self) -> bool:
        """Return whether all workers have committed the last step.

        They wait for each other in the last world. A worker whose last step broke off gets the state from a peer that is still there.
        """
        if self.committed < self._until:
            return False
        control = self._control
        if control is None:
            return True
        error = None  # type: typing.Optional[RuntimeError]
        control.finish(True)
        try:
            is_over = not control.is_ending()
            if is_over:
                dist.all_reduce(torch.zeros(1))  # a barrier: `dist.barrier` would be a kernel on a GPU, which ends without an error
        except RuntimeError as broken:
            is_over, error = False, broken
        # If a shard has passed the barrier, all workers were there.
        is_over = self._replica.agree(is_over) or (error is not None and not self._has_ended(control, error))
        control.finish(False)
        if is_over:
            return True
        self._change()
        return self._is_finished()
