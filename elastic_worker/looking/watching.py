"""Look at one worker again and again, and count for how many looks it has done the same.

The stacks of a worker that trains on are read more and more rarely, because the signal interrupts a system call of it.
"""

import dataclasses
import os
import typing

from elastic_worker.gloo_deadlock import procfs
from elastic_worker.looking import describing, dumping, frames, sight, stacks
from elastic_worker.looking.calls import Wait, wait_of
from elastic_worker.looking.describing import Doing
from elastic_worker.looking.sight import Sight
from elastic_worker.looking.source_lines import SourceLines
from elastic_worker.looking.stacks import Frame, Stacks

LOOK_S = 10.0
"""Seconds between two looks (rendezvous.engine.messages.doing)."""
LONGEST_PAUSE = 16
"""Longest time between two signals, in looks, while each signal finds something new."""
STORAGE_S = 120.0
"""Seconds for which a wait for storage counts as input or output under way. The kernel may count it only at its end."""
LEAST_NETWORK = 4096
"""Bytes a second from which on a TCP connection carries data. Heartbeats, such as those of NCCL to torch's store, need less."""
MOST_WAKES = 10
"""The main thread of a rank that hangs in a collective may wake up so often between two looks, for example because of other signals."""

RUNS = "runs Python"

Fields = typing.Dict[str, typing.Any]


class Look(typing.NamedTuple):
    """One look at a worker: the fields of a Doing (rendezvous.engine.messages.doing), and the sight if there was something to see."""

    fields: Fields
    sight: typing.Optional[Sight]


class Watched:
    """One worker, given by the child of the agent that is or represents it."""

    def __init__(self, pid: int, *, look_s: float = LOOK_S, lines: typing.Optional[SourceLines] = None) -> None:
        """Begin with the first look. look_s: seconds between two looks."""
        self._pid = pid
        self._look_s = look_s
        self._lines = lines if lines is not None else SourceLines()
        self._last = None  # type: typing.Optional[Sight]
        self._doing = Doing(describing.UNKNOWN, "")
        self._key = None  # type: typing.Any
        """The last sight as far as it is compared; None if the last look read no stacks."""
        self._key_read = None  # type: typing.Any
        """The same of the last look that read stacks."""
        self._looks, self._since = 0, 0.0
        self._storage_since = None  # type: typing.Optional[float]
        self._ticks = None  # type: typing.Optional[int]
        self._loop = None  # type: typing.Optional[typing.Tuple[typing.Tuple[str, str], typing.Tuple[int, int]]]
        self._was_active = False
        self._pause_s, self._due_at = look_s, 0.0

    def look(self, *, size: int = 1, is_complete: bool = False) -> Look:
        """Look at the worker. size: of its world. is_complete: read the stacks in any case."""
        try:
            seen = sight.take(self._pid)
        except (procfs.Unreadable, ValueError):
            self._last, self._key, self._key_read = None, None, None
            return Look({"kind": describing.UNKNOWN, "does": "has ended"}, None)
        last = self._last
        if last is not None and (last.main.pid, last.main.stat.began) != (seen.main.pid, seen.main.stat.began):
            last = self._key = self._key_read = self._ticks = None
        cpu, has_traffic = 0.0, False
        if last is not None and seen.at > last.at:
            cpu = max(0.0, seen.cpu_s - last.cpu_s) / (seen.at - last.at)
            has_traffic = seen.traffic != last.traffic or seen.network - last.network > LEAST_NETWORK * (seen.at - last.at)
        is_active = has_traffic or (self._is_in_storage(seen) and last is not None)
        is_due = last is None or seen.at >= self._due_at - self._look_s / 2 or (self._was_active and not is_active)
        if is_due or is_complete:
            seen = self._read(seen, last, cpu=cpu, size=size, is_active=is_active)
            if is_complete and seen.main.stat.state not in sight.SILENT:
                pid = seen.main.pid
                seen = dataclasses.replace(seen, below_python=dumping.below_python(pid), recorder=dumping.of_recorder(pid))
        else:
            self._key, self._looks, self._since = None, 1, seen.at
            if is_active and self._doing.kind == describing.OTHER:
                self._doing = Doing(describing.OTHER, "reads or writes", self._doing.place)
        self._was_active = is_active
        self._last = sight.measured_again(seen)
        return Look(self._fields(seen.at, cpu), seen)

    def _read(self, seen: Sight, last: typing.Optional[Sight], *, cpu: float, size: int, is_active: bool) -> Sight:
        """Return the sight with stacks, and note what it shows."""
        seen = sight.with_stacks(seen)
        code = self._code(describing.innermost(seen), seen)
        doing = describing.describe(seen, cpu=cpu, size=size, code=code)
        is_asleep = seen.main.stat.state != "R"
        if doing.kind == describing.OTHER and is_asleep and seen.others:
            seen = sight.with_child_stacks(seen)
            doing = describing.describe(seen, cpu=cpu, size=size, code=code)
        key = _key(seen, doing)
        is_asked = not is_asleep and doing.kind in (describing.OTHER, describing.COLLECTIVE)
        gets_on = self._gets_on(seen) if is_asked else False
        if gets_on:
            doing = self._with_loop(doing)
        else:
            self._loop = None
        is_still = last is not None and key == self._key and gets_on is False
        if is_still and last is not None:
            is_still = _is_still(seen, last, doing.kind, cpu=cpu, is_active=is_active)
        self._looks, self._since = (self._looks + 1, self._since) if is_still else (1, seen.at)
        is_new = not is_still and (is_active or key != self._key_read)
        self._pause_s = min(self._pause_s * 2, self._look_s * LONGEST_PAUSE) if is_new and last is not None else self._look_s
        self._due_at = seen.at + self._pause_s
        self._key = self._key_read = key
        self._doing = doing
        return seen

    def _gets_on(self, seen: Sight) -> typing.Optional[bool]:
        """Return whether a program that uses CPU time has come to another instruction of Python since the last look; None if it is unknown.

        Most of its time may pass in one line of a loop that goes on, so that all looks find the same stack.
        """
        before, self._ticks = self._ticks, dumping.ticks(seen.main.pid, seen.main.stat.began)
        return None if before is None or self._ticks is None else self._ticks != before

    def _with_loop(self, doing: Doing) -> Doing:
        """Return the activity of a program that runs Python, with the lines of its function at which it was seen.

        The words stay the same as long as it is in one loop.
        """
        frame = doing.frame
        if doing.does != describing.COMPUTES or frame is None:
            return doing
        at, known = (frame.path, frame.function), self._loop
        least, most = known[1] if known is not None and known[0] == at else (frame.line, frame.line)
        least, most = min(least, frame.line), max(most, frame.line)
        self._loop = (at, (least, most))
        if least == most:
            return dataclasses.replace(doing, does=RUNS)
        place = "{}:{}-{}".format(doing.place.rpartition(":")[0], least, most)
        return dataclasses.replace(doing, does=RUNS, place=place, frame=None)

    def _is_in_storage(self, seen: Sight) -> bool:
        """Return whether a process waits for storage, which may be a slow save."""
        waits = any(one.stat.state == "D" or wait_of(one.call) is Wait.STORAGE for one in (seen.main, *seen.others))
        if not waits:
            self._storage_since = None
            return False
        if self._storage_since is None:
            self._storage_since = seen.at
        return seen.at - self._storage_since < STORAGE_S

    def _code(self, frame: typing.Optional[Frame], seen: Sight) -> str:
        return "" if frame is None else self._lines.text(os.path.join(seen.folder, frame.path), frame.line)

    def _fields(self, now: float, cpu: float) -> Fields:
        doing = self._doing
        code = "" if doing.frame is None or self._last is None else self._code(doing.frame, self._last)
        code = frames.printable(code)[: frames.LONGEST_CODE]
        words = {"does": doing.does, "place": doing.place, "code": code}
        numbers = {"looks": self._looks, "for_s": round(now - self._since, 1), "cpu": round(cpu, 2)}
        return {"kind": doing.kind, **numbers, **{name: text for name, text in words.items() if text}}


