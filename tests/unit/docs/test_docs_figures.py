"""Compare the README's figures with those of docs/rescale.md, which the benchmark writes."""

from pathlib import Path

from benchmarks.rescaling.report import BEGIN, END, IN_SUMMARY
from benchmarks.rescaling.settings import SETTINGS

ROOT = Path(__file__).parents[3]


def table(page: str) -> list[list[str]]:
    """Return the cells of the first table between the marks."""
    figures = (ROOT / page).read_text().partition(BEGIN)[2].partition(END)[0].strip()
    rows = figures.partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in (rows[0], *rows[2:])]


def test_the_readme_has_the_figures_that_were_measured() -> None:
    heads, *measured = table("docs/rescale.md")
    columns = [heads.index(next(setting.words for setting in SETTINGS if setting.name == name)) for name in IN_SUMMARY]
    expected = [[row[0], *(row[at].partition(" (")[0].partition(",")[0] for at in columns)] for row in measured]
    shown, *rows = table("README.md")
    assert shown[1:] == list(IN_SUMMARY.values())
    assert rows == expected
