"""Build the documentation site from the pages of the repository: `make docs` writes it into build/site.

The repository's Markdown is staged below build/pages in the same folders, so that its relative links stay as they are. Three things change
on the way. A link to a source file leads to a page that shows the file. A link to a folder leads to a page that shows the folder's files.
Lists and tables get the blank lines and indents that mkdocs wants and GitHub does not need.

    python scripts/docs.py              stage the pages and build the site
    python scripts/docs.py --stage      only stage the pages; needs no mkdocs
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent))
from docs_reference import TROUBLES, generated
from links import ROOT, links, slug

STAGED = ROOT / "build" / "pages"
BOOSTS = {"Overview": 3, "Tutorials": 3, "How-to guides": 2}
"""Weights in the search by parts of the navigation, so that a page that teaches comes before a decision or a measurement."""
AS_THEY_ARE = {".svg", ".png", ".ipynb"}
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".sh": "bash", ".txt": "text", ".json": "json"}


class Block(Enum):
    """The part of a page that a line belongs to."""

    BLANK = auto()
    TEXT = auto()
    ITEM = auto()
    TABLE = auto()
    CODE = auto()


ITEM = re.compile(r"^( *)((?:[-*+]|\d+[.)]) +)")
NUMBER = re.compile(r"^(\d+)([.)] )")
FENCE = re.compile(r"^ *(```+|~~~+)")


def sources() -> list[str]:
    """Return the pages of the repository that the site has."""
    return [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
    ]


def navigation(tree: Iterable[Any]) -> Iterator[str]:
    """Yield the pages in the `nav` of mkdocs.yml."""
    for entry in tree:
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, dict):
            for value in entry.values():
                yield from navigation([value] if isinstance(value, str) else value)


def configured() -> dict[str, Any]:
    """Return mkdocs.yml."""
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    return loaded


def as_mkdocs_wants(text: str) -> str:
    """Return the text with four blanks for each level of a list, and blank lines around lists, tables and blocks of code.

    GitHub lets them follow a paragraph, and nests by the width of the marker. Python-Markdown then shows lists and tables as plain text,
    and text behind a block of code without a paragraph.
    """
    lines: list[str] = []
    columns: list[int] = []
    fence, block, has_paragraphs, is_numbered = "", Block.TEXT, False, False
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        marker, opened = ITEM.match(line), FENCE.match(line)
        if fence:
            kind = Block.CODE
        elif not line.strip():
            kind = Block.BLANK
        elif opened:
            kind = Block.CODE
        elif line.lstrip().startswith("|"):
            kind = Block.TABLE
        elif marker and (block not in (Block.TEXT, Block.ITEM) or is_numbered or marker[2].strip() in ("-", "*", "+", "1.", "1)")):
            kind = Block.ITEM
            is_numbered = marker[2][0].isdigit() or (is_numbered and bool(columns))
        else:
            kind = Block.TEXT
        # An item behind the second paragraph of another one needs a blank line too.
        stands_alone = kind is Block.ITEM and (not columns or has_paragraphs)
        # A line of text that follows text belongs to the same paragraph, however little it is indented.
        if not fence and kind is not Block.BLANK and not (kind is Block.TEXT and block in (Block.TEXT, Block.ITEM)):
            while columns and indent < columns[-1]:
                columns.pop()
        is_apart = block is Block.BLANK or kind is Block.BLANK or kind is block or not lines
        if not fence and not is_apart and (Block.CODE in (kind, block) or kind is Block.TABLE or stands_alone):
            lines.append("")
        level, outer = len(columns), columns[-1] if columns else 0
        if kind is Block.ITEM and marker:
            columns.append(len(marker[1]) + len(marker[2]))
        if opened:
            fence = "" if fence and opened[1].startswith(fence) else fence or opened[1]
        # Without the backslash, a line of text that happens to begin with a number and a period is an item.
        words = NUMBER.sub(r"\1\\\2", line.lstrip()) if kind is Block.TEXT else line.lstrip()
        lines.append(" " * (4 * level + max(indent - outer, 0)) + words if kind is not Block.BLANK else "")
        has_paragraphs = kind is Block.BLANK or (has_paragraphs and kind is not Block.ITEM)
        block = kind
    return "\n".join(lines) + "\n"


class Stage:
    """The pages of the site, by their place below build/pages."""

    def __init__(self) -> None:
        self.pages: dict[str, str] = {}
        self.copies: set[str] = set()
        for page in sources():
            self.pages[page] = self.staged(page)
        self.pages |= generated(self.pages[TROUBLES])

    def staged(self, page: str) -> str:
        """Return the text of a page with the links that the site needs. Add the pages that they lead to."""
        text, parts, at = (ROOT / page).read_text(), [], 0
        for link in links(text):
            parts += [text[at : link.start], self.link(page, link.path, link.anchor)]
            at = link.end
        return as_mkdocs_wants("".join([*parts, text[at:]]))

    def link(self, page: str, path: str, anchor: str) -> str:
        """Return where a link of a page leads on the site."""
        target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        place, anchor = self.place(target, anchor)
        near = os.path.relpath(place, os.path.dirname(page) or ".") if path else ""
        return f"{near}#{anchor}" if anchor else near

    def place(self, target: str, anchor: str) -> tuple[str, str]:
        """Return the page and anchor that show a file or folder of the repository."""
        path = PurePosixPath(target)
        if target in sources():
            return target, anchor
        if path.suffix in AS_THEY_ARE:
            self.copies.add(target)
            return target, ""
        if (ROOT / target).is_dir():
            return self.folder(target), ""
        if path.parts[0] == "examples" and len(path.parts) == 3:
            return self.folder(str(path.parent)), slug(path.name)
        return self.file(target), ""

    def folder(self, target: str) -> str:
        """Return the page that shows the files of a folder, or links to its folders."""
        place = f"{target}/index.md"
        if place not in self.pages:
            self.pages[place] = ""
            parts = [f"# {target}", ""]
            for path in sorted((ROOT / target).iterdir()):
                name = str(path.relative_to(ROOT))
                if path.is_dir() and any(path.glob("*.*")) and path.name != "__pycache__":
                    parts += [f"- [{path.name}]({os.path.relpath(self.folder(name), target)})"]
                elif path.suffix in LANGUAGES:
                    parts += [f"## {path.name}", "", *shown(path), ""]
            self.pages[place] = "\n".join(parts) + "\n"
        return place

    def file(self, target: str) -> str:
        """Return the page that shows a file."""
        # mkdocs leaves out files in hidden folders.
        place = f"sources/{target.lstrip('.')}.md"
        self.pages.setdefault(place, "\n".join([f"# {target}", "", *shown(ROOT / target), ""]))
        return place

    def write(self, folder: Path) -> None:
        """Write the pages and what they show into an empty folder."""
        shutil.rmtree(folder, ignore_errors=True)
        boosts = {page: BOOSTS.get(title, 1) for part in configured()["nav"] for title, tree in part.items() for page in navigation(tree)}
        for page, text in self.pages.items():
            (folder / page).parent.mkdir(parents=True, exist_ok=True)
            (folder / page).write_text(f"---\nsearch: {{boost: {boosts.get(page, 1)}}}\n---\n\n{text}")
        for name in self.copies:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
        shutil.copytree(ROOT / "scripts" / "docs_assets", folder / "assets")


def shown(path: Path) -> list[str]:
    """Return a file as a block of code."""
    text = path.read_text()
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall(r"`+", text) or [""]))
    return [f"{fence}{LANGUAGES.get(path.suffix, 'text')}", text.rstrip("\n"), fence]


def build() -> int:
    """Build the site from the staged pages. Any warning, such as a link to a missing anchor, fails the build."""
    # Without this, the theme prints an advertisement of its authors before each build.
    os.environ.setdefault("NO_MKDOCS_2_WARNING", "true")
    try:
        from mkdocs.commands.build import build as built
        from mkdocs.config import load_config
        from mkdocs.exceptions import Abort
    except ImportError:
        print("docs: mkdocs is not installed; run `make docs`", file=sys.stderr)
        return 1
    logging.basicConfig(format="docs: %(message)s", level=logging.WARNING)
    config = load_config(str(ROOT / "mkdocs.yml"), strict=True)
    config.mdx_configs.setdefault("toc", {})["slugify"] = lambda words, separator: slug(words)
    config.plugins.on_startup(command="build", dirty=False)
    try:
        built(config)
    except Abort as problem:
        print(f"docs: {problem}", file=sys.stderr)
        return 1
    print(f"docs: open {Path(config.site_dir) / 'index.html'}")
    return 0


def main() -> int:
    Stage().write(STAGED)
    return 0 if "--stage" in sys.argv[1:] else build()


if __name__ == "__main__":
    sys.exit(main())
