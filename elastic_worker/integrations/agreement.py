"""Decide with all ranks of a world when to save and when to stop, for callbacks of frameworks that own the training loop.

A notice may reach one rank only, and SIGTERM reaches the ranks at different moments. A save is a collective in most frameworks, so all
ranks must begin it after the same step. The ranks agree a few times a second: a collective after each step would slow GPUs down.
"""

import os
import signal
import sys
import threading
import time
import types
import typing

from elastic_worker.report import Reporter

AGREE_EVERY_S = 0.25
MOST_STEPS = 32
"""The most steps between two agreements. If steps suddenly become slow, the next agreement is late by so many steps."""
PATIENCE_S = 10.0
"""Seconds that a step may take after SIGTERM. A rank that is stuck in a collective with a lost peer ends after them."""
PATIENCE_STEPS = 3
"""Number of average steps that a step may last at least, because all steps may be longer than the patience."""
OWN_SIGTERM_S = 10.0
LOOK_EVERY_S = 0.05
BY_SIGTERM = 128 + signal.SIGTERM

Clock = typing.Callable[[], float]
IsReplaced = typing.Callable[[typing.Any], bool]


def _is_default(handler: typing.Any) -> bool:
    return bool(handler == signal.SIG_DFL)


class Verdict(typing.NamedTuple):
    """The deeds of all ranks after a step. `stop` implies `save`."""

    save: bool = False
    stop: bool = False


class Agreement:
    """One training run of this process. All ranks call `after_step` with the same steps."""

    def __init__(
        self, reporter: typing.Optional[Reporter] = None, *, patience_s: float = PATIENCE_S, clock: Clock = time.monotonic
    ) -> None:
        self._reporter = reporter if reporter is not None else Reporter.from_environment()
        self._clock = clock
        self._sigterm = _Sigterm(patience_s)
        self._was_asked = False
        self._gap = 1
        self._due = 0
        self._last_step, self._last_at = 0, 0.0

    @property
    def is_heard(self) -> bool:
        """Tell whether a control plane takes the reports."""
        return self._reporter.is_heard

    def begin(self, step: int, *, replaces: IsReplaced = _is_default) -> None:
        """Begin to train after this step. SIGTERM no longer ends the process at once, if `replaces` says so of the present handler."""
        self._gap, self._due = 1, step + 1
        self._last_step, self._last_at = step, self._clock()
        self._sigterm.take(replaces)

    def after_step(self, step: int, device: typing.Any, values: typing.Callable[[], typing.Mapping[str, float]]) -> Verdict:
        """Report the step and return what all ranks do now. `values` is called only when they are needed."""
        self._sigterm.stepped_at = time.monotonic()
        if step < self._due and (_peers() is not None or not self._sigterm.has_come):
            return Verdict()
        answer = self._reporter.send(step, **values())
        is_asked = answer.stop or answer.checkpoint_s is not None
        is_new, self._was_asked = is_asked and not self._was_asked, is_asked
        save, stop, self._gap = _greatest((is_new, self._sigterm.has_come, self._steps_per_turn(step)), device)
        self._due = step + max(1, self._gap)
        if stop:
            self._sigterm.disarm()
        return Verdict(bool(save or stop), bool(stop))

    def leave(self) -> typing.NoReturn:
        """End this process as SIGTERM would, after all ranks have saved.

        SIGTERM may not have come here yet. A rank that ended before its own SIGTERM would count as failed.
        """
        deadline = time.monotonic() + OWN_SIGTERM_S
        while not self._sigterm.has_come and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)
        raise SystemExit(BY_SIGTERM)

    def end(self, step: int, values: typing.Mapping[str, float]) -> None:
        """Report the last step and give SIGTERM back. If it came too late for the ranks to agree, it ends the process now."""
        self._reporter.send(step, **values)
        self.abandon()

    def abandon(self) -> None:
        """Give SIGTERM back."""
        self._sigterm.give_back()

    def _steps_per_turn(self, step: int) -> int:
        """Return the number of steps until the ranks should agree again. Rank 0's is taken, because the ranks' clocks differ."""
        now = self._clock()
        steps, took_s = step - self._last_step, now - self._last_at
        self._last_step, self._last_at = step, now
        self._sigterm.step_s = took_s / max(1, steps)
        peers = _peers()
        if peers is not None and peers.get_rank() != 0:
            return 0
        fitting = int(AGREE_EVERY_S * steps / took_s) if took_s > 0 else MOST_STEPS
        return max(1, min(fitting, 2 * self._gap, MOST_STEPS))


