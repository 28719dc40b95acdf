"""Has API servers trust the webhook's CA: it stands in the one webhook configuration, of which every webhook is ours."""

import base64
import logging

from elastic.kube.client import Kube, Patch
from elastic.kube.resources import VALIDATING_WEBHOOK_CONFIGURATIONS, Object

log = logging.getLogger(__name__)


class Configuration:
    def __init__(self, kube: Kube, name: str) -> None:
        self._kube, self._name = kube, name

    async def trust(self, trusted: bytes) -> None:
        bundle = base64.b64encode(trusted).decode()
        hooks = await self._hooks()
        others = [hook["name"] for hook in hooks if hook["clientConfig"].get("caBundle") != bundle]
        if others:
            change = {"webhooks": [{"name": name, "clientConfig": {"caBundle": bundle}} for name in others]}
            await self._kube.patch(VALIDATING_WEBHOOK_CONFIGURATIONS, self._name, change, kind=Patch.STRATEGIC)
            log.info("the API server now trusts the webhook's CA", extra={"configuration": self._name})

    async def _hooks(self) -> list[Object]:
        """None if no configuration names our webhook: then no caller needs to trust it."""
        configuration = await self._kube.find(VALIDATING_WEBHOOK_CONFIGURATIONS, self._name)
        return (configuration or {}).get("webhooks") or []
