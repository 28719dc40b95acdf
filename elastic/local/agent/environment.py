"""Build a container's environment and command line from its spec and the objects that the spec refers to.

Pure: the caller has fetched config maps and secrets. A missing object is a ConfigError in the words of a kubelet.
"""

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic.kube import quantity

Object = dict[str, Any]
_REFERENCE = re.compile(r"\$\$|\$\(([^()]*)\)")
_SUBSCRIPT = re.compile(r"(.+)\['(.+)'\]")


class ConfigError(Exception):
    """A container cannot start with its present spec. It becomes CreateContainerConfigError in the pod's status."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Existing objects that a pod's spec may refer to: config maps and secrets of its namespace by name, and the pod itself."""

    pod: Object
    config_maps: Mapping[str, Object]
    secrets: Mapping[str, Object]
    node_capacity: Mapping[str, str | int]


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace each $(NAME) that has a value by the value, and $$ by a dollar sign. All other text stays."""

    def replace(match: re.Match[str]) -> str:
        if match.group(0) == "$$":
            return "$"
        return values.get(match.group(1), match.group(0))

    return _REFERENCE.sub(replace, text)


def command_line(container: Object, env: Mapping[str, str], *, default: Sequence[str] = ()) -> list[str]:
    """Return command and args. `default` replaces the image's own command, if anything does."""
    command = [expand(word, env) for word in [*(container.get("command") or default), *(container.get("args") or ())]]
    if not container.get("command") and not default:
        raise ConfigError(
            f'container "{container["name"]}" has no command; images are not pulled here, so their entrypoint is unknown: '
            "set command in the container"
        )
    return command


def environment(container: Object, sources: Sources, *, base: Mapping[str, str]) -> dict[str, str]:
    """Return the base (the image's variables), then envFrom and env in order. Later values win, and may refer to earlier ones."""
    given: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        given |= _from_whole(source, sources)
    for entry in container.get("env") or ():
        if "valueFrom" in entry:
            value = _value_from(entry["valueFrom"], container, sources)
            if value is not None:
                given[entry["name"]] = value
        else:
            given[entry["name"]] = expand(entry.get("value", ""), given)
    return {**base, **given}


def _from_whole(source: Object, sources: Sources) -> dict[str, str]:
    prefix = source.get("prefix", "")
    if "configMapRef" in source:
        data = config_map_data(source["configMapRef"], sources)
    else:
        data = secret_data(source.get("secretRef", {}), sources)
    return {prefix + key: value.decode(errors="replace") for key, value in data.items()}


def _value_from(source: Object, container: Object, sources: Sources) -> str | None:
    if "fieldRef" in source:
        return field(sources.pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return resource_field(source["resourceFieldRef"], container, sources)
    if "configMapKeyRef" in source:
        return _key(source["configMapKeyRef"], config_map_data, sources, kind="ConfigMap")
    if "secretKeyRef" in source:
        return _key(source["secretKeyRef"], secret_data, sources, kind="Secret")
    raise ConfigError(f"valueFrom {sorted(source)} is not supported here")


def _key(ref: Object, read: Callable[[Object, Sources], dict[str, bytes]], sources: Sources, *, kind: str) -> str | None:
    data = read(ref, sources)
    if ref["key"] in data:
        return data[ref["key"]].decode(errors="replace")
    if ref.get("optional"):
        return None
    namespace = sources.pod["metadata"]["namespace"]
    raise ConfigError(f"couldn't find key {ref['key']} in {kind} {namespace}/{ref['name']}")


def config_map_data(ref: Object, sources: Sources) -> dict[str, bytes]:
    found = sources.config_maps.get(ref.get("name", ""))
    if found is None:
        if ref.get("optional"):
            return {}
        raise ConfigError(f'configmap "{ref.get("name", "")}" not found')
    binary = {key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()}
    return {**{key: value.encode() for key, value in (found.get("data") or {}).items()}, **binary}


def secret_data(ref: Object, sources: Sources) -> dict[str, bytes]:
    name = ref.get("name") or ref.get("secretName", "")
    found = sources.secrets.get(name)
    if found is None:
        if ref.get("optional"):
            return {}
        raise ConfigError(f'secret "{name}" not found')
    return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}


def field(pod: Object, path: str) -> str:
    """Return a field of the pod for env or a downwardAPI volume: also all labels or annotations, or a single one."""
    subscript = _SUBSCRIPT.fullmatch(path)
    if subscript:
        return str(_at(pod, subscript.group(1)).get(subscript.group(2), ""))
    value = _at(pod, path)
    if isinstance(value, dict):
        return "\n".join(f'{key}="{text}"' for key, text in sorted(value.items()))
    if path == "status.podIPs":
        return ",".join(entry["ip"] for entry in value or ())
    return str(value or "")


def _at(pod: Object, path: str) -> Any:
    found: Any = pod
    for name in path.split("."):
        found = (found or {}).get(name)
    return {} if found is None and path in ("metadata.labels", "metadata.annotations") else found


def resource_field(ref: Object, container: Object, sources: Sources) -> str:
    """Return a request or limit in units of the divisor, rounded up. An unset limit is the node's capacity."""
    _, _, wanted = ref["resource"].partition(".")
    kind = ref["resource"].split(".")[0]
    named = next(
        (other for other in sources.pod["spec"].get("containers", ()) if other["name"] == ref.get("containerName", container["name"])),
        container,
    )
    resources = named.get("resources") or {}
    written = (resources.get(kind) or {}).get(wanted)
    if written is None:
        written = sources.node_capacity.get(wanted, 0) if kind == "limits" else 0
    divisor = quantity.parse(ref.get("divisor") or 1) or 1
    amount = quantity.parse(written) / divisor
    return str(-(-amount.numerator // amount.denominator))
