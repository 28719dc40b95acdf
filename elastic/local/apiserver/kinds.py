"""The built-in kinds that are served, with the strategies of those about which something is special."""

from __future__ import annotations

from elastic.local.apiserver import access, cluster, pods, policies, services
from elastic.local.apiserver.aggregation import apiservices
from elastic.local.apiserver.resources import STATUS, ResourceType, Strategy, Subresource

CREATE = ("create",)
PROXIED = ("create", "delete", "get", "patch", "update")
_NO_COLLECTION_DELETE = ("create", "delete", "get", "list", "patch", "update", "watch")


def _scale() -> Subresource:
    return Subresource("scale", "Scale", STATUS, "autoscaling", "v1")


def _status(kind: str) -> Subresource:
    return Subresource("status", kind, STATUS)


def _core() -> list[ResourceType]:
    def make(plural: str, kind: str, strategy: Strategy | None = None, *, namespaced: bool = True, **more: object) -> ResourceType:
        return ResourceType("", "v1", plural, kind, namespaced, strategy or Strategy(), kind.lower(), **more)  # type: ignore[arg-type]

    return [
        make("bindings", "Binding", verbs=CREATE),
        make("configmaps", "ConfigMap", cluster.ConfigMaps(), short_names=("cm",)),
        make("endpoints", "Endpoints", short_names=("ep",)),
        make("events", "Event", cluster.Events(), short_names=("ev",)),
        make("limitranges", "LimitRange", short_names=("limits",), remark=_unenforced("limitranges")),
        make(
            "namespaces",
            "Namespace",
            cluster.Namespaces(),
            namespaced=False,
            short_names=("ns",),
            verbs=_NO_COLLECTION_DELETE,
            subresources=(Subresource("finalize", "Namespace", ("update",)), _status("Namespace")),
        ),
        make(
            "nodes",
            "Node",
            cluster.Nodes(),
            namespaced=False,
            short_names=("no",),
            subresources=(Subresource("proxy", "NodeProxyOptions", ("create", "delete", "get", "patch", "update")), _status("Node")),
        ),
        make(
            "persistentvolumeclaims",
            "PersistentVolumeClaim",
            cluster.WithStatus(),
            short_names=("pvc",),
            subresources=(_status("PersistentVolumeClaim"),),
        ),
        make(
            "persistentvolumes",
            "PersistentVolume",
            cluster.WithStatus(),
            namespaced=False,
            short_names=("pv",),
            subresources=(_status("PersistentVolume"),),
        ),
        make(
            "pods",
            "Pod",
            pods.Pods(),
            short_names=("po",),
            categories=("all",),
            subresources=(
                Subresource("attach", "PodAttachOptions", ("create", "get")),
                Subresource("binding", "Binding", CREATE),
                Subresource("ephemeralcontainers", "Pod", STATUS),
                Subresource("eviction", "Eviction", CREATE, "policy", "v1"),
                Subresource("exec", "PodExecOptions", ("create", "get")),
                Subresource("log", "Pod", ("get",)),
                Subresource("portforward", "PodPortForwardOptions", ("create", "get")),
                Subresource("proxy", "PodProxyOptions", PROXIED),
                _status("Pod"),
            ),
        ),
        make(
            "resourcequotas",
            "ResourceQuota",
            cluster.Quotas(),
            short_names=("quota",),
            subresources=(_status("ResourceQuota"),),
            remark=_unenforced("resourcequotas"),
        ),
        make("secrets", "Secret", cluster.Secrets()),
        make(
            "serviceaccounts",
            "ServiceAccount",
            cluster.ServiceAccounts(),
            short_names=("sa",),
            subresources=(Subresource("token", "TokenRequest", CREATE, "authentication.k8s.io", "v1"),),
        ),
        make(
            "services",
            "Service",
            services.Services(),
            short_names=("svc",),
            categories=("all",),
            subresources=(Subresource("proxy", "ServiceProxyOptions", PROXIED), _status("Service")),
            verbs=("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"),
        ),
    ]


def _kind(group: str, version: str, plural: str, kind: str, strategy: Strategy | None = None, **more: object) -> ResourceType:
    return ResourceType(group, version, plural, kind, bool(more.pop("namespaced", True)), strategy or Strategy(), kind.lower(), **more)  # type: ignore[arg-type]


def _unenforced(plural: str) -> str:
    return f"{plural} are only stored here: nothing enforces them"


