"""Fails when elastic_worker does not parse as Python 3.9, or imports anything but the standard library and torch.

It is copied into users' images, whose Python is not ours to choose.
"""

from __future__ import annotations

import ast
import pathlib
import sys

ALLOWED = {"torch", "elastic_worker", "numpy"}
ALLOWED_IN = {
    "elastic_worker/horovod/driver.py": {"horovod"},
    "elastic_worker/integrations/huggingface.py": {"transformers"},
    "elastic_worker/integrations/huggingface_arguments.py": {"transformers"},
    "elastic_worker/integrations/huggingface_progress.py": {"transformers"},
    "elastic_worker/integrations/huggingface_trainer.py": {"transformers"},
    "elastic_worker/integrations/lightning.py": {"lightning", "pytorch_lightning"},
}
"""Imports of modules that run only where the framework is installed."""


def imported(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


def main() -> int:
    problems = []
    for path in sorted(pathlib.Path("elastic_worker").rglob("*.py")):
        try:
            tree = ast.parse(path.read_text(), str(path), feature_version=(3, 9))
        except SyntaxError as error:
            problems.append(f"{path}:{error.lineno}: not Python 3.9: {error.msg}")
            continue
        foreign = imported(tree) - set(sys.stdlib_module_names) - ALLOWED - ALLOWED_IN.get(str(path), set())
        if foreign:
            problems.append(f"{path}: imports {', '.join(sorted(foreign))}; only the standard library and torch are in users' images")
    print("\n".join(problems) or "worker: parses as Python 3.9, imports only the standard library and torch")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
