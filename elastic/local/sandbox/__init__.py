"""Give a local pod its address, its names and its isolation: a protocol with two implementations, `netns` and `loopback`.

A sandbox knows processes, mounts and addresses. It does not know pods' specs, the Kubernetes API or the reason for a stop.
"""

import enum
import socket
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from elastic.local.sandbox.inputs import Console

NO_GROUP = -1
"""Value for a missing descriptor of a control group."""


class Mode(enum.Enum):
    NETNS = "netns"
    LOOPBACK = "loopback"


class Input(enum.Enum):
    """The type of a container's standard input."""

    NONE = "none"
    PIPE = "pipe"
    TERMINAL = "terminal"


class Mount(msgspec.Struct, frozen=True):
    """A folder or file of the host that the container sees at another path."""

    source: str
    target: str
    read_only: bool = False


class Launch(msgspec.Struct, frozen=True):
    """A process tree to start in a pod's sandbox. `log` gets both output streams, in the order in which they are written."""

    id: str
    pod: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    log: str
    record: str
    mounts: list[Mount] = []
    hosts: str = ""
    memory: int = 0
    """Memory limit in bytes, if the holder can let the kernel enforce it; 0 for no limit."""
    input: Input = Input.NONE


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """Facts about a container's run. They are in a file, so that neither agent nor holder has to remember them."""

    id: str
    started_at: float
    pid: int = 0
    finished_at: float = 0.0
    exit_code: int = -1
    error: str = ""
    oom: bool = False

    @property
    def running(self) -> bool:
        return not self.finished_at


class SandboxError(Exception):
    """A pod asked for something that this sandbox cannot give, in words for the pod's status."""


class Sandbox(Protocol):
    """Makes pods' surroundings for the holder, and starts processes in them. Everything here runs in the holder's single thread."""

    mode: Mode
    gateway: str

    def create(self, pod: str, *, hostname: str) -> str:
        """Make the surroundings of a pod, and return its address, which is new for each pod."""

    def adopt_address(self, pod: str) -> str | None:
        """Return the address of a pod that has its surroundings already."""

    def destroy(self, pod: str) -> None:
        """Remove the surroundings of a pod whose processes have ended."""

    def listen(self, port: int) -> socket.socket:
        """Return a listening socket that pods reach at the gateway's address."""

    def dial(self, pod: str, *, port: int, inside: bool) -> socket.socket:
        """Return a connection to a port of a pod: to its loopback from inside the pod, or to its address from outside.

        It may still be connecting, so that a silent pod delays no caller.
        """

    def check(self, launch: Launch) -> None:
        """Raise SandboxError if the launch asks for something that this sandbox cannot give."""

    def spawn(self, launch: Launch, *, console: "Console", group: int, problem: int) -> int:
        """Fork the container's init, which starts the process, and return its pid. `problem` gets the reason if it cannot start.

        `group` is the entrance to the process's control group, or NO_GROUP.
        """

    def join(self, launch: Launch, *, init_pid: int, streams: tuple[int, int, int], terminal: bool, group: int, problem: int) -> int:
        """Start another process in a running container (exec), and return its pid."""

    def kill(self, init_pid: int) -> None:
        """Kill a container's whole process tree at once."""

    def tree(self, init_pid: int) -> list[int]:
        """Return the host's pids of the container's processes, without our own."""

    def close(self) -> None:
        """Remove everything that would outlive the holder."""
