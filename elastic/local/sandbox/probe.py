"""Finds out which sandbox this machine can give, by trying: asking for privileges says less than using them."""

import subprocess
import sys
import tempfile
from dataclasses import dataclass

from elastic.local.sandbox import Mode, SandboxError

TRY_S = 20.0


@dataclass(frozen=True, slots=True)
class Choice:
    """A mode, and why it is that one, in words for `elastic status`."""

    mode: Mode
    reason: str


def choose(asked: str) -> Choice:
    """`asked` is "auto", "netns" or "loopback"; a forced mode that this machine cannot give raises SandboxError with the reason."""
    if sys.platform != "linux":
        raise SandboxError("the laptop cluster needs Linux: its pods are Linux processes. On macOS run it inside a Linux virtual machine")
    if asked == Mode.LOOPBACK.value:
        return Choice(Mode.LOOPBACK, "as asked")
    obstacle = _obstacle()
    if asked == Mode.NETNS.value:
        if obstacle:
            raise SandboxError(f"sandbox netns was asked for, and this machine does not allow it: {obstacle}")
        return Choice(Mode.NETNS, "as asked")
    if obstacle:
        return Choice(Mode.LOOPBACK, f"this machine gives no network namespaces ({obstacle})")
    return Choice(Mode.NETNS, "this machine gives network namespaces")


def _obstacle() -> str:
    """Makes a whole sandbox in a process of its own, with a pod and a container in it, and tells what went wrong."""
    with tempfile.TemporaryDirectory(prefix="elastic-probe-") as folder:
        command = [sys.executable, "-m", "elastic.local.sandbox.trial", folder]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TRY_S)
        except subprocess.TimeoutExpired:
            return f"no answer within {TRY_S:.0f} s"
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["unknown reason"])[-1]