def _workloads() -> list[ResourceType]:
    """Return kinds whose lists are always empty, so that `kubectl get all` works."""

    def unrun(group: str, plural: str, kind: str, *short: str, scales: bool = False) -> ResourceType:
        refusal = f"no controller of this cluster makes pods from {plural}. Create a Pod or a training job, or use a cluster that runs them"
        subresources = (_scale(), _status(kind)) if scales else (_status(kind),)
        return _kind(group, "v1", plural, kind, short_names=short, categories=("all",), subresources=subresources, refusal=refusal)

    return [
        _kind("apps", "v1", "controllerrevisions", "ControllerRevision"),
        unrun("apps", "daemonsets", "DaemonSet", "ds"),
        unrun("apps", "deployments", "Deployment", "deploy", scales=True),
        unrun("apps", "replicasets", "ReplicaSet", "rs", scales=True),
        unrun("apps", "statefulsets", "StatefulSet", "sts", scales=True),
        unrun("batch", "cronjobs", "CronJob", "cj"),
        unrun("batch", "jobs", "Job"),
    ]


def _policies() -> list[ResourceType]:
    hpa = {
        "short_names": ("hpa",),
        "categories": ("all",),
        "subresources": (_status("HorizontalPodAutoscaler"),),
        "storage": "horizontalpodautoscalers.autoscaling",
    }
    return [
        _kind("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", policies.Autoscalers(), **hpa),
        _kind("autoscaling", "v1", "horizontalpodautoscalers", "HorizontalPodAutoscaler", policies.AutoscalersV1(), **hpa),
        _kind(
            "policy",
            "v1",
            "poddisruptionbudgets",
            "PodDisruptionBudget",
            policies.Budgets(),
            short_names=("pdb",),
            subresources=(_status("PodDisruptionBudget"),),
        ),
        _kind("coordination.k8s.io", "v1", "leases", "Lease", policies.Leases()),
        _kind(
            "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", policies.PriorityClasses(), namespaced=False, short_names=("pc",)
        ),
    ]


def _access() -> list[ResourceType]:
    rbac, authn, authz = "rbac.authorization.k8s.io", "authentication.k8s.io", "authorization.k8s.io"

    def review(group: str, kind: str, *, namespaced: bool = False) -> ResourceType:
        return _kind(group, "v1", kind.lower() + "s", kind, access.Reviews(), namespaced=namespaced, verbs=CREATE)

    return [
        _kind(rbac, "v1", "clusterrolebindings", "ClusterRoleBinding", access.Bindings(), namespaced=False),
        _kind(rbac, "v1", "clusterroles", "ClusterRole", access.Roles(), namespaced=False),
        _kind(rbac, "v1", "rolebindings", "RoleBinding", access.Bindings()),
        _kind(rbac, "v1", "roles", "Role", access.Roles()),
        review(authn, "SelfSubjectReview"),
        review(authn, "TokenReview"),
        review(authz, "LocalSubjectAccessReview", namespaced=True),
        review(authz, "SelfSubjectAccessReview"),
        review(authz, "SelfSubjectRulesReview"),
        review(authz, "SubjectAccessReview"),
    ]


def _extensions() -> list[ResourceType]:
    admission, api = "admissionregistration.k8s.io", "apiregistration.k8s.io"
    return [
        _kind(
            admission,
            "v1",
            "mutatingwebhookconfigurations",
            "MutatingWebhookConfiguration",
            policies.Webhooks(),
            namespaced=False,
            categories=("api-extensions",),
        ),
        _kind(
            admission,
            "v1",
            "validatingwebhookconfigurations",
            "ValidatingWebhookConfiguration",
            policies.Webhooks(),
            namespaced=False,
            categories=("api-extensions",),
        ),
        _kind(
            "apiextensions.k8s.io",
            "v1",
            "customresourcedefinitions",
            "CustomResourceDefinition",
            policies.Definitions(),
            namespaced=False,
            short_names=("crd", "crds"),
            categories=("api-extensions",),
            subresources=(_status("CustomResourceDefinition"),),
        ),
        _kind(
            api,
            "v1",
            "apiservices",
            "APIService",
            apiservices.APIServices(),
            namespaced=False,
            categories=("api-extensions",),
            subresources=(_status("APIService"),),
        ),
        _kind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"),
        _kind("events.k8s.io", "v1", "events", "Event", cluster.NewEvents(), short_names=("ev",), storage="events"),
        _kind(
            "networking.k8s.io",
            "v1",
            "ingresses",
            "Ingress",
            cluster.WithStatus(),
            short_names=("ing",),
            subresources=(_status("Ingress"),),
            remark="ingresses are only stored here: nothing serves them",
        ),
        _kind(
            "networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", short_names=("netpol",), remark=_unenforced("networkpolicies")
        ),
    ]


def built_in() -> list[ResourceType]:
    return [*_core(), *_extensions(), *_workloads(), *_access(), *_policies()]
