"""Run `kubectl exec POD [-c CONTAINER] [-i] -- COMMAND...` with the pod's own account. An MPI launcher needs nothing else of kubectl.

The file stands alone: `python3 -m elastic_worker.mpi.kubectl --install FOLDER` copies it to FOLDER/kubectl. Then it waits until the
workers named in a hostfile run, because MPI does not try twice. Streams use the WebSocket protocol v4.channel.k8s.io: the first byte of
each message names its stream. Without -i this program uses the command's input itself: it sends signals through it, and when the input
closes because this program or its pod is gone, the command is ended. The real kubectl would leave it running.
"""

import argparse
import base64
import http.client
import json
import os
import secrets
import select
import shutil
import signal
import socket
import ssl
import stat
import struct
import sys
import time
import typing
from urllib.parse import urlencode

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
HOSTFILE = "/etc/mpi/hostfile"
CONNECT_S = 30.0
PATIENCE_S = 30.0  # How long to retry while the API server is unreachable or does not know this pod's rights yet.
LOOK_EVERY_S = 0.5
SAY_EVERY_S = 60.0
ALIVE_EVERY_S = 30.0
LOST_AFTER_S = 90
MOST_IN_MESSAGE = 16 * 1024 * 1024
MOST_UNSENT = 256 * 1024
STDIN, STDOUT, STDERR, STATUS, CLOSE_STREAM = 0, 1, 2, 3, 255
CONTINUED, BINARY, CLOSE, PING, PONG = 0, 2, 8, 9, 10
FORWARDED = {signal.SIGTERM: b"TERM", signal.SIGINT: b"INT", signal.SIGHUP: b"HUP"}
LATER = {"429", "500", "502", "503", "504"}  # Answers that are worth a retry.

WATCHED = r"""
exec 3<&0 </dev/null
read -r _ _ _ _ group _ </proc/$$/stat
[ "$group" = $$ ] || exec "$@" 3<&-
(
  trap "" TERM INT HUP
  while read -r word; do [ -z "$word" ] || kill -s "$word" 0; done
  kill -s TERM 0
  sleep 10
  kill -s KILL 0
) <&3 >/dev/null 2>&1 &
watcher=$!
trap : TERM INT HUP
"$@" 3<&-
status=$?
kill -s KILL $watcher
exit $status
"""
"""Runs a command and a watcher next to it. The watcher reads names of signals from the input, sends them to the command, and ends the
command when the input closes. Empty lines are keepalives. A container runtime makes the command a group leader; elsewhere there is no
watcher."""


class ExecError(Exception):
    """The API server could not be reached, or refused; the text says why."""


class NotNow(Exception):
    """A failure that is worth a retry."""


class ApiServer:
    """The API server's address, and this pod's account."""

    def __init__(self, environ: typing.Mapping[str, str], account: str = ACCOUNT) -> None:
        self._host = environ.get("KUBERNETES_SERVICE_HOST", "")
        self._port = int(environ.get("KUBERNETES_SERVICE_PORT") or 443)
        self._account = account
        if not self._host or not os.path.exists(os.path.join(account, "token")):
            raise ExecError("no service account token in {}: this runs in a pod that has one".format(account))

    @property
    def namespace(self) -> str:
        return self._read("namespace")

    def __str__(self) -> str:
        return "API server {}:{}".format(self._host, self._port)

    def connect(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=os.path.join(self._account, "ca.crt"))
        return http.client.HTTPSConnection(self._host, self._port, timeout=CONNECT_S, context=context)

    def headers(self) -> typing.Dict[str, str]:
        """Return the headers with the token. It is read each time, because it is replaced while the pod runs."""
        return {"Authorization": "Bearer " + self._read("token")}

    def _read(self, name: str) -> str:
        with open(os.path.join(self._account, name), encoding="utf-8") as file:
            return file.read().strip()


