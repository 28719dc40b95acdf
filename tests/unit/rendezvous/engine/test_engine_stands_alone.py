"""The engine runs without anything else of ours, and as `elastic_worker._engine` where elastic_worker is delivered."""

import dataclasses
import filecmp
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastic.api import book, words
from elastic_training.rendezvous.engine.messages import bounds
from elastic_training.rendezvous.engine.values import dataclass, field, replace
from elastic_training.rendezvous.engine.words import CHARGED, Cause, WorldPhase
from elastic_worker.startup.deliver import deliver

ENGINE = Path(__file__).resolve().parents[4] / "rendezvous" / "engine"
STORY = """
import sys
from elastic_worker._engine import invariants
from elastic_worker._engine.events import Expected, Lost, Said, Tick
from elastic_worker._engine.step import begin, step
from elastic_worker._engine.views import summary
from elastic_worker._engine.messages.controller import Expectation
from elastic_worker._engine.messages.member import Join, Ready

now, job = 0.0, begin("job", instance="s", up_since=0.0, now=0.0)

def tell(event):
    global job, now
    now += 0.5
    before, (job, _) = job, step(job, event, now)
    assert invariants.broken(before, job) == []

tell(Expected(Expectation(members=("a", "b"), min=1, max=2)))
for name in "ab":
    tell(Said(name, name + "/1", Join(incarnation=name + "/1", store=name + ":1")))
assert job.membership.world.by_rank == ("a", "b"), job
tell(Lost("a", "a/1"))
for _ in range(10):
    tell(Tick())
tell(Said("b", "b/1", Ready(after=1, store="b:1")))
for _ in range(20):
    tell(Tick())
print(f"{summary(job).phase} {job.membership.world.by_rank} {dict(job.accounting.restarts)}")
print(*sorted({name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names) - {"__main__"}))
print(*sorted(name for name in sys.modules if name.startswith("elastic_worker.") and not name.startswith("elastic_worker._engine")))
"""


def test_a_delivered_library_has_the_engine_which_needs_the_standard_library_only(tmp_path: Path) -> None:
    deliver(str(tmp_path))
    copy = tmp_path / "elastic_worker" / "_engine"
    assert not copy.is_symlink()
    files = sorted(str(path.relative_to(ENGINE)) for path in ENGINE.rglob("*.py"))
    assert sorted(str(path.relative_to(copy)) for path in copy.rglob("*.py")) == files
    assert filecmp.cmpfiles(ENGINE, copy, files, shallow=False) == (files, [], [])
    ran = subprocess.run(
        [sys.executable, "-S", "-c", STORY], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert (ran.stderr, ran.stdout.splitlines()) == ("", ["running ('b',) {'disruption': 1}", "elastic_worker", ""])


def test_the_words_and_bounds_that_users_and_engine_share_are_the_same() -> None:
    """elastic.api knows nothing of the rendezvous, so it has them once more."""
    assert {cause.name: cause.value for cause in Cause} == {cause.name: cause.value for cause in words.Cause}
    assert {cause.value for cause in CHARGED} == {cause.value for cause in words.CHARGED}
    assert (bounds.MAX_MEMBERS, bounds.MOST_COUNTED) == (book.MOST_MEMBERS, book.MOST_TIMES)


def test_a_word_is_its_text() -> None:
    assert (f"{WorldPhase.RE_FORMING}", str(Cause.USER), Cause.USER == "user") == ("re-forming", "user", True)


@dataclass(frozen=True)
class Place:
    """A value for the tests below."""

    name: str
    at: int = 0
    seen: tuple[str, ...] = field(default_factory=tuple)

    @property
    def is_first(self) -> bool:
        """Return whether nothing comes before it."""
        return self.at == 0


def test_a_value_is_compared_copied_and_shown_as_the_standard_librarys() -> None:
    one = Place("a", at=3)
    assert one == Place("a", 3, ())
    assert one != Place("a")
    assert hash(one) == hash(Place("a", 3))
    assert repr(one) == "Place(name='a', at=3, seen=())"
    assert replace(one, at=0).is_first
    assert (replace(one, at=4), one) == (dataclasses.replace(one, at=4), Place("a", 3))


def test_a_value_takes_no_field_that_its_class_does_not_have() -> None:
    one = Place("a")
    assert not hasattr(one, "__dict__")
    with pytest.raises(AttributeError):
        replace(one, size=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Place("a", size=1)  # type: ignore[call-arg]
