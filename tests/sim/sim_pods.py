"""Read the facts of a simulated pod."""

from elastic.kube.resources import Object
from elastic_training.controller.deciding.objects.elsewhere import PREFERRED

ENDLESS = {("mpijob-controller", "worker"), ("tfjob-controller", "ps"), ("mxjob-controller", "server")}


def avoided(pod: Object) -> set[str]:
    """Return the nodes that this pod prefers to avoid."""
    wishes = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(PREFERRED) or ()
    return {field["values"][0] for wish in wishes for field in wish["preference"].get("matchFields") or ()}


def is_deleting(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def is_running(pod: Object) -> bool:
    return pod["status"]["phase"] == "Running" and not is_deleting(pod)


def is_ready(pod: Object) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions") or ())


def are_gates_met(pod: Object) -> bool:
    met = {c["type"] for c in pod["status"].get("conditions") or () if c["status"] == "True"}
    return all(gate["conditionType"] in met for gate in pod["spec"].get("readinessGates") or ())


def selected(pod: Object, labels: Object) -> bool:
    there = pod["metadata"].get("labels") or {}
    return all(there.get(key) == value for key, value in labels.items())


def ends(pod: Object) -> bool:
    """Return whether the pod ends when the training does. Servers and MPI's workers wait for ever."""
    labels = pod["metadata"]["labels"]
    kind, type = labels.get("training.kubeflow.org/operator-name"), labels.get("training.kubeflow.org/replica-type")
    return type is not None and (kind, type) not in ENDLESS
