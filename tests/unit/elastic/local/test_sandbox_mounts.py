"""Check what a container sees of a host's folder in which it gets a mount."""

import errno
import os
from pathlib import Path

import pytest

from elastic.local.sandbox import linux
from elastic.local.sandbox.mounts import Placement


@pytest.mark.parametrize("is_folder", [True, False])
def test_an_entry_that_another_program_removes_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_folder: bool
) -> None:
    """A pod did not start because another program's folder in /tmp was removed at that moment."""
    original, stage = tmp_path / "original", tmp_path / "stage"
    for folder in (original, stage, original / "stays"):
        folder.mkdir()
    goes = original / "goes"
    goes.mkdir() if is_folder else goes.touch()

    def bind(source: str, target: str) -> None:
        if source == str(goes):
            goes.rmdir() if is_folder else goes.unlink()
            raise OSError(errno.ENOENT, f"cannot mount {source} at {target}")

    monkeypatch.setattr(linux, "bind", bind)
    monkeypatch.setattr(linux, "mount", lambda *arguments, **options: None)
    Placement(str(stage))._mirror(str(original))
    assert os.listdir(stage) == ["stays"]


def test_an_existing_entry_that_cannot_be_mounted_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, stage = tmp_path / "original", tmp_path / "stage"
    for folder in (original, stage, original / "stays"):
        folder.mkdir()

    def bind(source: str, target: str) -> None:
        raise OSError(errno.ENOENT, f"cannot mount {source} at {target}")

    monkeypatch.setattr(linux, "bind", bind)
    monkeypatch.setattr(linux, "mount", lambda *arguments, **options: None)
    with pytest.raises(FileNotFoundError, match="cannot mount"):
        Placement(str(stage))._mirror(str(original))
