"""Make a pod's volumes as folders below the pod's own, and say where each container wants them.

Contents of config maps, secrets, projected volumes and the downward API are replaced in one step, so that a reader sees the old or the new
contents, and never a mixture.
"""

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from elastic.local.agent.environment import ConfigError, Object, Sources, config_map_data, expand, field, resource_field, secret_data
from elastic.local.sandbox import Mount

TERMINATION_LOG = "/dev/termination-log"
_CLAIM_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_VERSION = re.compile(r"\.\.[1-9][0-9]*")
"""The name of a folder with one version of a volume's contents."""
TokenRequest = tuple[str, int]
"""Audience (empty for the API server) and seconds of validity of a projected token."""


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    mode: int


def in_volumes(pod: Object) -> tuple[set[str], set[str]]:
    """Return the names of the config maps and secrets that a pod's volumes are made of."""
    maps: set[str] = set()
    secrets: set[str] = set()
    for volume in pod["spec"].get("volumes") or ():
        for source in [volume, *((volume.get("projected") or {}).get("sources") or ())]:
            if "configMap" in source:
                maps.add(source["configMap"].get("name", ""))
            if "secret" in source:
                secrets.add(source["secret"].get("secretName") or source["secret"].get("name", ""))
    return maps, secrets


def in_environment(container: Object) -> tuple[set[str], set[str]]:
    """Return the names of the config maps and secrets in a container's environment."""
    maps: set[str] = set()
    secrets: set[str] = set()
    for source in [*(container.get("envFrom") or ()), *(entry.get("valueFrom") or {} for entry in container.get("env") or ())]:
        for key, names in (("configMapRef", maps), ("configMapKeyRef", maps), ("secretRef", secrets), ("secretKeyRef", secrets)):
            if key in source:
                names.add(source[key].get("name", ""))
    return maps, secrets


def token_requests(volume: Object) -> set[TokenRequest]:
    sources = (volume.get("projected") or {}).get("sources") or ()
    return {_token_request(source["serviceAccountToken"]) for source in sources if "serviceAccountToken" in source}


def is_made_of_objects(volume: Object) -> bool:
    """Return whether a volume's contents come from the API server, as with config maps and secrets, and may change."""
    return bool({"configMap", "secret", "projected", "downwardAPI"} & volume.keys())


def _token_request(source: Object) -> TokenRequest:
    return source.get("audience", ""), int(source.get("expirationSeconds") or 3600)


def files_of(volume: Object, sources: Sources, tokens: Mapping[TokenRequest, str]) -> dict[str, File] | None:
    """Return the files of a volume that is made of API objects, by path; None for a volume of another type."""
    if "projected" in volume:
        projected = volume["projected"]
        files: dict[str, File] = {}
        for source in projected.get("sources") or ():
            files |= _source_files(source, sources, tokens, default=projected.get("defaultMode", 0o644))
        return files
    for kind in ("configMap", "secret", "downwardAPI"):
        if kind in volume:
            return _source_files(volume, sources, tokens, default=volume[kind].get("defaultMode", 0o644))
    return None


def _source_files(source: Object, sources: Sources, tokens: Mapping[TokenRequest, str], *, default: int) -> dict[str, File]:
    if "configMap" in source:
        return _items(source["configMap"], config_map_data(source["configMap"], sources), default=default)
    if "secret" in source:
        return _items(source["secret"], secret_data(source["secret"], sources), default=default)
    if "downwardAPI" in source:
        return _downward(source["downwardAPI"], sources, default=default)
    if "serviceAccountToken" in source:
        wanted = source["serviceAccountToken"]
        return {wanted["path"]: File(tokens[_token_request(wanted)].encode(), 0o600)}
    raise ConfigError(f"projected source {sorted(source)} is not supported here")


def _items(source: Object, data: dict[str, bytes], *, default: int) -> dict[str, File]:
    if not source.get("items"):
        return {key: File(value, default) for key, value in data.items()}
    files = {}
    for item in source["items"]:
        if item["key"] in data:
            files[item["path"]] = File(data[item["key"]], item.get("mode", default))
        elif not source.get("optional"):
            raise ConfigError(f"references non-existent config key: {item['key']}")
    return files


