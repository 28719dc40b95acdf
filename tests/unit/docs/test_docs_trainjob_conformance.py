"""The page about conformance counts the recorded cases, and names tests that exist."""

import json
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "trainjob-conformance.md").read_text()
RECORDINGS = ROOT / "tests" / "trainer" / "recordings"


def test_the_page_counts_the_recorded_cases_and_their_differences() -> None:
    cases = json.loads((RECORDINGS / "admission.json").read_text()) + json.loads((RECORDINGS / "lowering.json").read_text())["cases"]
    there = Counter(case["source"].rpartition("/")[0] for case in cases)
    agree = Counter(case["source"].rpartition("/")[0] for case in cases if not case.get("differs"))
    told = {
        name: (int(number), int(same)) for name, number, same in re.findall(r"^\| `([a-z/]+)` \| (\d+) \| (\d+) \|", PAGE, re.MULTILINE)
    }
    assert told == {name: (number, agree[name]) for name, number in there.items()}


def test_each_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)", PAGE))
    text = "".join(path.read_text() for path in (ROOT / "tests" / "integration").glob("test_train*.py"))
    assert named
    assert [name for name in named if f"def {name}(" not in text] == []
    files = set(re.findall(r"tests/\w+/\w+\.py", PAGE))
    assert [name for name in files if not (ROOT / name).exists()] == []
