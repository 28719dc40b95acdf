"""List the rights of controller, autoscaler and dashboard in a cluster, and their reasons.

The roles under deploy/ come from this table, and the laptop cluster gives the same rights. A test compares it with the controller's
requests.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic.api import webhook
from elastic.api.generated import keep
from elastic.api.kinds import GROUP, KINDS, TRAIN_JOBS
from elastic.api.trainer.modes import TRAINER_LEASE
from elastic.api.trainer.shipped import NAMESPACE as TRAINER_NAMESPACE

RBAC = "rbac.authorization.k8s.io"
CONTROLLER, AUTOSCALER, DASHBOARD = "elastic-controller", "elastic-autoscaler", "elastic-dashboard"
METRICS_API = f"{AUTOSCALER}-metrics"
"""The autoscaler's service, Secret and role for HorizontalPodAutoscalers."""
MANAGED_BY = "app.kubernetes.io/managed-by"
"""The label of the API services that the autoscaler registers; its value is AUTOSCALER."""
METRICS_API_SERVICES = ("v1beta1.custom.metrics.k8s.io", "v1beta2.custom.metrics.k8s.io", "v1beta1.external.metrics.k8s.io")
SYSTEM = "elastic-system"
MPI = "MPIJob"
SEEN = ("list", "watch")
Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    groups: tuple[str, ...]
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    why: str
    names: tuple[str, ...] = ()
    """Names of the only objects to which the right applies; empty for all."""

    @property
    def rule(self) -> Object:
        made: Object = {"apiGroups": list(self.groups), "resources": list(self.resources), "verbs": list(self.verbs)}
        return made | ({"resourceNames": list(self.names)} if self.names else {})


def _right(groups: str, resources: str, verbs: Iterable[str], why: str, *, names: tuple[str, ...] = ()) -> Right:
    return Right(groups=tuple(groups.split(" ")), resources=tuple(resources.split(" ")), verbs=tuple(verbs), why=why, names=names)


def job_rights(kinds: Iterable[str]) -> list[Right]:
    plurals = [KINDS[kind].plural for kind in kinds]
    return [
        _right(
            GROUP,
            " ".join(plurals),
            ("get", *SEEN, "delete"),
            "Jobs are watched, read again before their pods are deleted, and deleted after ttlSecondsAfterFinished.",
        ),
        _right(
            GROUP, " ".join(f"{plural}/status" for plural in plurals), ("patch",), "The controller writes their status, not their spec."
        ),
        _right(
            GROUP,
            " ".join(f"{plural}/finalizers" for plural in plurals),
            ("update",),
            "API servers with OwnerReferencesPermissionEnforcement require it, for owner references that block the owner's deletion.",
        ),
    ]


REPLICAS = [
    _right(
        "",
        "pods",
        ("get", *SEEN, "create", "patch", "delete"),
        "A job's replicas; those of a failed job are ended by a deadline, and stay.",
    ),
    _right("", "pods/status", ("patch",), "The readiness gate: whether a worker is in its world and has its state."),
    _right("", "services", ("get", *SEEN, "create", "patch", "delete"), "The names of replicas and stores."),
    _right("", "secrets", ("get", "create", "patch"), "A job's token for its world, and the keys of MPI over ssh, each by its name."),
    _right("", "events", ("create",), "Events of jobs."),
    _right("autoscaling", "horizontalpodautoscalers", ("get", *SEEN, "create", "patch", "delete"), "For elasticPolicy.metrics."),
    _right("policy", "poddisruptionbudgets", ("get", *SEEN, "create", "patch", "delete"), "minReplicas of an elastic job stay up."),
    _right(
        "networking.k8s.io",
        "networkpolicies",
        ("get", *SEEN, "create", "patch", "delete"),
        "Only its own pods reach the store of a c10d job.",
    ),
    _right(
        "scheduling.volcano.sh scheduling.x-k8s.io",
        "podgroups",
        ("get", *SEEN, "create", "patch", "delete"),
        "Used with --gang-scheduler-name only.",
    ),
]
NODES = [_right("", "nodes", SEEN, "The taints by which nodes give notice, and nodes that are lost.")]
MPI_OBJECTS = [
    _right("", "configmaps serviceaccounts", ("get", *SEEN, "create", "patch"), "Host file and account of MPI launchers."),
    _right(RBAC, "roles rolebindings", ("get", *SEEN, "create", "patch"), "What launchers may do: start processes in their own workers."),
    _right(
        "",
        "pods/exec",
        ("create", "get"),
        "Never used by the controller; but an account can grant only rights that it has, and launchers need it.",
    ),
]


def lease_rights(account: str) -> list[Right]:
    return [
        _right("coordination.k8s.io", "leases", ("create",), "The Lease by which one of several replicas works."),
        _right("coordination.k8s.io", "leases", ("get", "update"), "It is renewed.", names=(account,)),
    ]


