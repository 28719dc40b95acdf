"""Find the cluster that `elastic.Client` talks to, and run the verbs of jobs on it; errors of the server become errors of the client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from kubernetes import client
from kubernetes import config as _config

from elastic.client import errors, live
from elastic.client.official import access_of, authorization
from elastic.client.sample import Sample
from elastic.kube import access
from elastic.kube.background import LOOK_EVERY_S, Background, Closed
from elastic.kube.client import NO_CREDENTIALS, Kube
from elastic.kube.errors import KubeError
from elastic.local.files import Layout, layout_of

config: Any = _config  # its functions have no types
T = TypeVar("T")
WITHIN_S = 35.0
"""Limit for a call: to connect, and to answer."""
LAPTOP = Path(".elastic")
OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass
class Cluster:
    """A cluster and how to reach it. Its client and all handles of jobs share it, and the thread that runs the verbs."""

    api: Any
    """An ApiClient of the official client."""
    namespace: str
    is_laptop: bool
    layout: Layout | None = None
    """Layout of the laptop cluster."""
    dashboard: str | None = None
    """The URL that the user named."""
    _background: Background | None = field(default=None, init=False, repr=False)
    _is_closed: bool = field(default=False, init=False, repr=False)

    def ask(self, doing: str, act: Callable[[Kube], Awaitable[T]], within_s: float | None = WITHIN_S) -> T:
        """Run a function on the cluster's client, and return its result. `within_s` is None if the function has its own limits."""

        async def asked(kube: Kube) -> T:
            async with asyncio.timeout(within_s):
                return await act(kube)

        with speaking(doing):
            background = self._running()
            return background.run(asked(background.kube))

    def each(self, doing: str, act: Callable[[Kube], AsyncGenerator[T, None]], every_s: float = LOOK_EVERY_S) -> Generator[T | None]:
        """Yield the values of a function's generator, and None after each silence of `every_s` seconds."""
        with speaking(doing):
            background = self._running()
            yield from background.each(act(background.kube), every_s)

    def _running(self) -> Background:
        if self._is_closed:
            raise Closed
        if self._background is None or self._background.pid != os.getpid():
            self._background = Background(access_of(self.api))
        return self._background

    def close(self) -> None:
        self._is_closed = True
        if self._background is not None and self._background.pid == os.getpid():
            self._background.close()

    async def sample(self, uid: str) -> Sample | None:
        """Return how far a job's training is right now; None if nobody knows. A dashboard that the user named has to answer."""
        try:
            async with asyncio.timeout(2 * live.WITHIN_S):  # a name server may be silent
                of = live.of_laptop(self.layout) if self.layout is not None else None
                if self.dashboard is not None:
                    token = await asyncio.to_thread(authorization, self.api.configuration)
                    of = live.Dashboard(self.dashboard, {"Authorization": token} if token else {})
                return (await live.ask(of)).get(uid) if of is not None else None
        except (live.NoAnswer, TimeoutError) as error:
            if self.dashboard is None:
                return None
            why = str(error) or "no answer in time"
            raise errors.Unreachable(f"the dashboard at {self.dashboard} does not say how jobs train: {why}") from error


def checked_dashboard(url: str | None) -> str | None:
    found = url or os.environ.get("ELASTIC_DASHBOARD") or None
    if found is not None and not live.is_safe(found):
        raise errors.NoCluster(f"dashboard is {found!r} but {live.SAFE}")
    return found


def connect(
    kubeconfig: str | Path | None = None,
    *,
    api: Any = None,
    context: str | None = None,
    namespace: str | None = None,
    data_dir: str | Path | None = None,
    dashboard: str | None = None,
) -> Cluster:
    """Return the cluster of an ApiClient, or the one that `_connected` finds, with the dashboard to ask."""
    try:
        found = _of_api(api, namespace) if api is not None else _connected(kubeconfig, context, namespace, data_dir)
    except access.AccessError as error:
        raise errors.NoCluster(str(error)) from error
    if api is not None and any(given is not None for given in (kubeconfig, context, data_dir)):
        raise errors.NoCluster("api has a cluster already; give it without kubeconfig, context and data_dir")
    return replace(found, dashboard=checked_dashboard(dashboard))


