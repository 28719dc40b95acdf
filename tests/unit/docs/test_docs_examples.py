"""docs/examples.md lists every example once, with a test that runs it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from elastic_worker.report import Answer, report

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
NAME = re.compile(r"\[([a-z-]+)\]\(\.\./examples/")


def rows() -> list[tuple[list[str], str, str]]:
    """Return the examples of each row, the cell that names the test file first, and when CI runs it."""
    found = []
    for line in (ROOT / "docs" / "examples.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if names := NAME.findall(cells[0]):
            found.append((names, cells[2], cells[3]))
    return found


def test_every_example_is_listed_once() -> None:
    listed = [name for names, _, _ in rows() for name in names]
    there = [folder.name for folder in EXAMPLES.iterdir() if any(folder.glob("job.yaml")) or folder.name in ("demo", "notebook")]
    assert sorted(listed) == sorted(there)


def test_the_page_names_the_environments_that_have_to_be_made_first() -> None:
    pinned = {file.stem for file in (EXAMPLES / "requirements").glob("*.txt")}
    images = {name for file in EXAMPLES.glob("*/job.yaml") for name in re.findall(r"image: example\.com/([a-z0-9-]+)", file.read_text())}
    named = re.search(r"NAME one of ([a-z, ]+),", (ROOT / "docs" / "examples.md").read_text())
    assert named is not None
    assert named[1].split(", ") == sorted(images & pinned)


def test_the_test_that_is_named_runs_when_it_says_and_some_test_takes_each_example() -> None:
    tests = "".join(file.read_text() for file in (ROOT / "tests").rglob("*.py") if "unit" not in file.parts)
    typed = "".join((ROOT / "docs" / f"{page}.md").read_text() for page in ("spot", "autoscaling"))
    for names, said, when in rows():
        file = said.split(",")[0]
        is_run = "not run here" not in said
        assert is_run != file.startswith("unit/"), "a unit test runs no example"
        for name in names:
            text = tests + typed if is_run else (ROOT / "tests" / file).read_text()
            assert re.search(rf'examples/{name}[/"]|"{name}"', text), name
        assert (when in ("full", "heavy")) == bool(re.search(rf"mark\.{when}\b", (ROOT / "tests" / file).read_text())), file


def test_the_notebook_has_the_cells_of_its_page() -> None:
    cells = json.loads((EXAMPLES / "notebook" / "train.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    page = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "notebook.md").read_text(), re.S)
    assert code == [cell.rstrip("\n") for cell in page]
    assert not any(cell.get("outputs") for cell in cells)


class Handle:
    """A job as the notebook's last cell sees it."""

    def __init__(self, name: str) -> None:
        self.name, self.is_deleted = name, False
        self.status = SimpleNamespace(state="Succeeded")

    def delete(self) -> None:
        self.is_deleted = True


def test_the_last_cell_of_the_notebook_deletes_its_own_jobs_only() -> None:
    """It deleted every job of the namespace: to run all cells in a shared cluster deleted colleagues' jobs."""
    cells = json.loads((EXAMPLES / "notebook" / "train.ipynb").read_text())["cells"]
    own, failing, colleagues = Handle("train"), Handle("broken"), Handle("theirs")
    client = SimpleNamespace(jobs=lambda: [own, failing, colleagues])
    exec("".join(cells[-1]["source"]), {"client": client, "job": own, "failing": failing})
    assert (own.is_deleted, failing.is_deleted, colleagues.is_deleted) == (True, True, False)


@pytest.mark.parametrize("has_library", [True, False])
def test_the_script_of_the_page_reports_by_one_call_if_it_can(monkeypatch: pytest.MonkeyPatch, has_library: bool) -> None:
    """It looked into the environment itself. With rdzvBackend etcd it sent nothing, so hangTimeoutSeconds did nothing."""
    if not has_library:
        monkeypatch.setitem(sys.modules, "elastic_worker.report", None)
    page = (ROOT / "docs" / "own-script.md").read_text()
    imported = re.findall(r"^try:\n(?:(?:    |except ).*\n|\n(?= ))+", page, re.MULTILINE)[0]
    names: dict[str, object] = {}
    exec(imported, names)
    assert (names["report"] is report) == has_library
    assert names["report"](1, loss=0.5) in (None, Answer())  # type: ignore[operator]


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*/train.py")), ids=lambda file: str(file.parent.name))
def test_no_example_looks_for_the_place_of_reports_itself(file: Path) -> None:
    assert not re.search(r"Reporter|PET_RDZV_BACKEND|ELASTIC_REPORTS", file.read_text())
