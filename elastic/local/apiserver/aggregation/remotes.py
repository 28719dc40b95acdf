"""Know the group versions that other servers serve, from the API services in the store.

For each it is known whether it answers, and which resources it lists. Other servers cannot take over a group of this server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from elastic.local.apiserver import usage
from elastic.local.apiserver.aggregation.apiservices import STORAGE, available
from elastic.local.apiserver.aggregation.listed import Listed
from elastic.local.apiserver.aggregation.places import Places
from elastic.local.apiserver.resources import Registry
from elastic.local.apiserver.store import Change, Entry, Store


@dataclass(slots=True)
class Remote:
    """An API service that names a service."""

    name: str
    group: str
    version: str
    service: str
    namespace: str
    port: int
    ca_bundle: str
    unchecked: bool
    """Whether the server's certificate is not verified."""
    group_priority: int
    version_priority: int
    available: bool = False
    resources: tuple[Listed, ...] | None = None
    """The resources that it lists for discovery; None while it gives no valid answer."""
    unread: str = ""
    """Why its list cannot be read, or empty."""
    ended: list[Callable[[], object]] = field(default_factory=list)
    """Called when the API service is deleted or changes."""
    places: Places = field(init=False)

    def __post_init__(self) -> None:
        self.places = Places(self.name)

    @property
    def host(self) -> str:
        return f"{self.service}.{self.namespace}.svc"

    @property
    def path(self) -> str:
        return f"/apis/{self.group}/{self.version}"


def _remote(entry: Entry) -> Remote | None:
    obj = entry.load()
    spec = obj["spec"]
    service = spec.get("service")
    if not service or not spec.get("group"):
        return None
    return Remote(
        entry.name,
        spec["group"],
        spec["version"],
        service["name"],
        service["namespace"],
        service.get("port", 443),
        spec.get("caBundle") or "",
        bool(spec.get("insecureSkipTLSVerify")),
        spec["groupPriorityMinimum"],
        spec["versionPriority"],
        available=available(obj).get("status") == "True",
    )


class Remotes:
    def __init__(self, store: Store, registry: Registry) -> None:
        # A metrics server of the user may replace ours.
        self._own = {(t.group, t.version) for t in registry if not t.custom and t.group != usage.GROUP}
        self._found: dict[tuple[str, str], Remote] = {}
        self._store = store
        self.appeared: Callable[[Remote], None] = lambda remote: None
        """Called with each new API service, and with each whose spec has changed."""

    def start(self) -> None:
        for entry in self._store.entries(STORAGE):
            self._take(entry)
        self._store.subscribe(STORAGE, self._changed)

    def _changed(self, change: Change) -> None:
        before = change.before.load() if change.before else None
        if change.gone:
            self._drop(change.after.name)
        elif before is None or before["spec"] != change.after.load()["spec"]:
            self._drop(change.after.name)
            self._take(change.after)
        elif (remote := self.named(change.after.name)) is not None:
            remote.available = available(change.after.load()).get("status") == "True"

    def _take(self, entry: Entry) -> None:
        remote = _remote(entry)
        if remote is not None and (remote.group, remote.version) not in self._own:
            self._found[remote.group, remote.version] = remote
            self.appeared(remote)

    def _drop(self, name: str) -> None:
        remote = self.named(name)
        if remote is not None:
            del self._found[remote.group, remote.version]
            for end in remote.ended:
                end()

    def named(self, name: str) -> Remote | None:
        return next((remote for remote in self if remote.name == name), None)

    def of_path(self, path: str) -> Remote | None:
        """Return the API service that serves a path. The document of a group without a version is ours."""
        parts = path.split("/")
        return self._found.get((parts[2], parts[3])) if len(parts) > 3 and parts[1] == "apis" else None

    def __iter__(self) -> Iterator[Remote]:
        return iter(self._found.values())
