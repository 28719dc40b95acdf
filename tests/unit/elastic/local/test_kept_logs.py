"""Check that logs outlive their pods, and what that may cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic.local import kept_logs
from elastic.local.agent.records import PodFolder, PodNote
from elastic.local.kept_logs import KeptLogs

OWNER = "0b1c-uid"


def pod_folder(path: Path, name: str, *, owner: str = OWNER) -> PodFolder:
    folder = PodFolder(path)
    folder.write_note(PodNote(f"uid-{name}", "default", name, 0.0, owner=owner, main=["pytorch"]))
    return folder


def printed(folder: PodFolder, container: str, attempt: int, text: str) -> None:
    path = folder.log(container, attempt)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def texts(kept: KeptLogs, owner: str = OWNER) -> list[tuple[str, str]]:
    return [(log.pod, b"".join(log.pieces()).decode()) for log in kept.of(owner, "pytorch")]


def test_logs_of_training_containers_outlive_their_pod(tmp_path: Path) -> None:
    """After a suspension, or if a node was taken away, nobody could read any more what a job had printed."""
    kept = KeptLogs(tmp_path / "kept")
    folder = pod_folder(tmp_path / "a", "train-worker-0")
    for attempt, text in enumerate(("first", "second", "third", "")):
        printed(folder, "pytorch", attempt, text)
    printed(folder, "init", 0, "of an init container")
    folder.keep_old_logs(kept, "pytorch", attempt=2)
    assert texts(kept) == [("train-worker-0", "first")], "the API still shows the last two"
    folder.remove(kept)
    assert [text for _, text in texts(kept)] == ["first", "second", "third"]
    assert not folder.path.exists()
    assert kept.of("another", "pytorch") == []


@pytest.mark.parametrize("owner", ["", "..", "a/b", "x" * 65])
def test_an_owner_that_is_no_uid_is_no_folder(tmp_path: Path, owner: str) -> None:
    kept = KeptLogs(tmp_path / "kept")
    folder = pod_folder(tmp_path / "a", "train-worker-0", owner=owner)
    printed(folder, "pytorch", 0, "text")
    folder.remove(kept)
    assert list(tmp_path.rglob("*.log")) == []
    assert kept.of(owner, "pytorch") == []


def test_long_logs_are_cut_and_the_oldest_ones_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_logs, "MOST_OF_ONE", 100)
    monkeypatch.setattr(kept_logs, "MOST_OF_ALL", 150)
    kept = KeptLogs(tmp_path / "kept")
    for number in range(4):
        folder = pod_folder(tmp_path / f"pod-{number}", f"train-worker-{number}", owner=f"job-{number // 2}")
        printed(folder, "pytorch", 0, "".join(f"{number} {line:03}\n" for line in range(100)))
        folder.remove(kept)
    assert texts(kept, "job-0") == []
    assert not (kept.folder / "job-0").exists()
    (pod, text), (other, _) = texts(kept, "job-1")
    assert (pod, other) == ("train-worker-2", "train-worker-3")
    note, *lines = text.splitlines()
    assert note == f"... {600 - 6 * len(lines)} bytes of this log are left out"
    assert lines == [f"2 {line:03}" for line in range(100)][-len(lines) :]
    assert len(text) <= 100


def test_a_line_that_never_ends_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A progress bar had left one line of 18 MB, and nothing of it was kept."""
    monkeypatch.setattr(kept_logs, "MOST_OF_ONE", 1000)
    monkeypatch.setattr(kept_logs, "LONGEST_LINE", 100)
    kept = KeptLogs(tmp_path / "kept")
    folder = pod_folder(tmp_path / "a", "train-worker-0")
    printed(folder, "pytorch", 0, "x" * 5000)
    folder.remove(kept)
    ((_, text),) = texts(kept)
    assert text == f"... {5000 - 836} bytes of this log are left out\n" + "x" * 836


def test_a_log_that_cannot_be_kept_goes_with_its_pod(tmp_path: Path) -> None:
    """A full disk ended the agent of a node."""
    (tmp_path / "kept").touch()
    folder = pod_folder(tmp_path / "a", "train-worker-0")
    printed(folder, "pytorch", 0, "text")
    folder.remove(KeptLogs(tmp_path / "kept"))
    assert not folder.path.exists()


def test_there_are_only_so_many_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_logs, "MOST_LOGS", 2)
    kept = KeptLogs(tmp_path / "kept")
    folder = pod_folder(tmp_path / "a", "train-worker-0")
    for attempt in range(4):
        printed(folder, "pytorch", attempt, str(attempt))
    folder.remove(kept)
    assert [text for _, text in texts(kept)] == ["2", "3"]
