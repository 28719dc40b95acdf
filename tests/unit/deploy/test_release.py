"""scripts/release.py makes the files of a release; here its bill of materials, and that it refuses a folder with other files."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from elastic_worker import __version__

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "scripts" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_bill_of_materials_names_each_package_that_an_installation_brings(release: ModuleType) -> None:
    bill = release.bill()
    named = {entry["name"]: entry for entry in bill["components"]}
    assert {"kopf", "kubernetes", "etcd3", "msgspec", "aiohttp", "multidict"} <= named.keys(), "also packages of packages"
    assert not {"torch", "horovod", "pytest", "ruff", "elastic-training"} & named.keys()
    assert named["kopf"]["version"] == metadata.version("kopf")
    assert named["kopf"]["licenses"]
    refs = {entry["bom-ref"] for entry in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    for node in bill["dependencies"]:
        assert {node["ref"], *node["dependsOn"]} <= refs
    reached, waiting = set(), [bill["metadata"]["component"]["bom-ref"]]
    needs = {node["ref"]: node["dependsOn"] for node in bill["dependencies"]}
    while waiting:
        ref = waiting.pop()
        if ref not in reached:
            reached.add(ref)
            waiting += needs[ref]
    assert reached == refs, "each package is there because another one needs it"


def test_the_manifests_have_the_image_of_the_release(release: ModuleType) -> None:
    objects = [one for one in yaml.safe_load_all(release.manifests()) if one]
    objects = objects[0]["items"] if objects[0]["kind"] == "List" else objects
    images = {
        container["image"] for one in objects if one["kind"] == "Deployment" for container in one["spec"]["template"]["spec"]["containers"]
    }
    assert images == {f"elastic-training:{__version__}"}


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "older.whl").touch()
    command = [sys.executable, str(ROOT / "scripts" / "release.py"), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "holds older.whl; name an empty folder" in done.stderr
