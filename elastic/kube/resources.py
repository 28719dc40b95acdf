"""Name the kinds of the Kubernetes API that this project uses, and build the paths of their requests.

This module knows nothing about the content of objects.
"""

import re
from dataclasses import dataclass
from typing import Any

from elastic.kube.errors import KubeError

Object = dict[str, Any]
"""An object as the API server sends it; kept raw, so that unknown fields pass through."""


_NO_SEGMENT = re.compile(r"\.{0,2}\Z|.*[/%?#\\\s]", re.DOTALL)
"""Text that is no part of a path. A user's name with it would be a path to another object, perhaps in another namespace."""


def is_segment(text: str) -> bool:
    """Return whether this text may be one part of a path."""
    return _NO_SEGMENT.match(text) is None


@dataclass(frozen=True, slots=True)
class Resource:
    """A collection in the API: its place, and the kind of its objects."""

    group: str
    version: str
    plural: str
    namespaced: bool = True
    kind: str = ""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, *, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        for segment in (namespace, name):
            if segment is not None and not is_segment(segment):
                raise KubeError(code=400, reason="BadRequest", message=f"{segment[:300]!r} is no name of an object")
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root]
        if self.namespaced and namespace is not None:
            parts.append(f"namespaces/{namespace}")
        parts.append(self.plural)
        if name is not None:
            if self.namespaced and namespace is None:
                raise ValueError(f"{self.plural} are namespaced: a request for {name} needs a namespace")
            parts.append(name)
            if subresource is not None:
                parts.append(subresource)
        return "/".join(parts)


NAMESPACES = Resource("", "v1", "namespaces", namespaced=False, kind="Namespace")
NODES = Resource("", "v1", "nodes", namespaced=False, kind="Node")
PODS = Resource("", "v1", "pods", kind="Pod")
SERVICES = Resource("", "v1", "services", kind="Service")
CONFIG_MAPS = Resource("", "v1", "configmaps", kind="ConfigMap")
SECRETS = Resource("", "v1", "secrets", kind="Secret")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", kind="ServiceAccount")
EVENTS = Resource("", "v1", "events", kind="Event")
ENDPOINTS = Resource("", "v1", "endpoints", kind="Endpoints")
PERSISTENT_VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims", kind="PersistentVolumeClaim")
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", kind="EndpointSlice")
LEASES = Resource("coordination.k8s.io", "v1", "leases", kind="Lease")
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", kind="Role")
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", kind="RoleBinding")
CLUSTER_ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", namespaced=False, kind="ClusterRole")
CLUSTER_ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", namespaced=False, kind="ClusterRoleBinding")
DEPLOYMENTS = Resource("apps", "v1", "deployments", kind="Deployment")
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", kind="StatefulSet")
POD_DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", kind="PodDisruptionBudget")
HORIZONTAL_POD_AUTOSCALERS = Resource("autoscaling", "v2", "horizontalpodautoscalers", kind="HorizontalPodAutoscaler")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", kind="NetworkPolicy")
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", namespaced=False, kind="PriorityClass")
TRAIN_JOBS = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", kind="TrainJob")
TRAINING_RUNTIMES = Resource("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", kind="TrainingRuntime")
CLUSTER_TRAINING_RUNTIMES = Resource(
    "trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", namespaced=False, kind="ClusterTrainingRuntime"
)
CUSTOM_RESOURCE_DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False, kind="CustomResourceDefinition"
)
API_SERVICES = Resource("apiregistration.k8s.io", "v1", "apiservices", namespaced=False, kind="APIService")
VALIDATING_WEBHOOK_CONFIGURATIONS = Resource(
    "admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", namespaced=False, kind="ValidatingWebhookConfiguration"
)
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", namespaced=False, kind="TokenReview")
SUBJECT_ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", namespaced=False, kind="SubjectAccessReview")
SELF_SUBJECT_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", namespaced=False, kind="SelfSubjectAccessReview"
)
VOLCANO_POD_GROUPS = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", kind="PodGroup")
PLUGIN_POD_GROUPS = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", kind="PodGroup")
