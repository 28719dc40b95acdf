"""Write the names that a pod can resolve into its hosts file: itself, localhost, services as their pods, and the control plane.

Pure. There are no virtual service addresses here: a service's name leads straight to its ready pods, as a headless service's does in a
cluster.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from elastic.local.agent.environment import Object

DOMAIN = "cluster.local"
API_SERVER = ("kubernetes", "default")


@dataclass(frozen=True, slots=True)
class NamedPod:
    """The part of a pod that names need. It is kept for each pod of the cluster."""

    namespace: str
    name: str
    uid: str
    ip: str
    ready: bool
    leaving: bool
    finished: bool
    labels: Mapping[str, str]
    hostname: str
    subdomain: str


@dataclass(frozen=True, slots=True)
class NamedService:
    namespace: str
    name: str
    selector: Mapping[str, str]
    not_ready_too: bool


def named_pod(pod: Object) -> NamedPod:
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    conditions = {entry["type"]: entry["status"] for entry in status.get("conditions") or ()}
    return NamedPod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        ip=status.get("podIP", ""),
        ready=conditions.get("Ready") == "True",
        leaving="deletionTimestamp" in metadata,
        finished=status.get("phase") in ("Succeeded", "Failed"),
        labels=metadata.get("labels") or {},
        hostname=spec.get("hostname", ""),
        subdomain=spec.get("subdomain", ""),
    )


def named_service(service: Object) -> NamedService:
    spec = service.get("spec") or {}
    return NamedService(
        namespace=service["metadata"]["namespace"],
        name=service["metadata"]["name"],
        selector=spec.get("selector") or {},
        not_ready_too=bool(spec.get("publishNotReadyAddresses")),
    )


def behind(service: NamedService, pods: Iterable[NamedPod]) -> list[NamedPod]:
    """Return the pods to which a service's name leads."""
    if not service.selector:
        return []
    return [
        pod
        for pod in pods
        if pod.namespace == service.namespace
        and pod.ip
        and not pod.finished
        and (service.not_ready_too or (pod.ready and not pod.leaving))
        and all(pod.labels.get(key) == value for key, value in service.selector.items())
    ]


class Directory:
    """All names of a cluster at one moment; each pod's hosts file is a view of it from the pod's namespace."""

    def __init__(self, services: Iterable[NamedService], pods: Iterable[NamedPod], *, fixed: Mapping[tuple[str, str], str]) -> None:
        by_namespace: dict[str, list[NamedPod]] = {}
        for pod in pods:
            by_namespace.setdefault(pod.namespace, []).append(pod)
        self._entries: list[tuple[str, str, str]] = [(ip, name, namespace) for (name, namespace), ip in fixed.items()]
        self._hostnames: list[tuple[str, str]] = []
        for service in sorted(services, key=lambda service: (service.namespace, service.name)):
            if (service.name, service.namespace) in fixed:
                continue
            for pod in sorted(behind(service, by_namespace.get(service.namespace, ())), key=lambda pod: pod.name):
                self._entries.append((pod.ip, service.name, service.namespace))
                if pod.subdomain == service.name and pod.hostname:
                    self._hostnames.append((pod.ip, f"{pod.hostname}.{service.name}.{service.namespace}.svc"))

    def lines(self, namespace: str, searches: Iterable[str] = ()) -> list[str]:
        """Return the names that a pod of that namespace can resolve, also the short ones that its search domains make full.

        searches: domains besides those that each pod has.
        """
        domains = dict.fromkeys(f".{search}" for search in (f"{namespace}.svc.{DOMAIN}", f"svc.{DOMAIN}", *searches))
        found = []
        for ip, name, home in self._entries:
            short = [name] if home == namespace else []
            found.append(" ".join([ip, *short, f"{name}.{home}", f"{name}.{home}.svc", f"{name}.{home}.svc.{DOMAIN}"]))
        for ip, name in self._hostnames:
            full = f"{name}.{DOMAIN}"
            short = [full.removesuffix(domain) for domain in domains if full.endswith(domain)]
            found.append(" ".join([ip, name, full, *short]))
        return found


def hosts_file(pod: Object, *, ip: str, hostname: str, directory: Directory) -> str:
    """Return the text of a pod's hosts file. Its own names come first, because a program that looks for an address takes the first line."""
    spec, namespace = pod["spec"], pod["metadata"]["namespace"]
    own = [hostname]
    if spec.get("subdomain"):
        own.insert(0, f"{hostname}.{spec['subdomain']}.{namespace}.svc.{DOMAIN}")
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    lines.append(" ".join([ip, *own]))
    lines += [" ".join([alias["ip"], *alias.get("hostnames", ())]) for alias in spec.get("hostAliases") or ()]
    searches = (spec.get("dnsConfig") or {}).get("searches") or ()
    return "\n".join([*lines, *directory.lines(namespace, searches)]) + "\n"


def hostname_of(pod: Object) -> str:
    """Return the host name of a pod. It has at most 63 characters, and does not end in a separator."""
    wanted: Any = pod["spec"].get("hostname") or pod["metadata"]["name"]
    return str(wanted)[:63].rstrip("-.")
