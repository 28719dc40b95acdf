"""Ask the rendezvous server for its list of hosts, and report to it, for the launcher.

Each call is one request with a time limit. Calls share a connection, because a handshake each second would cost more than everything else.
"""

import http.client
import json
import os
import re
import ssl
import typing
import urllib.parse

WAIT_S = 20.0  # the server answers after 10 s at the latest
SEND_S = 5.0
MOST_BYTES = 16 * 1024 * 1024
NAME = re.compile(r"\A[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?\Z")


class Unavailable(Exception):
    """The server could not be asked, or has no list; the text says why."""


class Host(typing.NamedTuple):
    name: str
    uid: str
    slots: int
    listed: bool
    unproven: bool
    """Whether the host is ready, but no command has run there yet."""
    leaving: bool = False


class Answer(typing.NamedTuple):
    version: str
    hosts: typing.List[Host]
    error: str
    """Why there is no list to use; empty if there is one."""


class Server:
    """The connection of one thread to the server."""

    def __init__(self, url: str, folder: str) -> None:
        self._url = url
        self._folder = folder
        self._connection: typing.Optional[http.client.HTTPSConnection] = None

    def read(self, after: str = "") -> Answer:
        """Return the newest answer. With a version, wait some seconds for another version."""
        return self._call("?after=" + after if after else "", None, WAIT_S if after else SEND_S)

    def report(self, report: typing.Mapping[str, typing.Any]) -> Answer:
        return self._call("", json.dumps(report).encode(), SEND_S)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _call(self, query: str, body: typing.Optional[bytes], timeout_s: float) -> Answer:
        is_new = self._connection is None
        try:
            return _answer(*self._ask(query, body, timeout_s))
        except (http.client.RemoteDisconnected, ConnectionError) as error:
            # The server may have closed a silent connection. Sending a request twice is safe, because each says everything.
            self.close()
            if is_new:
                raise self._unavailable(error) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            self.close()
            raise self._unavailable(error) from error
        return self._call(query, body, timeout_s)

    def _ask(self, query: str, body: typing.Optional[bytes], timeout_s: float) -> typing.Tuple[int, bytes]:
        to = urllib.parse.urlsplit(self._url)
        with open(os.path.join(self._folder, "token"), encoding="ascii") as file:
            headers = {"Authorization": "Bearer " + file.read().strip(), "Accept": "application/json"}
        if self._connection is None:
            context = ssl.create_default_context(cafile=os.path.join(self._folder, "ca.crt"))
            self._connection = http.client.HTTPSConnection(to.hostname or "", to.port, timeout=timeout_s, context=context)
            self._connection.connect()
        self._connection.timeout = timeout_s
        if self._connection.sock is not None:
            self._connection.sock.settimeout(timeout_s)
        self._connection.request("GET" if body is None else "POST", to.path + query, body, headers)
        response = self._connection.getresponse()
        return response.status, response.read(MOST_BYTES)

    def _unavailable(self, error: Exception) -> Unavailable:
        return Unavailable("{}: {}".format(self._url, error))


def _answer(status: int, text: bytes) -> Answer:
    try:
        found = json.loads(text)
        if "hosts" not in found:
            raise Unavailable("{} ({})".format(found.get("error") or "the answer has no hosts", status))
        hosts = [
            Host(str(one["name"]), str(one["uid"]), int(one["slots"]), bool(one["listed"]), bool(one["unproven"]), bool(one.get("leaving")))
            for one in found["hosts"]
            if NAME.match(one["name"])
        ]
        return Answer(str(found["version"]), hosts, str(found.get("error") or ""))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Unavailable("the answer cannot be read ({}): {!r}".format(status, error)) from error
