"""Where the tests of this folder get their cluster from.

A module whose fixture `cluster` takes `ground` runs on the laptop's own cluster, in each sandbox that its marker `sandboxes` names, and,
where KUBEBUILDER_ASSETS names the folder of kube-apiserver and its like, once more on a real control plane, under the marker `cluster`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from grounds import Ground, grounds

from elastic.kube import connect
from elastic.kube.client import Kube
from elastic.local import LocalCluster


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sandboxes: those in which the cluster of a module is started, one after the other")


FOLDER = Path(__file__).parent
LONGEST = """
rendezvous_torchrun controller_c10d etcd_torchrun faults_workers gloo_standstill operator_suite rolling_update faults_leaders
laptop_resume demo rendezvous_server warm_start laptop_losses conformance drain_keeps_state rendezvous_completion faults_control_plane
autoscale_through_hpa laptop_autoscaling metrics_api etcd_members sdk examples_light laptop_docs apiserver_durability cli_run laptop_up
gloo_endings silent_connections controller_rights examples_mpi official_client webhook_flood rendezvous_hostile faults_ends
"""
"""The modules that take more than 20 s, the longest first. They begin in this order, so that no lane is left alone with one of them."""


@pytest.hookimpl(tryfirst=True)  # before -m takes its choice
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == FOLDER and item.get_closest_marker("cluster") is None:
            item.add_marker(pytest.mark.integration)
    if strange := [name for name in LONGEST.split() if not (FOLDER / f"test_{name}.py").exists()]:
        raise pytest.UsageError(f"LONGEST names modules that are not there: {', '.join(strange)}")
    places = {f"test_{name}": place for place, name in enumerate(LONGEST.split())}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "ground" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("sandboxes")
    found = grounds(marker.args if marker else ("auto",), os.environ.get("KUBEBUILDER_ASSETS"))
    marked = [pytest.param(ground, id=str(ground), marks=_marks(ground, first=found[0])) for ground in found]
    metafunc.parametrize("ground", marked, scope="module")


def _marks(ground: Ground, *, first: Ground) -> list[pytest.MarkDecorator]:
    if ground.assets:
        return [pytest.mark.cluster]
    return [] if ground == first else [pytest.mark.full]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Ground], LocalCluster]]:
    """A cluster with its control plane for all modules that kill none of its processes and leave no jobs behind; one for each ground."""
    with ExitStack() as open:
        started: dict[Ground, LocalCluster] = {}

        def cluster(ground: Ground) -> LocalCluster:
            if ground not in started:
                started[ground] = open.enter_context(ground.cluster(tmp_path_factory.mktemp("shared")))
            return started[ground]

        yield cluster


@pytest_asyncio.fixture
async def kube(cluster: LocalCluster) -> AsyncIterator[Kube]:
    async with connect(cluster.kubeconfig) as client:
        yield client


@pytest.fixture
def unique() -> str:
    return uuid.uuid4().hex[:8]
