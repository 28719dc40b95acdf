"""Tells two releases' copies of elastic_worker apart. For tests and, in pods, for the torchrun of `release_before.training_image`."""

import hashlib
from pathlib import Path


def library_digest(package: Path) -> str:
    """The same for two folders with the same Python modules, wherever they lie."""
    found = hashlib.sha256()
    for module in sorted(package.rglob("*.py")):
        found.update(f"{module.relative_to(package)}\0{module.read_text()}\0".encode())
    return found.hexdigest()[:12]
