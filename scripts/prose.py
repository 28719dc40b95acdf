"""Check the English of docstrings, comments and commit subjects.

A new or changed module must have imperative docstrings (ruff's D401) and no banned opening or word (docs/style.md). scripts/prose.toml
lists the older modules by the hash of their content: they are excused until somebody changes them. For each package it holds the number of
findings in these modules, which may only fall.

    python scripts/prose.py             check the tree and the commit subjects
    python scripts/prose.py FILE...     check only these modules, also if they are excused
    python scripts/prose.py --write     remove entries of scripts/prose.toml that are no longer needed; this adds none
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

FOLDERS = ("autoscale", "benchmarks", "controller", "dashboard", "elastic", "elastic_worker", "examples", "rendezvous", "scripts", "tests")
RECORDINGS = ("tests/conformance/", "tests/operator/")
RATCHET = pathlib.Path("scripts/prose.toml")
HEAD = """# Modules that `make check` excuses from the rules of docs/style.md until their content changes, and their numbers of findings.
# Nobody adds a line. `python scripts/prose.py --write` removes the lines that are no longer needed.
"""

BASE = "c7d2c2e89a5f5ee7a3dd34b13bfade38ce44fd46"
"""Last commit whose subject names no area."""
SUBJECT_LENGTH = 72
AREAS = frozenset(
    ["agent", "api", "build", "cli", "client", "controller", "docs", "etcd", "examples", "horovod", "laptop", "tests", "worker"]
)
"""Areas besides the folders of the first and second level."""


@dataclass(frozen=True, slots=True)
class Text:
    """A docstring, an attribute's docstring or a block of comments."""

    line: int
    kind: str
    words: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A place in a module that breaks a rule."""

    line: int
    rule: str
    message: str


OPENINGS = (
    (r"(Who|Whom|Whose|What|Whatever|Which|Whichever)\b", "name the thing instead"),
    (r"(Those|These) (that|who|which|of|with|whose|in|on|by)\b", "name the things instead"),
    (r"Such\b", "name the thing instead"),
    (r"One (that|who|which|of which|whose|with|for)\b", "name the thing instead"),
    (
        r"That (a|an|the|it|they|we|he|no|nobody|nothing|each|every|some|all|its|their|another|one|there|these|both|other)\b",
        "name the fact",
    ),
    (r"Of\b", "begin with the subject"),
    (r"(So|As) (many|much|few|little|long|often)\b", "begin with the subject"),
    (r"As if\b", "say what the code does"),
    (r"Where\b", 'use "if", or name the place'),
)
"""Patterns at the beginning of a sentence, and the remedy."""

FRAGMENTS = (
    "Above After Against Among At Before Behind Below Beside Between Beyond By Despite During For From In Inside Into Like On Out Outside"
    " Over Since Through Till Towards Under Unlike Until Unless Upon When With Within Without"
)
"""Words that begin a fragment or an inversion, unless a comma ends the first clause."""

WORDS = (
    (r"\banew\b", "again"),
    (r"\bbeside\b", "next to"),
    (r"\bbut for\b", "without, except for"),
    (r"\bof no sense\b", "invalid"),
    (r"\b(is|are|was|were) (?-i:none)\b", "does not exist"),
    (r"\b(is|are|was|were) over(?=[.,;:)]|$| and\b| or\b)", "finished, has ended"),
    (r"\b(whoever|whomever|of whom|to whom|whereof|thereof)\b", "name the person or the thing"),
    (r", for (it|they|he|she|we|there|nobody|nothing)\b", "because"),
    (r"\bto be had\b", "available"),
)
"""Words that docs/style.md replaces, and their replacements."""


def texts(source: str) -> Iterator[Text]:
    """Yield the docstrings and blocks of comments of a module."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for before, statement in zip([None, *body], body, strict=False):
            if not (
                isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str)
            ):
                continue
            if isinstance(before, ast.Assign | ast.AnnAssign):
                yield Text(statement.lineno, "attribute", statement.value.value)
            elif before is None and isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield Text(statement.lineno, "docstring", statement.value.value)
    yield from _comments(source)


