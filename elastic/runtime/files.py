"""Write files that are whole or absent, and that only their owner can read."""

import os
from pathlib import Path


def write_private(path: Path, data: bytes) -> None:
    """Complete or not at all, and readable by the owner only."""
    temporary = path.with_name(path.name + ".new")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    temporary.rename(path)
