"""Bring a worker into a world: it asks the launcher for its place before it initialises Horovod.

The others train on until the world of the new worker meets. When it meets, no worker waits for an interpreter that starts.
"""

import http.client
import json
import os
import sys
import time
import typing

from elastic_worker.horovod import connections
from elastic_worker.warm import collector

SCOPE = "elastic-training"
PLACES = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"
ANSWER_S = 60.0  # the launcher answers after 20 s at the latest
AGAIN_S = 1.0
TRIES = 5
"""In a row that fail; then the launcher is gone, or of a kind that knows nothing of places."""
MOST_BYTES = 64 * 1024


class Launcher(typing.NamedTuple):
    """The address of the launcher's driver, and the name of this worker there."""

    address: str
    port: int
    host: str
    local_rank: int

    @classmethod
    def of(cls, environ: typing.Mapping[str, str]) -> "typing.Optional[Launcher]":
        """Return the launcher of this process; None if no elastic horovodrun has started it."""
        try:
            if environ.get("HOROVOD_ELASTIC") != "1":
                return None
            address, port = environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
            return cls(address, port, environ["HOROVOD_HOSTNAME"], int(environ["HOROVOD_LOCAL_RANK"]))
        except (KeyError, ValueError):
            return None

    def ask(self, scope: str = SCOPE) -> "typing.Optional[typing.Mapping[str, typing.Any]]":
        """Return the driver's answer for this worker; None if the launcher is of a kind that knows nothing of this scope."""
        connection = http.client.HTTPConnection(self.address, self.port, timeout=ANSWER_S)
        try:
            connection.request("GET", "/{}/{}:{}".format(scope, self.host, self.local_rank))
            response = connection.getresponse()
            text = response.read(MOST_BYTES)
        finally:
            connection.close()
        if response.status == 404:
            return None
        found = json.loads(text)
        return found if isinstance(found, dict) else {}


def init(hvd: typing.Any, *arguments: typing.Any, **options: typing.Any) -> None:
    """Initialise Horovod once the whole world is ready, and keep the connections that this opens."""
    launcher = Launcher.of(os.environ)
    if launcher is not None and not hvd.is_initialized():
        prepare()
        collector.resume()
        os.environ.update(variables(place(launcher)))
    before = connections.connected()
    hvd.init(*arguments, **options)
    hvd.elastic_connections = connections.since(before)


def prepare() -> None:
    """Import now, while the others train, what a first optimizer and a first step import. Later, all workers would wait for that."""
    torch = sys.modules.get("torch")
    if torch is not None:
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=0.0)
        weight.sum().backward()
        optimizer.step()


def variables(found: typing.Mapping[str, typing.Any]) -> typing.Dict[str, str]:
    """Return Horovod's variables for this place. Its C++ code reads them again at each initialisation."""
    if not found:
        return {}
    values = {"HOROVOD_" + name: str(int(found[name.lower()])) for name in PLACES}
    timeout_s = found.get("timeout_s")
    return {**values, TIMEOUT: str(int(timeout_s))} if timeout_s else values


def place(launcher: Launcher) -> typing.Mapping[str, typing.Any]:
    """Wait for this worker's place; empty if the launcher gives none, so that the variables it set count."""
    failed = 0
    while failed < TRIES:
        try:
            found = launcher.ask()
        except (OSError, ValueError, http.client.HTTPException):
            failed += 1
            time.sleep(AGAIN_S)
            continue
        if found is None:
            return {}
        failed = 0
        if found.get("error"):
            raise RuntimeError("elastic-training: {}".format(found["error"]))
        if found:
            return found
    return {}
