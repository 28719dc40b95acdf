"""The table of values: values.yaml, its schema, a table in docs/deploy.md and the checks of `elastic install` come from it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from elastic.api.trainer.modes import Mode
from elastic.cli.installing.values.kinds import (
    LABEL_VALUE,
    NAME,
    QUANTITY,
    Fields,
    Flags,
    Kind,
    Objects,
    Resources,
    Switch,
    Text,
    Texts,
    Whole,
    Word,
)

GLOBAL = "global"
CONTROLLER, RENDEZVOUS, AUTOSCALER, DASHBOARD, ETCD = COMPONENTS = ("controller", "rendezvous", "autoscaler", "dashboard", "etcd")
OUR_LABELS = ("app", "app.kubernetes.io/managed-by", "app.kubernetes.io/version")
IMAGE = r"^([A-Za-z0-9][\w.\-:/@]{0,500})?$"
"""Nearly what registries take; the kubelet knows better."""


@dataclass(frozen=True, slots=True)
class Value:
    name: str
    kind: Kind
    default: Any
    what: str
    but: tuple[str, ...] = ()
    """Components that do not have this shared value."""


@dataclass(frozen=True, slots=True)
class Section:
    """Values below one name; the name is empty for those at the top."""

    name: str
    what: str
    values: tuple[Value, ...]
    needs_standalone: bool = False
    """Whether only the overlay standalone has this part."""


SHARED = (
    Value(
        "imagePullPolicy",
        Word(("", "Always", "IfNotPresent", "Never")),
        "",
        "Pull policy of the image. Empty: Kubernetes decides by the tag.",
    ),
    Value(
        "imagePullSecrets",
        Objects(("name",), "name", "[{name: elastic-pull}]"),
        [],
        "Secrets with the registry's credentials, such as [{name: elastic-pull}].",
    ),
    Value("nodeSelector", Texts(), {}, "Labels of the nodes on which pods may run."),
    Value(
        "tolerations",
        Objects(
            ("key", "operator", "value", "effect", "tolerationSeconds"), "", "[{key: dedicated, operator: Exists, effect: NoSchedule}]"
        ),
        [],
        "Tolerations, in addition to those that replace the pods of a lost node after 5 s.",
    ),
    Value(
        "affinity",
        Fields(("nodeAffinity", "podAffinity", "podAntiAffinity")),
        {},
        "Affinity, in place of the built-in one, which prefers nodes that are not spot, and zones without another replica.",
    ),
    Value(
        "priorityClassName",
        Text(NAME, "give the name of a PriorityClass"),
        "",
        "Priority class. Empty: elastic-control-plane for controller and rendezvous server, none for the others.",
    ),
    Value("podLabels", Texts(LABEL_VALUE, OUR_LABELS), {}, "More labels of pods."),
    Value("podAnnotations", Texts(), {}, "More annotations of pods."),
    Value(
        "serviceAccountAnnotations",
        Texts(),
        {},
        "Annotations of service accounts, for example for a cloud's identities.",
        but=(ETCD,),
    ),
    Value("logLevel", Word(("", "debug", "info", "warning")), "", "Least level of log lines. Empty: info.", but=(ETCD,)),
)
"""Values that are both global and of each component."""

BUDGET = "Let a drain take only one pod at a time, by a PodDisruptionBudget"


def _resources(cpu: str, memory: str, limit: str) -> Value:
    default = {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": limit}}
    return Value("resources", Resources(), default, "Resources of the container. null removes an amount.")


def _flags(program: str, example: str) -> Value:
    return Value("extraArgs", Flags(), [], f"More flags of {program}, such as [{example}].")


def _shared(component: str) -> tuple[Value, ...]:
    return tuple(value for value in SHARED if component not in value.but)


SECTIONS = (
    Section(
        "",
        "",
        (
            Value(
                "image",
                Text(IMAGE, "give the name of an image: REGISTRY/elastic-training:TAG"),
                "",
                "Image of the control plane, REGISTRY/elastic-training:TAG, of the same release as the chart or command.",
            ),
            Value("mpi", Switch(), True, "Serve MPIJobs. Without them, the controller lacks the right to pods/exec."),
            Value(
                "trainjobs",
                Word(tuple(mode.value for mode in Mode)),
                Mode.OFF.value,
                "TrainJobs to serve: off, instead (all, in place of Kubeflow Trainer's controller) or labelled ones only (beside).",
            ),
        ),
    ),
    Section(
        GLOBAL,
        "Settings for all components. The setting of a component wins; labels, annotations and tolerations are joined.",
        (
            Value("labels", Texts(LABEL_VALUE, OUR_LABELS), {}, "More labels of every object."),
            Value("annotations", Texts(), {}, "More annotations of every object."),
            *SHARED,
        ),
    ),
    Section(
        CONTROLLER,
        "The controller: it makes the pods of jobs. One replica works, the others are standbys.",
        (
            Value("replicas", Whole(1, 5), 2, "Number of pods."),
            Value("podDisruptionBudget", Switch(), True, f"{BUDGET}. With one replica, it is not created."),
            _resources("100m", "192Mi", "1Gi"),
            _flags("elastic-controller", "--gang-scheduler-name=volcano"),
            *_shared(CONTROLLER),
        ),
    ),
    Section(
        RENDEZVOUS,
        "The rendezvous server: it decides which workers train together. There is always exactly one.",
        (_resources("100m", "96Mi", "1Gi"), _flags("elastic-rendezvous", "--log-level=debug"), *_shared(RENDEZVOUS)),
    ),
    Section(
        AUTOSCALER,
        "The autoscaler: it chooses the number of workers of jobs with a scalingPolicy.",
        (
            Value("enabled", Switch(), False, "Install the autoscaler."),
            Value("metricsApi", Switch(), False, "Serve its figures to HorizontalPodAutoscalers. Needs autoscaler.enabled."),
            Value("replicas", Whole(1, 5), 2, "Number of pods."),
            Value("podDisruptionBudget", Switch(), True, f"{BUDGET}. With one replica, it is not created."),
            _resources("100m", "128Mi", "1Gi"),
            _flags("elastic-autoscaler", "--cluster-grows"),
            *_shared(AUTOSCALER),
        ),
        needs_standalone=True,
    ),
    Section(
        DASHBOARD,
        "The dashboard: it shows jobs in a browser. It always has one pod, because history and sessions are in its memory.",
        (
            Value("enabled", Switch(), False, "Install the dashboard."),
            _resources("50m", "128Mi", "1Gi"),
            _flags("elastic-dashboard", "--allow-changes"),
            *_shared(DASHBOARD),
        ),
        needs_standalone=True,
    ),
    Section(
        ETCD,
        "An etcd with three members, for jobs with rdzvBackend: etcd.",
        (
            Value("enabled", Switch(), False, "Install the etcd."),
            Value(
                "image",
                Text(IMAGE[:-2] + "$", "give the name of an image, such as quay.io/coreos/etcd:v3.5.16"),
                "quay.io/coreos/etcd:v3.5.16",
                "Image of the members.",
            ),
            Value(
                "storageSize", Text(QUANTITY, "give an amount, such as 4Gi"), "4Gi", "Size of each member's volume. It cannot change later."
            ),
            Value(
                "storageClassName",
                Text(NAME, "give the name of a StorageClass"),
                "",
                "Storage class of the volumes. Empty: the cluster's default. It cannot change later.",
            ),
            Value("podDisruptionBudget", Switch(), True, f"{BUDGET}."),
            _resources("100m", "256Mi", "2Gi"),
            _flags("etcd", "--snapshot-count=10000"),
            *_shared(ETCD),
        ),
    ),
    Section(
        "webhook",
        "The admission webhook: it refuses invalid jobs at once.",
        (
            Value("enabled", Switch(), True, "Serve the webhook. Without it, a condition of the job says what is wrong."),
            Value(
                "failurePolicy",
                Word(("Ignore", "Fail")),
                "Ignore",
                "What API servers do while no controller answers: Ignore admits jobs, Fail refuses them.",
            ),
            Value("timeoutSeconds", Whole(1, 30), 3, "How long API servers wait for an answer."),
            Value(
                "certificates",
                Word(("builtIn", "certManager")),
                "builtIn",
                "Origin of the certificate: builtIn (the controllers make and renew it) or certManager (a Certificate of cert-manager).",
            ),
            Value(
                "issuerName",
                Text(NAME, "give the name of an issuer of cert-manager"),
                "",
                "With certManager: the issuer. Empty: a self-signed one is made.",
            ),
            Value("issuerKind", Word(("Issuer", "ClusterIssuer")), "Issuer", "With certManager: the kind of the issuer."),
        ),
        needs_standalone=True,
    ),
    Section(
        "monitoring",
        "Metrics.",
        (
            Value("enabled", Switch(), False, "Make monitors and alerts for the Prometheus operator, and a dashboard for Grafana."),
            Value(
                "labels",
                Texts(LABEL_VALUE, OUR_LABELS),
                {},
                "Labels by which your Prometheus selects monitors and rules, such as {release: prometheus}.",
            ),
            Value("scrapeAnnotations", Switch(), True, "Annotate services and pods with prometheus.io/scrape, path and port."),
        ),
    ),
    Section(
        "networkPolicies",
        "Network policies of the control plane.",
        (Value("enabled", Switch(), True, "Let others reach only the serving ports of the control plane."),),
    ),
    Section(
        "installation",
        "The Secret elastic-installation, with the key and the certificate that controller and rendezvous server share.",
        (
            Value(
                "create",
                Switch(),
                True,
                "Create the Secret, and keep an existing one. With `helm template`, set it to false: each rendering would have a new key.",
            ),
        ),
    ),
)
MOVED = {
    "rendezvous.replicas": "there is always one rendezvous server, because a second one would decide differently; leave this out",
    "dashboard.replicas": "the dashboard has one pod, because history and sessions are in its memory; leave this out",
    "etcd.replicas": "the etcd has three members; leave this out",
    "metricsApi": "this is now autoscaler.metricsApi",
}
"""Names that users may expect, or that older charts had, with what to do."""
WAS_SWITCH = (AUTOSCALER, DASHBOARD, ETCD, "monitoring")
"""Sections that were switches in the chart of 0.4.0."""


def every() -> Iterator[tuple[str, Value]]:
    """Yield each value with its path."""
    for section in SECTIONS:
        for value in section.values:
            yield f"{section.name}.{value.name}" if section.name else value.name, value


VALUES = dict(every())
