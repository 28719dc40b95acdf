"""Remembers which nodes one process plays: those it was started with, those added since, and those that have been killed.

An addition lasts as long as the data folder, or until the node is killed. A kill of a node that the process was started with lasts as long
as the sandbox's holder: a cluster that is restarted has them all.
"""

from pathlib import Path

import msgspec

from elastic.local.files import ClusterState, FolderError, Layout

PLAYED_BY = "elastic-training/played-by"
"""Marks the nodes of one data folder, so that one which it no longer runs differs from those of others."""
NODE_GRACE_S = 50.0
"""How long a cluster tolerates a node's silence, by default."""


class Member(msgspec.Struct, frozen=True):
    """A node as it is described when it is added."""

    name: str
    gpus: int = 0
    labels: dict[str, str] = {}


def node_name(index: int) -> str:
    """The default name of a node."""
    return f"node-{index}"


def first_members(nodes: int, gpus: int) -> tuple[Member, ...]:
    """Those that `elastic up` starts."""
    return tuple(Member(name=node_name(index), gpus=gpus) for index in range(nodes))


class Roster(msgspec.Struct, frozen=True):
    """A value; with_... and without_... return the next one."""

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
        """Who is to run, given those that the process was started with; an added node replaces a namesake."""
        named = {member.name: member for member in (*first, *self.added)}
        return [member for name, member in named.items() if name not in self.killed]


def read(path: Path) -> Roster:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Roster)
    except FileNotFoundError:
        return Roster()
    except msgspec.DecodeError as error:
        raise FolderError(f"{path} is not what a cluster wrote ({error}); move it away: it names the nodes that were added") from error


def played(layout: Layout, state: ClusterState) -> list[Member]:
    """The nodes of a running cluster."""
    return read(layout.roster).members(first_members(state.nodes, state.gpus))


def write(path: Path, roster: Roster) -> None:
    unfinished = path.with_suffix(".new")
    unfinished.write_bytes(msgspec.json.encode(roster))
    unfinished.rename(path)
