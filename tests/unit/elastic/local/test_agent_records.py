"""A pod's folder on this machine."""

from pathlib import Path

from elastic.local.agent.records import PodFolder


def test_names_are_rewritten_in_the_file_that_containers_have_mounted(tmp_path: Path) -> None:
    folder = PodFolder(tmp_path)
    folder.write_hosts("10.64.0.2 a long-name\n")
    mounted = folder.hosts.stat().st_ino
    folder.write_hosts("10.64.0.2 a\n")
    assert folder.hosts.read_text() == "10.64.0.2 a\n"
    assert folder.hosts.stat().st_ino == mounted


def test_new_names_for_a_pod_that_has_just_gone_trouble_nobody(tmp_path: Path) -> None:
    """A node was reclaimed while names changed.

    The pod's folder was gone when its hosts file was to be rewritten, and the error ended the process that plays all nodes.
    """
    PodFolder(tmp_path / "removed").write_hosts("10.64.0.2 a\n")
    assert not (tmp_path / "removed").exists()
