"""The laptop cluster's etcd: Debian's program, started when the first connection comes."""

import importlib.util
import shutil
from pathlib import Path

from elastic.extras import LOCAL, install

NAMES = ("/usr/bin/etcd", "/usr/local/bin/etcd")
PACKAGES = ("etcd3", "grpc")
"""Python packages with which the controller talks to an etcd. The laptop cluster works without them."""


def program() -> Path | None:
    """Return the installed etcd, or None if the cluster cannot offer one."""
    found = shutil.which("etcd") or next((name for name in NAMES if Path(name).is_file()), None)
    return Path(found) if found is not None and not _missing() else None


def remedy() -> str:
    """Return what to install so that the cluster can offer an etcd."""
    if _missing():
        return f"install etcd 3.4 or newer (sudo apt-get install etcd-server) and the Python packages for it ({install(LOCAL, 'etcd')})"
    return "install etcd 3.4 or newer (sudo apt-get install etcd-server)"


def _missing() -> list[str]:
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]