class WebSocket:
    """Messages over a connection that was upgraded already. It never blocks; the caller waits for both directions at once."""

    def __init__(self, connection: socket.socket, received: bytes = b"", *, half_closes: bool = False) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._received = bytearray(received)
        self._message = b""
        self.unsent = bytearray()
        self._is_over = False
        self._half_closes = half_closes

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, payload: bytes, kind: int = BINARY) -> None:
        length = len(payload)
        if length < 126:
            head = struct.pack("!BB", 0x80 | kind, 0x80 | length)
        elif length < 65536:
            head = struct.pack("!BBH", 0x80 | kind, 0x80 | 126, length)
        else:
            head = struct.pack("!BBQ", 0x80 | kind, 0x80 | 127, length)
        mask = secrets.token_bytes(4)
        self.unsent += head + mask + bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
        self.flush()

    def close(self) -> None:
        self._socket.close()

    def close_stdin(self) -> None:
        """Close the command's input. Older servers have no message for this."""
        if self._half_closes:
            self.send(bytes([CLOSE_STREAM, STDIN]))

    def flush(self) -> None:
        while self.unsent:
            try:
                del self.unsent[: self._socket.send(self.unsent)]
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return

    def fill(self) -> None:
        """Read all that has arrived. TLS may buffer more than select reports, so this reads until nothing is left."""
        while not self._is_over:
            try:
                more = self._socket.recv(65536)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            self._is_over = not more
            self._received += more

    def messages(self) -> typing.Iterator[typing.Optional[bytes]]:
        """Yield the complete messages, and None if the other side has closed."""
        while (frame := self._frame()) is not None:
            first, payload = frame
            kind = first & 0x0F
            if kind == CLOSE:
                yield None
                return
            if kind == PING:
                self.send(payload, PONG)
            elif kind != PONG:
                self._message += payload
                if first & 0x80:
                    message, self._message = self._message, b""
                    yield message
        if self._is_over:
            raise ExecError("the connection broke before the command had ended")

    def _frame(self) -> typing.Optional[typing.Tuple[int, bytes]]:
        if len(self._received) < 2:
            return None
        length, at = self._received[1] & 0x7F, 2
        if length >= 126:
            form = "!H" if length == 126 else "!Q"
            at += struct.calcsize(form)
            if len(self._received) < at:
                return None
            length = struct.unpack_from(form, self._received, 2)[0]
        if len(self._message) + length > MOST_IN_MESSAGE:
            raise ExecError("a message has more than {} bytes".format(MOST_IN_MESSAGE))
        if len(self._received) < at + length:
            return None
        frame = self._received[0], bytes(self._received[at : at + length])
        del self._received[: at + length]
        return frame


def opened(server: ApiServer, pod: str, query: typing.Sequence[typing.Tuple[str, str]]) -> WebSocket:
    """Open the exec stream, with retries, because MPI has none. Nothing has started before the API server accepts."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return open_exec(server, pod, query)
        except (NotNow, OSError) as error:
            if time.monotonic() > until:
                raise ExecError("pod {}: {}: {}".format(pod, server, error)) from error
        time.sleep(LOOK_EVERY_S)


def open_exec(server: ApiServer, pod: str, query: typing.Sequence[typing.Tuple[str, str]]) -> WebSocket:
    path = "/api/v1/namespaces/{}/pods/{}/exec?{}".format(server.namespace, pod, urlencode(query))
    connection = server.connect()
    headers = {
        **server.headers(),
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(secrets.token_bytes(16)).decode(),
        "Sec-WebSocket-Protocol": "v5.channel.k8s.io, v4.channel.k8s.io",
    }
    connection.putrequest("GET", path)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    # http.client gives no access to the bytes after an answer 101, so the head is read here.
    plain = connection.sock
    received = b""
    while b"\r\n\r\n" not in received:
        more = plain.recv(65536)
        if not more or len(received) > MOST_IN_MESSAGE:
            raise NotNow("no answer")
        received += more
    head, _, rest = received.partition(b"\r\n\r\n")
    words = head.split(b"\r\n", 1)[0].decode(errors="replace").split(" ", 2)
    if words[1:2] == ["101"]:
        _notice_loss(plain)
        return WebSocket(plain, rest, half_closes=b"v5.channel.k8s.io" in head)
    reason = refusal(" ".join(words[1:]), rest or plain.recv(65536))
    connection.close()
    raise NotNow(reason) if set(words[1:2]) & LATER else ExecError("pod {}: {}".format(pod, reason))


def _notice_loss(connection: socket.socket) -> None:
    """Turn on TCP keepalive. Without it, this program would wait forever for a peer that vanished."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, LOST_AFTER_S // 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, LOST_AFTER_S // 9)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6)


