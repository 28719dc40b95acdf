"""Define the etcd client of a presence, and its implementation over etcd's gateway."""

import typing

from elastic_worker.etcd.gateway import Answer, Body, Gateway
from elastic_worker.etcd.mirror import Watch, Watching
from elastic_worker.etcd.settings import Settings


class Etcd(typing.Protocol):
    """The calls that a presence makes to an etcd."""

    def call(self, path: str, body: Body) -> Answer:
        """Return the answer, or raise Unreachable or Refused."""

    def watch(self, request: Body) -> Watching:
        """Open a watch."""

    def hurry(self, call_s: float) -> None:
        """Wait less for each call from now on."""

    def close(self) -> None:
        """End all calls."""


class Client(Gateway):
    """A client of a real etcd, over its JSON gateway."""

    def __init__(self, settings: Settings, *, wake: typing.Callable[[], None]) -> None:
        super().__init__(settings.endpoints, tls=settings.tls, login=settings.login)
        self._on_change = wake

    def watch(self, request: Body) -> Watching:
        return Watch(self.stream("watch", request), self._on_change)
