"""Build the overlays of deploy/ from a user's kustomization, and find the objects that tests look at."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
OVERLAYS = ("standalone", "namespaced")
Object = dict[str, Any]
Build = Callable[..., list[Object]]


def builds(root: Path) -> Build:
    """Return a function that builds overlays with a user's additions. Each is built once, and without the CRDs, which take long."""
    made: dict[str, list[Object]] = {}
    shutil.copytree(DEPLOY, root / "deploy", ignore=shutil.ignore_patterns("crds"))
    standalone = root / "deploy" / "overlays" / "standalone" / "kustomization.yaml"
    standalone.write_text(standalone.read_text().replace("- ../../crds\n", ""))

    def here(folder: str, *names: str) -> str:
        return ", ".join(f"../deploy/{folder}/{name}" for name in names)

    def built(overlay: str, *, components: tuple[str, ...] = (), namespace: str = "", image: str = "") -> list[Object]:
        text = f"resources: [{here('overlays', overlay)}]\n"
        text += f"components: [{here('components', *components)}]\n" if components else ""
        text += f"namespace: {namespace}\n" if namespace else ""
        text += f"images: [{{name: elastic-training, newName: {image}}}]\n" if image else ""
        if text not in made:
            folder = root / f"user{len(made)}"
            folder.mkdir()
            (folder / "kustomization.yaml").write_text(text)
            ended = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=100)
            assert ended.returncode == 0, ended.stderr
            made[text] = list(yaml.load_all(ended.stdout, Loader=yaml.CSafeLoader))
        return made[text]

    return built


def only(found: list[Object], kind: str, name: str) -> Object:
    (item,) = [item for item in found if item["kind"] == kind and item["metadata"]["name"] == name]
    return item


def containers(found: list[Object]) -> Iterator[tuple[Object, Object]]:
    """Yield the pod spec and the container of each Deployment."""
    for item in found:
        if item["kind"] == "Deployment":
            yield item["spec"]["template"]["spec"], item["spec"]["template"]["spec"]["containers"][0]


def pods(found: list[Object]) -> list[Object]:
    """Return the pod template of each Deployment."""
    return [item["spec"]["template"] for item in found if item["kind"] == "Deployment"]
