"""Check that elastic_worker and the rendezvous engine run under Python 3.9 and import nothing that may be missing.

Both are copied into users' images, which choose their own Python. elastic_worker may import torch; the engine imports the standard library
only, and its own modules by relative imports, because it also runs as `elastic_worker._engine`.
"""

from __future__ import annotations

import ast
import pathlib
import sys
from collections.abc import Iterator

PACKAGES = {"elastic_worker": {"torch", "elastic_worker", "numpy"}, "rendezvous/engine": set()}
"""The folders, and the modules outside the standard library that all of their modules may import."""
ALLOWED_IN = {
    "elastic_worker/horovod/driver.py": {"horovod"},
    "elastic_worker/integrations/huggingface.py": {"transformers"},
    "elastic_worker/integrations/huggingface_arguments.py": {"transformers"},
    "elastic_worker/integrations/huggingface_progress.py": {"transformers"},
    "elastic_worker/integrations/huggingface_trainer.py": {"transformers"},
    "elastic_worker/integrations/lightning.py": {"lightning", "pytorch_lightning"},
}
"""Imports of modules that run only where the framework is installed."""
NEWER = {
    "enum.StrEnum",
    "itertools.pairwise",
    "typing.Concatenate",
    "typing.Never",
    "typing.NotRequired",
    "typing.ParamSpec",
    "typing.Required",
    "typing.Self",
    "typing.TypeAlias",
    "typing.TypeGuard",
    "typing.Unpack",
    "typing.assert_never",
    "typing.dataclass_transform",
    "typing.override",
}
"""Names of the standard library that Python 3.9 lacks."""


def imported(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


def newer(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the reason of each expression that Python 3.9 parses and cannot run."""
    kept = {id(part) for node in ast.walk(tree) for note in _annotations(node) for part in ast.walk(note)}
    is_lazy = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node.lineno, f"has no {name}") for alias in node.names if (name := f"{node.module}.{alias.name}") in NEWER)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and not (is_lazy and id(node) in kept):
            if _is_type(node.left) or _is_type(node.right):
                yield node.lineno, "has no union of types at run time; use typing.Union, or a tuple in isinstance"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            given = {word.arg for word in node.keywords}
            if node.func.id == "zip" and "strict" in given:
                yield node.lineno, "has no strict zip"
            if node.func.id in ("dataclass", "field") and given & {"slots", "kw_only"}:
                yield node.lineno, "has no slots or kw_only in dataclasses"


def _annotations(node: ast.AST) -> list[ast.expr]:
    found = [getattr(node, name, None) for name in ("annotation", "returns")]
    return [one for one in found if isinstance(one, ast.expr)]


def _is_type(node: ast.expr) -> bool:
    """Return whether an operand names a type: None, a built-in type, or a name in capitals and small letters."""
    if isinstance(node, ast.Constant):
        return node.value is None
    if isinstance(node, ast.Subscript):
        return _is_type(node.value)
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name in ("int", "float", "str", "bytes", "bool", "dict", "list", "tuple", "set") or (name[:1].isupper() and not name.isupper())


def problems(path: pathlib.Path, allowed: set[str]) -> Iterator[str]:
    """Yield what keeps this module from running in an image of a user."""
    try:
        tree = ast.parse(path.read_text(), str(path), feature_version=(3, 9))
    except SyntaxError as error:
        yield f"{path}:{error.lineno}: not Python 3.9: {error.msg}"
        return
    yield from (f"{path}:{line}: Python 3.9 {reason}" for line, reason in newer(tree))
    foreign = imported(tree) - set(sys.stdlib_module_names) - allowed - ALLOWED_IN.get(str(path), set())
    if foreign:
        yield f"{path}: imports {', '.join(sorted(foreign))}; allowed: {', '.join(['the standard library', *sorted(allowed)])}"


def main() -> int:
    found = [
        problem
        for package, allowed in PACKAGES.items()
        for path in sorted(pathlib.Path(package).rglob("*.py"))
        for problem in problems(path, allowed)
    ]
    print("\n".join(found) or "worker and engine: run under Python 3.9, and import only what is there")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
