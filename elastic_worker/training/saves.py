"""Save the state of training while training goes on, and find the newest complete save again.

    saves = Saves("/checkpoints/run", every_s=600)
    step = saves.restore(state) or 0
    saves.maybe(step, state)              # copies the state if a save is due; a thread writes the copy
    saves.now(step, state, within_s=20)   # the node goes away: wait for a save of this step, at most 20 s

With DDP one rank has the whole state and writes it alone. With FSDP each rank of one replica writes its own shard. No save waits for
another rank, so a change of the world during a save does no harm. That is why torch.distributed.checkpoint is not used: its plan of a save
needs a process group.

A file is complete if its marker exists, and the marker is written last. A save is complete if all its shards are.
"""

import errno
import json
import logging
import os
import pickle
import re
import secrets
import threading
import time
import typing

import torch

from elastic_worker.training.places import MOST_MARKER, place_of
from elastic_worker.training.save_news import SaveNews
from elastic_worker.training.snapshot import Buffers, Unsavable, check, load, snapshot
from elastic_worker.training.uncaught import in_words

log = logging.getLogger(__name__)

KEPT = 2
PIECE = 16 * 1024 * 1024
"""Bytes per write. A save can be given up between two pieces."""
NAME = re.compile(r"step-(\d{12})-([0-9a-f]{16})-(\d{1,5})-of-(\d{1,5})\.(pt|json|json\.part)")
UNREADABLE = (OSError, RuntimeError, EOFError, ValueError, KeyError, TypeError, pickle.UnpicklingError)

State = typing.Mapping[str, typing.Any]
"""Objects with state_dict and load_state_dict by name, plain values, and mappings of them."""


class SaveMismatch(ValueError):
    """The newest save belongs to another model, optimizer or number of shards. Training must not begin at step 0 instead."""


class Save(typing.NamedTuple):
    """A save in storage. The tag keeps two attempts at one step apart."""

    step: int
    tag: int
    shards: int

    def name(self, shard: int) -> str:
        """Return the name of a shard's file, without its ending."""
        return f"step-{self.step:012d}-{self.tag:016x}-{shard}-of-{self.shards}"


