"""Looks into a running node from outside of its agent, for tests and for `elastic status`: which processes a pod has on this machine."""

from pathlib import Path

from elastic.local.agent.records import PodFolder
from elastic.local.sandbox.channel import ask


def pids(data_dir: Path, namespace: str, pod: str) -> list[int]:
    """The host's pids of all processes of a pod's containers, without those of ours that watch over them."""
    found: list[int] = []
    running = ask(data_dir, "describe")[0]["running"]
    for folder in (data_dir / "nodes").glob("*/*"):
        note = PodFolder(folder).note()
        if note is not None and (note.namespace, note.name) == (namespace, pod):
            for run in running:
                if run.startswith(f"{note.uid}/"):
                    found += ask(data_dir, "tree", id=run)[0]["pids"]
    return found
