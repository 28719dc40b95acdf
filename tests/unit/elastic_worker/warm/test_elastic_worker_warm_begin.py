"""Check that a program in our warm interpreter runs as after a plain start.

Its garbage is collected rarely until the program has begun.
"""

import gc
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_worker.horovod.driver import quickly
from elastic_worker.warm import begin, collector

ROOT = Path(__file__).resolve().parents[4]
PROBE = """
import sys
names = sorted(globals())
import json, os, gc
facts = dict(argv=sys.argv, path=sys.path, name=__name__, file=__file__, spec=getattr(__spec__, "name", None), names=names, cwd=os.getcwd())
facts.update(flags=str(sys.flags), executable=sys.executable, ours=[name for name in sys.modules if name.startswith("elastic_worker")])
facts.update(main=sys.modules["__main__"].__dict__ is globals(), hook=sys.excepthook is sys.__excepthook__)
print(json.dumps([facts, gc.get_threshold()[0]]))
raise SystemExit(7)
"""


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.fixture
def thresholds(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int, int]]:
    """Yield the collector's thresholds, and restore them afterwards."""
    monkeypatch.delenv(collector.FORMER, raising=False)
    former = gc.get_threshold()
    yield former
    gc.set_threshold(*former)


@pytest.mark.parametrize("words", [["probe.py", "--lr", "a b"], ["./probe.py"], ["-m", "probe", "1"]])
def test_a_program_is_what_a_plain_start_makes_of_it(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    plain = run([sys.executable, *words], tmp_path)
    begun = run(begin.command([sys.executable, *words], str(ROOT)), tmp_path)
    assert (plain.returncode, begun.returncode) == (7, 7), begun.stderr
    (facts, threshold), (wanted, usual) = json.loads(begun.stdout), json.loads(plain.stdout)
    assert facts == wanted
    assert (threshold, usual) == (collector.MANY, gc.get_threshold()[0])


def test_its_errors_show_no_frames_of_ours(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def go():\n    raise RuntimeError('no')\n\ngo()\n")
    words = [sys.executable, "train.py"]
    assert run(begin.command(words, str(ROOT)), tmp_path).stderr == run(words, tmp_path).stderr


def test_it_starts_plainly_if_its_folder_has_a_module_that_we_have_imported(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("OWN = 5\n")
    (tmp_path / "train.py").write_text("import gc, random\nprint(random.OWN, gc.get_threshold()[0])\n")
    done = run(begin.command([sys.executable, "-u", "train.py"], str(ROOT)), tmp_path)
    assert done.stdout.split() == ["5", str(gc.get_threshold()[0])], done.stderr


def test_it_starts_plainly_if_the_host_has_no_library(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv)\n")
    done = run(begin.command([sys.executable, "train.py", "a b"], str(tmp_path / "none")), tmp_path)
    assert (done.stdout, done.stderr) == ("['train.py', 'a b']\n", "")


@pytest.mark.parametrize("words", [["bash", "run.sh"], ["python"], ["python", "-O", "train.py"], ["python", "-c", "pass"], ["./train"], []])
def test_other_commands_stay_as_they_are(words: list[str]) -> None:
    assert begin.command(words, "/library") == words


def test_the_variables_before_a_workers_command_stay_there(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, sys\nprint(os.environ['A'], os.environ['B_2'], sys.argv[1:])\n")
    command = quickly(f"A=1 B_2='x y' {sys.executable} train.py C=3 'd  e'")
    assert run(["sh", "-c", f"env {command}"], tmp_path).stdout == "1 x y ['C=3', 'd  e']\n"
    assert quickly("A=1 bash run.sh") == "A=1 bash run.sh"


def test_garbage_is_collected_rarely_until_the_program_has_begun(thresholds: tuple[int, int, int]) -> None:
    collector.postpone()
    assert gc.get_threshold() == (collector.MANY, *thresholds[1:])
    collector.resume()
    assert gc.get_threshold() == thresholds
    assert collector.FORMER not in os.environ


def test_objects_made_meanwhile_are_old_and_still_collected(thresholds: tuple[int, int, int]) -> None:
    collector.postpone()
    loop: list[object] = []
    loop.append(loop)
    collector.resume()
    assert not any(one is loop for one in gc.get_objects(generation=0))
    assert any(one is loop for one in gc.get_objects(generation=2)), "a full collection would not see it"


class Loop:
    """An object that only a collection frees."""

    def __init__(self) -> None:
        self.itself = self


def test_nothing_is_collected_while_it_is_paused_and_everything_afterwards() -> None:
    with collector.paused():
        before = gc.get_stats()
        loops = [weakref.ref(Loop()) for _ in range(10_000)]
        assert gc.get_stats() == before, "a new interpreter's thresholds would have had it collect"
    assert gc.isenabled()
    gc.collect()
    assert not any(loop() for loop in loops)


def test_thresholds_that_the_program_has_set_stay(thresholds: tuple[int, int, int]) -> None:
    collector.resume()
    assert gc.get_threshold() == thresholds
    collector.postpone()
    gc.set_threshold(5000, 5, 5)
    collector.resume()
    assert gc.get_threshold() == (5000, 5, 5)
