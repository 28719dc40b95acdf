"""The cluster that `elastic.Client` talks to, through the official client; what goes wrong becomes an error of ours."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client
from kubernetes import config as _config

from elastic.client import errors, live
from elastic.client.sample import Sample
from elastic.kube import access
from elastic.local.files import Layout, layout_of

config: Any = _config  # its functions have no types
TIMEOUT_S = (5, 30)
"""To connect, and to answer."""
LAPTOP = Path(".elastic")
OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True)
class Cluster:
    api: Any
    namespace: str
    is_laptop: bool
    layout: Layout | None = None
    """Of the laptop cluster."""
    dashboard: str | None = None
    """The URL that the user named."""

    @property
    def jobs(self) -> Any:
        return client.CustomObjectsApi(self.api)

    @property
    def core(self) -> Any:
        return client.CoreV1Api(self.api)

    def sample(self, uid: str) -> Sample | None:
        """How far a job's training is right now; None where nobody knows. A dashboard that the user named has to answer."""
        try:
            if self.dashboard is not None:
                token = _token(self.api)
                return live.asked(live.Dashboard(self.dashboard, {"Authorization": token} if token else {})).get(uid)
            laptops = live.of_laptop(self.layout) if self.layout is not None else None
            return live.asked(laptops).get(uid) if laptops is not None else None
        except live.NoAnswer as error:
            if self.dashboard is None:
                return None
            raise errors.Unreachable(f"the dashboard at {self.dashboard} does not say how jobs train: {error}") from error


def _token(api: Any) -> str:
    """As the official client shows it to the API server."""
    shown = api.configuration.auth_settings().values()
    return next((str(one["value"]) for one in shown if str(one.get("key")).lower() == "authorization" and one.get("value")), "")


def checked_dashboard(url: str | None) -> str | None:
    found = url or os.environ.get("ELASTIC_DASHBOARD") or None
    if found is not None and not live.is_safe(found):
        raise errors.NoCluster(f"dashboard is {found!r} but {live.SAFE}")
    return found


def connect(
    kubeconfig: str | Path | None, *, context: str | None, namespace: str | None, data_dir: str | Path | None, dashboard: str | None = None
) -> Cluster:
    """What `_connected` finds, with the dashboard to ask."""
    return replace(_connected(kubeconfig, context, namespace, data_dir), dashboard=checked_dashboard(dashboard))


def _connected(kubeconfig: str | Path | None, context: str | None, namespace: str | None, data_dir: str | Path | None) -> Cluster:
    """That of the kubeconfig, of the data folder, of $KUBECONFIG, else the laptop cluster if it runs, this pod's, or kubectl's."""
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
        _check(Path(chosen or config.KUBE_CONFIG_DEFAULT_LOCATION).expanduser(), context)
        if chosen is not None and os.pathsep not in chosen and not Path(chosen).expanduser().exists():
            raise errors.NoCluster(f"there is no kubeconfig {chosen}; start a laptop cluster with `elastic up --detach`, or name another")
        contexts, current = config.list_kube_config_contexts(chosen)
        api = config.new_client_from_config(chosen, context=context)
    except config.ConfigException as error:
        raise errors.NoCluster(
            f"{str(error).rstrip('.')}; start a laptop cluster with `elastic up --detach`, or name a kubeconfig"
        ) from error
    except access.AccessError as error:
        raise errors.NoCluster(str(error)) from error
    used = next((c for c in contexts if c["name"] == context), current)
    layout = _laptops(file)
    return Cluster(api, namespace or used["context"].get("namespace") or "default", layout is not None, layout)


def _check(file: Path, context: str | None) -> None:
    """Refuses in words what the official client meets with an error of its YAML reader, or once it sends. Lists of files are its own."""
    if file.is_file():
        access.check(file, context=context)


def _laptops(file: str | Path | None) -> Layout | None:
    """The laptop cluster that wrote this kubeconfig and runs."""
    layout = layout_of(Path(file)) if file else None
    if layout is not None and not layout.is_running():
        raise errors.NoCluster(
            f"the laptop cluster in {layout.root} is stopped; start it with `elastic up --detach --data-dir {layout.root}`"
        )
    return layout


@contextmanager
def speaking(what: str) -> Iterator[None]:
    """Turns what the official client raises into an error of ours, with the server's own words."""
    try:
        yield
    except client.ApiException as error:
        raise _refusal(error)(f"{what}: {_words(error)}") from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise errors.Unreachable(f"{what}: the API server cannot be reached: {error}") from error


def _refusal(error: Any) -> type[errors.ElasticError]:
    if error.status in (401, 403) and "admission webhook" not in str(error.body):
        return errors.Forbidden
    if not error.status or error.status >= 500:
        return errors.Unreachable
    return {404: errors.NotFound, 409: errors.AlreadyExists}.get(error.status, errors.Refused)


def _words(error: Any) -> str:
    try:
        told = json.loads(error.body)
        words, details = str(told["message"]), told.get("details") or {}
    except (TypeError, ValueError, KeyError, AttributeError):
        return f"{error.status} {error.reason}"
    is_namespace = error.status == 404 and isinstance(details, dict) and details.get("kind") == "namespaces"
    return f"{words}; make it with `kubectl create namespace {details.get('name')}`" if is_namespace else words
