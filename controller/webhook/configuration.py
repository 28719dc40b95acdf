"""Let API servers trust the webhook's CA by writing it into the webhook's configurations. Every webhook in them is ours."""

import base64
import logging
from collections.abc import Sequence

from elastic.kube.client import Kube, Patch
from elastic.kube.resources import VALIDATING_WEBHOOK_CONFIGURATIONS, Object

log = logging.getLogger(__name__)


class Configurations:
    """The configurations of these names. If one does not exist, no API server asks by it, and none needs to trust it."""

    def __init__(self, kube: Kube, names: Sequence[str]) -> None:
        self._kube, self._names = kube, names

    async def trust(self, trusted: bytes) -> None:
        """Write this CA into each webhook that has another one."""
        bundle = base64.b64encode(trusted).decode()
        for name in self._names:
            others = [hook["name"] for hook in await self._hooks(name) if hook["clientConfig"].get("caBundle") != bundle]
            if others:
                change = {"webhooks": [{"name": other, "clientConfig": {"caBundle": bundle}} for other in others]}
                await self._kube.patch(VALIDATING_WEBHOOK_CONFIGURATIONS, name, change, kind=Patch.STRATEGIC)
                log.info("the API server now trusts the webhook's CA", extra={"configuration": name})

    async def _hooks(self, name: str) -> list[Object]:
        configuration = await self._kube.find(VALIDATING_WEBHOOK_CONFIGURATIONS, name)
        return (configuration or {}).get("webhooks") or []
