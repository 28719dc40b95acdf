"""Check a command's words if something outside it fails: one line that says what to do, and never a traceback."""

import os
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from elastic.cli import main
from elastic.cli.cluster_choice import Cluster
from elastic.cli.failures import said
from elastic.kube.errors import KubeError


def test_a_folder_that_is_gone_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(FileNotFoundError) as found:
        os.getcwd()
    assert said(found.value) == "the folder in which this command was typed is gone; change to another one"
    result = CliRunner().invoke(main, ["get", "--data-dir", "data"])
    assert result.exit_code == 1
    assert result.output.strip() == "Error: the folder in which this command was typed is gone; change to another one"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            OSError(30, "Read-only file system", "/data"),
            "/data: Read-only file system; the disk is read-only; choose another folder with --data-dir",
        ),
        (OSError(28, "No space left on device"), "No space left on device; make room on the disk"),
        (FileNotFoundError(2, "No such file or directory", "job.yaml"), "job.yaml: No such file or directory"),
    ],
)
def test_disk_and_files_are_named(error: OSError, words: str) -> None:
    assert said(error) == words


def test_a_server_with_another_certificate_is_not_asked_whether_it_runs() -> None:
    """After a cluster was created again at its old address, commands asked `is the cluster running?`."""
    words = "https://a:1: Cannot connect to host a:1 [SSLCertVerificationError: (1, '[SSL: CERTIFICATE_VERIFY_FAILED] self-signed')]"
    line = said(KubeError(code=0, reason="Unreachable", message=words))
    assert line is not None
    assert line.startswith(f"the API server is not the one of the kubeconfig, by its certificate: {words}; get a new kubeconfig")
    away = said(KubeError(code=0, reason="Unreachable", message="https://a:1: refused"))
    assert away == "the API server cannot be reached: https://a:1: refused; is the cluster running?"


def test_a_defect_of_ours_shows_its_traceback() -> None:
    assert said(ValueError("unexpected")) is None


def _interrupted() -> None:
    raise KeyboardInterrupt


def _interrupted_at_a_question() -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        raise click.Abort from None


@pytest.mark.parametrize("words", [["logs", "-f", "train"], ["wait", "train"], ["get"], ["delete", "train"]])
@pytest.mark.parametrize("end", [_interrupted, _interrupted_at_a_question])
def test_ctrl_c_ends_every_command_silently_with_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], end: Callable[[], None]
) -> None:
    (tmp_path / "config").write_text("")
    monkeypatch.setattr(Cluster, "ask", lambda *_: end())
    result = CliRunner().invoke(main, [*words, "--kubeconfig", str(tmp_path / "config")])
    assert (result.exit_code, result.output) == (130, "")


def test_a_question_without_an_answer_is_no_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text("")
    monkeypatch.setattr(Cluster, "ask", lambda *_: click.confirm("go on?", abort=True))
    result = CliRunner().invoke(main, ["get", "--kubeconfig", str(tmp_path / "config")], input="")
    assert result.exit_code == 1
    assert result.stderr == "Aborted!\n"


@pytest.mark.parametrize(
    "error",
    [
        KubeError(code=403, reason="Forbidden", message="\x1b]0;owned\x07\u202eno\x9b31m\nsecond line"),
        click.ClickException("there is no job x; there are: \x1b[31mred\x9b31m"),
    ],
)
def test_no_terminal_obeys_what_a_server_says_in_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    (tmp_path / "config").write_text("")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(Cluster, "ask", fail)
    result = CliRunner().invoke(main, ["get", "--kubeconfig", str(tmp_path / "config")])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert all(line.isprintable() for line in result.stderr.splitlines())
