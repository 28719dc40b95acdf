"""The one thing an MPI launcher needs of kubectl: `kubectl exec POD [-c CONTAINER] [-i] -- COMMAND...` with the pod's own account.

The file stands alone: `python3 -m elastic_worker.kubectl --install FOLDER` copies it as the program FOLDER/kubectl, and, before it ends,
waits until the workers named in a hostfile run, since MPI does not try twice. Streams come over a WebSocket in the way Kubernetes calls
v4.channel.k8s.io: the first byte of each message says which stream it belongs to.
"""

import argparse
import base64
import http.client
import json
import os
import secrets
import shutil
import socket
import ssl
import stat
import struct
import sys
import threading
import time
import typing
from urllib.parse import urlencode

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
HOSTFILE = "/etc/mpi/hostfile"
CONNECT_S = 30.0
LOOK_EVERY_S = 0.5
SAY_EVERY_S = 60.0
MOST_IN_MESSAGE = 16 * 1024 * 1024
STDIN, STDOUT, STDERR, STATUS, CLOSE_STREAM = 0, 1, 2, 3, 255
CONTINUED, BINARY, CLOSE, PING, PONG = 0, 2, 8, 9, 10


class ExecError(Exception):
    """The API server could not be asked, or said no; the text says why."""


class ApiServer:
    """How this pod reaches the API server, and as whom."""

    def __init__(self, environ: typing.Mapping[str, str], account: str = ACCOUNT) -> None:
        self._host = environ.get("KUBERNETES_SERVICE_HOST", "")
        self._port = int(environ.get("KUBERNETES_SERVICE_PORT") or 443)
        self._account = account
        if not self._host or not os.path.exists(os.path.join(account, "token")):
            raise ExecError("no service account token in {}: this runs in a pod that has one".format(account))

    @property
    def namespace(self) -> str:
        return self._read("namespace")

    def connect(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=os.path.join(self._account, "ca.crt"))
        return http.client.HTTPSConnection(self._host, self._port, timeout=CONNECT_S, context=context)

    def headers(self) -> typing.Dict[str, str]:
        """The token is read each time: it is replaced while the pod runs."""
        return {"Authorization": "Bearer " + self._read("token")}

    def _read(self, name: str) -> str:
        with open(os.path.join(self._account, name), encoding="utf-8") as file:
            return file.read().strip()


class WebSocket:
    """Messages of one connection that was a request and its answer before."""

    def __init__(self, connection: socket.socket, received: bytes) -> None:
        self._socket = connection
        self._received = received
        self._sending = threading.Lock()

    def send(self, payload: bytes, kind: int = BINARY) -> None:
        length = len(payload)
        if length < 126:
            head = struct.pack("!BB", 0x80 | kind, 0x80 | length)
        elif length < 65536:
            head = struct.pack("!BBH", 0x80 | kind, 0x80 | 126, length)
        else:
            head = struct.pack("!BBQ", 0x80 | kind, 0x80 | 127, length)
        mask = secrets.token_bytes(4)
        masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
        with self._sending:
            self._socket.sendall(head + mask + masked)

    def receive(self) -> typing.Optional[bytes]:
        """The next whole message; None when the other side has closed."""
        message = b""
        while True:
            first, second = self._take(2)
            kind, length = first & 0x0F, second & 0x7F
            if length == 126:
                length = struct.unpack("!H", self._take(2))[0]
            elif length == 127:
                length = struct.unpack("!Q", self._take(8))[0]
            if len(message) + length > MOST_IN_MESSAGE:
                raise ExecError("a message of more than {} bytes".format(MOST_IN_MESSAGE))
            payload = self._take(length)
            if kind == CLOSE:
                return None
            if kind == PING:
                self.send(payload, PONG)
            elif kind != PONG:
                message += payload
                if first & 0x80:
                    return message

    def _take(self, count: int) -> bytes:
        while len(self._received) < count:
            more = self._socket.recv(65536)
            if not more:
                raise ExecError("the connection broke before the command had ended")
            self._received += more
        taken, self._received = self._received[:count], self._received[count:]
        return taken


def open_exec(server: ApiServer, pod: str, query: typing.Sequence[typing.Tuple[str, str]]) -> WebSocket:
    path = "/api/v1/namespaces/{}/pods/{}/exec?{}".format(server.namespace, pod, urlencode(query))
    connection = server.connect()
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(secrets.token_bytes(16)).decode(),
        "Sec-WebSocket-Protocol": "v5.channel.k8s.io, v4.channel.k8s.io",
    }
    headers.update(server.headers())
    connection.putrequest("GET", path)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    # http.client gives no way to what follows an answer 101, so the answer's head is read here.
    plain = connection.sock
    received = b""
    while b"\r\n\r\n" not in received:
        more = plain.recv(65536)
        if not more or len(received) > MOST_IN_MESSAGE:
            raise ExecError("no answer from the API server")
        received += more
    head, _, rest = received.partition(b"\r\n\r\n")
    words = head.split(b"\r\n", 1)[0].decode(errors="replace").split(" ", 2)
    if words[1:2] != ["101"]:
        plain.settimeout(1.0)
        raise ExecError("pod {}: {}".format(pod, refusal(" ".join(words[1:]), rest)))
    plain.settimeout(None)
    return WebSocket(plain, rest)


