"""Says in the container's termination message that an agent ended before it came to the rendezvous for a reason that is the user's.

A wrong argument, a wrong setting. An exit code does not tell such an end from that of an agent whose server was away.

torchrun loads its backends before it reads its arguments. From then on, until the agent comes to the rendezvous, argparse's errors and
uncaught exceptions of this process are noted.
"""

import argparse
import os
import sys
import traceback
import types
import typing

from elastic_worker.agent import last_words
from elastic_worker.settings import GENERATION, MissingSettings

OF_WORKER = ("TORCHELASTIC_RUN_ID", GENERATION)
"""Variables that an agent's workers inherit: what they do is reported by their agent."""
OF_USER = (ValueError, TypeError, AttributeError, NameError, LookupError, ImportError, SyntaxError, AssertionError)
"""What a wrong argument or program raises, each time again. Others, as OSError or MemoryError, may come from the machine."""

Hook = typing.Callable[[typing.Type[BaseException], BaseException, typing.Optional[types.TracebackType]], typing.Any]


class EarlyEnd:
    """The watch of one process, until its agent comes to the rendezvous."""

    def __init__(self) -> None:
        self._is_over = False
        self._pid = os.getpid()
        self._hook = sys.excepthook  # type: Hook
        self._error = argparse.ArgumentParser.error

    def begin(self) -> None:
        watch = self

        def error(self: argparse.ArgumentParser, message: str) -> typing.NoReturn:
            watch._note("{}: error: {}".format(self.prog, message))
            watch._error(self, message)

        error.early_end = self  # type: ignore[attr-defined]
        argparse.ArgumentParser.error = error  # type: ignore[method-assign]
        sys.excepthook = self._uncaught

    def end(self) -> None:
        """The agent has come. What another attempt in this container left in the message is no more true."""
        self._is_over = True
        argparse.ArgumentParser.error = self._error  # type: ignore[method-assign]
        last_words.withdraw(os.environ)

    def _uncaught(self, kind: typing.Type[BaseException], error: BaseException, trace: typing.Optional[types.TracebackType]) -> typing.Any:
        if is_users(error):
            self._note(traceback.format_exception_only(kind, error)[-1].strip())
        return self._hook(kind, error, trace)

    def _note(self, line: str) -> None:
        if not self._is_over and os.getpid() == self._pid:  # a forked child is another program
            last_words.write(os.environ, unmet=last_words.Unmet(last_words.USAGE, line))


def is_users(error: BaseException) -> bool:
    """Whether this error is one of the command or its program, and not of the machine or the control plane."""
    return isinstance(error, OF_USER) and not isinstance(error, (OSError, MissingSettings))


def watch() -> None:
    """Begin to watch this process, unless it is a worker. Both of our backends ask for it; once is enough."""
    if last_words.has_place(os.environ) and not any(os.environ.get(name) for name in OF_WORKER) and _watching() is None:
        EarlyEnd().begin()


def came() -> None:
    """Record that this process's agent has come to the rendezvous."""
    watching = _watching()
    if watching is not None:
        watching.end()


def _watching() -> typing.Optional[EarlyEnd]:
    found = getattr(argparse.ArgumentParser.error, "early_end", None)
    return found if isinstance(found, EarlyEnd) else None
