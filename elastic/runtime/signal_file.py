"""Read the rows that an installation adds to the table of signals. A mistake in them takes nothing from the built-in rows."""

from pathlib import Path

from elastic.signals.rows import Table, read_table
from elastic.signals.table import BUILT_IN


def table_of(file: Path | None) -> Table:
    """Return the table with the rows of this file, if it exists."""
    try:
        text = file.read_text(errors="replace") if file is not None else ""
    except FileNotFoundError:
        text = ""
    except OSError as error:
        return Table(BUILT_IN, (f"{file} cannot be read: {error.strerror}; only the built-in rows count",))
    return read_table(text, name=str(file)) if text.strip() else Table(BUILT_IN)
