"""docs/examples.md lists every example once, with a test that runs it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
NAME = re.compile(r"\[([a-z-]+)\]\(\.\./examples/")


def rows() -> list[tuple[list[str], str, str]]:
    """Of each row: the examples, the test file, and when CI runs it."""
    found = []
    for line in (ROOT / "docs" / "examples.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if names := NAME.findall(cells[0]):
            found.append((names, cells[2].split(",")[0], cells[3]))
    return found


def test_every_example_is_listed_once() -> None:
    listed = [name for names, _, _ in rows() for name in names]
    there = [folder.name for folder in EXAMPLES.iterdir() if any(folder.glob("job.yaml")) or folder.name == "demo"]
    assert sorted(listed) == sorted(there)


def test_the_test_that_is_named_runs_when_it_says_and_some_test_takes_each_example() -> None:
    tests = "".join(file.read_text() for file in (ROOT / "tests").rglob("*.py") if "unit" not in file.parts)
    typed = "".join((ROOT / "docs" / f"{page}.md").read_text() for page in ("spot", "autoscaling"))
    for names, file, when in rows():
        for name in names:
            assert re.search(rf'examples/{name}[/"]|"{name}"', tests + typed), name
        assert (when in ("full", "heavy")) == bool(re.search(rf"mark\.{when}\b", (ROOT / "tests" / file).read_text())), file