LEASE = lease_rights(CONTROLLER)
CERTIFICATE = [_right("", "secrets", ("get", "patch"), "The webhook's certificate, which all replicas share.", names=(webhook.NAME,))]
CONFIGURATION = [
    _right(
        "admissionregistration.k8s.io",
        "validatingwebhookconfigurations",
        ("get", "patch"),
        "The CA to trust is written into the one configuration of our webhook.",
        names=(webhook.NAME,),
    )
]


@dataclass(frozen=True, slots=True)
class Role:
    name: str
    rights: tuple[Right, ...]
    is_everywhere: bool
    """The role applies to all namespaces, not only to the one in which the account lives."""
    account: str = CONTROLLER
    place: str = ""
    """Namespace of the role if it is not the account's."""


def roles(*, everywhere: bool = True, kinds: Iterable[str] = tuple(KINDS)) -> list[Role]:
    """Return the roles of a controller for all namespaces, or for its own."""
    chosen = tuple(kinds)
    jobs = job_rights(kind for kind in chosen if kind != MPI)
    found = [Role(CONTROLLER, (*jobs, *REPLICAS, *(NODES if everywhere else ())), everywhere)]
    if MPI in chosen:
        found.append(Role(f"{CONTROLLER}-mpi", (*job_rights([MPI]), *MPI_OBJECTS), everywhere))
    if not everywhere:
        return [*found, Role(f"{CONTROLLER}-own", tuple(LEASE), False)]
    # The configuration that asks the webhook belongs to the whole cluster, so writing it takes a ClusterRole.
    return [*found, Role(f"{CONTROLLER}-webhook", tuple(CONFIGURATION), True), Role(f"{CONTROLLER}-own", (*LEASE, *CERTIFICATE), False)]


def train_job_roles() -> list[Role]:
    """Return the roles of a controller that serves TrainJobs. Runtimes belong to the whole cluster, so this role does, too."""
    found = (
        _right(TRAIN_JOBS, "trainjobs", SEEN, "TrainJobs are watched."),
        _right(TRAIN_JOBS, "trainjobs/status", ("patch",), "The controller writes their status, not their spec."),
        _right(
            TRAIN_JOBS,
            "trainjobs/finalizers",
            ("update",),
            "API servers with OwnerReferencesPermissionEnforcement require it, for owner references that block the owner's deletion.",
        ),
        _right(TRAIN_JOBS, "trainingruntimes clustertrainingruntimes", ("get", *SEEN), "TrainJobs name their runtimes."),
        _right(GROUP, "pytorchjobs mpijobs", ("create", "patch"), "A TrainJob becomes jobs of its own, which follow it."),
        _right("", "persistentvolumeclaims", ("get", "create"), "A runtime's volumeClaimPolicies name volumes of the TrainJob."),
        _right("coordination.k8s.io", "leases", ("list",), "A Kubeflow Trainer in another namespace is noticed.", names=(TRAINER_LEASE,)),
        _right(
            "admissionregistration.k8s.io",
            "validatingwebhookconfigurations",
            ("get", "patch"),
            "The CA to trust is written into the configuration that asks our webhook about TrainJobs.",
            names=(f"{webhook.NAME}{webhook.FOR_TRAIN_JOBS}",),
        ),
    )
    return [Role(f"{CONTROLLER}-trainjobs", found, True)]


def trainer_lease_roles() -> list[Role]:
    """Return the role of a controller that serves TrainJobs in place of Kubeflow Trainer's own one, and therefore takes its Lease."""
    lease = (
        _right("coordination.k8s.io", "leases", ("create",), "The Lease of Kubeflow Trainer's own controller keeps the two apart."),
        _right("coordination.k8s.io", "leases", ("get", "update"), "It is renewed.", names=(TRAINER_LEASE,)),
    )
    return [Role(f"{CONTROLLER}-trainer", lease, False, place=TRAINER_NAMESPACE)]


def autoscaler_roles(kinds: Iterable[str] = tuple(KINDS)) -> list[Role]:
    """Return the roles of the autoscaler, which sees a whole cluster, because free room is on its nodes."""
    plurals = [KINDS[kind].plural for kind in kinds]
    seen = (
        _right(
            GROUP,
            " ".join(plurals),
            (*SEEN, "patch"),
            "Jobs are watched; why a job has its number of workers is written into one annotation.",
        ),
        _right(GROUP, " ".join(f"{plural}/scale" for plural in plurals), ("patch",), "The number of workers."),
        _right("", "pods nodes", SEEN, "Which workers find room, and how much of it is free."),
        _right("", "pods/log", ("get",), "The progress of scripts that report none: elasticPolicy.progress.logPattern."),
        _right("", "events", ("create",), "Why the number of workers changed."),
    )
    return [Role(AUTOSCALER, seen, True, AUTOSCALER), Role(f"{AUTOSCALER}-own", tuple(lease_rights(AUTOSCALER)), False, AUTOSCALER)]


