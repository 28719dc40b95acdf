"""The folder in which a cluster lives: closed to others, or refused with what to do about it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from elastic.local import ClusterError, LocalCluster, files
from elastic.local.files import FolderError, take_folder


def mode(folder: Path) -> int:
    return folder.stat().st_mode & 0o777


def test_a_new_folder_and_an_empty_one_are_for_their_owner_only(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    for folder in (open_to_all, tmp_path / "new/below"):
        take_folder(folder)
        assert mode(folder) == 0o700


def test_the_folder_of_a_cluster_that_others_could_enter_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "lock").touch()
    take_folder(tmp_path)
    assert mode(tmp_path) == 0o700


def test_a_folder_with_other_files_that_others_may_enter_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(
        FolderError, match=r"other users may enter .* \(mode 755\), which has other things in it; choose another with --data-dir"
    ):
        take_folder(tmp_path)
    assert mode(tmp_path) == 0o755


def test_an_invalid_folder_and_a_full_disk_are_one_clear_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FolderError, match="cannot be used: File exists; choose another with --data-dir"):
        take_folder(tmp_path / "file")
    with pytest.raises(FolderError, match=r"cannot be used: .*; choose another with --data-dir"):
        take_folder(Path("/proc/cluster"))
    with pytest.raises(ClusterError, match="the data folder /proc/cluster cannot be used"):
        LocalCluster(data_dir=Path("/proc/cluster")).start()
    monkeypatch.setattr(files, "LEAST_FREE", shutil.disk_usage(tmp_path).total + 1)
    with pytest.raises(FolderError, match=r"MB are free where the data folder .* is, but \d+ are needed; make room"):
        take_folder(tmp_path)


def test_files_of_others_under_our_names_are_refused_or_passed_over(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    layout = files.Layout(tmp_path)
    layout.ports.write_text("not json")
    assert layout.read_ports() == {}
    layout.ports.write_text('{"apiserver": 4711}')
    assert layout.read_ports() == {"apiserver": 4711}
    layout.objects.write_text("a diary")
    with pytest.raises(FolderError, match=r"objects.db is not what a cluster stores; move it away, or choose another with --data-dir"):
        take_folder(tmp_path)
    layout.objects.write_bytes(files.SQLITE + b"...")
    take_folder(tmp_path)


@pytest.mark.parametrize("name", ["installation", "dashboard", "nodes"])
def test_a_file_in_the_place_of_a_folder_and_a_folder_in_that_of_a_file_are_refused(tmp_path: Path, name: str) -> None:
    """They ended the start after half a minute with `the nodes are not ready`, or with `[Errno 17] File exists`."""
    tmp_path.chmod(0o700)
    (tmp_path / name).touch()
    with pytest.raises(FolderError, match=rf"{name} is not what a cluster stores; move it away"):
        take_folder(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / "nodes.json").mkdir()
    with pytest.raises(FolderError, match=r"nodes.json is not what a cluster stores; move it away"):
        take_folder(tmp_path)


def test_a_roster_that_cannot_be_read_is_told_before_anything_starts(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "nodes.json").write_text("garbage {")
    with pytest.raises(ClusterError, match=r"nodes.json was not written by a cluster .*; move it away"):
        LocalCluster(data_dir=tmp_path).start()
    assert not (tmp_path / "supervisor.log").exists()


@pytest.mark.parametrize(
    "text",
    [
        '{"nodes": 1000000000}',
        '{"nodes": -1}',
        '{"gpus": 65}',
        '{"sandbox": "a/b"}',
        '{"images": {"a": 1}}',
        '{"nodes": 2, "x": "' + "x" * (1 << 20) + '"}',
    ],
)
def test_a_size_that_nobody_could_have_asked_for_is_passed_over(tmp_path: Path, text: str) -> None:
    """It would start as many nodes."""
    layout = files.Layout(tmp_path)
    layout.shape.write_text('{"nodes": 200, "gpus": 64}')
    assert layout.read_shape() == files.Shape(200, 64)
    layout.shape.write_text(text)
    assert layout.read_shape() == files.Shape()
