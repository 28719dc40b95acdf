"""Build what the backend `c10d` needs: a store pod per job that outlives any worker, and settings for stock torchrun to re-form quickly.

Pure builders. Other modules decide who creates the objects, and what follows if the store pod is lost. The store cannot authenticate its
clients, and torch unpickles what it reads from the store. Only the network policy, which admits the job's own pods alone, protects it.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]

DEFAULT_PORT = 29400
COMPONENT = "app.kubernetes.io/component"
COMPONENT_VALUE = "rendezvous-store"
HAS_RUN_IDS = "elastic-training/rendezvous-per-run"
"""Annotation of a store pod for whose runs workers have ids of their own; workers of older ones have the job's uid for id."""
STORE_OF = "app.kubernetes.io/instance"
SPOT_LABELS = (
    "karpenter.sh/capacity-type",
    "eks.amazonaws.com/capacityType",
    "cloud.google.com/gke-spot",
    "kubernetes.azure.com/scalesetpriority",
)
"""Labels by which clouds mark spot nodes; the values that mean one, below."""
SPOT_VALUES = ("spot", "SPOT", "true")

TUNING = (
    ("is_host", "false"),  # no worker hosts the store, even if its host name looks like the endpoint's
    ("last_call_timeout", "2"),  # stock waits 30 s in every round below max
    ("keep_alive_interval", "1"),  # a dead agent is noticed after 3 s; stock takes 15 s
    ("keep_alive_max_attempt", "3"),
    # After the stock 600 s below min the first agent gives up, and closes the rendezvous for good, also for workers that find room later.
    ("join_timeout", str(365 * 24 * 3600)),
    ("read_timeout", "180"),  # the store pod may still pull its image when the first worker starts
)

PROGRAM = """\
import os, signal
ends = [signal.SIGTERM, signal.SIGINT]
signal.pthread_sigmask(signal.SIG_BLOCK, ends)
from torch.distributed import TCPStore
host, port = os.environ["ELASTIC_POD_IP"], int(os.environ["ELASTIC_STORE_PORT"])
store = TCPStore(host, port, is_master=True, wait_for_workers=False, multi_tenant=True)
print("serving the rendezvous store on port %s" % store.port, flush=True)
signal.sigwait(ends)
"""

SCRIPT = """\
for python in python3 python; do
  command -v "$python" > /dev/null && exec "$python" -u -c "$ELASTIC_STORE_PROGRAM"
done
echo 'no Python was found on PATH' >&2
exit 127
"""


@dataclass(frozen=True, slots=True)
class C10dStore:
    """One job's store. `template` is the Worker's pod template, `selector` the labels that all of the job's pods carry."""

    job_name: str
    namespace: str
    job_uid: str
    owner: Mapping[str, Any]
    template: Mapping[str, Any]
    selector: Mapping[str, str]
    container: str = "pytorch"
    port: int = DEFAULT_PORT
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.job_name}-rdzv"

    @property
    def endpoint(self) -> str:
        return f"{self.name}:{self.port}"


def store_pod(store: C10dStore) -> Object:
    """Return the pod of the TCPStore. It has the workers' image, and so the same torch, and restarts in place if its process ends."""
    spec = store.template.get("spec") or {}
    pod_spec: Object = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 5,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "affinity": _on_demand_preferred(),
        "containers": [_container(store, spec)],
    }
    for name in (
        "imagePullSecrets",
        "nodeSelector",
        "tolerations",
        "priorityClassName",
        "schedulerName",
        "serviceAccountName",
        "securityContext",
    ):
        if name in spec:
            pod_spec[name] = copy.deepcopy(spec[name])
    metadata = {**_metadata(store), "annotations": {HAS_RUN_IDS: "true"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec}


def store_service(store: C10dStore) -> Object:
    """Return the store's service. It is headless and published before readiness, so an early worker retries against the pod itself."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": _labels(store),
        "ports": [{"name": "store", "port": store.port, "targetPort": store.port, "protocol": "TCP"}],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(store), "spec": spec}


def store_network_policy(store: C10dStore) -> Object | None:
    """Admits only the job's pods; None where workers use the host's network, which no pod selector matches."""
    if (store.template.get("spec") or {}).get("hostNetwork"):
        return None
    spec = {
        "podSelector": {"matchLabels": _labels(store)},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [{"podSelector": {"matchLabels": dict(store.selector)}}], "ports": [{"protocol": "TCP", "port": store.port}]},
        ],
    }
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": _metadata(store), "spec": spec}


def c10d_env(store: C10dStore, rdzv_conf: Sequence[tuple[str, str]] = (), *, rendezvous_id: str) -> list[Object]:
    """Return the variables with which a worker's container uses the store. The user's own settings come first and win."""
    return [
        {"name": "PET_RDZV_BACKEND", "value": "c10d"},
        {"name": "PET_RDZV_ENDPOINT", "value": store.endpoint},
        {"name": "PET_RDZV_ID", "value": rendezvous_id},
        {"name": "PET_RDZV_CONF", "value": ",".join(f"{key}={value}" for key, value in tuned(rdzv_conf))},
        # With the rendezvous store shared with the workers, as is torch's default, a new worker waits for an address that is never written.
        {"name": "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "value": "1"},
    ]


def tuned(rdzv_conf: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the user's rdzvConf, with our values for the keys that it leaves open."""
    given = {key for key, _ in rdzv_conf}
    return [*rdzv_conf, *((key, value) for key, value in TUNING if key not in given)]


def _container(store: C10dStore, spec: Mapping[str, Any]) -> Object:
    worker: Mapping[str, Any] = next((c for c in spec.get("containers") or () if c.get("name") == store.container), {})
    container: Object = {
        "name": "store",
        "image": worker.get("image", ""),
        "command": ["/bin/sh", "-c", SCRIPT],
        "env": [
            {"name": "ELASTIC_STORE_PORT", "value": str(store.port)},
            {"name": "ELASTIC_STORE_PROGRAM", "value": PROGRAM},
            {"name": "ELASTIC_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "OMP_NUM_THREADS", "value": "1"},
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
        ],
        "ports": [{"name": "store", "containerPort": store.port, "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "readinessProbe": {"tcpSocket": {"port": store.port}, "periodSeconds": 1, "failureThreshold": 3},
        "securityContext": copy.deepcopy(worker.get("securityContext"))
        or {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    if "imagePullPolicy" in worker:
        container["imagePullPolicy"] = worker["imagePullPolicy"]
    return container


def _on_demand_preferred() -> Object:
    """Prefer a node that is not reclaimed: the store is the one pod whose loss restarts the group."""
    terms = [
        {"weight": 50, "preference": {"matchExpressions": [{"key": label, "operator": "NotIn", "values": list(SPOT_VALUES)}]}}
        for label in SPOT_LABELS
    ]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}


def _labels(store: C10dStore) -> dict[str, str]:
    """Return the labels of the store's objects. They are not those of a replica, so the store counts neither as a worker nor in a gang."""
    return {COMPONENT: COMPONENT_VALUE, STORE_OF: store.name[:63].rstrip("-.")}


def _metadata(store: C10dStore) -> Object:
    return {
        "name": store.name,
        "namespace": store.namespace,
        "labels": {**store.labels, **_labels(store)},
        "ownerReferences": [dict(store.owner)],
    }
