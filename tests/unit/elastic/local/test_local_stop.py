"""Check that `elastic down` ends the supervisor of its data folder, and no other process that has its number."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic.local import cluster
from elastic.local.cluster import ClusterError, stop_detached
from elastic.local.files import ClusterState, Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """Run a process of the user that belongs to no cluster."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def noted(layout: Layout, supervisor: int) -> None:
    layout.write_state(
        ClusterState(supervisor=supervisor, sandbox="", server="", kubeconfig="", nodes=1, gpus=0, control_plane=False, processes={})
    )


@pytest.mark.parametrize("lock", ["none", "a file", "a link"])
def test_a_process_that_only_has_the_number_is_left_alone(layout: Layout, other: subprocess.Popen[bytes], lock: str) -> None:
    """`elastic down` ended another process that had the supervisor's number after a power cut.

    In a folder that somebody else had made, the number could be any process of the user, or -1 for all of them.
    """
    if lock == "a file":
        layout.lock.touch()
    if lock == "a link":
        layout.lock.symlink_to(os.devnull if (only := Path(f"/proc/{other.pid}/fd/1")).is_char_device() else only.resolve())
    noted(layout, other.pid)
    assert not stop_detached(layout.root)
    assert other.poll() is None
    assert layout.read_state() is None


@pytest.mark.parametrize("number", [-1, 0])
def test_a_number_that_means_many_processes_is_no_supervisor(layout: Layout, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a signal was sent"))
    layout.lock.touch()
    noted(layout, number)
    assert not stop_detached(layout.root)


def test_the_process_that_holds_the_lock_of_the_folder_is_stopped(layout: Layout) -> None:
    command = ["sh", "-c", 'exec 9>"$0"; echo held; exec sleep 600', str(layout.lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == b"held\n"
        noted(layout, supervisor.pid)
        assert stop_detached(layout.root)
        assert supervisor.wait(30) == -15


def test_a_long_stop_says_what_it_waits_for(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command was silent for as long as pods took to end."""
    monkeypatch.setattr(cluster, "QUIET_S", 0.01)
    said = []
    command = ["sh", "-c", 'exec 9>"$0"; trap "" TERM; echo held; exec sleep 600', str(layout.lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == b"held\n"
        noted(layout, supervisor.pid)

        def say(words: str) -> None:
            said.append(words)
            supervisor.kill()

        assert stop_detached(layout.root, say=say)
    assert said[0].startswith("the cluster stops: waiting for its pods and processes to end, at most ")


def test_a_folder_of_another_user_is_left_to_them(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    noted(layout, os.getpid())
    monkeypatch.setattr(os, "geteuid", lambda: layout.root.stat().st_uid + 1)
    with pytest.raises(ClusterError, match="belongs to another user"):
        stop_detached(layout.root)


def test_a_pipe_in_place_of_a_file_is_not_waited_for(layout: Layout) -> None:
    os.mkfifo(layout.root / "cluster.json")
    os.mkfifo(layout.ports)
    assert layout.read_state() is None
    assert layout.read_ports() == {}