def newest_of_all(steps: typing.Collection[int]) -> typing.Tuple[typing.Optional[int], typing.Optional[int]]:
    """Return the highest of these steps that every rank has, and the highest that any rank has."""
    of_ranks = [set(steps)]
    peers = _peers()
    if peers is not None:
        gathered = [None] * peers.get_world_size()  # type: typing.List[typing.Any]
        peers.all_gather_object(gathered, sorted(steps))
        of_ranks = [set(one) for one in gathered]
    common, known = set.intersection(*of_ranks), set.union(*of_ranks)
    return max(common, default=None), max(known, default=None)


def _peers() -> typing.Any:
    """Return torch.distributed if this process has peers. A program that did not import it has none."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    return dist


def _greatest(own: typing.Sequence[int], device: typing.Any) -> typing.List[int]:
    """Return the greatest of each value over all ranks."""
    peers = _peers()
    if peers is None:
        return [int(value) for value in own]
    import torch

    values = torch.tensor([int(value) for value in own], device=device)
    peers.all_reduce(values, op=peers.ReduceOp.MAX)
    return [int(value) for value in values.tolist()]


def _end_by_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


class _Sigterm:
    """Notes SIGTERM, and ends the process if the ranks do not agree in time.

    The handler only writes to a pipe: it may interrupt code that holds the locks of the module threading.
    """

    def __init__(self, patience_s: float) -> None:
        self.has_come = False
        self.step_s = self.stepped_at = 0.0
        self._patience_s = patience_s
        self._before = None  # type: typing.Any
        self._writer = -1
        self._pid = 0
        self._disarmed = threading.Event()

    def take(self, replaces: IsReplaced) -> None:
        """Replace the present handler of SIGTERM, if `replaces` says so of it."""
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or self._writer >= 0 or not replaces(signal.getsignal(signal.SIGTERM)):
            return
        self.has_come = False
        self._disarmed.clear()
        self._pid = os.getpid()
        reader, self._writer = os.pipe()
        threading.Thread(target=self._guard, args=(reader,), name="elastic-sigterm", daemon=True).start()
        self._before = signal.signal(signal.SIGTERM, self._on_sigterm)

    def disarm(self) -> None:
        """All ranks have agreed, so this process ends by itself."""
        self._disarmed.set()

    def give_back(self) -> None:
        """Restore the earlier handler. If SIGTERM came and the ranks did not agree about it, it ends the process now."""
        if self._writer < 0:
            return
        if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, self._before)
        os.close(self._writer)
        self._writer = -1
        is_open = self.has_come and not self._disarmed.is_set()
        self._disarmed.set()
        if is_open:
            _end_by_sigterm()

    def _on_sigterm(self, number: int, frame: typing.Optional[types.FrameType]) -> None:
        if os.getpid() != self._pid:  # a forked child, for example of a data loader
            _end_by_sigterm()
            return
        if not self.has_come:
            self.has_come = True
            os.write(self._writer, b"t")

    def _guard(self, reader: int) -> None:
        """End the process after SIGTERM once no step has ended for too long. While steps end, the next agreement is near."""
        with os.fdopen(reader, "rb") as pipe:
            if not pipe.read(1):
                return
        self.stepped_at = max(self.stepped_at, time.monotonic())
        left_s = self._patience_s
        while left_s > 0:
            if self._disarmed.wait(left_s):
                return
            left_s = self.stepped_at + max(self._patience_s, PATIENCE_STEPS * self.step_s) - time.monotonic()
        os.write(2, b"elastic_worker: SIGTERM came and no step ended in time; this process ends without a checkpoint\n")
        os._exit(BY_SIGTERM)
