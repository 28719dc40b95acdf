"""Files in the data folder that are whole or not there, and nobody else's to read; and the layout of that folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec


def write_private(path: Path, data: bytes) -> None:
    """Complete or not at all, and readable by the owner only."""
    temporary = path.with_name(path.name + ".new")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    temporary.rename(path)


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """What `elastic status`, `elastic down` and tests read of a running cluster; written by its supervisor alone."""

    supervisor: int
    sandbox: str
    server: str
    kubeconfig: str
    nodes: int
    gpus: int
    control_plane: bool
    processes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things lie in a cluster's data folder."""

    root: Path

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    @property
    def installation(self) -> Path:
        return self.root / "installation"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def ports(self) -> Path:
        return self.root / "ports.json"

    @property
    def audit(self) -> Path:
        """Who used which right."""
        return self.root / "audit.jsonl"

    @property
    def pods(self) -> Path:
        return self.root / "nodes"

    def log(self, process: str) -> Path:
        return self.root / f"{process}.log"

    def ready(self, process: str) -> Path:
        return self.root / f"{process}.ready"

    def read_state(self) -> ClusterState | None:
        """None where no cluster has run, or none that ended as it should."""
        try:
            return msgspec.json.decode((self.root / "cluster.json").read_bytes(), type=ClusterState)
        except (OSError, msgspec.DecodeError):
            return None

    def write_state(self, state: ClusterState) -> None:
        write_private(self.root / "cluster.json", msgspec.json.encode(state))

    def forget_state(self) -> None:
        (self.root / "cluster.json").unlink(missing_ok=True)