def text_of(look: Look, title: str, most: int) -> str:
    """Return the full stacks of a worker under this title, in at most so many characters."""
    seen = look.sight
    parts = [title]
    if seen is None or seen.stacks is None:
        parts.append("  Its Python stacks cannot be read.")
    else:
        parts.append(_text(seen.stacks))
    if seen is not None:
        for pid, found in seen.child_stacks.items():
            parts += ["Child process {}:".format(pid), _text(found)]
        if seen.below_python:
            parts.append(seen.below_python)
        if seen.recorder:
            parts += ["Flight recorder of torch:", *("  " + line for line in seen.recorder.split("\n"))]
    text = "\n".join("".join(c if c.isprintable() else "?" for c in line) for part in parts for line in part.split("\n"))
    return text if len(text) < most else text[: most - 4] + "\n..."


def _text(found: Stacks) -> str:
    return stacks.shortened(found.text, frames.without_launcher).rstrip("\n")


def title_of(look: Look, rank: int) -> str:
    """Return the line above a worker's stacks."""
    place = " at {}".format(look.fields["place"]) if look.fields.get("place") else ""
    pid = look.sight.main.pid if look.sight is not None else "?"
    return "rank {} (process {}) {}{}:".format(rank, pid, look.fields.get("does", ""), place)


def _key(seen: Sight, doing: Doing) -> typing.Any:
    """Return the parts of a sight that are equal if the worker still does the same."""
    main = (seen.main.pid, seen.main.stat.began, doing.kind)
    if doing.kind == describing.STOPPED:
        return main
    if seen.stacks is None or seen.stacks.main is None:
        return (*main, seen.main.call)
    if doing.kind == describing.COLLECTIVE:
        return (*main, seen.stacks.main)
    others = sorted(thread for thread in seen.stacks.others if not frames.is_ours(thread))
    children = {pid: (found.main, sorted(found.others)) for pid, found in seen.child_stacks.items()}
    return (*main, seen.stacks.main, others, children)


def _is_still(seen: Sight, last: Sight, kind: str, *, cpu: float, is_active: bool) -> bool:
    """Return whether nothing besides the stacks says that the worker gets on."""
    if kind == describing.COLLECTIVE:
        # A rank that trains on is in the same collective at many looks. Between them it wakes up for each of them.
        return wait_of(seen.main.call) is Wait.TIME or seen.switches - last.switches <= MOST_WAKES
    if is_active:
        return False
    if kind == describing.STOPPED:
        return True
    if seen.main.stat.state != "R":
        return cpu < describing.BUSY_CPU
    # A long computation gets memory from the kernel now and then. An endless loop needs none.
    return kind == describing.OTHER and seen.main.stat.faults == last.main.stat.faults
