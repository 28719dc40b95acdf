"""The laptop cluster's etcd: Debian's program, started when the first connection comes."""

import shutil
from pathlib import Path

ETCD_PACKAGE = "sudo apt-get install etcd-server"
"""Command that installs etcd on Debian and Ubuntu."""
NAMES = ("/usr/bin/etcd", "/usr/local/bin/etcd")


def program() -> Path | None:
    """Return the installed etcd, or None."""
    found = shutil.which("etcd") or next((name for name in NAMES if Path(name).is_file()), None)
    return Path(found) if found is not None else None
