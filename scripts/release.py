"""Make everything of one release: `scripts/release.py FOLDER`. The command of the owner of the package names follows from its last line.

FOLDER gets the source distribution, the wheel built from it, the Helm chart, one file of manifests, a bill of materials
(CycloneDX) and the checksums of all of them. If a container engine answers, scripts/image also builds the image.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from elastic_worker import __version__

ROOT = Path(__file__).resolve().parents[1]
NAME = "elastic-training"
EXTRAS = ("local", "etcd", "client")
"""Extras whose packages the bill of materials lists. Torch and Horovod are the user's."""
SUMS = "SHA256SUMS"
LONGEST_LICENSE = 64
"""Older packages put the name of their license into a field that may also hold its whole text."""


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if left := sorted(path.name for path in folder.iterdir()):
        raise SystemExit(f"{folder} holds {left[0]}; name an empty folder, so that the checksums are those of this release only")
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT))
    _run(sys.executable, str(ROOT / "scripts/chart.py"), str(folder))
    (folder / f"{NAME}-{__version__}-standalone.yaml").write_text(manifests())
    (folder / f"{NAME}-{__version__}.cdx.json").write_text(json.dumps(bill(), indent=1) + "\n")
    made = sorted(path for path in folder.iterdir())
    (folder / SUMS).write_text("".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made))
    _run("sh", str(ROOT / "scripts/image"), __version__)
    for path in (*made, folder / SUMS):
        print(f"release: {path}")
    print(f"release: to publish the packages: twine upload {folder}/*.whl {folder}/*.tar.gz")


def _run(*command: str) -> None:
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise SystemExit(f"release: failed: {' '.join(command)}")


def manifests() -> str:
    """Return the objects of a whole cluster with the image of this release, as `elastic install -o yaml` prints them."""
    command = [sys.executable, "-m", "elastic.cli", "install", "--image", f"{NAME}:{__version__}", "-o", "yaml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"release: no manifests: {done.stderr}")
    return done.stdout


def bill() -> dict[str, Any]:
    """Return the bill of materials: this package, and every package that its extras bring, with version and license."""
    found = dict(sorted(_needed()))
    entries = [_entry(name) for name in found]
    own = {
        "type": "application",
        "bom-ref": _link(NAME, __version__),
        "name": NAME,
        "version": __version__,
        "purl": _link(NAME, __version__),
    }
    own["licenses"] = [{"license": {"id": "Apache-2.0"}}]
    graph = [{"ref": own["purl"], "dependsOn": sorted(_ref(name) for name in _names(NAME, EXTRAS))}]
    graph += [
        {"ref": _ref(name), "dependsOn": sorted(_ref(of) for of in _names(name, extras) if of in found)} for name, extras in found.items()
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": entries,
        "dependencies": graph,
    }


def _needed() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each package that an installation with the extras brings, with the extras by which it is required."""
    seen: dict[str, tuple[str, ...]] = {}
    waiting = [(NAME, EXTRAS)]
    while waiting:
        name, extras = waiting.pop()
        if name in seen and set(extras) <= set(seen[name]):
            continue
        seen[name] = tuple(sorted({*seen.get(name, ()), *extras}))
        waiting += _requirements(name, extras)
    del seen[NAME]
    yield from seen.items()


def _requirements(name: str, extras: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for text in metadata.requires(name) or ():
        required = Requirement(text)
        if required.marker is None or any(required.marker.evaluate({"extra": extra}) for extra in extras or ("",)):
            yield _normal(required.name), tuple(sorted(required.extras))


def _names(name: str, extras: tuple[str, ...]) -> set[str]:
    """Return the packages that a package needs directly, where its own extras count as a part of it."""
    found, waiting, seen = set(), [(name, extras)], set()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        for required, more in _requirements(*one):
            if required == name:
                waiting.append((required, more))
            else:
                found.add(required)
    return found


def _entry(name: str) -> dict[str, Any]:
    told = metadata.metadata(name)
    version, text = told["Version"], told["License-Expression"] or ""
    entry: dict[str, Any] = {
        "type": "library",
        "bom-ref": _link(name, version),
        "name": name,
        "version": version,
        "purl": _link(name, version),
    }
    classified = [line.rpartition(" :: ")[2] for line in told.get_all("Classifier") or () if line.startswith("License ::")]
    older = told["License"] or ""
    if text:
        entry["licenses"] = [{"expression": text}]
    elif classified or (older and len(older) <= LONGEST_LICENSE):
        entry["licenses"] = [{"license": {"name": words}} for words in classified or [older]]
    return entry


def _ref(name: str) -> str:
    return _link(name, metadata.version(name))


def _link(name: str, version: str) -> str:
    return f"pkg:pypi/{_normal(name)}@{version}"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist"))
