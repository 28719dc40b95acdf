"""Build deploy/ with kustomize, for users without it: each overlay, and the changes that each component makes.

It writes the result into the package `elastic.cli.installing`, where `elastic install` and scripts/chart.py read it. It needs kubectl. A
test says whether the written file is current.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from elastic.api.rights import SYSTEM
from elastic.cli.installing import trainer
from elastic.cli.installing.components import COMPONENTS, OVERLAYS
from elastic.cli.installing.manifests import FILE
from elastic.cli.installing.values.places import VALUE, WITH, WITHOUT

ROOT = Path(__file__).resolve().parents[1]
Object = dict[str, Any]
BASE = ""
"""The build without a component."""


def built(overlay: str, components: Sequence[str]) -> list[Object]:
    """Return the objects of an overlay with these components, in the namespace of the control plane.

    Kinds are not among them, and neither is the right to Kubeflow Trainer's Lease, which `elastic install` makes itself.
    """
    (ROOT / ".cache").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / ".cache") as folder:
        copy = Path(folder) / "overlays" / overlay
        shutil.copytree(ROOT / "deploy/overlays" / overlay, copy)
        (Path(folder) / "base").symlink_to(ROOT / "deploy/base")
        shutil.copytree(ROOT / "deploy/components", Path(folder) / "components")
        kustomization = copy / "kustomization.yaml"
        kustomization.write_text(kustomization.read_text().replace("- ../../crds\n", ""))
        users = Path(folder) / "users"
        users.mkdir()
        added = json.dumps([f"../components/{name}" for name in components])
        text = f"namespace: {SYSTEM}\nresources: [../overlays/{overlay}]\ncomponents: {added}\n"
        (users / "kustomization.yaml").write_text(text)
        command = ["kubectl", "kustomize", "--load-restrictor=LoadRestrictionsNone", str(users)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    if done.returncode:
        raise SystemExit(f"manifests: kubectl kustomize failed: {done.stderr.strip()}")
    found = yaml.load_all(done.stdout, Loader=yaml.CSafeLoader)
    outside = {(item["kind"], item["metadata"]["name"]) for item in trainer.lease_objects(SYSTEM)}
    return [item for item in found if (item["kind"], item["metadata"]["name"]) not in outside]


def builds_of(overlay: str) -> dict[str, list[Object]]:
    """Return the builds by component, each with the components that it needs; the first build has none."""
    chosen = {name: (*one.needs, name) for name, one in COMPONENTS.items() if overlay in one.overlays}
    return {BASE: built(overlay, ())} | {name: built(overlay, names) for name, names in chosen.items()}


@dataclass(frozen=True)
class Place:
    """The same place in several builds."""

    values: Mapping[str, Any]

    def conditional(self, builds: Sequence[str]) -> Any:
        """Return the tree at this place, with the component on which it depends."""
        tree = united(self.values)
        missing = [name for name in builds if name not in self.values]
        if not missing:
            return tree
        if BASE not in self.values:
            return {WITH: next(name for name in builds if name in self.values), VALUE: tree}
        (only,) = missing
        return {WITHOUT: only, VALUE: tree}


def united(builds: Mapping[str, Any]) -> Any:
    """Return one tree of all builds. Lists keep the order of the first build, and items that only other builds have come last."""
    first = next(iter(builds.values()))
    if isinstance(first, dict):
        keys = dict.fromkeys(key for value in builds.values() for key in value)
        places = {key: Place({name: value[key] for name, value in builds.items() if key in value}) for key in keys}
        return {key: place.conditional(list(builds)) for key, place in places.items()}
    if isinstance(first, list):
        return [Place(values).conditional(list(builds)) for values in _entries(builds)]
    if any(value != first for value in builds.values()):
        raise SystemExit(f"manifests: a component changes a value; only what it adds or takes away can be followed: {builds}")
    return first


def _entries(builds: Mapping[str, list[Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the places of the same entry in the lists of all builds."""
    named: dict[str, dict[str, Any]] = {}
    are_alike = len({len(value) for value in builds.values()}) == 1
    for name, value in builds.items():
        for place, item in enumerate(value):
            named.setdefault(str(place) if are_alike else identity(item), {})[name] = item
    yield from named.values()


def identity(item: Any) -> str:
    """Return the text that two entries of a list share if they are the same one."""
    if isinstance(item, dict) and {"kind", "metadata"} <= item.keys():
        return f"{item['kind']}/{item['metadata']['name']}"
    if isinstance(item, dict) and "name" in item:
        return str(item["name"])
    return json.dumps(item, sort_keys=True)


def text() -> str:
    """Return the file's text, with one object in each line, so that a diff shows which objects changed."""
    parts = []
    for overlay in OVERLAYS:
        objects = ",\n".join(json.dumps(item, sort_keys=True, ensure_ascii=False) for item in united(builds_of(overlay)))
        parts.append(f"{json.dumps(overlay)}: [\n{objects}\n]")
    return "{" + ",\n".join(parts) + "}\n"


def main() -> None:
    FILE.write_text(text())
    print(FILE.relative_to(ROOT))


if __name__ == "__main__":
    main()
