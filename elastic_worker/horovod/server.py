"""The rendezvous server's list of hosts, as the launcher asks for it and reports to it. Each call is one request with a time limit."""

import json
import os
import re
import ssl
import typing
import urllib.error
import urllib.request

FOLDER = "/etc/elastic-training"
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
    """It is ready, and no command was run there yet."""


class Answer(typing.NamedTuple):
    version: str
    hosts: typing.List[Host]
    error: str
    """Why there is no list to use; empty where there is one."""


class Server:
    def __init__(self, url: str, folder: str = FOLDER) -> None:
        self._url = url
        self._folder = folder

    def read(self, after: str = "") -> Answer:
        """The newest answer. With a version it waits for another one, for some seconds."""
        return self._call("?after=" + after if after else "", None, WAIT_S if after else SEND_S)

    def report(self, report: typing.Mapping[str, typing.Any]) -> Answer:
        return self._call("", json.dumps(report).encode(), SEND_S)

    def _call(self, query: str, body: typing.Optional[bytes], timeout_s: float) -> Answer:
        try:
            with open(os.path.join(self._folder, "token"), encoding="ascii") as file:
                headers = {"Authorization": "Bearer " + file.read().strip(), "Accept": "application/json"}
            context = ssl.create_default_context(cafile=os.path.join(self._folder, "ca.crt"))
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context), _Plain())
            request = urllib.request.Request(self._url + query, data=body, headers=headers)
            with opener.open(request, timeout=timeout_s) as response:
                status, text = response.status, response.read(MOST_BYTES)
        except (OSError, ValueError) as error:
            raise Unavailable("{}: {}".format(self._url, error)) from error
        return _answer(status, text)


class _Plain(urllib.request.HTTPErrorProcessor):
    """Takes an answer with an error status like any other: it has the hosts too."""

    def http_response(self, request: typing.Any, response: typing.Any) -> typing.Any:
        return response

    https_response = http_response


def _answer(status: int, text: bytes) -> Answer:
    try:
        found = json.loads(text)
        if "hosts" not in found:
            raise Unavailable("{} ({})".format(found.get("error") or "no hosts in the answer", status))
        hosts = [
            Host(str(one["name"]), str(one["uid"]), int(one["slots"]), bool(one["listed"]), bool(one["unproven"]))
            for one in found["hosts"]
            if NAME.match(one["name"])
        ]
        return Answer(str(found["version"]), hosts, str(found.get("error") or ""))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Unavailable("an answer that cannot be read ({}): {!r}".format(status, error)) from error
