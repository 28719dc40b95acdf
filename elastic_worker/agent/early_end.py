"""Say in the container's termination message that an agent ended before it came to the rendezvous because of a mistake of the user.

The mistake may be a wrong argument or a wrong setting. The exit code is the same as that of an agent whose server did not answer.
torchrun loads its backends before it reads its arguments. From then on, until the agent comes to the rendezvous, this module notes
argparse's errors and uncaught exceptions of the process.
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
"""Variables that only an agent's workers have. Workers are not watched here, because their agent reports their ends."""
OF_USER = (ValueError, TypeError, AttributeError, NameError, LookupError, ImportError, SyntaxError, AssertionError)
"""Exceptions that a wrong argument or program raises at every attempt. Others, such as OSError, may come from the machine."""

Hook = typing.Callable[[typing.Type[BaseException], BaseException, typing.Optional[types.TracebackType]], typing.Any]


class EarlyEnd:
    """Watches one process until its agent comes to the rendezvous."""

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
        """End the watch, because the agent has come. Remove the message that an earlier attempt in this container left."""
        self._is_over = True
        argparse.ArgumentParser.error = self._error  # type: ignore[method-assign]
        last_words.withdraw(os.environ)

    def _uncaught(self, kind: typing.Type[BaseException], error: BaseException, trace: typing.Optional[types.TracebackType]) -> typing.Any:
        if is_users(error):
            self._note(traceback.format_exception_only(kind, error)[-1].strip())
        return self._hook(kind, error, trace)

    def _note(self, line: str) -> None:
        if not self._is_over and os.getpid() == self._pid:  # a forked child runs another program
            last_words.write(os.environ, unmet=last_words.Unmet(last_words.USAGE, line))


def is_users(error: BaseException) -> bool:
    """Return whether this error comes from the command or its program, and not from the machine or the control plane."""
    return isinstance(error, OF_USER) and not isinstance(error, (OSError, MissingSettings))


def watch() -> None:
    """Begin to watch this process, unless it is a worker. Both of our backends call this, and only the first call has an effect."""
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
