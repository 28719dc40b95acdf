"""Warn about a training script that loads no checkpoint anywhere: a change of its workers would start training from the beginning."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

MOST_FILES = 50
LONGEST = 1 << 20
"""Bytes of a file that is read."""
TRAINS = "backward"
LOADS = re.compile(r"load|restore|resume|from_checkpoint|ckpt_path", re.IGNORECASE)
OTHER_LOADS = re.compile(r"data_?load|load_?data|loader|down_?load|up_?load|payload|workload", re.IGNORECASE)
"""Names of other things: data loaders, datasets, transfers."""
OF_LIBRARY = "elastic_worker"
LIBRARY = ("Run", "ElasticTrainer")
"""The training library, which keeps the state of training itself."""
WORDS = (
    "this script trains and loads no checkpoint, so each change of its workers begins training again; "
    "docs/own-script.md says which lines to add, and docs/in-process.md how to do without a checkpoint"
)


def warning(script: Path) -> str:
    """Return the warning about this script; empty if it does not train, may load a checkpoint, or cannot be read."""
    if script.suffix != ".py":
        return ""
    trees = list(_trees(script))
    names = {name for tree in trees for name in _names(tree)}
    if not trees or TRAINS not in names or any(LOADS.search(name) and not OTHER_LOADS.search(name) for name in names):
        return ""
    uses_library = any(name in names for name in LIBRARY) and any(OF_LIBRARY in name for name in names)
    return "" if uses_library else WORDS


def _trees(script: Path) -> Iterator[ast.Module]:
    """Yield the syntax trees of the script and of the modules next to it that it imports; none if one of them cannot be read."""
    waiting, seen = [script], {script}
    found: list[ast.Module] = []
    while waiting and len(found) < MOST_FILES:
        path = waiting.pop()
        try:
            with path.open("rb") as file:
                text = file.read(LONGEST + 1)
            tree = ast.parse(text)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            return
        if len(text) > LONGEST:
            return
        found.append(tree)
        for near in _modules(tree, script.parent):
            if near not in seen:
                seen.add(near)
                waiting.append(near)
    if not waiting:
        yield from found


def _modules(tree: ast.Module, folder: Path) -> Iterator[Path]:
    """Yield the files in this folder that the module imports. A package may be large, so its files count as read in part."""
    for node in ast.walk(tree):
        imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            imported = [node.module or "", *(f"{node.module or ''}.{alias.name}".strip(".") for alias in node.names)]
        for name in imported:
            base = folder / Path(*name.split(".")) if name else folder
            for path in (base.with_suffix(".py"), base / "__init__.py"):
                if path.is_file():
                    yield path


def _names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that the module uses or imports, and the keywords that it passes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.alias):
            yield node.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
