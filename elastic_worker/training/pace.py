"""Measures which part of a step a worker itself needs, and which part it waits for its peers.

In synchronous training all ranks take the same time for a step, because they wait for each other. So a slow rank shows only in the time
that it does not wait. That time has three parts: loading samples, computing, and work of the program between two steps. A worker waits from
the moment at which its last gradient is ready until the gradients are averaged. While it waits, its own gradients may be on their way; the
kernel knows for how long they were.

It runs in every step, so this module counts microseconds. Nothing is measured on a GPU: the program runs ahead of its kernels there.
"""

import time
import typing

import torch
from torch.autograd import Variable

now = time.perf_counter
PARTS = ("compute_s", "data_s", "outside_s", "wait_s", "send_s")
MOST_STEPS = 1_000_000
"""Steps of one window at most."""


class Sends(typing.Protocol):
    """The part of Control that takes the measurements."""

    pace_s: float
    """Seconds of a window for which the agent asks; 0 if nobody wants to know."""

    @property
    def entered(self) -> int:
        """Return the round of the present world."""

    def send(self, kind: str, **fields: object) -> None:
        """Send a message to the agent."""


class Pace:
    """The measurement of one worker. For the main thread."""

    def __init__(self, model: torch.nn.Module, *, marks_gradients: bool) -> None:
        """Prepare the measurement. marks_gradients: the waiting is seen at the model's gradients; if not, call `waited`."""
        self.is_on = False
        self.sending_s = dict  # type: typing.Callable[[], typing.Mapping[str, float]]
        """Returns for how many seconds each connection with a peer has been sending."""
        self._model = model
        self._marks_gradients = marks_gradients
        self._candidates = iter(())  # type: typing.Iterator[torch.nn.Parameter]
        self._hook = None  # type: typing.Any
        self._every_s = 0.0
        self._ready = None  # type: typing.Optional[float]
        self._has_marks = False
        self._began = self._data_s = self._wait_s = 0.0
        self._round = -1
        self.forget()

    def forget(self) -> None:
        """Begin a new window, because the world changes or the step is not counted."""
        self._ended = None  # type: typing.Optional[float]
        self._open_window(now())

    # --- a step

    def begin(self, control: Sends) -> None:
        """Begin a step."""
        if control.pace_s != self._every_s:
            self._switch(control.pace_s)
        if self.is_on:
            if control.entered != self._round:
                self._round = control.entered
                self.forget()
            self._began = now()
            self._data_s = self._wait_s = 0.0
            self._ready = None

    def loading(self, micros: "typing.Iterator[typing.Any]") -> "typing.Iterator[typing.Any]":
        """Return the same micro-batches, and measure how long each one takes to come."""
        return self._timed(micros) if self.is_on else micros

    def waited(self, since: float) -> None:
        """Count the time since then as waiting for peers."""
        self._wait_s += now() - since

    def averaged(self) -> None:
        """Note that the gradients of the last backward are averaged."""
        if self._ready is not None:
            self._wait_s += now() - self._ready
            self._ready = None

    def end(self, control: Sends) -> None:
        """Count the step, and send the means of a window that is full."""
        ended = now()
        self._steps += 1
        self._sums[0] += ended - self._began - self._data_s - self._wait_s
        self._sums[1] += self._data_s
        self._sums[2] += self._began - self._ended if self._ended is not None else 0.0
        self._sums[3] += self._wait_s
        self._ended = ended
        if ended - self._opened >= self._every_s or self._steps >= MOST_STEPS:
            self._close_window(control, ended)

    # --- windows

    def _open_window(self, at: float) -> None:
        self._opened, self._steps, self._sums = at, 0, [0.0, 0.0, 0.0, 0.0]
        self._sent_s = self.sending_s() if self.is_on else {}

    def _close_window(self, control: Sends, at: float) -> None:
        if self._marks_gradients and not self._has_marks:
            self._mark_next()  # this parameter gets no gradients
        else:
            sent_s = sum(max(0.0, seconds - self._sent_s.get(name, seconds)) for name, seconds in self.sending_s().items())
            parts = {name: round(max(0.0, total) / self._steps, 7) for name, total in zip(PARTS, (*self._sums, sent_s))}
            control.send("pace", round=control.entered, steps=self._steps, **parts)
        self._open_window(at)

    def _timed(self, micros: "typing.Iterator[typing.Any]") -> "typing.Iterator[typing.Any]":
        while True:
            since = now()
            try:
                micro = next(micros)
            except StopIteration:
                return
            finally:
                self._data_s += now() - since
            yield micro

    # --- the moment at which the last gradient is ready

    def _switch(self, every_s: float) -> None:
        """Begin or end measuring. While it is off, it costs nothing."""
        self._every_s = every_s
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self.is_on = every_s > 0 and bool(trained) and all(one.device.type == "cpu" for one in trained)
        self._candidates = iter(trained[::-1] if self.is_on and self._marks_gradients else ())
        self._mark_next()
        self.forget()

    def _mark_next(self) -> None:
        """Let the gradient of the next parameter announce the end of the backward.

        DistributedDataParallel waits for the average in a callback at the end of the backward, too. It registers that with the last
        gradient of all, and after this hook. So this mark comes first.
        """
        if self._hook is not None:
            self._hook.remove()
        parameter = next(self._candidates, None)
        self._hook = None if parameter is None else parameter.register_post_accumulate_grad_hook(self._announce)  # type: ignore[no-untyped-call]

    def _announce(self, _: torch.Tensor) -> None:
        Variable._execution_engine.queue_callback(self._mark)

    def _mark(self) -> None:
        self._ready, self._has_marks = now(), True
