"""The differences from the Training Operator that tests/operator/tolerated.yaml lists are documented, and few."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[4]
SUITE = ROOT / "tests" / "operator"
COMPARED = 598
"""Number of checks that 0.4 compared without a tolerance."""

TOLERATED = yaml.safe_load((SUITE / "tolerated.yaml").read_text())


def checks() -> dict[str, set[str]]:
    """Return the checks as scenario/check, with their aspects."""
    return {
        f"{file.stem}/{step['check']}": set(step["of"])
        for file in (SUITE / "scenarios").glob("*.yaml")
        for step in yaml.safe_load(file.read_text())["steps"]
        if "check" in step
    }


def test_each_tolerance_names_one_line_of_the_page_on_compatibility() -> None:
    lines = (ROOT / "docs" / "compat.md").read_text().splitlines()
    for entry in TOLERATED:
        assert sum(line.startswith(f"- **{entry['line']}**: ") for line in lines) == 1, entry["line"]


def test_each_tolerance_names_checks_that_exist_and_paths_of_aspects_that_they_read() -> None:
    named = [name for entry in TOLERATED for name in entry["checks"]]
    assert Counter(named).most_common(1)[0][1] == 1, "a check stands in one entry"
    aspects = checks()
    assert set(named) <= set(aspects)
    for entry in TOLERATED:
        for name, paths in entry["checks"].items():
            assert paths
            assert {path.split(".")[0] for path in paths} <= aspects[name]


def test_no_fewer_checks_are_compared_without_a_tolerance_than_by_0_4() -> None:
    tolerated = {(name, path.split(".")[0]) for entry in TOLERATED for name, paths in entry["checks"].items() for path in paths}
    assert sum(map(len, checks().values())) - len(tolerated) >= COMPARED
