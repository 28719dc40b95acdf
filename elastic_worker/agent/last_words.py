"""Write an agent's end into its container's termination message.

It says why the rendezvous was closed, why the agent did not meet the others, and how its own worker failed.

The controller reads the first lines (rendezvous.delivery), and people read the rest. The output of a worker can be anything, so it is
bounded, and its control characters are escaped.
"""

import logging
import re
import typing

log = logging.getLogger(__name__)

CLOSED_PREFIX = "elastic-training closed the rendezvous of job"
FAILED_PREFIX = "elastic-training saw a worker fail in job"
UNMET_PREFIX = "elastic-training did not meet the other workers of job"
USAGE, REFUSED, UNREACHABLE = "usage", "refused", "unreachable"
"""Why an agent did not meet the others: its own command is wrong; it was sent away; nothing answered it."""
MOST_LINE = 300
MOST_STDERR = 1024
_OF_RANK = re.compile(r"(?:\[(?:default|rank)?\d+\]: ?)+")
"""torchrun and torch each put the rank before a line."""
_PLACE = re.compile(r'\s+File "(.+)", line (\d{1,9})')
_OF_LIBRARIES = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<frozen ")
MOST_FILE = 60
_FRAME = "Traceback (most recent call last):"


class Failure(typing.NamedTuple):
    """How a worker of this agent failed by itself: the end of its `stderr`, and in `words` a cause that it could not write there."""

    rank: int
    stderr: str
    words: str = ""

    @property
    def line(self) -> str:
        return self.words or exception_line(self.stderr)


class Unmet(typing.NamedTuple):
    """Why an agent ended without meeting the others: one of the words above, and more."""

    why: str
    words: str


def exception_line(stderr: str) -> str:
    """Return the first line of the exception with which the last traceback ends and its place, or the last line, escaped and cut."""
    lines = _lines(stderr)
    starts = [at for at, line in enumerate(lines) if line.strip().endswith(_FRAME)]
    after = lines[starts[-1] + 1 :] if starts else []
    end = _end_of_frames(after)
    if end is not None:
        return _placed(escaped(after[end].strip()[:MOST_LINE]), _place(after[:end]))
    line = next((line for line in reversed(lines) if line.strip()), "")
    return escaped(line.strip()[:MOST_LINE])[:MOST_LINE]


def goes_on(error: str) -> bool:
    """Return whether the message of an exception may still go on after this beginning of its traceback.

    A program that survived the exception prints other lines after it. Lines of a long message are indented, as those of torch are.
    """
    lines = _lines(error)[1:]
    end = _end_of_frames(lines)
    return end is None or _end_of_frames(lines[end + 1 :]) is None


def _lines(stderr: str) -> typing.List[str]:
    """Return the lines without the ranks that torch puts before them."""
    return [_OF_RANK.sub("", line, count=1) if _OF_RANK.match(line) else line for line in stderr.splitlines()]


def _end_of_frames(lines: typing.List[str]) -> typing.Optional[int]:
    """Return where the first line stands that is not indented; None if all are."""
    return next((at for at, line in enumerate(lines) if line.strip() and not line[0].isspace()), None)


def _placed(error: str, place: str) -> str:
    """Return the line with the place, if it has one, and not longer than a line may be."""
    room = MOST_LINE - len(place)
    return (error if len(error) <= room else error[: room - 3] + "...") + place


def _place(frames: typing.List[str]) -> str:
    """Return the innermost line of these frames that is of the user's program, as ` (train.py:12)`, or the innermost one at all."""
    found = [match for match in map(_PLACE.match, frames) if match is not None]
    own = [match for match in found if not _OF_LIBRARIES.search(match[1])] or found
    return " ({}:{})".format(escaped(own[-1][1].rpartition("/")[2])[:MOST_FILE], own[-1][2]) if own else ""


def escaped(text: str, keep: str = "") -> str:
    """Return the text with escapes for characters that are not printable, except those in `keep`."""
    return "".join(c if c in keep or c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def message(job: str, *, closed: str = "", unmet: typing.Optional[Unmet] = None, failure: typing.Optional[Failure] = None) -> str:
    lines = ["{} {}: {}".format(CLOSED_PREFIX, job, escaped(closed))] if closed else []
    if unmet is not None:
        lines.append("{} {}: {}: {}".format(UNMET_PREFIX, job, unmet.why, escaped(unmet.words)[:MOST_LINE]))
    if failure is not None:
        lines.append("{} {}: rank {}: {}".format(FAILED_PREFIX, job, failure.rank, failure.line))
        lines.append(_last_bytes(escaped(failure.stderr.strip(), keep="\n\t"), MOST_STDERR))
    return "\n".join(line for line in lines if line)


def has_place(environment: typing.Mapping[str, str]) -> bool:
    """Return whether the control plane delivered this library. Otherwise there is no termination message to write."""
    return bool(environment.get("ELASTIC_TERMINATION_LOG") and environment.get("ELASTIC_JOB_UID"))


def write(
    environment: typing.Mapping[str, str],
    *,
    closed: str = "",
    unmet: typing.Optional[Unmet] = None,
    failure: typing.Optional[Failure] = None,
) -> None:
    if has_place(environment):
        _write(environment["ELASTIC_TERMINATION_LOG"], message(environment["ELASTIC_JOB_UID"], closed=closed, unmet=unmet, failure=failure))


def withdraw(environment: typing.Mapping[str, str]) -> None:
    """Empty the message if an agent wrote there that it did not meet the others."""
    if not has_place(environment):
        return
    path = environment["ELASTIC_TERMINATION_LOG"]
    try:
        with open(path, "rb") as file:
            is_unmet = file.read(len(UNMET_PREFIX)) == UNMET_PREFIX.encode()
    except OSError:
        return
    if is_unmet:
        _write(path, "")


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        log.warning("the termination message could not be written: %s", error)


def _last_bytes(text: str, most: int) -> str:
    return text.encode()[-most:].decode(errors="ignore")
