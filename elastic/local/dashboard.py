"""Start the dashboard of a laptop cluster, and let its user in."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from elastic.local.files import Layout, default_data_dir
from elastic.runtime import signed_cookie
from elastic.runtime.one_time import OneTimeToken

MODULE = "elastic_training.dashboard.running.main"
TOKEN = "token"


def arguments(layout: Layout, account: Path, user: Path, *, allow_changes: bool) -> list[str]:
    """Return the arguments of the dashboard's process. It reads with its own account, and makes a user's changes in the user's name."""
    layout.dashboard.mkdir(exist_ok=True, mode=0o700)
    found = ["--kubeconfig", str(account), "--laptop", str(layout.dashboard), "--user-kubeconfig", str(user)]
    found += [f"--command-options=--data-dir {shlex.quote(str(layout.root))}"] if layout.root != default_data_dir().resolve() else []
    found += ["--signals", str(layout.signals)] if layout.signals.exists() else []
    if allow_changes:
        command = [sys.executable, "-m", "elastic.cli", "node", "reclaim", "--data-dir", str(layout.root)]
        found += ["--allow-changes", *(f"--reclaim-command={word}" for word in command)]
    return found


def link(layout: Layout) -> str | None:
    """Return the link for the next browser, or None if no dashboard runs."""
    at = address(layout)
    return None if at is None else f"{at}/login?token={OneTimeToken(layout.dashboard / TOKEN).current()}"


def address(layout: Layout) -> str | None:
    state, port = layout.read_state(), layout.read_ports().get("dashboard")
    if state is None or port is None or "dashboard" not in state.processes:
        return None
    return f"http://127.0.0.1:{port}"


def cookie(layout: Layout, until: int) -> str | None:
    """Return a session cookie for a command of the user, who alone may read the key; None before the dashboard has made the key."""
    try:
        return signed_cookie.made((layout.dashboard / signed_cookie.KEY).read_bytes(), until)
    except FileNotFoundError:
        return None
