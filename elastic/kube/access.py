"""Find out how to reach an API server: from a kubeconfig file, or from the service account of our own pod.

This module reads files, runs a credential program if the kubeconfig names one, and sends nothing.
"""

import base64
import json
import os
import selectors
import ssl
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_REREAD_S = 60.0
TOKEN_MARGIN = timedelta(minutes=1)
NEVER = datetime.max.replace(tzinfo=UTC)
COMMAND_TIMEOUT_S = 60.0
LONGEST_OUTPUT, CHUNK = 1024 * 1024, 64 * 1024
"""Limit for the output of a credential program, in bytes: a token has some thousand."""
GET_AGAIN = "get it again from its source, or name another kubeconfig (--kubeconfig FILE)"


class AccessError(Exception):
    """A kubeconfig or service account that cannot be used, with what to do about it."""


@dataclass(frozen=True, slots=True)
class Access:
    """Everything a client needs to talk to one API server as one user."""

    server: str
    tls: ssl.SSLContext | None
    token: Callable[[], str | None]
    """Returns the token; text with a space in it is the whole header Authorization."""
    namespace: str = "default"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further headers of each request."""
    proxy: str | None = None
    """URL of an HTTP proxy."""


class SlowToken(ABC):
    """A token whose source may be slow. An event loop asks it in a thread, and uses the former token meanwhile."""

    @abstractmethod
    def __call__(self) -> str: ...

    @abstractmethod
    def is_due(self) -> bool:
        """Tell whether the source must be asked."""

    @abstractmethod
    def unexpired(self) -> str:
        """Return the token, or nothing once it has expired."""


class TokenCommand(SlowToken):
    """A bearer token from the program that the kubeconfig names, as cloud providers have it; asked again a minute before it expires."""

    def __init__(self, spec: dict[str, Any], *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._spec = spec
        self._clock = clock
        self._token = ""
        self._ask_again = self._expires = datetime.min.replace(tzinfo=UTC)
        self._lock = threading.Lock()

    def __call__(self) -> str:
        with self._lock:
            if self.is_due():
                status = self._asked()
                self._expires = _moment(status.get("expirationTimestamp"))
                self._ask_again = self._expires - TOKEN_MARGIN if self._expires < NEVER else NEVER
                self._token = str(status["token"])
            return self._token

    def is_due(self) -> bool:
        return self._clock() >= self._ask_again

    def unexpired(self) -> str:
        return self._token if self._clock() < self._expires else ""

    def _asked(self) -> dict[str, Any]:
        command = [self._spec.get("command") or "", *(self._spec.get("args") or ())]
        version = self._spec.get("apiVersion", "client.authentication.k8s.io/v1")
        info = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
        more = [f"{entry['name']}={entry['value']}" for entry in self._spec.get("env") or ()]
        try:
            # Through env(1) it has our environment and some more, without this module reading any of it.
            code, said, words = _ended(["env", f"KUBERNETES_EXEC_INFO={json.dumps(info)}", *more, *command])
        except (OSError, ValueError) as error:
            raise AccessError(f"the kubeconfig's credential program {command[0]!r} could not be run: {error}") from error
        if code != 0:
            shown = words.decode(errors="replace").strip()[:500]
            raise AccessError(f"the kubeconfig's credential program {command[0]!r} ended with {code}: {shown}")
        try:
            status = json.loads(said)["status"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise AccessError(f"the kubeconfig's credential program {command[0]!r} did not answer with an ExecCredential") from error
        if not isinstance(status, dict) or not status.get("token"):
            raise AccessError(
                f"the kubeconfig's credential program {command[0]!r} gave no token; client certificates from it are not supported"
            )
        return status


def _ended(command: list[str]) -> tuple[int, bytes, bytes]:
    """Run a program to its end; return its exit code, output and errors. Raise ValueError if it takes too long or says too much."""
    until = time.monotonic() + COMMAND_TIMEOUT_S
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        try:
            return _code_and_output(program, until)
        except BaseException:
            program.kill()
            raise


def _code_and_output(program: "subprocess.Popen[bytes]", until: float) -> tuple[int, bytes, bytes]:
    assert program.stdout is not None
    assert program.stderr is not None
    said = {program.stdout: bytearray(), program.stderr: bytearray()}
    with selectors.DefaultSelector() as reading:
        for pipe in said:
            reading.register(pipe, selectors.EVENT_READ)
        while reading.get_map():
            ready = reading.select(max(0.0, until - time.monotonic()))
            if not ready:
                raise ValueError(f"it did not end within {COMMAND_TIMEOUT_S:g} s")
            for key, _ in ready:
                pipe = program.stdout if key.fileobj is program.stdout else program.stderr
                chunk = os.read(key.fd, CHUNK)
                said[pipe] += chunk
                if not chunk:
                    reading.unregister(pipe)
            if sum(map(len, said.values())) > LONGEST_OUTPUT:
                raise ValueError(f"it printed more than {LONGEST_OUTPUT} bytes")
    try:
        code = program.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise ValueError(f"it did not end within {COMMAND_TIMEOUT_S:g} s") from None
    return code, bytes(said[program.stdout]), bytes(said[program.stderr])


class TokenFile:
    """A bearer token that the kubelet replaces on disk while we run."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._token = ""
        self._read_at = float("-inf")

    def __call__(self) -> str:
        if self._clock() - self._read_at >= TOKEN_REREAD_S:
            try:
                self._token = self._path.read_text().strip()
            except OSError as error:
                if not self._token:
                    raise AccessError(f"cannot read the token {self._path}: {error.strerror}") from error
            self._read_at = self._clock()
        return self._token


