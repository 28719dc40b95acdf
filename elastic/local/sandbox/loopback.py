"""Run pods in the sandbox `loopback`, for kernels that grant no namespaces.

Every pod has its own address 127.x.y.z, and a small preloaded library (podnet.c) separates them. Pods see the machine's files. A mountPath
is a symbolic link, and is refused if the link cannot be made.
"""

import contextlib
import hashlib
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import NoReturn

import msgspec

from elastic.local.sandbox import Launch, Mode, Mount, SandboxError, init, linux
from elastic.local.sandbox.init import Ends
from elastic.local.sandbox.inputs import Console

GATEWAY = "127.0.0.1"
FIRST_NETWORK, LAST_NETWORK = 16, 250
CLAIM_PORT = 47_001
COMPILE_S = 60.0
OF_A_POD = re.compile(r"/nodes/[^/]+/[^/]+/volumes/|/claims/")
"""Targets of the links that we made. Any other link belongs to the machine, and is never touched."""


class Loopback:
    """Assigns addresses of a network 127.x, which it claims for this cluster with a socket, and remembers the links that it made."""

    mode = Mode.LOOPBACK
    gateway = GATEWAY

    def __init__(self, folder: Path) -> None:
        self._library = str(compile_library(folder))
        self._claim, self._network = _claim_network()
        self._addresses: dict[str, str] = {}
        self._hostnames: dict[str, str] = {}
        self._links: dict[str, list[str]] = {}
        self._last = 1

    def create(self, pod: str, *, hostname: str) -> str:
        taken = set(self._addresses.values())
        for _ in range(65_000):
            self._last = self._last + 1 if self._last < 65_000 else 2
            ip = f"127.{self._network}.{self._last >> 8}.{self._last & 255}"
            if ip not in taken:
                self._addresses[pod], self._hostnames[pod] = ip, hostname
                return ip
        raise SandboxError("no address is free in the pods' network")

    def adopt_address(self, pod: str) -> str | None:
        return self._addresses.get(pod)

    def destroy(self, pod: str) -> None:
        self._addresses.pop(pod, None)
        self._hostnames.pop(pod, None)
        for link in reversed(self._links.pop(pod, [])):
            heir = next((others for others in self._links.values() if any(f"{other}/".startswith(f"{link}/") for other in others)), None)
            if heir is not None:
                heir.insert(0, link)
                continue
            with contextlib.suppress(OSError):
                os.unlink(link) if os.path.islink(link) else os.rmdir(link)

    def listen(self, port: int) -> socket.socket:
        raise SandboxError("pods reach the servers' own addresses in sandbox loopback; no second socket is needed")

    def dial(self, pod: str, *, port: int, inside: bool) -> socket.socket:
        """Connect to a pod's address. A server on 127.0.0.1 in a pod listens on this address too, so `inside` makes no difference."""
        if pod not in self._addresses:
            raise SandboxError(f"pod {pod} has no address here")
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex((self._addresses[pod], port))
        return connection

    def check(self, launch: Launch) -> None:
        for mount in launch.mounts:
            self._link(launch.pod, mount)

    def _link(self, pod: str, mount: Mount) -> None:
        target = mount.target.rstrip("/") or "/"
        made = self._links.setdefault(pod, [])
        if os.path.islink(target) and os.readlink(target) == mount.source:
            # The link was made for an earlier container of the pod, or for another pod with the same claim.
            made.append(target)
            return
        if os.path.islink(target) and OF_A_POD.search(os.readlink(target)):
            if os.path.exists(target):
                raise SandboxError(
                    f"mountPath {target} is in use by another pod; without namespaces (sandbox loopback) one pod at a time can have it"
                )
            # A cluster that was killed together with its pod has left the link.
            os.unlink(target)
        if os.path.lexists(target):
            raise SandboxError(f"mountPath {target} exists on this machine; without namespaces (sandbox loopback) it cannot be covered")
        try:
            for folder in _missing_parents(target):
                os.mkdir(folder)
                made.append(folder)
            os.symlink(mount.source, target)
        except OSError as error:
            raise SandboxError(
                f"mountPath {target} cannot be made: {error.strerror}; without namespaces (sandbox loopback) it is a symbolic link, "
                "which needs a writable parent folder"
            ) from error
        made.append(target)

    def spawn(self, launch: Launch, *, console: Console, group: int, problem: int) -> int:
        dressed = self._dress(launch)

        def begin() -> NoReturn:
            linux.die_with_parent(init.KILL_TREE)
            init.forget_the_holder((*console.descriptors, group, problem))
            init.run(dressed, console=console, group=group, problem=problem, prepare=linux.adopt_orphans)

        pid = os.fork()
        if pid == 0:
            init.as_child(begin, problem)
        return pid

    def _dress(self, launch: Launch) -> Launch:
        preload = ":".join(filter(None, [self._library, launch.env.get("LD_PRELOAD", "")]))
        ours = {
            "LD_PRELOAD": preload,
            "ELASTIC_POD_ADDRESS": self._addresses[launch.pod],
            "ELASTIC_POD_HOSTNAME": self._hostnames[launch.pod],
            "ELASTIC_POD_HOSTS": launch.hosts,
        }
        return msgspec.structs.replace(launch, env={**launch.env, **ours})

    def join(self, launch: Launch, *, init_pid: int, streams: tuple[int, int, int], terminal: bool, group: int, problem: int) -> int:
        dressed = self._dress(launch)

        def beside() -> NoReturn:
            init.join(dressed, streams=streams, terminal=terminal, group=group, problem=problem)

        def begin() -> NoReturn:
            linux.die_with_parent(init.KILL_TREE)
            init.forget_the_holder((*streams, group, problem))
            linux.adopt_orphans()
            init.relay(beside, problem=problem, ends=Ends.TREE)

        pid = os.fork()
        if pid == 0:
            init.as_child(begin, problem)
        return pid

    def kill(self, init_pid: int) -> None:
        os.kill(init_pid, init.KILL_TREE)

    def tree(self, init_pid: int) -> list[int]:
        return linux.descendants(init_pid)

    def close(self) -> None:
        for pod in list(self._links):
            self.destroy(pod)
        self._claim.close()


