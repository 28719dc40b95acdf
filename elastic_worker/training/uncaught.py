"""Notice the exception that ends the program, before its process ends."""

import contextlib
import sys
import threading
import traceback
import types
import typing
import weakref

LONGEST_WORDS = 300
MESSAGE_S = 2.0
"""Seconds for the message of an exception. Peers of its worker wait meanwhile."""


class Uncaught:
    """A hook for exceptions that nothing catches. The hook that was there before prints them."""

    def __init__(self, tell: "typing.Callable[[str], typing.Any]") -> None:
        """Install the hook. tell: a method that receives the first line of the exception. The hook keeps its object no longer alive."""
        self._tell = weakref.WeakMethod(tell)
        self._before = sys.excepthook
        sys.excepthook = self._hook

    def _hook(self, kind: typing.Type[BaseException], error: BaseException, trace: typing.Optional[types.TracebackType]) -> None:
        tell, line = self._tell(), first_line(error)
        if tell is not None and line:
            tell(line)  # first, because other hooks may take long, and peers lose their connections meanwhile
        self._before(kind, error, trace)


def in_words(error: BaseException) -> str:
    """Return type and message of an exception on one line of bounded length. A message that cannot be made raises nothing."""
    message = _made(lambda: str(error), otherwise="its message cannot be shown")
    return " ".join("{}: {}".format(type(error).__name__, message[: 2 * LONGEST_WORDS]).split())[:LONGEST_WORDS]


def first_line(error: typing.Optional[BaseException]) -> str:
    """Return the first line of an exception, as a traceback has it after its frames; empty for requests to end, such as SystemExit."""
    if not isinstance(error, Exception):
        return ""
    kind = type(error)
    lines = _made(lambda: "".join(traceback.format_exception_only(kind, error)), otherwise=kind.__name__).splitlines()
    return next((line.strip() for line in lines if line.strip() and not line[0].isspace()), kind.__name__)


def _made(text: typing.Callable[[], str], *, otherwise: str) -> str:
    """Return the text of an exception's own code, which may raise or wait for something, such as a lock that is held."""
    made: typing.List[str] = []

    def make() -> None:
        with contextlib.suppress(Exception):
            made.append(text())

    thread = threading.Thread(target=make, name="elastic-exception", daemon=True)
    thread.start()
    thread.join(MESSAGE_S)
    return made[0] if made else otherwise
