"""What a command says when something outside it fails: one line that says what to do, and never a traceback."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from elastic.cli import main
from elastic.cli.failures import said


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


def test_a_defect_of_ours_shows_its_traceback() -> None:
    assert said(ValueError("unexpected")) is None
