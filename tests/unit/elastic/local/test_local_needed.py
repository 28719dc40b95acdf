"""The laptop cluster says which packages are missing, before it starts anything."""

import re
import tomllib
from pathlib import Path

import pytest

from elastic.local import LocalCluster, cluster, etcd

EXTRAS = tomllib.loads(Path(cluster.__file__).parents[2].joinpath("pyproject.toml").read_text())["project"]["optional-dependencies"]
MODULES = {"cel-python": "celpy"}
BROUGHT = {"orjson"}
"""Packages that another package brings."""


def modules(extra: str) -> set[str]:
    found = set[str]()
    for line in EXTRAS[extra]:
        name, _, more = re.split(r"[>=<]", line)[0].partition("[")
        found |= set[str]().union(*map(modules, more.rstrip("]").split(","))) if more else {MODULES.get(name, name.replace("-", "_"))}
    return found


def test_a_missing_package_is_named_with_the_extra_that_brings_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`elastic up` in an environment with the extra `client` alone ended in a traceback in a file."""
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda name: None if name == "uvloop" else object())  # type: ignore[attr-defined]
    with pytest.raises(
        cluster.ClusterError, match=r"lacks uvloop, which the laptop cluster needs: pip install 'elastic-training\[local\]'"
    ):
        LocalCluster(data_dir=tmp_path).start()


def test_without_the_packages_for_an_etcd_the_cluster_offers_none_and_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd.shutil, "which", lambda name: "/usr/bin/etcd")  # type: ignore[attr-defined]
    monkeypatch.setattr(etcd.importlib.util, "find_spec", lambda name: None if name == "grpc" else object())  # type: ignore[attr-defined]
    assert etcd.program() is None
    assert etcd.remedy().endswith("and the Python packages for it (pip install 'elastic-training[local,etcd]')")


def test_all_that_the_extra_brings_is_looked_for() -> None:
    assert set(cluster.NEEDED) == modules("local") - BROUGHT