def _of_api(api: Any, namespace: str | None) -> Cluster:
    """Return the cluster of an ApiClient, which may be the laptop's."""
    if not isinstance(api, client.ApiClient):
        raise errors.NoCluster(f"api is {api!r}, but must be a kubernetes.client.ApiClient")
    layout = Layout(Path.home() / LAPTOP)
    is_laptop = layout.is_running() and access.from_kubeconfig(layout.kubeconfig).server == api.configuration.host.rstrip("/")
    return Cluster(api, namespace or "default", is_laptop, layout if is_laptop else None)


def _connected(kubeconfig: str | Path | None, context: str | None, namespace: str | None, data_dir: str | Path | None) -> Cluster:
    """Return the cluster of the kubeconfig, the data folder or $KUBECONFIG, else a running laptop cluster, this pod's, or kubectl's."""
    if kubeconfig and data_dir:
        raise errors.NoCluster("kubeconfig and data_dir name two clusters; give one of them")
    layout = Layout(Path(data_dir) if data_dir else Path.home() / LAPTOP)
    if kubeconfig is None and (data_dir or not os.environ.get("KUBECONFIG")) and layout.is_running():
        return _of_kubeconfig(layout.kubeconfig, context, namespace)
    if data_dir:
        raise errors.NoCluster(f"no cluster runs in {data_dir}; start it with `elastic up --detach --data-dir {data_dir}`")
    if kubeconfig is None and not os.environ.get("KUBECONFIG") and OWN_NAMESPACE.is_file():
        configuration = client.Configuration()
        config.load_incluster_config(configuration)
        return Cluster(client.ApiClient(configuration), namespace or OWN_NAMESPACE.read_text().strip(), is_laptop=False)
    return _of_kubeconfig(kubeconfig or os.environ.get("KUBECONFIG"), context, namespace)


def _of_kubeconfig(file: str | Path | None, context: str | None, namespace: str | None) -> Cluster:
    chosen = str(file) if file else None
    try:
        if (only := Path(chosen or config.KUBE_CONFIG_DEFAULT_LOCATION).expanduser()).is_file():  # it may be a list of files
            access.check(only, context=context)  # the official client raises an error of its YAML reader, or fails later
        if chosen is not None and os.pathsep not in chosen and not Path(chosen).expanduser().exists():
            raise errors.NoCluster(f"there is no kubeconfig {chosen}; start a laptop cluster with `elastic up --detach`, or name another")
        contexts, current = config.list_kube_config_contexts(chosen)
        api = config.new_client_from_config(chosen, context=context)
    except config.ConfigException as error:
        raise errors.NoCluster(
            f"{str(error).rstrip('.')}; start a laptop cluster with `elastic up --detach`, or name a kubeconfig"
        ) from error
    used = next((c for c in contexts if c["name"] == context), current)
    layout = _laptops(file)
    return Cluster(api, namespace or used["context"].get("namespace") or "default", layout is not None, layout)


def _laptops(file: str | Path | None) -> Layout | None:
    """Return the laptop cluster that wrote this kubeconfig, if any did. Raise NoCluster if it does not run."""
    layout = layout_of(Path(file)) if file else None
    if layout is not None and not layout.is_running():
        raise errors.NoCluster(
            f"the laptop cluster in {layout.root} is stopped; start it with `elastic up --detach --data-dir {layout.root}`"
        )
    return layout


@contextmanager
def speaking(doing: str) -> Iterator[None]:
    """Turn errors of requests into errors of the client, with the server's own words."""
    try:
        yield
    except errors.ElasticError:
        raise
    except Closed as error:
        raise errors.ElasticError(f"{doing}: this client is closed; make another one") from error
    except access.AccessError as error:
        raise errors.NoCluster(str(error)) from error
    except KubeError as error:
        raise _refusal(error)(f"{doing}: {error.words}{_remedy(error)}") from error
    except (aiohttp.ClientError, OSError) as error:
        raise errors.Unreachable(f"{doing}: the API server cannot be reached: {str(error) or 'no answer in time'}") from error


def _remedy(error: KubeError) -> str:
    """Return how to make a namespace that does not exist; empty for any other error."""
    details = error.body.get("details") or {}
    is_namespace = error.code == 404 and details.get("kind") == "namespaces"
    return f"; make it with `kubectl create namespace {details.get('name')}`" if is_namespace else ""


def _refusal(error: KubeError) -> type[errors.ElasticError]:
    if error.reason == NO_CREDENTIALS or (error.code in (401, 403) and "admission webhook" not in error.message):
        return errors.Forbidden
    if not error.code or error.code >= 500:
        return errors.Unreachable
    return {404: errors.NotFound, 409: errors.AlreadyExists}.get(error.code, errors.Refused)
