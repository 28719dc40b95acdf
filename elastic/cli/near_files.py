"""Guess which file the user meant if there is no file of the given name."""

from __future__ import annotations

import itertools
from pathlib import Path

from elastic.api.reader import nearest
from elastic.cli.printing import plain

MOST_FILES = 10_000


def hint(missing: Path) -> str:
    """Return `; did you mean train.py?`, or an empty text if no existing path is similar."""
    found = Path(missing.anchor)
    for part in missing.relative_to(missing.anchor).parts:
        near = part if (found / part).exists() else _near(found, part)
        if near is None:
            return ""
        found /= near
    return plain(f"; did you mean {found}?") if found != missing else ""


def _near(folder: Path, name: str) -> str | None:
    try:
        there = sorted(file.name for file in itertools.islice(folder.iterdir(), MOST_FILES) if not file.name.startswith("."))
    except OSError:
        return None
    if (near := nearest(name, there)) is not None:
        return near
    same = [other for other in there if Path(other).stem == Path(name).stem]
    return same[0] if len(same) == 1 else None
