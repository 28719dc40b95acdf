"""Give every namespace what pods in it need: the service account `default`, and the cluster's certificate authority as a config map."""

import asyncio
import logging

import aiohttp

from elastic.kube.cache import Cache, ViewChange
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import CONFIG_MAPS, NAMESPACES, SERVICE_ACCOUNTS, Object

log = logging.getLogger(__name__)

RETRY_S = 1.0
ROOT_CA = "kube-root-ca.crt"


class DefaultAccounts:
    """Looks at a namespace when it appears, and again when one of the two is taken away."""

    def __init__(self, kube: Kube, authority: str) -> None:
        self._kube = kube
        self._authority = authority
        self._namespaces: Cache[bool] = Cache(kube, NAMESPACES, project=lambda found: "deletionTimestamp" not in found["metadata"])
        self._accounts: Cache[bool] = Cache(kube, SERVICE_ACCOUNTS, project=lambda found: True, fields="metadata.name=default")
        self._maps: Cache[bool] = Cache(kube, CONFIG_MAPS, project=lambda found: True, fields=f"metadata.name={ROOT_CA}")
        self._queue: asyncio.Queue[str] = asyncio.Queue()

    async def run(self) -> None:
        self._namespaces.subscribe(lambda change: self._queue.put_nowait(change.key[1]))
        self._accounts.subscribe(self._taken)
        self._maps.subscribe(self._taken)
        async with asyncio.TaskGroup() as group:
            for cache in (self._namespaces, self._accounts, self._maps):
                group.create_task(cache.run())
            group.create_task(self._provide())

    def _taken(self, change: ViewChange[bool]) -> None:
        self._queue.put_nowait(change.key[0])

    async def _provide(self) -> None:
        for cache in (self._namespaces, self._accounts, self._maps):
            await cache.wait_synced()
        while True:
            namespace = await self._queue.get()
            if not self._namespaces.get("", namespace):
                continue
            try:
                if self._accounts.get(namespace, "default") is None:
                    await self._make(DEFAULT_ACCOUNT, namespace)
                if self._maps.get(namespace, ROOT_CA) is None:
                    await self._make(root_ca(self._authority), namespace)
            except (KubeError, aiohttp.ClientError, TimeoutError) as error:
                log.warning("namespace %s did not get its default account or CA bundle, trying again: %s", namespace, error)
                asyncio.get_running_loop().call_later(RETRY_S, self._queue.put_nowait, namespace)

    async def _make(self, body: Object, namespace: str) -> None:
        resource = SERVICE_ACCOUNTS if body["kind"] == "ServiceAccount" else CONFIG_MAPS
        try:
            await self._kube.create(resource, body, namespace=namespace)
        except KubeError as error:
            # Created by another client meanwhile, or the namespace is being deleted.
            if error.reason not in ("AlreadyExists", "Forbidden", "NotFound"):
                raise


DEFAULT_ACCOUNT: Object = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}


def root_ca(authority: str) -> Object:
    what = (
        "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP "
        "or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters."
    )
    metadata = {"name": ROOT_CA, "annotations": {"kubernetes.io/description": what}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"ca.crt": authority}}
