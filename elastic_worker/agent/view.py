"""Describe a member's view of its rendezvous, and its reports to it. Each backend implements Rendezvous."""

import threading
import typing


class Change:
    """The present change of worlds in process.

    `Change` of rendezvous/engine/messages/in_place.py describes the fields; `phase` is its `stage`.
    """

    def __init__(self, fields: typing.Mapping[str, typing.Any]) -> None:
        if not isinstance(fields, dict):
            raise ValueError("a change is a JSON object, not {!r}".format(fields))
        self.round = int(fields.get("round", 0))
        self.phase = str(fields.get("phase", ""))
        step = fields.get("step")
        self.step = None if step is None else int(step)
        self.donors = tuple(int(rank) for rank in fields.get("donors", ()))
        self.why = str(fields.get("why", ""))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Change) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.round, self.phase))


class View:
    """One member's knowledge of its rendezvous. `View` of rendezvous/engine/messages/member.py describes the fields."""

    def __init__(self, fields: typing.Mapping[str, typing.Any]) -> None:
        self.generation = int(fields.get("generation", 0))
        self.id = str(fields.get("id", ""))
        self.rank = int(fields.get("rank", 0))
        self.size = int(fields.get("size", 0))
        self.store = str(fields.get("store", ""))
        self.reform = str(fields.get("reform", ""))
        self.waiting = str(fields.get("waiting", ""))
        self.finished = str(fields.get("finished", ""))
        self.leaving = str(fields.get("leaving", ""))
        self.closed = str(fields.get("closed", ""))
        self.done = bool(fields.get("done", False))
        self.peers_finished = bool(fields.get("peers_finished", False))
        self.grace_s = float(fields.get("grace_s", 30.0))
        self.unacknowledged_restarts = fields.get("uncounted", [])
        self.provisional = bool(fields.get("provisional", False))
        self.watch = str(fields.get("watch", ""))
        self.pace_s = float(fields.get("pace_s", 0.0))
        change = fields.get("change")
        self.change = None if change is None else Change(change)


class Rendezvous(typing.Protocol):
    """One agent's side of a rendezvous; it lives as long as the agent. A thread of its own keeps the view current."""

    peer: str
    """The name of the other side, in words."""
    changed: threading.Condition
    """Notified when the view changes."""

    def start(self) -> None:
        """Begin to talk."""

    @property
    def wake_fd(self) -> int:
        """Return the descriptor for signal.set_wakeup_fd: a signal wakes the thread, which acts at once."""

    @property
    def view(self) -> View:
        """Return the newest view."""

    @property
    def refused(self) -> str:
        """Return why this incarnation must end; empty if it need not."""

    @property
    def denied(self) -> str:
        """Return why the peer denies this agent everything; empty if it does not."""

    @property
    def away_s(self) -> float:
        """Return for how long the peer has not been reached."""

    def announce_ready(self, *, after: int, store: str, trouble: str = "", killed: int = 0) -> None:
        """Report that this agent left the world `after` and waits at the barrier for the next one.

        killed: how many workers of that world did not stop within their grace.
        """

    def enter(self, view: View) -> None:
        """Present this world from now on as the one that this agent is in."""

    def report_state(self, kind: str, **fields: typing.Any) -> None:
        """Report once that the workers of the current world have `started`, `failed` or `finished`."""

    def leave(self, reason: str, *, by_signal: bool = False) -> None:
        """Leave cleanly, within seconds."""

    def close(self) -> None:
        """Leave and free everything. No signal may be written to `wake_fd` after this."""


class ChangingRendezvous(Rendezvous, typing.Protocol):
    """A rendezvous that changes worlds in process (in_process.py)."""

    minor: int
    """Minor version of the messages that the other side takes."""
    introduce: typing.Callable[[], typing.Tuple[typing.Dict[str, typing.Any], typing.List[typing.Dict[str, typing.Any]]]]
    """Returns this agent's state in a change of worlds, for a new connection."""
    on_news: typing.Callable[[], None]
    """Called when there is a new view or a new value of the exchange."""

    def start_outside(self) -> None:
        """Note that the workers of this agent start in a world of their own."""

    def stand_by(self, *, round: int, step: typing.Optional[int] = None) -> None:
        """Report that this agent waits at the barrier with living processes, which hold the complete state of this step."""

    def resume(self) -> None:
        """Leave the barrier for the same world, because the change is called off."""

    def note_round(self, round: int) -> None:
        """Note that this agent has heard of this change."""

    def move(self, view: View) -> None:
        """Enter this world in process."""

    def send(self, message: typing.Dict[str, typing.Any]) -> None:
        """Send a message about the workers (rendezvous/engine/messages/in_place.py)."""

    def take_keys(self) -> typing.List[typing.Tuple[int, typing.Dict[str, str]]]:
        """Return the values of the exchange that have come since the last call, with their rounds."""
