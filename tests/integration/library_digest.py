"""Tell two releases' copies of elastic_worker apart, in tests and, in pods, in the torchrun of `release_before.training_image`."""

import hashlib
import os
from pathlib import Path


def library_digest(package: Path) -> str:
    """Return the same text for two folders with the same Python modules, wherever they lie.

    The engine is a link in the checkout and a copy in pods.
    """
    found = hashlib.sha256()
    modules = (Path(folder, name) for folder, _, names in os.walk(package, followlinks=True) for name in names if name.endswith(".py"))
    for module in sorted(modules):
        found.update(f"{module.relative_to(package)}\0{module.read_text()}\0".encode())
    return found.hexdigest()[:12]
