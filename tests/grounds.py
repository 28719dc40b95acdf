"""Start a test's cluster on the laptop's own API server, or on a real one.

A real one comes with its controller manager and scheduler, and the laptop's nodes and control plane join it. Both are a LocalCluster to
the test.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from real_servers import ControlPlane

from elastic.local import LocalCluster


@dataclass(frozen=True)
class Ground:
    sandbox: str
    assets: Path | None = None
    """The folder with the programs of a real control plane, or None for the laptop's own API server."""

    def __str__(self) -> str:
        return self.sandbox if self.assets is None else f"real-{self.sandbox}"

    @contextlib.contextmanager
    def cluster(self, folder: Path, **options: Any) -> Iterator[LocalCluster]:
        """Run a fresh cluster during a block."""
        if self.assets is None:
            with LocalCluster(data_dir=folder, sandbox=self.sandbox, **options) as running:
                yield running
            return
        servers = folder / "servers"
        servers.mkdir(parents=True)
        grace = {name: options[name] for name in ("node_grace_s",) if name in options}
        with (
            ControlPlane(self.assets, servers, **grace) as plane,
            Joined(plane, data_dir=folder / "nodes", sandbox=self.sandbox, **options) as running,
        ):
            yield running


class Joined(LocalCluster):
    """Nodes and control plane of the laptop on a real API server. Tests kill and restart that server like the laptop's own."""

    def __init__(self, plane: ControlPlane, **options: Any) -> None:
        super().__init__(join=plane.kubeconfig, **options)
        self._plane = plane

    def processes(self) -> dict[str, int]:
        return {**super().processes(), "apiserver": self._plane.pid("kube-apiserver")}

    def kill(self, name: str) -> None:
        if name == "apiserver":
            self._plane.restart("kube-apiserver")
        else:
            super().kill(name)


def grounds(sandboxes: tuple[str, ...], assets: str | None) -> list[Ground]:
    """Return the laptop's own ground for each sandbox. If `assets` names the programs of a real server, add it for each sandbox."""
    own = [Ground(sandbox) for sandbox in sandboxes]
    return own if not assets else [*own, *(Ground(sandbox, Path(assets)) for sandbox in sandboxes)]
