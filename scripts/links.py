"""Check that every relative link and anchor in the repository's Markdown files leads somewhere.

    python scripts/links.py             check all files that git knows or would add
    python scripts/links.py FILE...     check only these

Needs only the standard library. scripts/docs.py reads links and anchors with the functions of this module.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^( *)(```+|~~~+)[^\n]*\n.*?^ *\2 *$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(?<!`)(`+)(?!`)[^\n]*?(?<!`)\1(?!`)")
TARGET = re.compile(r"\]\(\s*<?([^()\s<>]*(?:\([^()\s]*\)[^()\s<>]*)*)>?(?:\s+\"[^\"]*\")?\s*\)")
HEADING = re.compile(r"^#{1,6} +(.*?)(?: +#+)? *$", re.MULTILINE)
EXPLICIT = re.compile(r"<a (?:id|name)=\"([^\"]+)\"")
ABSOLUTE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Link:
    """A relative link: its place in the text, the path (empty for the same page) and the anchor."""

    start: int
    end: int
    path: str
    anchor: str


def _blank(match: re.Match[str]) -> str:
    """Return as many blanks as the match has characters, so that places and lines stay."""
    return re.sub(r"[^\n]", " ", match[0])


def links(text: str) -> Iterator[Link]:
    """Yield the relative links of a page, without those in code."""
    for match in TARGET.finditer(CODE.sub(_blank, FENCE.sub(_blank, text))):
        if match[1] and not ABSOLUTE.match(match[1]):
            path, _, anchor = match[1].partition("#")
            yield Link(*match.span(1), path, anchor)


def slug(heading: str) -> str:
    """Return the anchor that GitHub gives to the words of a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")


def anchors(text: str) -> set[str]:
    """Return the anchors of a page: those of its headings, and those that it sets."""
    seen, found = Counter[str](), set(EXPLICIT.findall(text))
    for heading in HEADING.findall(FENCE.sub("", text)):
        name = slug(re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", heading))
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


@cache
def _anchors_of(page: Path) -> set[str]:
    return anchors(page.read_text())


def problems(page: Path) -> Iterator[str]:
    """Yield a line for each link of the page that leads nowhere."""
    text = page.read_text()
    for link in links(text):
        target = page.parent / link.path if link.path else page
        where = f"{page}:{text.count(chr(10), 0, link.start) + 1}: "
        if link.path.startswith("/"):
            yield f"{where}{link.path} is absolute; write it relative to the page"
        elif not target.exists():
            yield f"{where}there is no file {link.path}"
        elif link.anchor and target.suffix == ".md" and link.anchor not in _anchors_of(target.resolve()):
            yield f"{where}{link.path or 'this page'} has no heading with the anchor #{link.anchor}"


def pages() -> list[Path]:
    """Return the Markdown files of the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [path for name in listed if (path := ROOT / name).exists()]


def main() -> int:
    found = [problem for page in [Path(name) for name in sys.argv[1:]] or pages() for problem in problems(page)]
    print("\n".join(found).replace(f"{ROOT}/", "") or "links: every link leads somewhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
