"""Check the English of docstrings, comments, messages, pages and commit subjects.

A new or changed module must have imperative docstrings (ruff's D401) and no banned opening or word (docs/style.md). Its messages, such as
help texts and errors, and the pages must have no banned word. scripts/prose.toml lists the older modules by the hash of their content: they
are excused until somebody changes them. For each package it holds the number of findings in these modules, which may only fall.

    python scripts/prose.py             check the tree and the commit subjects
    python scripts/prose.py FILE...     check only these modules and pages, also if they are excused
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
PAGES = ("README.md", "CONTRIBUTING.md", "docs/*.md", "docs/jobs/*.md")
LATER = ("tests/", "docs/deploy.md", "controller/deciding/", "elastic/cli/installing/", "rendezvous/engine/")
LATER += ("elastic_worker/agent/", "elastic_worker/etcd/")
"""Folders and pages whose messages, lists of fields and words are not checked yet. Remove each but the tests when it is corrected."""
RATCHET = pathlib.Path("scripts/prose.toml")
HEAD = """# Modules that `make check` excuses from the rules of docs/style.md until their content changes, and their numbers of findings.
# Nobody adds a line. `python scripts/prose.py --write` removes the lines that are no longer needed.
"""

BASE = "a66727f7af0291a0ca82809f322f0f22017b4d1b"
"""Newest commit with a subject that breaks the rules. Only later commits are checked."""
SUBJECT_LENGTH = 72
AREAS = frozenset(
    ["agent", "api", "build", "cli", "client", "controller", "docs", "etcd", "examples", "horovod", "laptop", "tests", "worker"]
)
"""Areas besides the folders of the first and second level."""


@dataclass(frozen=True, slots=True)
class Text:
    """A docstring, an attribute's docstring, a block of comments or a message."""

    line: int
    kind: str
    words: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A place in a module or page that breaks a rule."""

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
    "Above After Against Among At Before Behind Below Between Beyond By Despite During For From In Inside Into Like On Out Outside"
    " Over Since Through Till Towards Under Unlike Until Unless Upon When With Within Without"
)
"""Words that begin a fragment or an inversion, unless a comma ends the first clause."""

WORDS = (
    (r"\banew\b", "again"),
    (r"(?<!trainjobs )\bbeside\b", "next to"),
    (r"\bbut for\b", "without, except for"),
    (r"\bof no sense\b", "invalid"),
    (r"\b(is|are|was|were) (?-i:none)\b", "does not exist"),
    (r"\b(is|are|was|were) over(?=[.,;:)]| \(|$| and\b| or\b)", "finished, has ended"),
    (r"\b(whoever|whomever|(of|to) whom|whereof|thereof)\b", "name the person or the thing"),
    (r", for (it|they|he|she|we|there|nobody|nothing)\b", "because"),
    (r"\bto be had\b", "available"),
)
"""Words that docs/style.md replaces, and their replacements. `--trainjobs beside` is a value of the API."""
_ANY_WORD = re.compile("|".join(pattern for pattern, _ in WORDS), re.IGNORECASE)

CUT_LIST = re.compile(r"[A-Z].*[.] [a-z_]+[.]$")
"""First line of a docstring that ends with the name of a field, whose explanation follows elsewhere."""
LISTED = re.compile(r"(?:^|[.;,] (?:and )?)([a-z_]+)(?:(?: and|,) [a-z_]+)*: ")
"""Name of a field with its explanation, in a docstring of a class."""

_CODE = re.compile(
    r"^( *)(```+|~~~+).*?(?:^ *\2 *$|\Z)|<!--.*?-->|`[^`]*`|\]\([^)\s]*\)|https?://\S+|\"[^\"\n]*\"", re.MULTILINE | re.DOTALL
)
"""Parts of a page that are no prose: code, comments, addresses and quotes."""
FEWEST_WORDS = 3
"""Minimum number of words in a message. Shorter strings are keys and values."""


BLOCKS = ("body", "orelse", "handlers", "cases", "finalbody")
"""Fields of statements that hold statements."""


def texts(source: str) -> Iterator[Text]:
    """Yield the docstrings and blocks of comments of a module."""
    yield from _docstrings(ast.parse(source))
    yield from _comments(source)


def messages(source: str) -> Iterator[Text]:
    """Yield the strings of a module that are messages, if a banned word is anywhere in it: a walk through all expressions is slow."""
    if _ANY_WORD.search(source):
        yield from _messages(ast.parse(source))


def _docstrings(node: ast.AST) -> Iterator[Text]:
    """Walk the statements only, because expressions hold no docstrings."""
    before: ast.AST | None = None
    for part in (part for block in BLOCKS for part in getattr(node, block, ())):
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) and isinstance(part.value.value, str):
            if isinstance(before, ast.Assign | ast.AnnAssign):
                yield Text(part.lineno, "attribute", part.value.value)
            elif before is None and isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield Text(part.lineno, "docstring", part.value.value)
        elif not isinstance(part, ast.expr):
            yield from _docstrings(part)
        before = part


def _messages(node: ast.AST) -> Iterator[Text]:
    """Yield the strings of at least three words that are no docstrings: help texts, errors, log lines and output."""
    if isinstance(node, ast.Constant | ast.JoinedStr):
        words = _string(node)
        if len(words.split()) >= FEWEST_WORDS:
            yield Text(node.lineno, "message", words)
        return
    for part in ast.iter_child_nodes(node):
        if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)):
            yield from _messages(part)


def _string(node: ast.Constant | ast.JoinedStr) -> str:
    """Return a string with a mark for each value in it."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "`code`" for part in node.values)
    return node.value if isinstance(node.value, str) else ""


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
    """Return the banned openings and words in the docstrings and comments of a module."""
    return sorted((found for text in texts(source) for found in _of_text(text)), key=lambda found: found.line)


