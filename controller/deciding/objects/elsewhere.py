"""Ask the scheduler to put a new pod on another node than those that are about to go, or that make a worker slow.

Most such nodes have a taint that keeps pods away; an annotation or a condition does not. A preference, because a node of the same name may
come back, or be the only one.
"""

from elastic.api.job import Object
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.rendezvous.straggler_replacement import avoided_nodes

WEIGHT = 100
MOST_NODES = 20
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def doomed_nodes(view: JobView) -> list[str]:
    """Return the nodes that are about to go. The nodes of the job's own pods come first, because a place is free there."""
    own = sorted(node.name for node in view.snapshot.nodes.values() if node.is_doomed)
    return list(dict.fromkeys([*own, *avoided_nodes(view), *sorted(view.snapshot.doomed)]))


def elsewhere(view: JobView, pod: Object) -> Object:
    """Return the pod with the wish for other nodes next to the user's own wishes."""
    names = doomed_nodes(view)[:MOST_NODES]
    if not names:
        return pod
    others = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in names]
    affinity = pod["spec"].get("affinity") or {}
    of_nodes = affinity.get("nodeAffinity") or {}
    wishes = [*(of_nodes.get(PREFERRED) or []), {"weight": WEIGHT, "preference": {"matchFields": others}}]
    return pod | {"spec": pod["spec"] | {"affinity": affinity | {"nodeAffinity": of_nodes | {PREFERRED: wishes}}}}
