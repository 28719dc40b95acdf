"""Notice the exception that ends the program, before its process ends."""

import sys
import traceback
import types
import typing
import weakref

LONGEST_WORDS = 300


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
    try:
        message = str(error)
    except Exception:
        message = "its message cannot be shown"
    return " ".join("{}: {}".format(type(error).__name__, message[: 2 * LONGEST_WORDS]).split())[:LONGEST_WORDS]


def first_line(error: typing.Optional[BaseException]) -> str:
    """Return the first line of an exception, as a traceback has it after its frames; empty for requests to end, such as SystemExit."""
    if not isinstance(error, Exception):
        return ""
    lines = "".join(traceback.format_exception_only(type(error), error)).splitlines()
    return next((line.strip() for line in lines if line.strip() and not line[0].isspace()), type(error).__name__)
