"""Turn a container's spec into a launch for the sandbox: fetch the objects that it refers to, make volumes and build the environment.

`image` is not pulled: the process runs on this machine, with the programs that replace the image.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS, Resource
from elastic.local.agent import memory, volumes
from elastic.local.agent.devices import Devices
from elastic.local.agent.environment import ConfigError, Object, Sources, command_line, environment
from elastic.local.agent.images import Images
from elastic.local.agent.names import hostname_of
from elastic.local.agent.records import PodFolder
from elastic.local.agent.runs import BackOff
from elastic.local.sandbox import Input, Launch, Mode, Mount

WORKING_DIR = "elastic-training/working-dir"
"""Annotation of a pod with the working folder of containers that name none. Without it, they start in the folder of the cluster's start."""
NO_TOKEN_BEFORE_S = 0.8
ACCOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Folder in which every client looks for the account of its pod. It has the same path in all pods, so a link cannot serve one pod."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The way in which containers run on this node."""

    mode: Mode
    base_env: Mapping[str, str]
    """Variables in place of an image's, above all the PATH on which `python` and `torchrun` are found."""
    cwd: str
    """The working folder of a container that names no folder."""
    claims: Path
    host_ip: str
    capacity: Mapping[str, str]
    limits_memory: bool = False
    """Whether the kernel enforces memory limits, so that the agent need not watch containers."""
    images: Images = field(default_factory=Images)
    back_off: BackOff = field(default_factory=BackOff)


def _input(container: Object) -> Input:
    if container.get("tty"):
        return Input.TERMINAL
    return Input.PIPE if container.get("stdin") else Input.NONE


def _volumes(pod: Object) -> list[Object]:
    return list(pod["spec"].get("volumes") or ())


class Preparation:
    """Fetches and makes everything for a pod that must exist before its containers can start."""

    def __init__(self, folder: PodFolder, kube: Kube, settings: Settings, devices: Devices) -> None:
        self._folder = folder
        self._kube = kube
        self._settings = settings
        self._devices = devices
        self._folders: dict[str, Path] = {}
        self._tokens: dict[volumes.TokenRequest, tuple[str, float]] = {}
        self._made_at = 0.0

    def follows(self, pod: Object) -> bool:
        """Return whether a volume's contents can change while the pod runs."""
        return any(volumes.is_made_of_objects(volume) for volume in _volumes(pod))

    async def make_volumes(self, pod: Object, *, not_before: float = float("inf")) -> None:
        """Make the volumes, or update them if the last update was before `not_before`."""
        if self._made_at > not_before:
            return
        sources = await self._sources(pod, volumes.in_volumes(pod))
        tokens = await self._fresh_tokens(pod)
        namespace = pod["metadata"]["namespace"]
        self._folder.scratch.mkdir(parents=True, exist_ok=True)
        for volume in _volumes(pod):
            folder = volumes.folder_of(volume, pod_folder=self._folder.path, claims=self._settings.claims, namespace=namespace)
            files = volumes.files_of(volume, sources, tokens)
            if files is not None:
                volumes.write(folder, files)
            self._folders[volume["name"]] = folder
        self._made_at = time.time()

    async def launch(self, pod: Object, container: Object, *, run_id: str, attempt: int) -> Launch:
        sources = await self._sources(pod, volumes.in_environment(container))
        image = container.get("image") or ""
        env = environment(container, sources, base=self._base(pod, container))
        name = container["name"]
        self._folder.container(name).mkdir(parents=True, exist_ok=True)
        message = self._folder.message(name, attempt)
        message.touch()
        mounts = volumes.mounts(container, self._folders, env)
        path = container.get("terminationMessagePath") or volumes.TERMINATION_LOG
        if self._settings.mode is Mode.NETNS:
            mounts.append(Mount(source=str(message), target=path))
        else:
            account = next((mount for mount in mounts if mount.target == ACCOUNT_PATH), None)
            mounts = [mount for mount in mounts if mount is not account]
            env |= {"ELASTIC_POD_MESSAGE_PATH": path, "ELASTIC_POD_MESSAGE_FILE": str(message)}
            env |= {"ELASTIC_POD_ACCOUNT_PATH": ACCOUNT_PATH, "ELASTIC_POD_ACCOUNT_FOLDER": account.source} if account else {}
        return Launch(
            id=run_id,
            pod=pod["metadata"]["uid"],
            argv=command_line(container, env, default=self._settings.images.find(image).command),
            env=env,
            cwd=container.get("workingDir") or (pod["metadata"].get("annotations") or {}).get(WORKING_DIR) or self._settings.cwd,
            log=str(self._folder.log(name, attempt)),
            record=str(self._folder.record(name, attempt)),
            mounts=mounts,
            hosts=str(self._folder.hosts),
            memory=memory.limit_of(container) or 0,
            input=_input(container),
        )

    def _base(self, pod: Object, container: Object) -> dict[str, str]:
        inside = self._settings.images.environment(container.get("image") or "", self._settings.base_env)
        terminal = {"TERM": "xterm"} if container.get("tty") else {}
        return {**inside, **terminal, "HOSTNAME": hostname_of(pod), "TMPDIR": str(self._folder.scratch), **self._gpus(pod, container)}

    def _gpus(self, pod: Object, container: Object) -> dict[str, str]:
        """Return the variables that let a container on a node with GPUs see only its own GPUs."""
        if not self._devices.any:
            return {}
        uid = pod["metadata"]["uid"]
        numbers = ",".join(map(str, self._devices.give(uid, container)))
        note = self._folder.note()
        if note is not None:
            self._folder.write_note(replace(note, gpus=self._devices.of(uid)))
        return {"CUDA_VISIBLE_DEVICES": numbers, "NVIDIA_VISIBLE_DEVICES": numbers or "void"}

    async def _sources(self, pod: Object, named: tuple[set[str], set[str]]) -> Sources:
        maps, secrets = named
        namespace = pod["metadata"]["namespace"]
        return Sources(
            pod=pod,
            config_maps=await self._fetch(CONFIG_MAPS, maps, namespace),
            secrets=await self._fetch(SECRETS, secrets, namespace),
            node_capacity=self._settings.capacity,
        )

    async def _fetch(self, resource: Resource, names: set[str], namespace: str) -> dict[str, Object]:
        found = {name: await self._kube.find(resource, name, namespace=namespace) for name in sorted(names)}
        return {name: item for name, item in found.items() if item is not None}

    async def _fresh_tokens(self, pod: Object) -> dict[volumes.TokenRequest, str]:
        now = time.time()
        wanted = {request for volume in _volumes(pod) for request in volumes.token_requests(volume)}
        for request in wanted:
            if request not in self._tokens or self._tokens[request][1] <= now:
                audience, seconds = request
                token = await self._token(pod, audience=audience, seconds=seconds)
                self._tokens[request] = (token, now + seconds * NO_TOKEN_BEFORE_S)
        return {request: self._tokens[request][0] for request in wanted}

    async def _token(self, pod: Object, *, audience: str, seconds: int) -> str:
        metadata = pod["metadata"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [audience] if audience else [], "expirationSeconds": seconds, "boundObjectRef": bound},
        }
        account = pod["spec"].get("serviceAccountName") or "default"
        try:
            answer = await self._kube.create(SERVICE_ACCOUNTS, body, namespace=metadata["namespace"], name=account, subresource="token")
        except KubeError as error:
            if error.code != 404:
                raise
            raise ConfigError(f"failed to fetch token: {error.message}") from error
        return str(answer["status"]["token"])