def metrics_api_roles() -> list[Role]:
    """Return the roles that the autoscaler also needs to serve its figures to HorizontalPodAutoscalers."""
    seen = (
        _right("authentication.k8s.io", "tokenreviews", ("create",), "Whose token is it that a caller shows?"),
        _right("authorization.k8s.io", "subjectaccessreviews", ("create",), "May this caller read these values?"),
        _right("", "configmaps", ("get",), "How an API server says who asks.", names=("extension-apiserver-authentication",)),
        _right("autoscaling", "horizontalpodautoscalers", SEEN, "Whether the API server has kept the tolerance of 0."),
        _right("apiregistration.k8s.io", "apiservices", ("create",), "The metrics groups that no other adapter serves are registered."),
        _right(
            "apiregistration.k8s.io",
            "apiservices",
            ("get", "patch", "delete"),
            "The CA to trust is written there; ours go where another adapter serves a version of their group.",
            names=METRICS_API_SERVICES,
        ),
        _right(RBAC, "clusterroles", ("get",), "What is registered is owned by this role, and goes with it.", names=(METRICS_API,)),
    )
    certificate = (
        _right("", "secrets", ("create",), "The certificate of the metrics API, which all replicas share."),
        _right("", "secrets", ("get", "patch"), "It is renewed.", names=(METRICS_API,)),
    )
    return [Role(METRICS_API, seen, True, AUTOSCALER), Role(f"{METRICS_API}-own", certificate, False, AUTOSCALER)]


def dashboard_roles(kinds: Iterable[str] = tuple(KINDS)) -> list[Role]:
    """Return the roles of the dashboard, which only sees. It uses the token of the user for logs and changes."""
    seen = (
        _right(GROUP, " ".join(KINDS[kind].plural for kind in kinds), SEEN, "Jobs are shown to users who may list them themselves."),
        _right("", "pods nodes events", SEEN, "Workers, their nodes, and what was reported of them, to the same users."),
    )
    return [Role(DASHBOARD, seen, True, DASHBOARD)]


def as_objects(role: Role, *, home: str = SYSTEM) -> tuple[Object, Object]:
    """Return the role, and its binding to its account in the namespace `home`; kustomize fills in an empty one."""
    kind = "ClusterRole" if role.is_everywhere else "Role"
    place = {"namespace": home} if home else {}
    metadata = {"name": role.name} | ({} if role.is_everywhere else {"namespace": role.place} if role.place else place)
    api: Object = {"apiVersion": f"{RBAC}/v1"}
    binding = {
        "kind": f"{kind}Binding",
        "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role.name},
        "subjects": [{"kind": "ServiceAccount", "name": role.account} | place],
    }
    return api | {"kind": kind, "metadata": metadata, "rules": [right.rule for right in role.rights]}, api | binding


def as_yaml(found: Iterable[Role], *, home: str) -> str:
    """Return a file under deploy/: each rule below its reason."""
    text = "# Generated by `python -m elastic.api.rights --write` from elastic/api/rights.py.\n"
    for role in found:
        made, binding = as_objects(role, home=home)
        text += f"---\n{_block({key: value for key, value in made.items() if key != 'rules'})}rules:\n"
        for right in role.rights:
            first, *rest = (f"{key}: {_flow(value)}\n" for key, value in right.rule.items())
            text += f"# {right.why}\n- {first}{''.join(f'  {line}' for line in rest)}"
        text += f"---\n{_block(binding)}"
    return text


def _block(item: Object) -> str:
    return "".join(f"{key}: {_flow(value)}\n" for key, value in item.items())


def _flow(value: Any) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_flow, value)) + "]"
        case _:
            return str(value) or '""'


def files(deploy: Path) -> Iterator[tuple[Path, str]]:
    yield deploy / "overlays" / "standalone" / "rights.yaml", as_yaml(roles(), home=SYSTEM)
    yield deploy / "overlays" / "namespaced" / "rights.yaml", as_yaml(roles(everywhere=False), home="")
    yield deploy / "components" / "trainjobs" / "rights.yaml", as_yaml([*train_job_roles(), *trainer_lease_roles()], home=SYSTEM)
    yield deploy / "components" / "autoscaler" / "rights.yaml", as_yaml(autoscaler_roles(), home=SYSTEM)
    yield deploy / "components" / "dashboard" / "rights.yaml", as_yaml(dashboard_roles(), home=SYSTEM)
    yield deploy / "components" / "autoscaler-metrics-api" / "rights.yaml", as_yaml(metrics_api_roles(), home=SYSTEM)


if __name__ == "__main__":
    sys.exit(keep("elastic.api.rights", files(Path(__file__).parent.parent.parent / "deploy"), sys.argv[1:]))