def new_findings(source: str) -> list[Finding]:
    """Return the banned words in the messages of a module, and the classes whose docstring lists their fields."""
    found = [found for text in messages(source) for found in _of_text(text)]
    return sorted([*found, *_field_lists(ast.parse(source))], key=lambda found: found.line)


def page_findings(page: str) -> list[Finding]:
    """Return the banned words in the prose of a page."""
    words = re.sub(r"^ +", "", _CODE.sub(lambda found: re.sub(r"[^\n]", "`", found[0]), page), flags=re.MULTILINE)
    found = [
        Finding(page.count("\n", 0, one.start()) + 1, "word", f'"{" ".join(one[0].split())}": {remedy}')
        for pattern, remedy in WORDS
        for one in re.finditer(pattern.replace(" ", r"\s"), words, re.IGNORECASE)
    ]
    return sorted(found, key=lambda one: one.line)


def _field_lists(node: ast.AST) -> Iterator[Finding]:
    """Yield the classes whose docstring explains fields, because each field has a docstring of its own."""
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.ClassDef) and (docstring := ast.get_docstring(part)):
            names = {one.target.id for one in part.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}
            listed = [one[1] for one in LISTED.finditer(" ".join(docstring.split())) if one[1] in names]
            if listed:
                yield Finding(part.body[0].lineno, "fields", f"give each field its own docstring: {', '.join(listed)}")
        if isinstance(part, ast.stmt):
            yield from _field_lists(part)


def _of_text(text: Text) -> Iterator[Finding]:
    words = re.sub(r"`[^`]*`|\"[^\"]*\"", "`code`", " ".join(text.words.split()))
    sentences = re.split(r"(?<=[.!?:])\s+(?=[A-Z])", words)
    for sentence in sentences if text.kind != "message" else ():
        for pattern, remedy in OPENINGS:
            if re.match(pattern, sentence):
                yield Finding(text.line, "opening", f'"{sentence[:40]}": {remedy}')
    if text.kind == "docstring" and CUT_LIST.match(text.words.partition("\n")[0]):
        yield Finding(text.line, "fields", f'"{text.words.partition(" ")[0]} ..." ends with the name of a field: give it its own docstring')
    if text.kind in ("docstring", "attribute") and sentences[0].split(" ")[0] in FRAGMENTS.split() and "," not in sentences[0]:
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
    """Return all findings by file, for each module and page that has some."""
    paths = list(paths)
    code = [path for path in paths if path.endswith(".py")]
    imperative = moods(code) if code else {}
    found = {path: [*imperative.get(path, []), *_in_file(path)] for path in paths}
    return {path: some for path, some in found.items() if some}