def _moment(stamp: object) -> datetime:
    if not stamp:
        return NEVER
    try:
        moment = datetime.fromisoformat(str(stamp))
    except ValueError as error:
        raise AccessError(f"the kubeconfig's credential program gave {stamp!r} as expirationTimestamp, which is no time") from error
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def in_cluster(*, host: str, port: str, folder: Path = SERVICE_ACCOUNT) -> Access:
    """Return the access of a pod through its service account. Host and port come from the environment, which the caller reads."""
    token, ca = folder / "token", folder / "ca.crt"
    needed = {"KUBERNETES_SERVICE_HOST": bool(host), str(token): token.exists(), str(ca): ca.exists()}
    if missing := [name for name, is_there in needed.items() if not is_there]:
        words = f"no kubeconfig was given and this is not a pod with a service account: without {', '.join(missing)}"
        raise AccessError(f"{words}; pass --kubeconfig FILE")
    namespace = folder / "namespace"
    address = f"[{host}]" if ":" in host else host
    return Access(
        server=f"https://{address}:{port}",
        tls=_trusting(ca.read_bytes(), str(ca)),
        token=TokenFile(token),
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
    )


def from_kubeconfig(path: Path, *, context: str | None = None) -> Access:
    """Read server, credentials and namespace of one context (the current one unless named)."""
    chosen, cluster, user = _chosen(path, context)
    server = str(cluster.get("server") or "").rstrip("/")
    if not server:
        raise AccessError(f"kubeconfig {path}: cluster {chosen.get('cluster')} has no server; {GET_AGAIN}")
    return Access(
        server=server,
        tls=_tls(cluster, user, path=path) if server.startswith("https://") else None,
        token=_token(user, path=path),
        namespace=chosen.get("namespace") or "default",
    )


def without_certificate(path: Path, *, context: str | None = None) -> ssl.SSLContext | None:
    """Return the TLS of a kubeconfig's server for other users than its own: without the client certificate."""
    _, cluster, _ = _chosen(path, context)
    return _tls(cluster, {}, path=path) if str(cluster.get("server") or "").startswith("https://") else None


def check(path: Path, *, context: str | None = None) -> None:
    """Raise what `from_kubeconfig` would raise of the file's form and its certificates, without a look at the user's credentials."""
    _, cluster, user = _chosen(path, context)
    if str(cluster.get("server") or "").startswith("https://"):
        _tls(cluster, user, path=path)


