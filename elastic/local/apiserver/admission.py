"""Check and complete a decoded object before it is stored.

Namespaces must exist. Pods get their account, priority and tolerations, services get their address, and definitions their names. Each rule
looks at one kind; most requests pass through unchanged.
"""

from __future__ import annotations

import ipaddress
import secrets

from elastic.local.apiserver.calls import Call
from elastic.local.apiserver.delegation import Delegation
from elastic.local.apiserver.errors import Json, StatusError, bad, forbidden, invalid, not_found
from elastic.local.apiserver.store import Store
from elastic.local.apiserver.webhooks import Webhooks

SERVICES = ipaddress.ip_network("10.96.0.0/16")
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
PROTECTED = ("default", "kube-system", "kube-public", "kube-node-lease")
_NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


class BuiltInAdmission:
    def __init__(self, store: Store, webhooks: Webhooks, delegation: Delegation) -> None:
        self._store, self._webhooks, self._delegation = store, webhooks, delegation

    async def admit(self, call: Call, new: Json | None, old: Json | None, /) -> None:
        if new is not None and old is None:
            self._namespace_is_open(call)
        plural = call.kind.plural if not call.kind.custom else ""
        if plural == "namespaces" and new is None and call.name in PROTECTED:
            raise forbidden("", "namespaces", call.name, "this namespace may not be deleted")
        if new is None:
            return
        await self._webhooks.mutate(call, new, old)
        if plural == "pods" and old is None:
            self._pod(call, new)
        elif plural == "services":
            self._service(call, new, old)
        self._delegation.check(call, new, old)

    async def review(self, call: Call, new: Json | None, old: Json | None, /) -> None:
        await self._webhooks.validate(call, new, old)

    def _namespace_is_open(self, call: Call) -> None:
        if not call.namespace:
            return
        entry = self._store.get("namespaces", "", call.namespace)
        if entry is None:
            raise not_found("", "namespaces", call.namespace)
        namespace = entry.load()
        if namespace["metadata"].get("deletionTimestamp"):
            why = f"unable to create new content in namespace {call.namespace} because it is being terminated"
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {call.namespace} is being terminated",
                "field": "metadata.namespace",
            }
            error = forbidden(call.kind.group, call.kind.plural, call.name, why)
            error.details = {**(error.details or {}), "causes": [cause]}
            raise error

    # ------------------------------------------------------------------ pods
    def _pod(self, call: Call, pod: Json) -> None:
        spec = pod["spec"]
        self._account(call, pod, spec)
        self._priority(call, pod, spec)
        tolerations = spec.setdefault("tolerations", [])
        for key in _NOT_READY:
            covered = any(
                (t.get("key") == key or (not t.get("key") and t.get("operator") == "Exists")) and t.get("effect") in (None, "", "NoExecute")
                for t in tolerations
            )
            if not covered:
                tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})

    def _account(self, call: Call, pod: Json, spec: Json) -> None:
        name = spec.get("serviceAccountName") or "default"
        entry = self._store.get("serviceaccounts", call.namespace, name)
        if entry is None and name != "default":
            why = f'error looking up service account {call.namespace}/{name}: serviceaccount "{name}" not found'
            raise forbidden("", "pods", pod["metadata"].get("name", ""), why)
        spec["serviceAccountName"] = spec["serviceAccount"] = name
        account = entry.load() if entry else {}
        if "imagePullSecrets" not in spec and account.get("imagePullSecrets"):
            spec["imagePullSecrets"] = account["imagePullSecrets"]
        mounts = spec.get("automountServiceAccountToken", account.get("automountServiceAccountToken", True))
        if not mounts:
            return
        volume = f"kube-api-access-{''.join(secrets.choice('bcdfghjklmnpqrstvwxz2456789') for _ in range(5))}"
        needed = False
        for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
            present = container.get("volumeMounts") or []
            if all(m.get("mountPath") != TOKEN_PATH for m in present):
                container["volumeMounts"] = [*present, {"name": volume, "readOnly": True, "mountPath": TOKEN_PATH}]
                needed = True
        if needed:
            spec["volumes"] = [*(spec.get("volumes") or ()), token_volume(volume)]

    def _priority(self, call: Call, pod: Json, spec: Json) -> None:
        name = spec.get("priorityClassName")
        chosen: Json | None = None
        if name:
            entry = self._store.get("priorityclasses.scheduling.k8s.io", "", name)
            if entry is None:
                raise forbidden("", "pods", pod["metadata"].get("name", ""), f"no PriorityClass with name {name} was found")
            chosen = entry.load()
        else:
            defaults = [e.load() for e in self._store.entries("priorityclasses.scheduling.k8s.io")]
            marked = [d for d in defaults if d.get("globalDefault")]
            if marked:
                chosen = min(marked, key=lambda d: d["value"])
                spec["priorityClassName"] = chosen["metadata"]["name"]
        value = chosen["value"] if chosen else 0
        if spec.get("priority") not in (None, value):
            why = f"priority {spec['priority']} must not be set in the pod; its priority class gives {value}"
            raise forbidden("", "pods", pod["metadata"].get("name", ""), why)
        spec["priority"] = value
        spec.setdefault("preemptionPolicy", (chosen or {}).get("preemptionPolicy", "PreemptLowerPriority"))

    # ------------------------------------------------------------------ services
    def _service(self, call: Call, new: Json, old: Json | None) -> None:
        spec = new["spec"]
        if spec.get("type") == "ExternalName":
            return
        if old is not None and not spec.get("clusterIP"):
            for key in ("clusterIP", "clusterIPs"):
                if key in old["spec"]:
                    spec[key] = old["spec"][key]
        if not spec.get("clusterIP"):
            spec["clusterIP"] = self._free_address()
        elif old is None and spec["clusterIP"] != "None":
            self._claim(new, spec["clusterIP"])
        spec["clusterIPs"] = [spec["clusterIP"]]
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")
        if spec["type"] in ("NodePort", "LoadBalancer"):
            for port in spec.get("ports") or ():
                port.setdefault("nodePort", 30000 + secrets.randbelow(2768))

    def _taken(self) -> set[str]:
        return {e.fields.get("spec.clusterIP", "") for e in self._store.entries("services")}

    def _free_address(self) -> str:
        taken = self._taken()
        for _ in range(1000):
            address = str(SERVICES[secrets.randbelow(SERVICES.num_addresses - 300) + 256])
            if address not in taken:
                return address
        raise StatusError(500, "InternalError", "no free cluster address was found")

    def _claim(self, service: Json, address: str) -> None:
        name = service["metadata"].get("name", "")
        try:
            inside = ipaddress.ip_address(address) in SERVICES
        except ValueError:
            raise invalid(
                "", "Service", name, [bad("spec.clusterIPs[0]", address, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")]
            ) from None
        if not inside:
            why = f"failed to allocate IP {address}: the provided IP is not in the valid range {SERVICES}"
            raise invalid("", "Service", name, [bad("spec.clusterIPs", [address], why)])
        if address in self._taken():
            raise invalid(
                "",
                "Service",
                name,
                [bad("spec.clusterIPs", [address], f"failed to allocate IP {address}: provided IP is already allocated")],
            )


def token_volume(name: str) -> Json:
    """Return the volume through which a pod gets its account's token, the CA and its namespace."""
    return {
        "name": name,
        "projected": {
            "defaultMode": 420,
            "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
            ],
        },
    }