def _in_file(path: str) -> list[Finding]:
    text = pathlib.Path(path).read_text()
    if not path.endswith(".py"):
        return page_findings(text)
    return findings(text) if path.startswith(LATER) else [*findings(text), *new_findings(text)]


def pages() -> list[str]:
    """Return the paths of all pages that the rules hold for."""
    found = (path.as_posix() for pattern in PAGES for path in pathlib.Path().glob(pattern))
    return sorted(path for path in found if not path.startswith(LATER))


def modules() -> list[str]:
    """Return the paths of all modules that the rules hold for."""
    found = (path.as_posix() for folder in FOLDERS for path in pathlib.Path(folder).rglob("*.py"))
    return sorted(path for path in found if not path.startswith(RECORDINGS) and "/." not in path)


def digest(path: str) -> str:
    """Return the hash by which the ratchet knows the content of a module."""
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()[:12]


Entry = tuple[str, int]
"""Hash of an excused module's content, and the number of findings in it."""


@dataclass(frozen=True, slots=True)
class Ratchet:
    """Modules that are excused, and the number of findings that all of a package may have."""

    limits: Mapping[str, int]
    excused: Mapping[str, Entry]

    @classmethod
    def parse(cls, text: str) -> Ratchet:
        """Read the ratchet file."""
        raw = tomllib.loads(text)
        return cls(limits=raw["findings"], excused={path: (known, count) for path, (known, count) in raw["excused"].items()})

    def text(self) -> str:
        """Return the ratchet file."""
        limits = "".join(f"{package} = {limit}\n" for package, limit in sorted(self.limits.items()))
        excused = "".join(f'"{path}" = ["{known}", {count}]\n' for path, (known, count) in sorted(self.excused.items()))
        return f"{HEAD}\n[findings]\n{limits}\n[excused]\n{excused}"

    def excuses(self, path: str, known: str) -> bool:
        """Return whether the ratchet excuses this content of a module."""
        entry = self.excused.get(path)
        return entry is not None and entry[0] == known and entry[1] > 0

    def counts(self) -> Counter[str]:
        """Count the findings in excused modules by package."""
        counts: Counter[str] = Counter()
        for path, (_, count) in self.excused.items():
            counts[path.partition("/")[0]] += count
        return counts

    def needed(self, hashes: Mapping[str, str]) -> Ratchet:
        """Drop the entries of modules that changed or are gone, and lower the limits accordingly."""
        kept = {path: entry for path, entry in self.excused.items() if path in hashes and self.excuses(path, hashes[path])}
        counts = Ratchet({}, kept).counts()
        return Ratchet({package: min(limit, counts[package]) for package, limit in self.limits.items()}, kept)

    def problems(self) -> list[str]:
        """Return a line for each package with more findings than its limit."""
        return [
            f"{RATCHET}: {package} has {count} excused findings, but its limit is {self.limits.get(package, 0)}; correct the added modules"
            for package, count in sorted(self.counts().items())
            if count > self.limits.get(package, 0)
        ]


def report(paths: Iterable[str]) -> list[str]:
    """Return a line for each finding in these modules."""
    return [f"{path}:{one.line}: {one.rule}: {one.message}" for path, some in look(paths).items() for one in some]


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
        lines = report(given)
        print("\n".join(lines) or "prose: no finding")
        return 1 if lines else 0
    ratchet, hashes = Ratchet.parse(RATCHET.read_text()), {path: digest(path) for path in modules()}
    if given:
        RATCHET.write_text(ratchet.needed(hashes).text())
        return 0
    subjects = subjects_since(BASE)
    if subjects is None:
        print(f"prose: the history does not hold {BASE[:7]}; commit subjects are not checked")
    unused = len(ratchet.excused) - len(ratchet.needed(hashes).excused)
    if unused:
        print(f"prose: {unused} lines of {RATCHET} are no longer needed; `python scripts/prose.py --write` removes them")
    strict = [path for path, known in hashes.items() if not ratchet.excuses(path, known)]
    lines = [*report([*strict, *pages()]), *ratchet.problems(), *wrong_subjects(subjects or [], known_areas())]
    print("\n".join(lines) or f"prose: no finding in {len(strict)} modules; {len(hashes) - len(strict)} older ones are excused")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