def _chosen(path: Path, context: str | None) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the context, with its cluster and its user."""
    config = _read(path)
    wanted = context or config.get("current-context")
    if not wanted:
        set_one = f"`kubectl config use-context NAME --kubeconfig {path}`"
        raise AccessError(f"kubeconfig {path} has no current-context; set one with {set_one}, or name one with --context; {_names(config)}")
    chosen = _entry(config, "contexts", "context", name=wanted, path=path)
    cluster = _entry(config, "clusters", "cluster", name=chosen.get("cluster", ""), path=path)
    user = _entry(config, "users", "user", name=chosen["user"], path=path) if chosen.get("user") else {}
    return chosen, cluster, user


def _read(path: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(path.read_text())
    except OSError as error:
        raise AccessError(f"cannot read kubeconfig {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise AccessError(f"kubeconfig {path} is not YAML: {' '.join(str(error).split())}; {GET_AGAIN}") from error
    if not isinstance(config, dict):
        found = "nothing" if config is None else f"a {type(config).__name__}"
        raise AccessError(f"kubeconfig {path} is not a mapping with clusters, users and contexts: it holds {found}; {GET_AGAIN}")
    return config


def _names(config: dict[str, Any], collection: str = "contexts") -> str:
    entries = config.get(collection)
    names = [str(item.get("name")) for item in entries if isinstance(item, dict)] if isinstance(entries, list) else []
    return f"its {collection}: {', '.join(names) or 'none'}"


def _entry(config: dict[str, Any], collection: str, key: str, *, name: str, path: Path) -> dict[str, Any]:
    entries = config.get(collection)
    for item in entries if isinstance(entries, list) else ():
        if isinstance(item, dict) and item.get("name") == name:
            value = item.get(key) or {}
            if isinstance(value, dict):
                return value
    raise AccessError(f"kubeconfig {path}: {collection} has no entry named {name!r} with a {key}; {_names(config, collection)}")


def _token(user: dict[str, Any], *, path: Path) -> Callable[[], str | None]:
    if user.get("auth-provider"):
        raise AccessError(f"kubeconfig {path}: auth-provider is gone from Kubernetes; let your provider write a kubeconfig with exec")
    if isinstance(user.get("exec"), dict):
        return TokenCommand(user["exec"])
    if user.get("tokenFile"):
        return TokenFile(path.parent / user["tokenFile"])
    token = user.get("token")
    return lambda: token


def _tls(cluster: dict[str, Any], user: dict[str, Any], *, path: Path) -> ssl.SSLContext:
    authority = _material(cluster, "certificate-authority", path=path)
    context = _trusting(authority, _place(cluster, "certificate-authority", path))
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate = _material(user, "client-certificate", path=path)
    key = _material(user, "client-key", path=path)
    if certificate and key:
        _trusting(certificate, _place(user, "client-certificate", path))  # reads it: the next call does not say which of the two is wrong
        _load_client_certificate(context, certificate, key, place=_place(user, "client-key", path))
    return context


def _trusting(authority: bytes | None, place: str) -> ssl.SSLContext:
    """Return a TLS context that trusts these certificates. `place` names their place, for messages."""
    text = authority.decode("ascii", "replace").replace("\ufffd", "?") if authority else None  # comments may hold any character
    try:
        return ssl.create_default_context(cadata=text)
    except ssl.SSLError as error:
        raise AccessError(f"{place} holds no certificate in PEM form but {len(authority or b'')} other bytes; {GET_AGAIN}") from error


def expecting(context: ssl.SSLContext, name: str) -> None:
    """Let a context ask for this name of the server, and check it, instead of the name in the server's address."""
    wrapped = context.wrap_bio

    def wrap(incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, **more: Any) -> ssl.SSLObject:
        return wrapped(incoming, outgoing, **{**more, "server_hostname": name})

    context.wrap_bio = wrap  # type: ignore[assignment, method-assign]  # event loops call it


def _load_client_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes, *, place: str) -> None:
    # OpenSSL's binding reads certificate and key from a file only; the file is ours alone and gone right after.
    with tempfile.NamedTemporaryFile() as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        try:
            context.load_cert_chain(file.name)
        except ssl.SSLError as error:
            reason = error.reason or "no private key in PEM form"
            raise AccessError(f"{place} is not the key of the client certificate (OpenSSL: {reason}); {GET_AGAIN}") from error


def _place(entry: dict[str, Any], field: str, path: Path) -> str:
    inline = entry.get(f"{field}-data")
    return f"kubeconfig {path}: {field}-data" if inline else f"kubeconfig {path}: {field} {path.parent / str(entry.get(field))}"


def _material(entry: dict[str, Any], field: str, *, path: Path) -> bytes | None:
    """Return a certificate or key, which is in the file itself (base64) or in a file next to it."""
    inline = entry.get(f"{field}-data")
    if inline:
        try:
            return base64.b64decode(str(inline), validate=True)
        except ValueError as error:
            raise AccessError(f"{_place(entry, field, path)} is not base64: {error}; {GET_AGAIN}") from error
    if not entry.get(field):
        return None
    try:
        return (path.parent / str(entry[field])).read_bytes()
    except OSError as error:
        raise AccessError(f"{_place(entry, field, path)} cannot be read: {error.strerror}; {GET_AGAIN}") from error
