"""scripts/image builds with the first container engine that answers; without one it says how, and `make release` goes on."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def engine(folder: Path, name: str, *, answers: bool) -> None:
    program = folder / name
    program.write_text(f'#!/bin/sh\n[ "$1" = info ] && exit {0 if answers else 1}\necho "{name}: $*"\n')
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("engines", "last"),
    [
        ({"docker": True, "podman": True}, "docker: build -f deploy/Dockerfile -t elastic-training:1.2.3 ."),
        ({"docker": False, "podman": True}, "podman: build -f deploy/Dockerfile -t elastic-training:1.2.3 ."),
        ({"docker": False}, "where one does: docker build -f deploy/Dockerfile -t elastic-training:1.2.3 ."),
        ({}, "where one does: docker build -f deploy/Dockerfile -t elastic-training:1.2.3 ."),
    ],
)
def test_the_first_engine_that_answers_builds_the_image(tmp_path: Path, engines: dict[str, bool], last: str) -> None:
    for name, answers in engines.items():
        engine(tmp_path, name, answers=answers)
    done = subprocess.run(
        ["/bin/sh", "scripts/image", "1.2.3"], cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.rstrip("\n").endswith(last)
