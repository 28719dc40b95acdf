"""Write the manifests with their places for values as templates of Helm: one readable file for each component."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import yaml

from elastic.api.rights import SYSTEM
from elastic.cli.installing import manifests, trainer
from elastic.cli.installing.components import STANDALONE
from elastic.cli.installing.values.given import at, complete
from elastic.cli.installing.values.nodes import (
    ABSENT,
    MORE,
    Both,
    Chosen,
    Condition,
    Equals,
    Is,
    Joined,
    More,
    MoreThan,
    Not,
    Put,
    When,
)
from elastic.cli.installing.values.places import condition_of

DEFAULTS = complete({})
DASHBOARD = "files/dashboard.json"
MISSING_IMAGE = '{{ required "image is missing: set image=REGISTRY/elastic-training:TAG" .Values.image | quote }}'
FIRST = ("apiVersion", "kind", "name", "namespace", "metadata", "command", "image")
"""Keys that people look for first; the others follow in their order."""
LONGEST_LIST = 120
"""Longest list of words that stands in one line."""
NAMESPACE = "{{ .Release.Namespace }}"
HEAD = "{{- /* Generated from deploy/ and elastic/cli/installing/values by scripts/chart.py. */}}\n"
FILES = {
    "elastic-controller-mpi": "mpi",
    "elastic-controller-trainjobs": "trainjobs",
    "elastic-webhook-trainjobs": "trainjobs",
    "elastic-controller-webhook": "webhook",
    "elastic-control-plane": "controller",
    "elastic-training": "monitoring",
    "kubeflow-training": "users",
    "elastic-trainer": "trainjobs",
}
"""Files by the beginning of an object's name, where the name of the component is not the file's name."""


def templates() -> dict[str, str]:
    """Return the files by name."""
    leases = [When(Equals("trainjobs", "instead"), item) for item in trainer.lease_objects(SYSTEM)]
    made: dict[str, list[Any]] = {}
    for node in [*manifests.placed(STANDALONE), *leases]:
        item = condition_of(node)[1]
        if item["kind"] != "Namespace":
            made.setdefault(f"{_file(item)}.yaml", []).append(node)
    return {name: HEAD + "\n".join(_documents(nodes)) + "\n" for name, nodes in made.items()}


def _file(item: dict[str, Any]) -> str:
    name = item["metadata"]["name"]
    if item["apiVersion"].startswith("monitoring."):
        return "monitoring"
    found = next((file for beginning, file in FILES.items() if name.startswith(beginning)), "")
    return found or name.removeprefix("elastic-").partition("-")[0]


def _documents(nodes: Iterable[Any]) -> Iterator[str]:
    """Yield the lines of objects. Neighbours under the same condition share it."""
    for condition, same in groupby(nodes, key=lambda node: node.condition if isinstance(node, When) else None):
        inner = [line for node in same for line in _document(node if condition is None else node.value)]
        yield from inner if condition is None else [f"{{{{- if {_condition(condition)} }}}}", *inner, "{{- end }}"]


def _document(node: Any) -> list[str]:
    if isinstance(node, When):
        return [f"{{{{- if {_condition(node.condition)} }}}}", *_document(node.value), "{{- end }}"]
    return ["---", *_map(node, "")]


def _condition(condition: Condition) -> str:
    match condition:
        case Is(path):
            return _value(path)
        case Equals(path, word):
            return f'eq {_value(path)} "{word}"'
        case MoreThan(path, number):
            return f"gt (int {_value(path)}) {number}"
        case Not(Equals(path, word)):
            return f'ne {_value(path)} "{word}"'
        case Not(of):
            return f"not {_bracketed(of)}"
        case Both(one, other):
            return f"and {_bracketed(one)} {_bracketed(other)}"


def _bracketed(condition: Condition) -> str:
    return _condition(condition) if isinstance(condition, Is) else f"({_condition(condition)})"


def _value(path: str) -> str:
    return f".Values.{path}"


def _map(node: dict[str, Any], pad: str) -> list[str]:
    """Return the lines of a map, without its key."""
    keys = sorted((key for key in node if key != MORE), key=lambda key: FIRST.index(key) if key in FIRST else len(FIRST))
    made = [line for key in keys for line in _entry(key, node[key], pad)]
    return made + (_more(_joined(node[MORE]), pad) if MORE in node else [])


def _entry(key: str, node: Any, pad: str) -> list[str]:
    """Return the lines of a key with its value."""
    match node:
        case When(condition, value, otherwise):
            other = [] if otherwise is ABSENT else [f"{pad}{{{{- else }}}}", *_entry(key, otherwise, pad)]
            return [f"{pad}{{{{- if {_condition(condition)} }}}}", *_entry(key, value, pad), *other, f"{pad}{{{{- end }}}}"]
        case Chosen(paths, otherwise, _):
            chosen = " | default ".join(map(_value, paths))
            other = [] if otherwise is ABSENT else [f"{pad}{{{{- else }}}}", *_entry(key, otherwise, pad)]
            return [f"{pad}{{{{- with {chosen} }}}}", *_dot(key, paths[0], pad), *other, f"{pad}{{{{- end }}}}"]
        case Joined():
            return [f"{pad}{{{{- with {_joined(node)} }}}}", f"{pad}{key}:", _indented(pad + "  "), f"{pad}{{{{- end }}}}"]
        case dict() if node:
            return [f"{pad}{key}:", *_map(node, pad + "  ")]
        case list() if key not in ("args", "command") and all(isinstance(item, str) for item in node) and len(str(node)) < LONGEST_LIST:
            return [f"{pad}{key}: {_scalar(node)}"]
        case list() if node:
            return [f"{pad}{key}:", *(line for item in node for line in _item(item, pad + "  "))]
        case str() if key == "dashboard.json":
            return [f"{pad}{key}: |", f"{pad}  {{{{- .Files.Get {DASHBOARD!r} | nindent {len(pad) + 2} }}}}".replace("'", '"')]
        case _:
            return [f"{pad}{key}: {_scalar(node)}"]


def _dot(key: str, path: str, pad: str) -> list[str]:
    """Return the lines of a key whose value is the dot."""
    if isinstance(at(DEFAULTS, path), dict | list):
        return [f"{pad}{key}:", _indented(pad + "  ")]
    return [f"{pad}{key}: {{{{ . | quote }}}}"]


def _item(node: Any, pad: str) -> list[str]:
    """Return the lines of an entry of a list."""
    match node:
        case When(condition, value, otherwise):
            other = [] if otherwise is ABSENT else [f"{pad}{{{{- else }}}}", *_item(otherwise, pad)]
            return [f"{pad}{{{{- if {_condition(condition)} }}}}", *_item(value, pad), *other, f"{pad}{{{{- end }}}}"]
        case Chosen(paths, _, text):
            chosen = " | default ".join(map(_value, paths))
            return [f"{pad}{{{{- with {chosen} }}}}", f"{pad}- {text.format('{{ . }}')}", f"{pad}{{{{- end }}}}"]
        case More(paths):
            return [line for path in paths for line in _more(_value(path), pad)]
        case dict() if node:
            first, *others = _map(node, pad + "  ")
            return [f"{pad}- {first.removeprefix(pad + '  ')}", *others]
        case list() if node:
            raise TypeError("a list in a list has no template")
        case _:
            return [f"{pad}- {_scalar(node)}"]


def _more(value: str, pad: str) -> list[str]:
    return [f"{pad}{{{{- with {value} }}}}", _indented(pad), f"{pad}{{{{- end }}}}"]


def _joined(node: Joined) -> str:
    return _value(node.paths[0]) if len(node.paths) == 1 else f"merge (dict) {' '.join(map(_value, node.paths))}"


def _indented(pad: str) -> str:
    return f"{pad}{{{{- toYaml . | nindent {len(pad)} }}}}"


def _scalar(node: Any) -> str:
    if isinstance(node, Put):
        if node.path == "image":
            return MISSING_IMAGE
        quoted = " | quote" if node.text == "{}" and isinstance(at(DEFAULTS, node.path), str) else ""
        return node.text.format(f"{{{{ {_value(node.path)}{quoted} }}}}")
    text = yaml.safe_dump(node, default_flow_style=True, width=10**6, allow_unicode=True).removesuffix("\n").removesuffix("\n...")
    return text.replace("{{", '{{ "{{" }}').replace(SYSTEM, NAMESPACE)
