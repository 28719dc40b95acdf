"""These pages are transcripts: every command in them is run, in order, and answers what the page says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(console|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXCERPT = ""
"""Stands for a part of a job, which no command reads."""
PAGES = {
    "laptop": ("web.yaml", "job.yaml", "guest.yaml"),
    "spot": (EXCERPT, "signals.yaml"),
    "autoscaling": (EXCERPT, EXCERPT, EXCERPT),
}
"""The names of the files that a page shows."""
SLOW = ("the cluster starts: waiting for ", "the cluster stops: waiting for ")
"""Lines of `elastic up` and `elastic down` that take some seconds, as on a busy machine; a page promises no seconds."""


@dataclass(frozen=True)
class Step:
    command: str
    answer: str


def steps(page: str) -> list[Step]:
    found = []
    for kind, text in BLOCK.findall(page):
        if kind == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, answer = part.partition("\n")
                found.append(Step(command, answer))
    return found


def files(page: str, names: tuple[str, ...]) -> dict[str, str]:
    blocks = (text for kind, text in BLOCK.findall(page) if kind == "yaml")
    return {name: text for name, text in zip(names, blocks, strict=True) if name != EXCERPT}


def agrees(answer: str, said: str) -> bool:
    """Return whether the output is as the page says. A line of three dots stands for any lines, three dots in a line for any text."""
    pattern = "".join(
        r"(?:[^\n]*\n)*" if line == "..." else re.escape(line).replace(re.escape("..."), "[^\n]*") + "\n" for line in answer.splitlines()
    )
    text = said if said.endswith("\n") or not said else said + "\n"
    return re.fullmatch(pattern, text) is not None


def test_three_dots_stand_for_what_differs() -> None:
    assert agrees("a ... c\n...\nz\n", "a b c\n1\n2\nz\n")
    assert agrees("3\n", "3")
    assert not agrees("a\n", "b\n")


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("laptop", marks=pytest.mark.timeout(300)),
        pytest.param("spot", marks=[pytest.mark.full, pytest.mark.timeout(900)]),
        pytest.param("autoscaling", marks=[pytest.mark.full, pytest.mark.timeout(1800)]),
    ],
)
def test_a_page_about_the_laptop_cluster_tells_what_happens(name: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text()
    for file, text in files(page, PAGES[name]).items():
        (tmp_path / file).write_text(text)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    programs = str(Path(sys.executable).parent)
    env = {**os.environ, "PATH": os.pathsep.join([programs, os.environ["PATH"]])}
    env.pop("KUBECONFIG", None)
    try:
        for step in steps(page):
            if step.command.startswith("export "):
                variable, _, value = step.command.removeprefix("export ").partition("=")
                env[variable] = value.replace("$PWD", str(tmp_path))
                continue
            done = subprocess.run(["bash", "-c", step.command], cwd=tmp_path, env=env, text=True, stdout=-1, stderr=-2, timeout=300)
            said = "".join(line for line in done.stdout.splitlines(keepends=True) if not line.startswith(SLOW))
            assert agrees(step.answer, said), f"$ {step.command}\n{said}\nbut the page says:\n{step.answer}"
    finally:
        subprocess.run(["elastic", "down", "--data-dir", "lab"], cwd=tmp_path, env=env, capture_output=True, check=False)
