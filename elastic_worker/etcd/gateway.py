"""Calls etcd v3 through its JSON gateway: over one of several endpoints, with a password or without, each call bounded in time and bytes.

It knows what etcd answers, and nothing of what lies in it. One thread uses a Gateway; a Stream that it opened may be read by another.
Only the system's resolver of host names, which cannot be interrupted, may take longer than a call may.
"""

import contextlib
import http.client
import json
import socket
import ssl
import threading
import typing

from elastic_worker.etcd import tls_mistakes

CALL_S = 2.0
MOST_ATTEMPTS = 3
LONGEST_ANSWER = 16 * 1024 * 1024
_UNAUTHENTICATED, _PERMISSION_DENIED = 16, 7
_TRANSIENT = frozenset({1, 4, 8, 10, 14})
"""gRPC codes of an etcd that may answer soon, or whose peer may: no leader, timed out, too many requests, unavailable."""
_ABOUT_TOKEN = ("invalid auth token", "revision of auth store is old", "user name is empty")

Body = typing.Mapping[str, typing.Any]
Answer = typing.Dict[str, typing.Any]
Result = typing.TypeVar("Result")


class Unreachable(OSError):
    """No endpoint gave a usable answer in time."""


class Misfit(Unreachable):
    """An endpoint and this agent disagree about TLS, which another attempt does not mend."""


