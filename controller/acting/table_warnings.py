"""Write Events about invalid rows that the installation has added to the table of signals.

An API server keeps an Event for an hour, so each Event is written again every half hour.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Never

from elastic.kube.resources import Object
from elastic_training.controller.acting.event_recorder import EventRecorder
from elastic_training.controller.deciding.actions import JobEvent

CONFIG_MAP = "elastic-signals"
AGAIN_S = 1800.0
LOOK_S = 5.0
"""How often a process that does not lead looks whether it does."""


async def warn_of_rows(
    recorder: EventRecorder, problems: Sequence[str], *, namespace: str, leads: Callable[[], bool], now: Callable[[], datetime]
) -> Never:
    """Write the warnings about the table of signals, in the process that leads."""
    table: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG_MAP, "namespace": namespace, "uid": ""}}
    while True:
        if leads():
            news = [JobEvent("Warning", "SignalRowIgnored", problem, about=str(now().timestamp() // AGAIN_S)) for problem in problems]
            await recorder.tell(table, news, now=now())
        await asyncio.sleep(AGAIN_S if leads() else LOOK_S)
