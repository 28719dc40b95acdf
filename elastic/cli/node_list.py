"""Make the rows of `elastic node list`, one for each node of the laptop cluster, from the API's nodes and pods and the folder's roster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from elastic.api.words import GPU
from elastic.cli.printing import table
from elastic.client.ages import age
from elastic.kube.resources import Object
from elastic.local.agent.roster import Roster

OVER = ("Succeeded", "Failed")


def rows_of(nodes: Iterable[Object], pods: Iterable[Object], roster: Roster) -> list[dict[str, Any]]:
    """Return the rows, sorted by name. The API calls a killed node Ready until its silence is noticed, so the roster decides."""
    there = Counter(pod["spec"].get("nodeName") for pod in pods if (pod.get("status") or {}).get("phase") not in OVER)
    added = {member.name for member in roster.added}
    return [_row(node, pods=there[node["metadata"]["name"]], roster=roster, added=added) for node in sorted(nodes, key=_name)]


def _row(node: Object, *, pods: int, roster: Roster, added: set[str]) -> dict[str, Any]:
    name, spec = _name(node), node.get("spec") or {}
    state = "Killed" if name in roster.killed else _state(node)
    return {
        "name": name,
        "state": f"{state},SchedulingDisabled" if spec.get("unschedulable") else state,
        "gpus": int(((node.get("status") or {}).get("capacity") or {}).get(GPU, 0)),
        "pods": pods,
        "taints": [_taint(taint) for taint in spec.get("taints") or ()],
        "added": name in added,
        "created": node["metadata"].get("creationTimestamp"),
    }


def _name(node: Object) -> str:
    return str(node["metadata"]["name"])


def _state(node: Object) -> str:
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = next((condition["status"] for condition in conditions if condition["type"] == "Ready"), None)
    return {"True": "Ready", None: "Unknown"}.get(ready, "NotReady")


def _taint(taint: Mapping[str, str]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def nodes_table(rows: Sequence[Mapping[str, Any]], now: datetime) -> str:
    headers = ("NAME", "STATE", "GPUS", "PODS", "AGE", "TAINTS")
    cells = [
        [row["name"], row["state"], row["gpus"], row["pods"], age(row["created"], now), ",".join(row["taints"]) or "-"] for row in rows
    ]
    return table(headers, cells)
