"""A package that is missing is named with the command that installs it, and nobody sees a traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Blocked())
"""


def run(program: str, *names: str) -> subprocess.CompletedProcess[str]:
    text = BLOCKED.format(names=names) + program
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("program", "missing", "words"),
    [
        (
            "controller",
            "aiohttp",
            "elastic-controller needs the Python package aiohttp, which is not installed: pip install 'elastic-training[controller]'",
        ),
        ("rendezvous", "prometheus_client", "elastic-rendezvous needs the Python package prometheus_client"),
        ("autoscaler", "orjson", "pip install 'elastic-training[autoscale]'"),
        ("dashboard", "aiohttp", "pip install 'elastic-training[dashboard]'"),
    ],
)
def test_a_program_names_the_extra_that_it_lacks(program: str, missing: str, words: str) -> None:
    done = run(f"import sys; sys.argv = ['x', '--help']\nfrom elastic import extras\nextras.{program}()", missing)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["get", "run job.yaml", "logs train", "dashboard"])
def test_a_command_names_the_extra_that_it_lacks(command: str) -> None:
    done = run(
        f"import sys; sys.argv = ['elastic', *{command.split()!r}]\nfrom elastic.cli import main\nmain(prog_name='elastic')",
        "aiohttp",
        "orjson",
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: this command needs the Python package ")
    assert "pip install 'elastic-training[kube]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_without_needs_runs_without_extras() -> None:
    done = run(
        "import sys; sys.argv = ['elastic', 'crds', 'PyTorchJob']\nfrom elastic.cli import main\nmain(prog_name='elastic')",
        "aiohttp",
        "orjson",
        "kopf",
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("missing", ["aiohttp", "orjson"])
def test_the_client_names_the_extra_that_it_lacks(missing: str) -> None:
    done = run("from elastic import Client", missing)
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: elastic.Client needs the Python package {missing}, which is not installed: pip install 'elastic-training[kube]'"
    )


def test_a_module_of_ours_that_is_missing_stays_a_bug() -> None:
    done = run("from elastic import extras\nextras._run('controller.nowhere', program='x', extra='controller')")
    assert "ModuleNotFoundError: No module named 'controller.nowhere'" in done.stderr
