"""Check that `elastic install` applies the same objects as kustomize makes of deploy/."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
from installed_objects import installed_objects

from elastic.api.rights import SYSTEM
from elastic.cli.installing import manifests
from elastic.cli.installing.components import COMPONENTS, OVERLAYS, problems
from elastic.cli.installing.values.places import IMAGE as BUILT_IMAGE
from elastic.kube.resources import Object

ROOT = Path(__file__).resolve().parents[3]
IMAGE = "registry.example.com/elastic-training:1"
ALL = {overlay: tuple(name for name, one in COMPONENTS.items() if overlay in one.overlays) for overlay in OVERLAYS}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """Return the module scripts/manifests.py."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl, which has kustomize in it")
    spec = importlib.util.spec_from_file_location("scripts_manifests", ROOT / "scripts" / "manifests.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scripts_manifests"] = module  # for its dataclass
    spec.loader.exec_module(module)
    return module


def named(objects: list[Object]) -> dict[str, Object]:
    return {manifests.name(item): item for item in objects}


def test_every_component_and_overlay_of_deploy_can_be_chosen() -> None:
    # The component trainjobs needs its definitions first, so it goes into a kustomization of one's own.
    assert {*COMPONENTS, "trainjobs"} == {path.name for path in (ROOT / "deploy" / "components").iterdir()}
    assert OVERLAYS.keys() == {path.name for path in (ROOT / "deploy" / "overlays").iterdir()}


@pytest.mark.parametrize(
    ("overlay", "components"),
    [
        ("standalone", ()),
        ("standalone", ("without-mpi",)),
        ("standalone", ("autoscaler", "dashboard")),
        ("standalone", ALL["standalone"]),
        ("namespaced", ()),
        ("namespaced", ALL["namespaced"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value) or "nothing",
)
def test_the_installed_objects_are_those_that_kustomize_makes_of_deploy(
    script: ModuleType, overlay: str, components: tuple[str, ...]
) -> None:
    made = json.dumps(script.built(overlay, components)).replace(SYSTEM, "here").replace(BUILT_IMAGE, IMAGE)
    found = named(installed_objects(overlay, components, namespace="here", image=IMAGE))
    assert found == named(json.loads(made)), "deploy/ has changed; run: python scripts/manifests.py"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_each_object_has_its_place_in_the_api_and_in_the_order(overlay: str) -> None:
    found = installed_objects(overlay, ALL[overlay], namespace="here", image=IMAGE)
    for item in found:
        assert manifests.resource(item).api_version == item["apiVersion"], manifests.name(item)
        assert manifests.resource(item).namespaced == ("namespace" in item["metadata"]), manifests.name(item)
    kinds = [item["kind"] for item in found]
    first = {kind: kinds.index(kind) for kind in kinds}
    assert first["ServiceAccount"] < first["RoleBinding"] < first["Secret" if overlay == "standalone" else "Service"] < first["Deployment"]
    assert (kinds[0] == "Namespace") == (overlay == "standalone")
    there = {manifests.name(item) for item in manifests.every_object(overlay, namespace="here")}
    assert there >= {manifests.name(item) for item in found} | named(installed_objects(overlay, (), namespace="here", image=IMAGE)).keys()


@pytest.mark.parametrize(
    ("overlay", "components", "words"),
    [
        (
            "standalone",
            ("autoscaler-metrics-api",),
            "component autoscaler-metrics-api needs component autoscaler; add it",
        ),
        ("namespaced", ("dashboard",), "component dashboard needs the overlay standalone; it does not work with namespaced"),
    ],
)
def test_components_that_do_not_go_together_are_named(overlay: str, components: tuple[str, ...], words: str) -> None:
    assert words in list(problems(overlay, components))
    assert list(problems(overlay, ALL[overlay])) == []