def _missing_parents(target: str) -> list[str]:
    missing: list[str] = []
    parent = os.path.dirname(target)
    while not os.path.exists(parent):
        missing.append(parent)
        parent = os.path.dirname(parent)
    return missing[::-1]


def _claim_network() -> tuple[socket.socket, int]:
    """Claim a network with a bound socket, which ends with its process, because two clusters on a machine must not share addresses."""
    span = LAST_NETWORK - FIRST_NETWORK + 1
    for offset in range(span):
        network = FIRST_NETWORK + (os.getpid() + offset) % span
        claim = socket.socket(type=socket.SOCK_DGRAM)
        try:
            claim.bind((f"127.{network}.0.1", CLAIM_PORT))
        except OSError:
            claim.close()
            continue
        return claim, network
    raise SandboxError(f"none of the networks 127.{FIRST_NETWORK}.0.0 to 127.{LAST_NETWORK}.0.0 is free")


def compile_library(folder: Path) -> Path:
    """Return the preloaded library for this machine. It is built once for each version of its source."""
    source = Path(__file__).with_name("podnet.c")
    library = folder / f"podnet-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}.so"
    if library.exists():
        return library
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise SandboxError(
            "sandbox loopback needs a C compiler (cc, gcc or clang) once, to build its preloaded library; install one, "
            "or allow user namespaces, so that sandbox netns can be used"
        )
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = library.with_suffix(f".{os.getpid()}")
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(unfinished), str(source), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S)
    if done.returncode != 0:
        raise SandboxError(f"the preloaded library of sandbox loopback could not be built: {done.stderr.strip()}")
    unfinished.rename(library)
    return library
