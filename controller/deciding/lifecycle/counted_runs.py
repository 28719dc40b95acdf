"""Read and write the entries of `status.elastic.counted` for runs of containers that the kubelet restarted in the same pod.

The entry of a container is `uid/container/run`, with the number of its newest counted run. If n > 1 runs are counted, `/n` follows. This
module does not know why a run ended.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from elastic_training.controller.deciding.status_room import with_counted

MOST_DIGITS = 9


class Runs(NamedTuple):
    """The counted runs of one container."""

    pod: str
    container: str
    newest: int
    number: int

    @property
    def entry(self) -> str:
        return f"{self.pod}/{self.container}/{self.newest}" + (f"/{self.number}" if self.number > 1 else "")


def with_runs(counted: Sequence[str], runs: Iterable[Runs]) -> tuple[str, ...]:
    """Return the entries with these newly finished runs, as far as there is room. Merge the entries of each container into one."""
    known = _by_container(counted)
    grown, first = dict(known), []
    for run in runs:
        if (before := known.get(run[:2])) is None:
            first.append(run.entry)
        else:
            grown[run[:2]] = _together(before, run)
    others = (entry for entry in counted if _read(entry) is None)
    return with_counted((*others, *(one.entry for one in grown.values())), first)


def uncounted(runs: Iterable[Runs], counted: Iterable[str]) -> list[Runs]:
    """Return the runs that are newer than the newest counted run of their container."""
    known = _by_container(counted)
    return [run for run in runs if (before := known.get(run[:2])) is None or before.newest < run.newest]


def number_by_pod(counted: Iterable[str]) -> Counter[str]:
    """Return the number of counted runs for each pod, by its uid."""
    numbers: Counter[str] = Counter()
    for entry in counted:
        pod, slash, _ = entry.partition("/")
        one = _read(entry)
        numbers[pod] += one.number if one is not None else len(slash)
    return numbers


def _by_container(counted: Iterable[str]) -> dict[tuple[str, str], Runs]:
    known: dict[tuple[str, str], Runs] = {}
    for entry in counted:
        if (one := _read(entry)) is not None:
            before = known.get(one[:2])
            known[one[:2]] = one if before is None else _together(before, one)
    return known


def _together(before: Runs, now: Runs) -> Runs:
    return now._replace(newest=max(before.newest, now.newest), number=before.number + now.number)


def _read(entry: str) -> Runs | None:
    """Return the runs that the entry counts. Return None if the entry is a pod's uid or a failure that the rendezvous counted."""
    pod, *rest = entry.split("/")
    if len(rest) not in (2, 3) or not all(number.isdecimal() and len(number) <= MOST_DIGITS for number in rest[1:]):
        return None
    return Runs(pod, rest[0], int(rest[1]), int(rest[2]) if len(rest) == 3 else 1)
