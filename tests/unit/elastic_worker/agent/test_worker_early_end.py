"""Check the termination message of an agent that ends before the rendezvous: it names a wrong command, or is empty."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_training.rendezvous import delivery
from elastic_worker.agent import last_words
from elastic_worker.agent.last_words import USAGE, Unmet

JOB = {"ELASTIC_JOB_UID": "uid"}
BEGIN = """
import argparse, os, sys
from elastic_worker.agent import early_end
early_end.watch()
early_end.watch()
"""


def said(folder: Path, program: str, **environment: str) -> tuple[int, str]:
    """Return the exit status of a process with this program, and its termination message."""
    log = folder / "termination-log"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.getcwd(), "ELASTIC_TERMINATION_LOG": str(log), **JOB, **environment}
    result = subprocess.run([sys.executable, "-c", BEGIN + program], env=env, capture_output=True, text=True)
    return result.returncode, log.read_text() if log.exists() else ""


@pytest.mark.parametrize(
    ("program", "status", "words"),
    [
        ("argparse.ArgumentParser(prog='torchrun').parse_args(['--nonsense'])", 2, "torchrun: error: unrecognized arguments: --nonsense"),
        ("raise ValueError('Unsupported nproc_per_node value: foo')", 1, "ValueError: Unsupported nproc_per_node value: foo"),
        ("import no_such_module_of_anybody", 1, "ModuleNotFoundError: No module named 'no_such_module_of_anybody'"),
        ("raise ValueError('two\\nlines')", 1, "ValueError: two\\nlines"),
    ],
)
def test_a_wrong_command_is_said(tmp_path: Path, program: str, status: int, words: str) -> None:
    code, message = said(tmp_path, program)
    assert code == status
    assert delivery.unmet(message, "uid") == (USAGE, words)


@pytest.mark.parametrize(
    "program",
    [
        "raise OSError('the disk is full')",
        "raise ConnectionRefusedError('no server')",
        "import ssl; raise ssl.SSLCertVerificationError('expired')",
        "raise MemoryError",
        "raise RuntimeError('a device is lost')",
        "from elastic_worker.settings import MissingSettings; raise MissingSettings('no token')",
        "raise SystemExit(3)",
        "raise KeyboardInterrupt",
        "early_end.came(); raise ValueError('a worker failed')",
        "early_end.came(); argparse.ArgumentParser().parse_args(['--nonsense'])",
        "if os.fork() == 0: raise ValueError('in a child')\nos.wait(); sys.exit(1)",
    ],
)
def test_an_error_that_may_be_the_machines_or_comes_later_is_not(tmp_path: Path, program: str) -> None:
    code, message = said(tmp_path, program)
    assert code != 0
    assert message == ""


@pytest.mark.parametrize("name", ["TORCHELASTIC_RUN_ID", "ELASTIC_GENERATION"])
def test_a_worker_says_nothing_because_its_agent_reports_it(tmp_path: Path, name: str) -> None:
    assert said(tmp_path, "raise ValueError('bad batch')", **{name: "1"}) == (1, "")


def test_an_agent_that_comes_after_one_that_could_not_start_withdraws_its_words(tmp_path: Path) -> None:
    """`torchrun --new-flag train.py || torchrun train.py` starts such agents."""
    log = tmp_path / "termination-log"
    log.write_text(last_words.message("uid", unmet=Unmet(USAGE, "torchrun: error")))
    assert said(tmp_path, "early_end.came(); sys.exit(1)") == (1, "")
    log.write_text("the user's own words")
    assert said(tmp_path, "early_end.came(); sys.exit(1)") == (1, "the user's own words")


def test_the_controller_reads_what_agents_write() -> None:
    assert delivery.UNMET_PREFIX == last_words.UNMET_PREFIX
    for why in (delivery.USAGE, delivery.REFUSED, delivery.UNREACHABLE):
        message = last_words.message("uid", unmet=Unmet(why, "why: it\x1b"), failure=last_words.Failure(1, "ValueError: x"))
        assert delivery.unmet(message, "uid") == (why, "why: it\\x1b")
        assert delivery.has_failed(message, "uid") == "rank 1: ValueError: x"
        assert delivery.unmet(message, "another") == ("", "")
    assert delivery.unmet("elastic-training did not meet the other workers of job uid: nonsense: x", "uid") == ("", "")