class Saves:
    """Saves of one rank. Failed saves are logged, and training goes on."""

    def __init__(
        self,
        target: "typing.Union[str, os.PathLike[str]]",
        every_s: float,
        *,
        shard: "typing.Tuple[int, int]" = (0, 1),
        agree: "typing.Callable[[int], int]" = lambda tag: tag,
        is_any: "typing.Callable[[bool], bool]" = lambda flag: flag,
        clock: "typing.Callable[[], float]" = time.monotonic,
    ) -> None:
        """Save to a folder or an fsspec URL.

        shard: the index of this rank's shard, and the number of shards.
        agree: returns the argument of shard 0 on all shards, for example by a broadcast in the shard group. With shards, `maybe` calls it
        in each step.
        is_any: returns whether the flag is set on any shard. With shards, all must call `restore`.
        """
        if not every_s > 0:
            raise ValueError(f"every_s is {every_s}. It must be above 0.")
        self.target = os.fspath(target)
        self._place = place_of(target)
        self._every_s, self._clock, self._agree, self._is_any = every_s, clock, agree, is_any
        self._shard, self._shards = shard
        self._due = clock() + every_s
        self._job = None  # type: typing.Optional[_Job]
        self._thread = None  # type: typing.Optional[threading.Thread]
        self._buffers = {}  # type: Buffers
        self._took_s = None  # type: typing.Optional[float]
        """Seconds that the last complete save took, with its copy."""
        self._unreadable = set()  # type: typing.Set[Save]
        self.news = SaveNews()
        self._warned = ""
        self._is_checked = False

    def check(self, state: State) -> None:
        """Raise Unsavable if the state could be written but not read again. Call it once before training.

        Otherwise the first save finds out. Then nothing is saved, and training goes on.
        """
        check(state)
        self._is_checked = True

    def check_place(self) -> None:
        """Raise ValueError if this process may not write to the folder. Any other trouble may pass, and is a matter of the first save."""
        name = "probe-{}".format(os.getpid())
        try:
            self._place.finish(self._place.create(name))
            self._place.remove(name)
        except OSError as error:
            if isinstance(error, (PermissionError, NotADirectoryError, FileExistsError)) or error.errno in (errno.EROFS, errno.ENOENT):
                words = "save is {!r}, but nothing can be written there: {}. Name a folder that all workers can write."
                raise ValueError(words.format(self.target, error.strerror)) from error

    def maybe(self, step: int, state: State, *, is_writer: bool = True) -> bool:
        """Begin a save if one is due, and return whether it began. Call it after each step on all ranks.

        step: the number of committed steps.
        is_writer: whether this rank writes: the first rank with DDP, all ranks of the first replica with FSDP. Only its clock counts;
        another rank remembers the time, because it may become the writer.
        """
        is_due = self._clock() >= self._due
        if is_due:
            self._due = self._clock() + self._every_s
        if not is_writer:
            return False
        running = None if self._job is None or self._job.is_over else self._job
        if is_due and running is not None:
            self._warn("The save of step %d to %s still runs. The save of step %d is left out.", running.step, self.target, step)
        tag = self._agree(_new_tag() if is_due and running is None else 0)
        return bool(tag) and running is None and self._begin(step, state, tag) is not None

    def now(self, step: int, state: State, within_s: float, *, is_writer: bool = True) -> bool:
        """Save this step and return whether the save is complete. It takes at most `within_s` seconds and one tensor's copy.

        If another save runs, it is given up if there is surely time for a new one. Otherwise it may use the time: an older complete save
        is better than two halves.
        """
        deadline = self._clock() + within_s
        if not is_writer:
            return False
        job, tag = self._job, self._agree(_new_tag())
        if job is not None and job.step == step and not job.has_failed:
            return job.wait(within_s)
        if job is not None and not job.is_over:
            if self._took_s is not None and within_s > 2 * self._took_s:
                job.give_up()
            job.wait(within_s)
            if not job.is_over:
                job.give_up()
                return False
        job = self._begin(step, state, tag, deadline)
        return job is not None and job.wait(deadline - self._clock(), gives_up=True)

    def restore(self, state: State) -> typing.Optional[int]:
        """Load the newest complete save that this rank can read, and return its step. Without a save, return None.

        An unreadable save is logged, and the one before it is tried. With shards, all of them load the same save: the newest one in the
        listing of shard 0 that all can read. Raise OSError if the place itself cannot be read, and SaveMismatch if the save does not fit
        the program: training must not begin at step 0 because of that.
        """
        listed = iter(sorted(self._complete(self._place.names()), reverse=True))
        while True:
            save = self._agreed(next(listed, None))
            if save is None:
                return None
            if save.shards != self._shards:
                raise SaveMismatch(
                    f"The save of step {save.step} in {self.target} has {save.shards} shards, but this job has {self._shards}."
                )
            content = None  # type: typing.Any
            is_unreadable, words = False, "another shard cannot read its part"
            try:
                content = self._read(save)
            except UNREADABLE as error:
                is_unreadable, words = True, in_words(error)
            if self._is_any(is_unreadable):
                self._unreadable.add(save)
                log.warning("The save of step %d in %s is unreadable and skipped: %s", save.step, self.target, words)
                continue
            try:
                strange = load(state, content)
            except Exception as error:
                raise SaveMismatch(
                    f"The save of step {save.step} in {self.target} does not fit the program: {in_words(error)} "
                    "Use the model and optimizer of the save, or an empty folder."
                ) from error
            if strange:
                log.warning("Only the program or only the save of step %d in %s has: %s", save.step, self.target, ", ".join(strange)[:500])
            self.news.last = save.step
            return save.step

    def _agreed(self, save: typing.Optional[Save]) -> typing.Optional[Save]:
        """Return the save of shard 0 on all shards."""
        step, tag, shards = (self._agree(number) for number in (save or (-1, 0, 0)))
        return None if step < 0 else Save(step, tag, shards)

    def close(self, within_s: float) -> bool:
        """Wait for a running save, then give it up. Return whether the last save is complete."""
        if self._job is None or self._thread is None:
            return True
        self._thread.join(max(0.0, within_s))  # it also removes old saves
        if not self._job.is_complete:
            self._job.give_up()
        return self._job.is_complete

    def _begin(self, step: int, state: State, tag: int, deadline: float = float("inf")) -> "typing.Optional[_Job]":
        began = self._clock()

        def look() -> None:
            if self._clock() > deadline:
                raise TimeoutError("the time is over")

        buffers, self._buffers = self._buffers, {}  # a save that hangs keeps its buffers
        try:
            if not self._is_checked:
                self.check(state)
            content = snapshot(state, buffers, look=look)
        except (MemoryError, RuntimeError, TimeoutError, Unsavable) as error:
            self._warn("Step %d is not saved to %s, and training goes on: %s", step, self.target, in_words(error))
            self.news.failed(step, error)
            return None
        job = self._job = _Job(step)
        values = (job, Save(step, tag, self._shards), content, buffers, began)
        self._thread = threading.Thread(target=self._write, args=values, name="elastic-save", daemon=True)
        self._thread.start()
        return job

    # --- the thread ---

    def _write(self, job: "_Job", save: Save, content: typing.Any, buffers: Buffers, began: float) -> None:
        name = save.name(self._shard)
        try:
            written = self._write_file(job, name + ".pt", content)
            self._place.mark(name + ".json", json.dumps({"step": save.step, "bytes": written}).encode())
            self._took_s, self._warned = self._clock() - began, ""
            job.is_complete = True
            self.news.succeeded(save.step)
            log.info("Saved step %d to %s: %d bytes in %.1f s", save.step, self.target, written, self._took_s)
        except Exception as error:
            if not job.is_given_up:
                self._warn("The save of step %d to %s failed, and training goes on: %s", save.step, self.target, in_words(error))
                self.news.failed(save.step, error, self._newest())
            for ending in (".json", ".pt"):
                self._remove(name + ending)
        finally:
            self._buffers = buffers
            job.end()
        if job.is_complete and self._shard == 0:
            self._prune(save)

    def _write_file(self, job: "_Job", name: str, content: typing.Any) -> int:
        output = _Output(self._place.create(name), job)
        try:
            torch.save(content, typing.cast(typing.Any, output))
        except Exception as error:
            output.abort()
            raise (output.error or error) from None  # torch replaces the error of a full disk with its own
        self._place.finish(output.file)
        job.look()
        return output.written

    def _prune(self, own: Save) -> None:
        """Remove all but the newest complete saves, and incomplete ones of earlier steps. Newer ones may belong to a running save."""
        try:
            names = self._place.names()
        except Exception as error:
            log.debug("Old saves in %s stay: %r", self.target, error)
            return
        complete = sorted(self._complete(names) - self._unreadable)
        for name in sorted(names):  # .json before .pt: a save must lose its marker first
            found = _parse(name)
            if found is None or found[0] == own or found[0] in complete[-KEPT:]:
                continue
            if found[0] in complete or found[0] in self._unreadable or found[0].step <= own.step:
                self._remove(name)

    def _newest(self) -> typing.Optional[int]:
        try:
            return max((save.step for save in self._complete(self._place.names())), default=None)
        except UNREADABLE:
            return None

    def _remove(self, name: str) -> None:
        try:
            self._place.remove(name)
        except Exception as error:
            log.debug("%s in %s stays: %r", name, self.target, error)

    # --- reading ---

    def _complete(self, names: "typing.Iterable[str]") -> "typing.Set[Save]":
        found = [parsed for parsed in map(_parse, set(names)) if parsed is not None]
        files = {(save, shard, ending) for save, shard, ending in found}
        return {save for save, _, _ in found if all((save, n, end) in files for n in range(save.shards) for end in ("pt", "json"))}

    def _read(self, save: Save) -> typing.Any:
        name = save.name(self._shard)
        with self._place.open(name + ".json") as marker:
            expected = json.loads(marker.read(MOST_MARKER))["bytes"]
        with self._place.open(name + ".pt") as file:
            found = file.seek(0, os.SEEK_END)
            if found != expected:
                raise ValueError(f"{name}.pt has {found} bytes instead of {expected}")
            file.seek(0)
            try:
                return torch.load(file, map_location="cpu", weights_only=True)
            except OSError:
                raise
            except Exception as error:  # a damaged file makes the unpickler raise errors of almost every kind
                raise ValueError(f"{name}.pt is damaged: {in_words(error)}") from error

    def _warn(self, words: str, *values: typing.Any) -> None:
        """Log a warning; the same one again only after a save succeeded."""
        if self._warned != words:
            self._warned = words
            log.warning(words, *values)


