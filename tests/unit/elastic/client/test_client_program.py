"""Send a function to the workers as text, and read its result from the log."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from elastic.client.errors import BadProgram
from elastic.client.program import LARGEST_PROGRAM, LARGEST_RESULT, escaped, program_of, result_in

OUTSIDE = 3


def add(a: int, *, b: int = 2) -> dict[str, Any]:
    """Add numbers with a class, a closure and a comprehension."""
    import os

    class Sum:
        start = 0
        total = start + a

        def plus(self, more: int) -> int:
            return sum(part for part in (self.total, more))

    print("$HOME is $(HOME)", "{not a field}", file=None)
    return {"sum": Sum().plus(b), "rank": os.environ.get("RANK")}


def returns_a_set() -> Any:
    return {1}


def returns_much() -> str:
    return "x" * 70_000


def uses_a_global() -> int:
    return OUTSIDE


def has_a_default(n: int = OUTSIDE) -> int:
    return n


def around() -> Any:
    kept = 5

    def uses_a_variable_around_it() -> int:
        return kept

    return uses_a_variable_around_it


async def waits() -> None: ...


@pytest.mark.timeout(5)
def is_decorated() -> None: ...


def run(program: str, folder: Path, *, rank: str = "0") -> subprocess.CompletedProcess[str]:
    script = folder / "program.py"
    script.write_text(program)
    return subprocess.run([sys.executable, script], capture_output=True, text=True, env={"RANK": rank}, timeout=60)


def test_rank_0_prints_what_the_function_returned(tmp_path: Path) -> None:
    program = program_of(add, [1], {"b": 4})
    done = run(program, tmp_path)
    assert result_in(done.stdout) == {"sum": 5, "rank": "0"}, done.stderr
    with pytest.raises(KeyError):
        result_in(run(program, tmp_path, rank="1").stdout)


def imports_a_package() -> str:
    import importlib

    return str(importlib.import_module("packed").WORD)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Build a package that pip installs without an index."""
    file = tmp_path / "packed-1-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("packed.py", "WORD = 'here'")
        made.writestr("packed-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: packed\nVersion: 1\n")
        made.writestr("packed-1.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr("packed-1.dist-info/RECORD", "packed.py,,\npacked-1.dist-info/METADATA,,\npacked-1.dist-info/WHEEL,,\n")
    return file


def run_with(packages: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a function with packages. pip installs them below the folder, not into the tests' environment, and asks no index."""
    script = folder / "program.py"
    script.write_text(program_of(imports_a_package, [], {}, packages=packages))
    place = str(folder / "packages")
    env = {"RANK": "0", "PIP_NO_INDEX": "1", "PIP_TARGET": place, "PYTHONPATH": place, "PIP_CONFIG_FILE": "/dev/null"}
    return subprocess.run([sys.executable, script], capture_output=True, text=True, env=env, timeout=120)


def test_packages_are_installed_before_the_function_is_called(tmp_path: Path, wheel: Path) -> None:
    done = run_with([str(wheel)], tmp_path)
    assert result_in(done.stdout) == "here", done.stderr


def test_if_pip_fails_the_program_ends_with_its_error_in_one_line(tmp_path: Path) -> None:
    """The job went on without the package, and succeeded if the function did not need it."""
    done = run_with(["no-such-package>=1"], tmp_path)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith("RuntimeError: pip install no-such-package>=1 failed: ERROR: Could not find a version that satisfies")


@pytest.mark.parametrize("packages", ["tqdm", ["--index-url"], [""], ["a\nb"], [3]])
def test_an_invalid_requirement_is_refused(packages: Any) -> None:
    with pytest.raises(BadProgram, match="packages"):
        program_of(imports_a_package, [], {}, packages=packages)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (uses_a_global, "uses_a_global uses OUTSIDE from outside"),
        (has_a_default, "has_a_default uses OUTSIDE from outside"),
        (around(), "uses kept of the function around it"),
        (lambda: 1, "no function made with def"),
        (print, "no function made with def"),
        (waits, "waits is no plain function"),
        (is_decorated, "is_decorated has decorators"),
    ],
)
def test_a_function_that_cannot_travel_is_refused_with_what_to_do(function: Any, words: str) -> None:
    with pytest.raises(BadProgram, match=words):
        program_of(function, [], {})


def test_arguments_have_to_fit_and_to_be_json() -> None:
    with pytest.raises(BadProgram, match="missing a required argument: 'a'"):
        program_of(add, [], {})
    with pytest.raises(BadProgram, match="they travel as JSON"):
        program_of(add, [object()], {})
    with pytest.raises(BadProgram, match=f"more than {LARGEST_PROGRAM}"):
        program_of(add, ["x" * LARGEST_PROGRAM], {})


def test_a_result_that_cannot_be_sent_back_is_an_error_of_the_training(tmp_path: Path) -> None:
    assert f"more than {LARGEST_RESULT}; save it to a file instead" in run(program_of(returns_much, [], {}), tmp_path).stderr
    words = "TypeError: returns_a_set returned a value that JSON cannot hold (Object of type set is not JSON serializable)"
    assert run(program_of(returns_a_set, [], {}), tmp_path).stderr.splitlines()[-1].startswith(words)
    assert "set is not JSON serializable" in run(program_of(returns_a_set, [], {}), tmp_path).stderr


def test_variables_of_the_text_are_none_of_the_containers() -> None:
    assert escaped("$(HOME) $$ $x") == "$$(HOME) $$$$ $$x"