def _comments(source: str) -> Iterator[Text]:
    """Join the lines of comments that stand alone, and yield each other comment by itself."""
    lines = source.splitlines()
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, column = token.start
        words = token.string.lstrip("#: ")
        is_alone = not lines[line - 1][:column].strip()
        if block and (line != last + 1 or not is_alone):
            yield Text(first, "comment", "\n".join(block))
            block = []
        first, last = first if block else line, line
        block.append(words)
    if block:
        yield Text(first, "comment", "\n".join(block))


def findings(source: str) -> list[Finding]:
    """Return the banned openings and words of a module."""
    return sorted((found for text in texts(source) for found in _of_text(text)), key=lambda found: found.line)


def _of_text(text: Text) -> Iterator[Finding]:
    words = re.sub(r"`[^`]*`|\"[^\"]*\"", "`code`", " ".join(text.words.split()))
    sentences = re.split(r"(?<=[.!?:])\s+(?=[A-Z])", words)
    for sentence in sentences:
        for pattern, remedy in OPENINGS:
            if re.match(pattern, sentence):
                yield Finding(text.line, "opening", f'"{sentence[:40]}": {remedy}')
    if text.kind != "comment" and sentences[0].split(" ")[0] in FRAGMENTS.split() and "," not in sentences[0]:
        yield Finding(text.line, "opening", f'"{sentences[0][:40]}" is a fragment or lacks a comma: begin with the subject')
    for pattern, remedy in WORDS:
        for found in re.finditer(pattern, words, re.IGNORECASE):
            yield Finding(text.line, "word", f'"{found[0]}": {remedy}')


def moods(paths: Iterable[str]) -> dict[str, list[Finding]]:
    """Return the docstrings that are not in the imperative mood, by module."""
    ruff = str(pathlib.Path(sys.executable).parent / "ruff")
    command = [ruff, "check", "--select", "D401", "--output-format", "json", "--exit-zero", "--quiet", *paths]
    found: dict[str, list[Finding]] = {}
    for one in json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout):
        finding = Finding(one["location"]["row"], "D401", one["message"])
        found.setdefault(os.path.relpath(one["filename"]), []).append(finding)
    return found


def look(paths: Iterable[str]) -> dict[str, list[Finding]]:
    """Return all findings by module, for each module that has some."""
    paths = list(paths)
    imperative = moods(paths) if paths else {}
    found = {path: [*imperative.get(path, []), *findings(pathlib.Path(path).read_text())] for path in paths}
    return {path: some for path, some in found.items() if some}


def modules() -> list[str]:
    """Return the paths of all modules that the rules hold for."""
    found = (path.as_posix() for folder in FOLDERS for path in pathlib.Path(folder).rglob("*.py"))
    return sorted(path for path in found if not path.startswith(RECORDINGS) and "/." not in path)


def digest(path: str) -> str:
    """Return the hash by which the ratchet knows the content of a module."""
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Ratchet:
    """Modules that are excused, by the hash of their content, and the findings that they may have per package."""

    counts: Mapping[str, int]
    excused: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> Ratchet:
        """Read the ratchet file."""
        raw = tomllib.loads(text)
        return cls(counts=raw["findings"], excused=raw["excused"])

    def text(self) -> str:
        """Return the ratchet file."""
        counts = "".join(f"{package} = {count}\n" for package, count in sorted(self.counts.items()))
        excused = "".join(f'"{path}" = "{known}"\n' for path, known in sorted(self.excused.items()))
        return f"{HEAD}\n[findings]\n{counts}\n[excused]\n{excused}"


def needed(ratchet: Ratchet, found: Mapping[str, list[Finding]], hashes: Mapping[str, str]) -> Ratchet:
    """Return the ratchet without entries that excuse nothing, and with counts that have fallen accordingly."""
    excused = {path: known for path, known in ratchet.excused.items() if path in found and hashes.get(path) == known}
    counts = count(found, excused)
    return Ratchet(counts={package: min(most, counts[package]) for package, most in ratchet.counts.items()}, excused=excused)