class _Job:
    """A running save, seen from both threads."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.is_given_up = False
        self.is_complete = False
        self._over = threading.Event()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    @property
    def has_failed(self) -> bool:
        return not self.is_complete and (self.is_given_up or self.is_over)

    def give_up(self) -> None:
        self.is_given_up = True

    def look(self) -> None:
        """Raise if the save was given up."""
        if self.is_given_up:
            raise TimeoutError("the save was given up")

    def end(self) -> None:
        self._over.set()

    def wait(self, within_s: float, *, gives_up: bool = False) -> bool:
        """Wait for the end, and return whether the save is complete."""
        if not self._over.wait(max(0.0, within_s)) and gives_up:
            self.give_up()
        return self.is_complete


class _Output:
    """The file as torch.save sees it. It writes in pieces, and keeps the first error."""

    def __init__(self, file: typing.Any, job: _Job) -> None:
        self.file = file
        self.written = 0
        self.error = None  # type: typing.Optional[Exception]
        self._job = job

    def write(self, content: typing.Any) -> int:
        view, done = memoryview(content).cast("B"), 0
        try:
            while done < len(view):
                self._job.look()
                done += self.file.write(view[done : done + PIECE]) or 0
        except Exception as error:
            self.error = self.error or error
            raise
        self.written += done
        return done

    def flush(self) -> None:
        """Do nothing: the place flushes at the end."""

    def abort(self) -> None:
        try:
            self.file.close()
        except Exception as error:
            self.error = self.error or error


def _new_tag() -> int:
    return secrets.randbits(62) + 1


def _parse(name: str) -> "typing.Optional[typing.Tuple[Save, int, str]]":
    match = NAME.fullmatch(name)
    if match is None or not 0 <= int(match[3]) < int(match[4]):
        return None
    return Save(int(match[1]), int(match[2], 16), int(match[4])), int(match[3]), match[5]