class Refused(Exception):
    """etcd answered with an error that another attempt does not mend."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code

    @property
    def is_about_token(self) -> bool:
        """Tell whether etcd forgot the token: it expired, etcd was restarted, or users have changed."""
        return self.code == _UNAUTHENTICATED or any(words in str(self) for words in _ABOUT_TOKEN)

    @property
    def is_missing_lease(self) -> bool:
        return "requested lease not found" in str(self)

    @property
    def is_denial(self) -> bool:
        """Tell whether this user may not do it, or does not exist."""
        return self.code == _PERMISSION_DENIED or self.is_about_token or "authentication failed" in str(self)


class Endpoint(typing.NamedTuple):
    """One member of the etcd cluster."""

    host: str
    port: int

    def __str__(self) -> str:
        return "{}:{}".format("[{}]".format(self.host) if ":" in self.host else self.host, self.port)


class Login(typing.NamedTuple):
    """A user of etcd."""

    user: str
    password: str

    def __repr__(self) -> str:
        return "Login({!r})".format(self.user)


class Gateway:
    """One connection, kept open; the next endpoint's turn comes where one does not answer."""

    def __init__(
        self,
        endpoints: typing.Sequence[Endpoint],
        *,
        tls: typing.Optional[ssl.SSLContext] = None,
        login: typing.Optional[Login] = None,
        call_s: float = CALL_S,
    ) -> None:
        self._endpoints = list(endpoints)
        self._tls = tls
        self._login = login
        self._call_s = call_s
        self._connection = None  # type: typing.Optional[http.client.HTTPConnection]
        self._token = ""

    def call(self, path: str, body: Body) -> Answer:
        """Return the answer of the first endpoint that gives one. Raise Unreachable or Refused."""
        return self._with_token(lambda: self._anywhere(path, body))

    def stream(self, path: str, body: Body) -> "Stream":
        """Open a call whose answers go on, on a connection of its own."""
        return self._with_token(lambda: self._open_stream(path, body))

    def hurry(self, call_s: float) -> None:
        """Wait less for each call from now on."""
        self._call_s = min(self._call_s, call_s)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- one call

    def _with_token(self, attempt: typing.Callable[[], Result]) -> Result:
        """Try, and once more with a new token where etcd does not know ours."""
        try:
            self._log_in()
            return attempt()
        except Refused as error:
            if not error.is_about_token or self._login is None:
                raise
        self._token = ""
        self._log_in()
        return attempt()

    def _log_in(self) -> None:
        if self._login is None or self._token:
            return
        try:
            answer = self._anywhere("auth/authenticate", {"name": self._login.user, "password": self._login.password})
        except Refused as error:
            if "authentication is not enabled" in str(error):
                self._login = None  # this etcd asks nobody
                return
            raise
        self._token = text(answer, "token")
        if not self._token:
            raise Refused("etcd answered authentication without a token", 0)

    def _anywhere(self, path: str, body: Body) -> Answer:
        """Try one endpoint after the other, at most MOST_ATTEMPTS. Only if TLS fails at all of them, no later attempt can do better."""
        failures, is_hopeless = [], True
        for _ in range(min(len(self._endpoints), MOST_ATTEMPTS)):
            try:
                return self._at_current(path, body)
            except Unreachable as error:
                failures.append("{}: {}".format(self._endpoints[0], error))
                is_hopeless = is_hopeless and isinstance(error, Misfit)
                self.close()
                self._endpoints.append(self._endpoints.pop(0))
        if is_hopeless and len(failures) == len(self._endpoints):
            raise Refused("; ".join(failures), 0)
        raise Unreachable("; ".join(failures))

    def _at_current(self, path: str, body: Body) -> Answer:
        is_reused = self._connection is not None
        try:
            return self._post(path, body)
        except Unreachable:
            raise
        except (ConnectionError, http.client.BadStatusLine) as error:
            # A connection that the server closed while it was idle says nothing about the server.
            self.close()
            if not is_reused:
                raise self._unreachable(error) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._unreachable(error) from error
        try:
            return self._post(path, body)
        except Unreachable:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: BaseException) -> Unreachable:
        """Say what a failed attempt over a new connection means."""
        host, port = self._endpoints[0]
        if words := tls_mistakes.mistake(error, host, port, self._tls):
            return Misfit(words)
        return Unreachable(_words(error))

    def _post(self, path: str, body: Body) -> Answer:
        with _Deadline(self._call_s) as deadline:
            if self._connection is None:
                self._connection = self._connect(deadline)
            deadline.ends(self._connection.sock)
            self._connection.request("POST", "/v3/" + path, json.dumps(body), self._headers())
            response = self._connection.getresponse()
            data = response.read(LONGEST_ANSWER + 1)
        if response.will_close or len(data) > LONGEST_ANSWER:
            self.close()
        if len(data) > LONGEST_ANSWER:
            raise Refused("etcd answered with more than {} bytes".format(LONGEST_ANSWER), 0)
        return checked(response.status, data)

    def _connect(self, deadline: "_Deadline") -> http.client.HTTPConnection:
        host, port = self._endpoints[0]
        connection = http.client.HTTPConnection(host, port, timeout=self._call_s)
        sock = socket.create_connection((host, port), timeout=self._call_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sock = sock
        if self._tls is not None:
            try:
                secure = self._tls.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
                connection.sock = secure
                deadline.ends(secure)
                secure.do_handshake()
            except BaseException:
                connection.close()
                raise
        return connection

    def _headers(self) -> typing.Dict[str, str]:
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = self._token
        return headers

    def _open_stream(self, path: str, body: Body) -> "Stream":
        # etcd ends the stream of a member that has lost its leader, instead of being silent.
        headers = dict(self._headers(), **{"Grpc-Metadata-hasleader": "true"})
        connection = None
        try:
            with _Deadline(self._call_s) as deadline:
                connection = self._connect(deadline)
                sock = connection.sock
                deadline.ends(sock)
                connection.request("POST", "/v3/" + path, json.dumps(body), headers)
                response = connection.getresponse()
                if response.status != 200:
                    checked(response.status, response.read(LONGEST_ANSWER))
            sock.settimeout(None)
            return Stream(sock, response)
        except (OSError, http.client.HTTPException, ValueError, Refused) as error:
            if connection is not None:
                connection.close()
            if isinstance(error, Refused):
                raise
            raise Unreachable("{}: {}".format(self._endpoints[0], _words(error))) from error


class Stream:
    """The answers of one open call, a JSON object a line."""

    def __init__(self, sock: socket.socket, response: http.client.HTTPResponse) -> None:
        self._sock = sock
        self._response = response

    def __iter__(self) -> typing.Iterator[Answer]:
        """Wait for each answer; raise Unreachable when the stream ends."""
        while True:
            try:
                line = self._response.readline(LONGEST_ANSWER + 1)
                if not line or len(line) > LONGEST_ANSWER:
                    raise Unreachable("etcd ended the watch" if not line else "etcd sent more than {} bytes".format(LONGEST_ANSWER))
                answer = json.loads(line)
            except (OSError, http.client.HTTPException, ValueError, AttributeError, RecursionError) as error:
                raise Unreachable(_words(error)) from error
            if not isinstance(answer, dict) or not isinstance(answer.get("result"), dict):
                raise Unreachable("etcd ended the watch: {}".format(_error_of(answer)))
            yield answer["result"]

    def close(self) -> None:
        """End the stream, from any thread; a reader that waits gets Unreachable."""
        _shut(self._sock)

    def free(self) -> None:
        """Close the connection; only the reader may, once it reads no more."""
        self._response.close()
        self._sock.close()


def checked(status: int, data: bytes) -> Answer:
    """Return the answer that these bytes hold; raise Refused, or Unreachable if another attempt may help."""
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        answer = None
    if status == 200 and isinstance(answer, dict) and "error" not in answer:
        return answer
    if status == 400 and b"HTTP request to an HTTPS server" in data[:1000]:
        raise Misfit(tls_mistakes.ONLY_TLS)
    if status == 404 and not isinstance(answer, dict):
        raise Refused("it serves no JSON gateway at /v3 (404): is it etcd 3.4 or newer, with --enable-grpc-gateway?", 0)
    message = _error_of(answer)
    code = number(answer, "code") if isinstance(answer, dict) else 0
    if not isinstance(answer, dict) or status >= 500 or code in _TRANSIENT:
        raise Unreachable("answered {}: {}".format(status, message))
    raise Refused(message, code)


def text(fields: Body, name: str) -> str:
    """Return a field that should be text; empty if it is not."""
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def number(fields: Body, name: str) -> int:
    """Return a field that holds an integer: the gateway writes those of 64 bits as text, and leaves out 0."""
    value = fields.get(name)
    if isinstance(value, str) and len(value) < 20 and value.lstrip("-").isdigit():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _error_of(answer: object) -> str:
    if not isinstance(answer, dict):
        return "something that is not etcd's"
    inner = answer.get("error")
    words = text(inner, "message") if isinstance(inner, dict) else text(answer, "error") or text(answer, "message")
    return words[:500] or "an error without words"


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # an SSLSocket's own would take its state from a thread that reads


class _Deadline:
    """Ends what goes on at a socket after this time, however slowly bytes may drip: a socket's own time-out is for each of them."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._is_over = False
        self._sock = None  # type: typing.Optional[socket.socket]
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> "_Deadline":
        self._timer.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._timer.cancel()
        if self._is_over:
            raise Unreachable("no whole answer within {:g} s".format(self._seconds)) from None

    def ends(self, sock: socket.socket) -> None:
        """Take the socket that is at work now."""
        self._sock = sock
        if self._is_over:
            _shut(sock)

    def _end(self) -> None:
        self._is_over = True
        if self._sock is not None:
            _shut(self._sock)
