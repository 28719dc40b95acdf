"""Check that docs/troubleshooting.md names reasons, fields and messages that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
OTHERS = {
    "ImagePullBackOff": "the kubelet's",
    "Temporary failure in name resolution": "libc's",
    "can't open file": "Python's",
    "No module named": "Python's",
    "connection refused": "kubectl's",
    "unknown field": "the API server's",
    "<unknown>": "kubectl's",
    "0/1 Running": "kubectl's",
}
QUOTED = re.compile(r"`([^`]+)`")


def ours() -> str:
    folders = ("elastic", "controller", "autoscale", "rendezvous", "elastic_worker")
    return "\n".join(file.read_text() for folder in folders for file in (ROOT / folder).rglob("*.py"))


def quoted() -> list[str]:
    """Return the words that symptoms quote. A symptom is the bold beginning of a list's entry."""
    return sorted({word for entry in re.findall(r"^- \*\*(.+?)\*\*", PAGE, re.MULTILINE) for word in QUOTED.findall(entry)})


@pytest.fixture(scope="module")
def source() -> str:
    return ours()


@pytest.mark.parametrize("word", [word for word in quoted() if word not in OTHERS])
def test_our_programs_say_what_a_symptom_quotes(word: str, source: str) -> None:
    plain = word.removeprefix("kubectl ").removeprefix("elastic ").removeprefix("status.elastic.")
    assert plain.rpartition(".")[2] in source or plain.title() in source, word


def test_the_words_of_other_programs_are_still_on_the_page() -> None:
    assert set(OTHERS) <= set(quoted())
