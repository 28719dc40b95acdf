"""Recognise a pod that the kubelet evicted because it exceeded its own storage limit. Pure.

The kubelet gives such a pod the same reason, Evicted, as a pod that must go because its node is short of something. Only its words differ.
"""

from __future__ import annotations

import re

EVICTED = "Evicted"
_WORDS = re.compile(
    r"Pod ephemeral local storage usage exceeds the total limit of containers"
    r"|Container .{1,253} exceed(?:ed its|s the) local ephemeral storage limit"
    r"|Usage of EmptyDir volume .{1,253} exceeds the limit",
    re.IGNORECASE,
)
LONGEST = 300


def exceeded(reason: str, message: str) -> str:
    """Return the kubelet's words if the pod itself exceeded a limit; empty if its node is short of something."""
    return message.strip()[:LONGEST] if reason == EVICTED and _WORDS.search(message[:1000]) else ""