def refusal(status: str, body: bytes) -> str:
    """Return the API server's own message, if the answer has one."""
    start, end = body.find(b"{"), body.rfind(b"}")
    try:
        return str(json.loads(body[start : end + 1])["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip() or status


def run(server: ApiServer, pod: str, command: typing.Sequence[str], container: str = "", stdin: bool = False) -> int:
    """Run the command, forward its streams and our signals, and return its exit status."""
    words = command if stdin else ["/bin/sh", "-c", WATCHED, "sh", *command]
    query = [("command", word) for word in words] + [(stream, "true") for stream in ("stdin", "stdout", "stderr")]
    query += [("container", container)] if container else []
    source, read = (0, lambda fd: os.read(fd, 32768)) if stdin else (_signals(), _named)
    return _converse(opened(server, pod, query), pod, source, read)


def _converse(link: WebSocket, pod: str, source: int, read: typing.Callable[[int], bytes]) -> int:
    """Forward streams until the status arrives. `read` reads the command's input from `source`."""
    outputs = {STDOUT: sys.stdout.buffer, STDERR: sys.stderr.buffer}
    is_open = True
    while True:
        for message in link.messages():
            if message is None:
                raise ExecError("pod {}: the connection was closed before the command had ended".format(pod))
            if message and message[0] in outputs:
                outputs[message[0]].write(message[1:])
                outputs[message[0]].flush()
            elif message and message[0] == STATUS:
                return exit_status(json.loads(message[1:]))
        sources = [source] if is_open and len(link.unsent) < MOST_UNSENT else []
        ready, writable, _ = select.select([link.fileno(), *sources], [link.fileno()] if link.unsent else [], [], ALIVE_EVERY_S)
        if source in ready:
            data = read(source)
            is_open = bool(data)
            link.send(bytes([STDIN]) + data) if data else link.close_stdin()
        elif not ready and not writable:
            link.send(bytes([STDIN]) + b"\n") if read is _named else link.send(b"", PING)
        link.flush()
        link.fill()


def _named(source: int) -> bytes:
    """Return the names of the signals, as the watcher reads them."""
    return b"".join(FORWARDED[signal.Signals(number)] + b"\n" for number in os.read(source, 64))


def _signals() -> int:
    """Return a pipe that gets the number of each signal. The second signal of a kind ends this program, whatever the command does."""
    source, sink = os.pipe()

    def note(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        os.write(sink, bytes([number]))

    for number in FORWARDED:
        signal.signal(number, note)
    return source


def exit_status(status: typing.Mapping[str, typing.Any]) -> int:
    if status.get("status") == "Success":
        return 0
    if status.get("reason") == "NonZeroExitCode":
        for cause in (status.get("details") or {}).get("causes") or ():
            if cause.get("reason") == "ExitCode":
                return int(cause["message"])
    raise ExecError(str(status.get("message") or status))


def install(folder: str) -> None:
    """Copy this file atomically, because another container may run it already."""
    draft = os.path.join(folder, "kubectl.{}".format(os.getpid()))
    shutil.copyfile(os.path.abspath(__file__), draft)
    with open(draft, "r+", encoding="utf-8") as file:
        text = file.read()
        file.seek(0)
        file.write("#!/usr/bin/env python3\n" + text)
    os.chmod(draft, stat.S_IRUSR | stat.S_IXUSR | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
    os.replace(draft, os.path.join(folder, "kubectl"))


def hosts(hostfile: str) -> typing.List[str]:
    """Return the workers of a hostfile, without the launcher, whose host name may differ from its pod name."""
    with open(hostfile, encoding="utf-8") as file:
        return [line.split()[0] for line in file if line.strip() and not line.split()[0].endswith("-launcher")]


def wait_for(server: ApiServer, names: typing.Sequence[str], least: int = 0) -> None:
    """Wait until `least` of these pods run, or all of them. Ask for one pod at a time. The job's deadline limits the wait."""
    waiting, said, until = list(names), 0.0, time.monotonic() + PATIENCE_S
    while waiting and len(names) - len(waiting) < (least or len(names)):
        name, problem = waiting.pop(0), ""
        try:
            if is_running(server, name):
                continue
        except OSError as error:
            problem = "{}: {}; trying again; ".format(server, error)
        except NotNow as error:
            # The API server may learn of the launcher's rights later than of its pod.
            if time.monotonic() > until:
                raise ExecError(str(error)) from error
        if problem or time.monotonic() > said + SAY_EVERY_S:
            print("{}waiting for {}, and {} others".format(problem, name, len(waiting)), flush=True)
            said = time.monotonic()
        waiting.append(name)
        time.sleep(LOOK_EVERY_S)


def is_running(server: ApiServer, pod: str) -> bool:
    connection = server.connect()
    try:
        connection.request("GET", "/api/v1/namespaces/{}/pods/{}".format(server.namespace, pod), headers=server.headers())
        answer = connection.getresponse()
        body = answer.read(MOST_IN_MESSAGE)
    finally:
        connection.close()
    if answer.status in (401, 403):
        raise NotNow("pod {}: {}".format(pod, refusal(str(answer.status), body)))
    if answer.status != 200:
        return False
    status = json.loads(body).get("status", {})
    containers = status.get("containerStatuses") or ()
    return status.get("phase") == "Running" and bool(containers) and not any("waiting" in one.get("state", {}) for one in containers)


def main(words: typing.Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="kubectl", description="Runs a command in another pod, as an MPI launcher needs it.")
    parser.add_argument("--install", metavar="FOLDER", help="copy this program to FOLDER/kubectl and wait for the workers")
    parser.add_argument("--hostfile", default=HOSTFILE, help="names the workers that --install waits for")
    parser.add_argument("--least", type=int, default=0, help="do not wait for more of them than this")
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
            wait_for(server, hosts(options.hostfile), options.least)
            return 0
        if options.verb != "exec" or not command:
            parser.error("only this is supported: kubectl exec POD [-c CONTAINER] [-i] -- COMMAND...")
        return run(server, options.pod, command, container=options.container, stdin=options.stdin)
    except (ExecError, OSError, http.client.HTTPException) as error:
        print("error: {}".format(error), file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