def _downward(source: Object, sources: Sources, *, default: int) -> dict[str, File]:
    files = {}
    for item in source.get("items") or ():
        if "fieldRef" in item:
            text = field(sources.pod, item["fieldRef"]["fieldPath"])
        else:
            text = resource_field(item["resourceFieldRef"], {"name": ""}, sources)
        files[item["path"]] = File(text.encode(), item.get("mode", default))
    return files


def write(folder: Path, files: Mapping[str, File]) -> None:
    """Write files. Every top-level name is a link through `..data`, and one rename of `..data` replaces the contents."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "..data"
    old = _version(data)
    if old is not None and _holds(old, files):
        return
    number = int(old.name.removeprefix("..")) + 1 if old is not None else 1
    new = folder / f"..{number}"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    for path, file in files.items():
        target = within(new, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.content)
        target.chmod(file.mode)
    link = folder / "..next"
    link.unlink(missing_ok=True)
    link.symlink_to(new.name)
    link.rename(data)
    _link_names(folder, {path.split("/")[0] for path in files})
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _version(data: Path) -> Path | None:
    """Return the folder that `..data` leads to, if it is ours. Containers can change the link, and such a link is not followed."""
    name = os.readlink(data) if data.is_symlink() else ""
    return data.with_name(name) if _VERSION.fullmatch(name) else None


def within(folder: Path, path: str) -> Path:
    """Return the path below a folder with every link followed. Raise ConfigError if it leads out of the folder."""
    root = os.path.realpath(folder)
    found = os.path.realpath(os.path.join(root, path))
    if path.startswith("/") or (found != root and not found.startswith(f"{root.rstrip('/')}/")):
        raise ConfigError(f'path "{path}" leads out of its volume')
    return Path(found)


def _link_names(folder: Path, names: set[str]) -> None:
    for entry in folder.iterdir():
        if entry.is_symlink() and not entry.name.startswith("..") and entry.name not in names:
            entry.unlink()
    for name in names:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")


def _holds(folder: Path, files: Mapping[str, File]) -> bool:
    present = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return present.keys() == files.keys() and all(present[path].read_bytes() == file.content for path, file in files.items())


def folder_of(volume: Object, *, pod_folder: Path, claims: Path, namespace: str) -> Path:
    """Return the folder of a volume on this machine. Make it, unless it is the user's."""
    if "hostPath" in volume:
        return _host_path(volume["hostPath"])
    if "persistentVolumeClaim" in volume:
        name = str(volume["persistentVolumeClaim"]["claimName"])
        if not _CLAIM_NAME.fullmatch(name) or ".." in name:
            raise ConfigError(f'persistentvolumeclaim "{name}" not found')
        folder = claims / namespace / name
    else:
        folder = within(pod_folder / "volumes", str(volume["name"]))
        known = {"emptyDir", "configMap", "secret", "downwardAPI", "projected", "ephemeral"}
        if not known & volume.keys() and volume.keys() != {"name"}:
            raise ConfigError(f'volume "{volume["name"]}" has a type that is not supported here: {sorted(volume.keys() - {"name"})}')
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _host_path(source: Object) -> Path:
    path, kind = Path(str(source["path"])), source.get("type", "")
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        path.touch()
    if kind == "Directory" and not path.is_dir():
        raise ConfigError(f"hostPath type check failed: {path} is not a directory")
    if kind == "File" and not path.is_file():
        raise ConfigError(f"hostPath type check failed: {path} is not a file")
    if not path.exists():
        raise ConfigError(f"hostPath {path} does not exist")
    return path


def mounts(container: Object, folders: Mapping[str, Path], env: Mapping[str, str]) -> list[Mount]:
    """Return the mounts that a container asks for. Volumes without a folder are left out, because none was made for them."""
    found = []
    for wanted in container.get("volumeMounts") or ():
        if wanted["name"] not in folders:
            continue
        source = folders[wanted["name"]]
        part = wanted.get("subPath") or expand(wanted.get("subPathExpr") or "", env)
        if part:
            source = within(source, part)
            if not source.exists():
                source.mkdir(parents=True)
        found.append(Mount(source=str(source), target=wanted["mountPath"], read_only=bool(wanted.get("readOnly"))))
    return found
