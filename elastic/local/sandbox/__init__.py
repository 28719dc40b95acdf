"""What gives a local pod its address, its names and its isolation, as one protocol with two implementations: `netns` and `loopback`.

A sandbox knows processes, mounts and addresses, and refuses to know pods' specs, the Kubernetes API or why something is to be stopped.
"""

import enum
import socket
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from elastic.local.sandbox.inputs import Console

NO_GROUP = -1
"""In the place of the descriptor by which a process enters a control group."""


class Mode(enum.Enum):
    NETNS = "netns"
    LOOPBACK = "loopback"


class Input(enum.Enum):
    """What a container reads as its standard input."""

    NONE = "none"
    PIPE = "pipe"
    TERMINAL = "terminal"


class Mount(msgspec.Struct, frozen=True):
    """A folder or file of the host that the container sees at another path."""

    source: str
    target: str
    read_only: bool = False


class Launch(msgspec.Struct, frozen=True):
    """One process tree to start in a pod's sandbox; `log` takes both output streams, in the order they were written."""

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
    """The most bytes it may hold, where the holder can have the kernel see to that; 0 for as many as there are."""
    input: Input = Input.NONE


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known about one run of a container; kept in a file, so that neither agent nor holder has to remember it."""

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
    """Something a pod asked for that this sandbox cannot give, in words for the pod's status."""


class Sandbox(Protocol):
    """How the holder makes pods' surroundings and starts processes in them. Everything here runs in the holder's single thread."""

    mode: Mode
    gateway: str

    def create(self, pod: str, *, hostname: str) -> str:
        """Makes the surroundings of a pod and returns its address, a new one for each pod."""

    def adopt_address(self, pod: str) -> str | None:
        """The address of a pod that has its surroundings already."""

    def destroy(self, pod: str) -> None:
        """Takes them away; its processes have ended before."""

    def listen(self, port: int) -> socket.socket:
        """A listening socket that pods reach at the gateway address."""

    def dial(self, pod: str, *, port: int, inside: bool) -> socket.socket:
        """A connection to a port of a pod: to its loopback, from inside it, or to its address, from beside it.

        Still connecting, so that a silent pod delays no caller.
        """

    def check(self, launch: Launch) -> None:
        """Raises SandboxError where the launch asks for something that this sandbox cannot give."""

    def spawn(self, launch: Launch, *, console: "Console", group: int, problem: int) -> int:
        """Forks the container's init, which starts the process, and returns its pid; `problem` takes the reason if it cannot start.

        `group` is the entrance to the process's control group, or NO_GROUP.
        """

    def join(self, launch: Launch, *, init_pid: int, streams: tuple[int, int, int], terminal: bool, group: int, problem: int) -> int:
        """Starts one more process beside a running container (exec) and returns its pid."""

    def kill(self, init_pid: int) -> None:
        """Ends a container's whole process tree at once."""

    def tree(self, init_pid: int) -> list[int]:
        """The container's processes without those of ours, as the host numbers them."""

    def close(self) -> None:
        """Removes what would stay behind when the holder ends."""