def refusal(status: str, body: bytes) -> str:
    """The API server's own words, where the answer holds them."""
    start, end = body.find(b"{"), body.rfind(b"}")
    try:
        return str(json.loads(body[start : end + 1])["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip() or status


def run(server: ApiServer, pod: str, command: typing.Sequence[str], container: str = "", stdin: bool = False) -> int:
    """Runs the command, passes its streams on, and returns its exit status."""
    query = [("command", word) for word in command] + [("stdout", "true"), ("stderr", "true")]
    query += [("container", container)] if container else []
    query += [("stdin", "true")] if stdin else []
    socket = open_exec(server, pod, query)
    if stdin:
        threading.Thread(target=_feed, args=(socket,), daemon=True).start()
    outputs = {STDOUT: sys.stdout.buffer, STDERR: sys.stderr.buffer}
    while True:
        message = socket.receive()
        if message is None:
            raise ExecError("pod {}: the connection was closed before the command had ended".format(pod))
        if message and message[0] in outputs:
            outputs[message[0]].write(message[1:])
            outputs[message[0]].flush()
        elif message and message[0] == STATUS:
            return exit_status(json.loads(message[1:]))


def _feed(socket: WebSocket) -> None:
    while True:
        data = os.read(0, 32768)
        if not data:
            socket.send(bytes([CLOSE_STREAM, STDIN]))
            return
        socket.send(bytes([STDIN]) + data)


def exit_status(status: typing.Mapping[str, typing.Any]) -> int:
    if status.get("status") == "Success":
        return 0
    if status.get("reason") == "NonZeroExitCode":
        for cause in (status.get("details") or {}).get("causes") or ():
            if cause.get("reason") == "ExitCode":
                return int(cause["message"])
    raise ExecError(str(status.get("message") or status))


def install(folder: str) -> None:
    """Whole or not there at all, since another container may look already."""
    draft = os.path.join(folder, "kubectl.{}".format(os.getpid()))
    shutil.copyfile(os.path.abspath(__file__), draft)
    with open(draft, "r+", encoding="utf-8") as file:
        text = file.read()
        file.seek(0)
        file.write("#!/usr/bin/env python3\n" + text)
    os.chmod(draft, stat.S_IRUSR | stat.S_IXUSR | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
    os.replace(draft, os.path.join(folder, "kubectl"))


def hosts(hostfile: str) -> typing.List[str]:
    """The workers of a hostfile, without the launcher itself."""
    with open(hostfile, encoding="utf-8") as file:
        names = [line.split()[0] for line in file if line.strip()]
    return [name for name in names if name != socket.gethostname()]


def wait_for(server: ApiServer, names: typing.Sequence[str]) -> None:
    """Until all these pods run. How long a job may wait for its workers is for its deadline to say."""
    waiting, said = list(names), 0.0
    while waiting:
        waiting = [name for name in waiting if not is_running(server, name)]
        if waiting and time.monotonic() > said + SAY_EVERY_S:
            print("waiting for {}".format(", ".join(waiting)), flush=True)
            said = time.monotonic()
        if waiting:
            time.sleep(LOOK_EVERY_S)


def is_running(server: ApiServer, pod: str) -> bool:
    connection = server.connect()
    try:
        connection.request("GET", "/api/v1/namespaces/{}/pods/{}".format(server.namespace, pod), headers=server.headers())
        answer = connection.getresponse()
        body = answer.read(MOST_IN_MESSAGE)
    except OSError as error:
        print("{}; trying again".format(error), file=sys.stderr, flush=True)
        return False
    finally:
        connection.close()
    if answer.status == 200:
        statuses = json.loads(body).get("status", {}).get("containerStatuses") or ()
        return bool(statuses) and all("running" in status.get("state", {}) for status in statuses)
    if answer.status in (401, 403):
        raise ExecError("pod {}: {}".format(pod, refusal(str(answer.status), body)))
    return False


def main(words: typing.Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="kubectl", description="Runs a command in another pod, as an MPI launcher needs it.")
    parser.add_argument("--install", metavar="FOLDER", help="copy this program to FOLDER/kubectl and wait for the workers")
    parser.add_argument("--hostfile", default=HOSTFILE, help="names the workers that --install waits for")
    verbs = parser.add_subparsers(dest="verb")
    execute = verbs.add_parser("exec", help="run a command in a pod")
    execute.add_argument("pod")
    execute.add_argument("-c", "--container", default="")
    execute.add_argument("-i", "--stdin", action="store_true")
    split = list(words).index("--") if "--" in words else len(words)
    options, command = parser.parse_args(words[:split]), list(words[split + 1 :])
    try:
        server = ApiServer(os.environ)
        if options.install:
            install(options.install)
            wait_for(server, hosts(options.hostfile))
            return 0
        if options.verb != "exec" or not command:
            parser.error("only this is known here: kubectl exec POD [-c CONTAINER] [-i] -- COMMAND...")
        return run(server, options.pod, command, container=options.container, stdin=options.stdin)
    except (ExecError, OSError) as error:
        print("error: {}".format(error), file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
