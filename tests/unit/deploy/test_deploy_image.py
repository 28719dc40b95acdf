"""Check that the Dockerfile keeps the rules that matter, and that its steps make programs that run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from dockerfile_rules import complaints, steps

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"


def test_the_dockerfile_keeps_the_rules_that_matter() -> None:
    assert list(complaints((DEPLOY / "Dockerfile").read_text())) == []


BAD = "FROM python:latest\nADD https://x/y /y\nCOPY . .\nENV API_TOKEN=1\nRUN pip install a\nRUN wget x && pip install b\nCMD run me\n"


def test_each_rule_for_a_dockerfile_is_one_that_can_be_broken() -> None:
    found = "\n".join(complaints(BAD))
    for word in (
        "ADD",
        "COPY .",
        "latest",
        "USER",
        "layers",
        "--no-cache-dir",
        "--constraint",
        "secret",
        "SIGTERM",
        "fetched",
        "digest",
        "only copies",
    ):
        assert word in found, word


def test_the_steps_of_the_image_make_programs_that_run(tmp_path: Path) -> None:
    """The test copies and runs what the image's steps do, below a temporary folder, and with the packages that are installed here."""
    source, installed = tmp_path / "source", tmp_path / "installed"
    source.mkdir()
    for step in steps((DEPLOY / "Dockerfile").read_text()):
        if step.stage == 1 and step.word == "COPY":
            *names, target = step.rest.split()
            for name in names:
                _copy(ROOT / name, source / (name if target == "./" else target))
        elif step.stage == 1 and step.word == "RUN":
            # Without --ignore-installed pip would remove the package that the tests run with.
            pip = f"{sys.executable} -m pip install --ignore-installed --no-deps --no-index --no-build-isolation --quiet"
            command = step.rest.replace("/installed", str(installed)).replace("pip install", pip).replace('"', "")
            subprocess.run(command.split(), cwd=source, check=True, timeout=110)
    (packages,) = installed.glob("lib/python*/site-packages")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(packages)}
    for program in ("elastic-controller", "elastic-rendezvous"):
        command = [installed / "bin" / program, "--help"]
        ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert ended.returncode == 0, ended.stderr
    assert (packages / "elastic_worker" / "__init__.py").exists()


def _copy(there: Path, here: Path) -> None:
    if there.is_dir():
        shutil.copytree(there, here, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(there, here)
