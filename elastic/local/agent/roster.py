"""Remember which nodes one process plays: the nodes that it was started with, the added nodes, and the killed ones.

An addition lasts as long as the data folder, or until the node is killed. If a node that the process was started with is killed, this lasts
as long as the sandbox's holder: a restarted cluster has all of them again.
"""

from pathlib import Path

import msgspec

from elastic.local.files import ClusterState, FolderError, Layout

PLAYED_BY = "elastic-training/played-by"
"""Label on the nodes of a data folder. It distinguishes nodes that the folder does not run any more from nodes of other folders."""
NODE_GRACE_S = 50.0
"""Default number of seconds for which a cluster tolerates a node's silence."""


class Member(msgspec.Struct, frozen=True):
    """The description of a node that is added."""

    name: str
    gpus: int = 0
    labels: dict[str, str] = {}


def node_name(index: int) -> str:
    """Return the default name of a node."""
    return f"node-{index}"


def first_members(nodes: int, gpus: int) -> tuple[Member, ...]:
    """Return the nodes that `elastic up` starts."""
    return tuple(Member(name=node_name(index), gpus=gpus) for index in range(nodes))


class Roster(msgspec.Struct, frozen=True):
    """A value. `with_member` and `without` return the next one."""

    holder: str = ""
    added: tuple[Member, ...] = ()
    killed: tuple[str, ...] = ()

    def for_holder(self, holder: str) -> "Roster":
        return self if holder == self.holder else Roster(holder=holder, added=self.added)

    def with_member(self, member: Member) -> "Roster":
        others = tuple(other for other in self.added if other.name != member.name)
        killed = tuple(name for name in self.killed if name != member.name)
        return Roster(self.holder, (*others, member), killed)

    def without(self, name: str) -> "Roster":
        added = tuple(other for other in self.added if other.name != name)
        return Roster(self.holder, added, tuple(sorted({*self.killed, name})))

    def members(self, first: tuple[Member, ...]) -> list[Member]:
        """Return the nodes to run. `first` are the nodes of the process's start; an added node replaces a node of the same name."""
        named = {member.name: member for member in (*first, *self.added)}
        return [member for name, member in named.items() if name not in self.killed]


def read(path: Path) -> Roster:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Roster)
    except FileNotFoundError:
        return Roster()
    except msgspec.DecodeError as error:
        raise FolderError(f"{path} was not written by a cluster ({error}); move it away: it names the nodes that were added") from error


def played(layout: Layout, state: ClusterState) -> list[Member]:
    """Return the nodes of a running cluster."""
    return read(layout.roster).members(first_members(state.nodes, state.gpus))


def write(path: Path, roster: Roster) -> None:
    unfinished = path.with_suffix(".new")
    unfinished.write_bytes(msgspec.json.encode(roster))
    unfinished.rename(path)
