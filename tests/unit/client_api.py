"""Play the API server behind `elastic.Client`, with clients that end with their test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from cli_api import Api as Served
from cli_api import Object, served

from elastic.client.client import Client

JOB = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs/train"


class Api(Served):
    """Gives each job a uid of its own, streams changes, and lets a test change what there is."""

    def __init__(self, *objects: Object) -> None:
        super().__init__(*objects)
        self.changes: list[Object] = []
        """The answer to the next watch."""
        self.before_patch: Callable[[], None] = lambda: None

    @property
    def job(self) -> Object:
        return self.objects[JOB]

    @property
    def deleted(self) -> list[tuple[str, str]]:
        """Return the paths of the deleted objects, and the uids that the requests named."""
        return [(path, body["preconditions"]["uid"]) for method, path, body in self.asked if method == "DELETE"]

    def answer(self, method: str, url: str, body: Any) -> tuple[int, Any]:
        if method == "PATCH":
            self.before_patch()
        if "watch=true" in url and self.changes:
            lines = [json.dumps({"type": "MODIFIED", "object": one}) + "\n" for one in self.changes]
            self.changes = []
            return 200, "".join(lines)
        return super().answer(method, url, body)

    def _create(self, path: str, body: Any) -> tuple[int, Any]:
        code, made = super()._create(path, body)
        if code == 201:
            made["metadata"]["uid"] = f"uid-{len(self.asked)}"
        return code, made


Open = Callable[..., Client]


@contextmanager
def clients(folder: Path) -> Iterator[Open]:
    """Give a function that serves an API and opens a client of it."""
    with ExitStack() as stack:

        def opened(api: Served, *, is_laptop: bool = True, **how: Any) -> Client:
            client = stack.enter_context(Client(stack.enter_context(served(api, folder)), **how))
            client._cluster.is_laptop = is_laptop
            return client

        yield opened