def count(found: Mapping[str, list[Finding]], excused: Iterable[str]) -> Counter[str]:
    """Count the findings in excused modules by package."""
    return Counter(package_of(path) for path in excused for _ in found[path])


def package_of(path: str) -> str:
    """Return the top-level folder of a module."""
    return path.partition("/")[0]


def problems(ratchet: Ratchet, found: Mapping[str, list[Finding]], hashes: Mapping[str, str]) -> list[str]:
    """Return a line for each finding in a module that is not excused, and for each package with more findings than before."""
    excused = {path for path in found if ratchet.excused.get(path) == hashes[path]}
    lines = [f"{path}:{one.line}: {one.rule}: {one.message}" for path, some in found.items() if path not in excused for one in some]
    for package, number in sorted(count(found, excused).items()):
        most = ratchet.counts.get(package, 0)
        if number > most:
            lines.append(
                f"{RATCHET}: {package} has {number} excused findings, the limit is {most}; correct modules instead of excusing them"
            )
    return lines


def wrong_subjects(subjects: Iterable[str], areas: frozenset[str]) -> list[str]:
    """Return a line for each commit subject that is not `area: what changed`."""
    lines = []
    for subject in subjects:
        if subject.startswith(("Revert ", "Merge ", "fixup! ", "squash! ")):
            continue
        area, colon, rest = subject.partition(": ")
        unknown = [one for one in area.split(", ") if one not in areas]
        if not colon or (unknown and not re.fullmatch(r"[a-z][a-z0-9_, -]*", area)):
            lines.append(f'commit "{subject}": begin with an area, such as "controller: "')
        elif unknown:
            lines.append(f'commit "{subject}": "{unknown[0]}" is no area; use a folder or one of {", ".join(sorted(AREAS))}')
        elif not re.match(r"[a-z]", rest):
            lines.append(f'commit "{subject}": continue with a verb in lower case after the area')
        elif len(subject) > SUBJECT_LENGTH:
            lines.append(f'commit "{subject}": has {len(subject)} characters; the limit is {SUBJECT_LENGTH}')
    return lines


def subjects_since(base: str) -> list[str] | None:
    """Return the subjects of the commits after the base, or nothing if this is no clone that holds it."""
    git = ["git", "-C", str(pathlib.Path.cwd())]
    try:
        if subprocess.run([*git, "merge-base", "--is-ancestor", base, "HEAD"], capture_output=True).returncode:
            return None
        told = subprocess.run([*git, "log", "--no-merges", "--format=%s", f"{base}..HEAD"], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        return None
    return told.stdout.splitlines()


def known_areas() -> frozenset[str]:
    """Return the areas that a commit subject may name."""
    folders = {folder for folder in pathlib.Path.cwd().glob("[a-z]*") if folder.is_dir()}
    inside = {room.name for folder in folders for room in folder.glob("[a-z]*") if room.is_dir()}
    return AREAS | {folder.name for folder in folders} | inside


def main(given: list[str]) -> int:
    if given and given != ["--write"]:
        lines = problems(Ratchet({}, {}), look(given), dict.fromkeys(given, ""))
        print("\n".join(lines) or "prose: no finding")
        return 1 if lines else 0
    ratchet, found = Ratchet.parse(RATCHET.read_text()), look(modules())
    hashes = {path: digest(path) for path in found}
    if given:
        RATCHET.write_text(needed(ratchet, found, hashes).text())
        return 0
    lines, subjects = problems(ratchet, found, hashes), subjects_since(BASE)
    if subjects is None:
        print(f"prose: the history does not hold {BASE[:7]}; commit subjects are not checked")
    lines += wrong_subjects(subjects or [], known_areas())
    unused = len(ratchet.excused) - len(needed(ratchet, found, hashes).excused)
    if unused:
        print(f"prose: {unused} lines of {RATCHET} are no longer needed; `python scripts/prose.py --write` removes them")
    print("\n".join(lines) or f"prose: no finding outside the {len(ratchet.excused) - unused} excused modules")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
