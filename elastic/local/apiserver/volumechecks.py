"""Check that the paths in a pod's volumes and mounts stay inside the volume, in the words of a real API server."""

from __future__ import annotations

from collections.abc import Iterator

from elastic.local.apiserver.errors import Cause, Json, bad, required


def source_causes(volume: Json, path: str) -> list[Cause]:
    """Return the mistakes in the paths of a volume."""
    out = [cause for where, entry in _files(volume, path) for cause in _file_causes(entry, where)]
    if "hostPath" in volume:
        host = str(volume["hostPath"].get("path") or "")
        out += _no_backsteps(host, f"{path}.hostPath.path") if host else [required(f"{path}.hostPath.path")]
    if "persistentVolumeClaim" in volume and not volume["persistentVolumeClaim"].get("claimName"):
        out.append(required(f"{path}.persistentVolumeClaim.claimName"))
    return out


def _files(volume: Json, path: str) -> Iterator[tuple[str, Json]]:
    """Yield every entry that names a file of the volume, with its place in the object."""
    projected = (volume.get("projected") or {}).get("sources") or ()
    parts = [(path, volume), *((f"{path}.projected.sources[{i}]", source) for i, source in enumerate(projected))]
    for where, part in parts:
        for kind in ("configMap", "secret", "downwardAPI"):
            for i, item in enumerate((part.get(kind) or {}).get("items") or ()):
                yield f"{where}.{kind}.items[{i}]", item
        if "serviceAccountToken" in part:
            yield f"{where}.serviceAccountToken", part["serviceAccountToken"]


def _file_causes(entry: Json, where: str) -> list[Cause]:
    target = entry.get("path", "")
    out = _descending(target, f"{where}.path") if target else [required(f"{where}.path")]
    if target.startswith("..") and not target.startswith("../"):
        out.append(bad(f"{where}.path", target, "must not start with '..'"))
    mode = entry.get("mode")
    if mode is not None and not 0 <= mode <= 0o777:
        out.append(bad(f"{where}.mode", mode, "must be a number between 0 and 0777 (octal), both inclusive"))
    return out


def mount_causes(mount: Json, where: str) -> list[Cause]:
    """Return the mistakes in the part of a volume that a container asks for."""
    out: list[Cause] = []
    for key in ("subPath", "subPathExpr"):
        if mount.get(key):
            out += _descending(mount[key], f"{where}.{key}")
    if mount.get("subPath") and mount.get("subPathExpr"):
        out.append(bad(f"{where}.subPathExpr", mount["subPathExpr"], "subPathExpr and subPath are mutually exclusive"))
    return out


def _descending(target: str, where: str) -> list[Cause]:
    absolute = [bad(where, target, "must be a relative path")] if target.startswith("/") else []
    return absolute + _no_backsteps(target, where)


def _no_backsteps(target: str, where: str) -> list[Cause]:
    return [bad(where, target, "must not contain '..'")] if ".." in target.split("/") else []
