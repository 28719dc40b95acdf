"""Read Python stacks from the text that faulthandler or py-spy has written."""

import json
import re
import typing

THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+.* ?\(most recent call first\):\Z")
FRAME = re.compile(r'  File "(.*)", line (\d{1,9}|\?\?\?) in (.*)\Z')
CUT = "..."
"""A line of faulthandler after its hundredth thread. The main thread, which would come last, is then missing."""
MOST_THREADS = 200
MOST_FRAMES = 200


class Frame(typing.NamedTuple):
    """One call in a stack."""

    path: str
    line: int
    function: str


Thread = typing.Tuple[Frame, ...]
"""The calls of one thread; the innermost comes first."""


class Stacks(typing.NamedTuple):
    """The Python stacks of one process."""

    main: typing.Optional[Thread]
    """The main thread; None if it is unknown."""
    others: typing.Tuple[Thread, ...]
    """All other threads."""
    text: str
    """All stacks as they were written."""


def shortened(text: str, kept: typing.Callable[[Thread], Thread]) -> str:
    """Return the text of stacks with only the frames of each thread that are kept, which are the innermost."""
    lines = []  # type: typing.List[str]
    frames = []  # type: typing.List[typing.Tuple[str, Frame]]

    def end() -> None:
        lines.extend(line for line, _ in frames[: len(kept(tuple(frame for _, frame in frames)))])
        frames.clear()

    for line in text.splitlines():
        frame = _frame(line)
        if frame is not None:
            frames.append((line, frame))
        else:
            end()
            lines.append(line)
    end()
    return "\n".join(lines)


def _frame(line: str) -> typing.Optional[Frame]:
    found = FRAME.match(line)
    if found is None:
        return None
    return Frame(found.group(1), int(found.group(2)) if found.group(2).isdigit() else 0, found.group(3))


def of_faulthandler(text: str) -> Stacks:
    """Return the stacks in a dump of all threads."""
    threads = []  # type: typing.List[typing.List[Frame]]
    is_cut = False
    for line in text.splitlines():
        if THREAD.match(line):
            threads.append([])
            continue
        is_cut = is_cut or line == CUT
        frame = _frame(line)
        if frame is not None and threads and len(threads[-1]) < MOST_FRAMES:
            threads[-1].append(frame)
    read = [tuple(thread) for thread in threads[-MOST_THREADS:]]
    if is_cut or not read:
        return Stacks(None, tuple(read), text)
    return Stacks(read[-1], tuple(read[:-1]), text)


def of_py_spy(text: str) -> typing.Optional[Stacks]:
    """Return the stacks in the JSON of `py-spy dump --json`; None if it cannot be read."""
    try:
        main, others, lines = None, [], []  # type: typing.Optional[Thread], typing.List[Thread], typing.List[str]
        for thread in json.loads(text)[:MOST_THREADS]:
            frames = tuple(Frame(str(one["filename"]), int(one["line"]), str(one["name"])) for one in thread["frames"][:MOST_FRAMES])
            if int(thread["os_thread_id"] or 0) == int(thread["pid"]) or thread["thread_name"] == "MainThread":
                main = frames
            else:
                others.append(frames)
            lines.append("Thread {} {} (most recent call first):".format(thread["os_thread_id"], thread["thread_name"] or ""))
            lines += ['  File "{}", line {} in {}'.format(*frame) for frame in frames]
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None
    return Stacks(main, tuple(others), "\n".join(lines) + "\n")
