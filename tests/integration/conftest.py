"""Give the tests of this folder their clusters, and choose the order and lanes of their modules.

A module whose fixture `cluster` takes `ground` runs on the laptop's own cluster, in each sandbox that its marker `sandboxes` names. If
KUBEBUILDER_ASSETS names the folder of kube-apiserver and its like, it also runs on a real control plane, under the marker `cluster`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from grounds import Ground, grounds

from elastic.kube import connect
from elastic.kube.client import Kube
from elastic.local import LocalCluster

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sandboxes: those in which the cluster of a module is started, one after the other")


FOLDER = Path(__file__).parent
WAITING = """
gloo_standstill faults_leaders rendezvous_server etcd_members conformance etcd_membership metrics_api_lost silent_connections
"""
"""Modules that take long and use little of a core, because their tests wait for acts of the product after some seconds."""
ON_SHARED_CLUSTER = """
faults_workers controller_c10d faults_ends official_client
"""
"""Modules that take the fixture `shared`: one cluster is started for all of them."""
LONGEST = f"""
{WAITING} {ON_SHARED_CLUSTER}
rendezvous_torchrun etcd_torchrun operator_suite warm_start rolling_update rendezvous_completion laptop_resume faults_control_plane
laptop_losses autoscale_through_hpa cli_run laptop_up laptop_autoscaling laptop_streams webhook_flood demo examples_mpi metrics_api sdk
gloo_endings drain_keeps_state discover_hosts rendezvous_hostile examples_light laptop_docs kopf_watch rendezvous_credentials
autoscale_reads_page laptop_holder laptop_pod_lives laptop_pods controller_rights laptop_usage faults_api
"""
"""Modules that take long, the longest first. They begin in this order, so that no lane ends long after the others."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    """Return the scheduler of `--dist loadfile`, but make one unit of the modules on the shared cluster, and one of the waiting modules."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    together = {f"test_{name}.py": names for names in (WAITING, ON_SHARED_CLUSTER) for name in names.split()}

    class Lanes(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return together.get(Path(file).name, file)

    return Lanes(config, log)


@pytest.hookimpl(tryfirst=True)  # before -m selects
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
    """Return a function that gives each ground's cluster to all modules that kill none of its processes and leave no jobs behind."""
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
