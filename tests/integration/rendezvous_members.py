"""Members of a job without torch: real presences at a real rendezvous server, which behave as torchrun's handler does."""

import contextlib
import threading
from collections.abc import Iterator

from torch_agents import Server

from elastic.membership.tokens import job_token
from elastic.membership.wire import Expectation
from elastic_worker import settings
from elastic_worker.agent.presence import Presence
from elastic_worker.agent.view import Rendezvous


class Follower:
    """Does what its presence says, as the handler does, without torch."""

    def __init__(self, presence: Rendezvous) -> None:
        self.presence = presence
        self.generation = 0
        self.is_in_world = False
        self.presence.announce_ready(after=0, store="127.0.0.1:1")
        self.presence.start()
        self._is_over = False
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        presence = self.presence
        while not self._is_over:
            with presence.changed:
                presence.changed.wait(0.05)
            view = presence.view
            if view.generation > self.generation and not view.reform:
                self.generation = view.generation
                presence.enter(view)
                presence.report_state("started", generation=view.generation)
                self.is_in_world = True
            elif view.reform and self.generation:
                self.is_in_world = False
                presence.announce_ready(after=self.generation, store="127.0.0.1:1")

    def stop(self) -> None:
        self._is_over = True
        self._thread.join(5)
        self.presence.close()


class Member(Follower):
    """A member at a rendezvous server."""

    def __init__(self, server: Server, *, job: str, name: str, host: str = "127.0.0.1", port: int = 0, token: str = "") -> None:
        self.settings = settings.Settings(
            host=host,
            port=port or server.port,
            job=job,
            member=name,
            pod_uid=f"uid-{name}",
            address="127.0.0.1",
            token=token or job_token(server.key, job),
            ca=server.ca,
        )
        super().__init__(Presence(self.settings, on_signal=lambda number: None))


@contextlib.contextmanager
def members(server: Server, job: str, count: int) -> Iterator[list[Member]]:
    group = [Member(server, job=job, name=f"w{index}") for index in range(count)]
    try:
        yield group
    finally:
        for member in group:
            member.stop()


def expecting(count: int, **fields: object) -> Expectation:
    return Expectation(members=tuple(f"w{index}" for index in range(count)), **{"min": 1, "max": count, **fields})  # type: ignore[arg-type]
