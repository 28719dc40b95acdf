"""Reads torchrun's options and the environment for the backend `elastic-etcd`; each mistake is one clear error."""

import dataclasses
import os
import re
import socket
import ssl
import tempfile
import typing

from elastic_worker.etcd import tls_mistakes
from elastic_worker.etcd.fields import MOST_MEMBERS, MOST_RESTARTS, MOST_SECONDS, NAME
from elastic_worker.etcd.gateway import Endpoint, Login, Refused
from elastic_worker.etcd.group import Rules
from elastic_worker.settings import MEMBER, POD_IP, POD_UID, TOKEN, SettingsError

USER = "ELASTIC_ETCD_USER"
PASSWORD = "ELASTIC_ETCD_PASSWORD"
CA = "ELASTIC_ETCD_CA"
CERT = "ELASTIC_ETCD_CERT"
KEY = "ELASTIC_ETCD_KEY"
DEFAULT_PORT = 2379
DEFAULT_PREFIX = "/elastic-training"
MOST_ENDPOINTS = 16
KNOWN = (
    "allowed_sizes",
    "away_timeout",
    "cacert",
    "cert",
    "controller",
    "etcd_prefix",
    "grace",
    "hang_timeout",
    "key",
    "last_call_timeout",
    "lease_ttl",
    "linger",
    "max_restarts",
    "max_restarts_without_progress",
    "protocol",
)
OF_TORCH = "timeout"
"""torch adds this one always; nothing here waits for that long."""

Options = typing.Mapping[str, typing.Any]


@dataclasses.dataclass(frozen=True)
class Settings:
    """The place of etcd, the name of this member, and the rules that hold by hand."""

    endpoints: typing.Tuple[Endpoint, ...]
    tls: typing.Optional[ssl.SSLContext]
    login: typing.Optional[Login]
    prefix: str
    job: str
    member: str
    pod_uid: str
    address: str
    rules: Rules
    lease_s: int
    linger_s: int
    away_s: float
    token: str = dataclasses.field(repr=False, default="")


def read(
    environment: typing.Mapping[str, str],
    options: Options,
    *,
    endpoint: str,
    job: str,
    nodes: typing.Tuple[int, int],
    local_address: typing.Optional[str],
) -> Settings:
    """Read the settings of this agent. `options` are torchrun's --rdzv-conf."""
    unknown = sorted(set(options) - set(KNOWN) - {OF_TORCH})
    if unknown:
        raise SettingsError("--rdzv-conf holds {}, which elastic-etcd does not know; it knows {}".format(unknown[0], ", ".join(KNOWN)))
    if not job:
        raise SettingsError("the rendezvous id is empty; give all agents of a job the same --rdzv-id")
    endpoints, scheme = _endpoints(endpoint)
    tls = _tls(environment, options, scheme)
    return Settings(
        endpoints=endpoints,
        tls=tls,
        login=_login(environment),
        prefix="{}/{}/".format(_text(options, "etcd_prefix", DEFAULT_PREFIX).rstrip("/"), _quoted(job)),
        job=job,
        member=_member(environment),
        pod_uid=environment.get(POD_UID, ""),
        address=environment.get(POD_IP) or local_address or _address_towards(endpoints[0]),
        rules=_rules(options, nodes),
        lease_s=int(_number(options, "lease_ttl", 5, 2, 600)),
        linger_s=int(_number(options, "linger", 300, 10, 7 * 86400)),
        away_s=_number(options, "away_timeout", 600, 1, 366 * 86400),
        token=environment.get(TOKEN, ""),
    )


def remedy(error: Refused, settings: Settings) -> str:
    """Say what to do about a refusal, after etcd's own words."""
    words = str(error)
    if "user name is empty" in words:
        by = ", for its gateway takes no user from a certificate" if settings.tls is not None else ""
        return "; set {} and {}{}".format(USER, PASSWORD, by)
    if "authentication failed" in words:
        return "; look at {} and {}".format(USER, PASSWORD)
    if tls_mistakes.ONLY_TLS in words:
        return "; write https:// before the members in --rdzv-endpoint, or --rdzv-conf protocol=https"
    if tls_mistakes.NO_TLS in words:
        return "; leave out https:// in --rdzv-endpoint, protocol=https, cacert, cert and key"
    if tls_mistakes.NOT_KNOWN in words:
        return "; set cert and key in --rdzv-conf, or {} and {}, to a certificate that etcd's --trusted-ca-file has signed".format(
            CERT, KEY
        )
    if tls_mistakes.NOT_TRUSTED in words:
        return "; set cacert in --rdzv-conf, or {}, to the CA of its certificate, which has to name the host".format(CA)
    if "permission denied" in words:
        return "; its user {} needs readwrite permission for the prefix {}".format(
            settings.login.user if settings.login else "", settings.prefix
        )
    return ""


def _rules(options: Options, nodes: typing.Tuple[int, int]) -> Rules:
    words = _text(options, "allowed_sizes", "")
    if not re.fullmatch(r"(\d{1,5}(:\d{1,5})*)?", words):
        raise SettingsError("--rdzv-conf allowed_sizes is {!r}; expected numbers with colons between them, as in 1:2:4".format(words))
    sizes = tuple(sorted({int(size) for size in words.split(":")})) if words else ()
    least, most = nodes
    if most > MOST_MEMBERS:
        raise SettingsError("--nnodes asks for {} agents; elastic-etcd takes {} at most".format(most, MOST_MEMBERS))
    if sizes and not any(least <= size <= most for size in sizes):
        raise SettingsError("none of --rdzv-conf allowed_sizes ({}) lies within --nnodes {}:{}".format(words, least, most))
    limit, fruitless = (_number(options, name, -1, -1, MOST_RESTARTS) for name in ("max_restarts", "max_restarts_without_progress"))
    hang_s = _number(options, "hang_timeout", 0, 0, MOST_SECONDS)
    return Rules(
        min=least,
        max=most,
        sizes=sizes,
        grace_s=_number(options, "grace", 30, 0, 86400),
        max_restarts=int(limit) if limit >= 0 else None,
        needs_controller=_flag(options, "controller"),
        last_call_s=_number(options, "last_call_timeout", 2, 0, 86400),
        without_progress=int(fruitless) if fruitless >= 0 else None,
        hang_s=hang_s or None,
    )


def _endpoints(words: str) -> typing.Tuple[typing.Tuple[Endpoint, ...], str]:
    """Hosts and ports, and the scheme, if they name one."""
    found, schemes = [], set()
    for word in [part.strip() for part in words.split(",") if part.strip()]:
        match = re.fullmatch(r"(?:(https?)://)?(\[[0-9A-Fa-f:.]+\]|[^\[\]:/@]+)(?::(\d{1,5}))?/?", word)
        if match is None or int(match.group(3) or 1) not in range(1, 65536):
            raise SettingsError("the rendezvous endpoint {!r} is not HOST[:PORT] of an etcd; several have commas between them".format(word))
        schemes.add(match.group(1) or "")
        found.append(Endpoint(match.group(2).strip("[]"), int(match.group(3) or DEFAULT_PORT)))
    if not found or len(found) > MOST_ENDPOINTS:
        raise SettingsError("--rdzv-endpoint names {} etcd members; expected 1 to {}, as HOST:PORT".format(len(found), MOST_ENDPOINTS))
    if len(schemes) > 1:
        raise SettingsError("--rdzv-endpoint {!r} mixes http and https".format(words))
    return tuple(found), schemes.pop()


def _tls(environment: typing.Mapping[str, str], options: Options, scheme: str) -> typing.Optional[ssl.SSLContext]:
    """How to speak TLS; None without. The CA, certificate and key are files (--rdzv-conf) or PEM in the environment."""
    given = [name for name in ("cacert", "cert", "key") if options.get(name)] + [name for name in (CA, CERT, KEY) if environment.get(name)]
    protocol = _text(options, "protocol", scheme or ("https" if given else "http"))
    if protocol not in ("http", "https") or (scheme and scheme != protocol):
        raise SettingsError("--rdzv-conf protocol is {!r}; expected http or https, as in --rdzv-endpoint".format(protocol))
    if protocol == "http":
        if given:
            raise SettingsError("{} is set, but etcd is spoken to in plain http; use https:// in --rdzv-endpoint".format(given[0]))
        return None
    try:
        context = ssl.create_default_context(cafile=options.get("cacert") or None, cadata=environment.get(CA) or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if options.get("cert"):
            context.load_cert_chain(options["cert"], options.get("key") or None)
        elif environment.get(CERT):
            _load_chain(context, environment[CERT] + "\n" + environment.get(KEY, ""))
    except (OSError, ValueError) as error:
        raise SettingsError("the TLS files for etcd ({}) cannot be used: {}".format(", ".join(given) or "none given", error)) from error
    return context


def _load_chain(context: ssl.SSLContext, pem: str) -> None:
    """Ssl reads certificates of a client from files only."""
    descriptor, path = tempfile.mkstemp()
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(pem)
        context.load_cert_chain(path)
    finally:
        os.unlink(path)


def _login(environment: typing.Mapping[str, str]) -> typing.Optional[Login]:
    user, password = environment.get(USER, ""), environment.get(PASSWORD, "")
    if bool(user) != bool(password):
        given, missing = (USER, PASSWORD) if user else (PASSWORD, USER)
        raise SettingsError("{} is set and {} is not; etcd's password login needs both".format(given, missing))
    return Login(user, password) if user else None


def _member(environment: typing.Mapping[str, str]) -> str:
    """Return the pod's name, or without a pod a name of its own for each agent."""
    given = environment.get(MEMBER, "")
    if given and not NAME.match(given):
        raise SettingsError("{} is {!r}; expected letters, digits, points and hyphens".format(MEMBER, given[:300]))
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:100].strip(".-") or "host"
    return given or "{}-{}-{}".format(host, os.getpid(), os.urandom(3).hex())


def _quoted(job: str) -> str:
    """Check a part of a key: with a slash in it, one job's prefix could be another's."""
    return re.sub(r"[^A-Za-z0-9._-]", lambda found: "".join("%{:02X}".format(byte) for byte in found.group().encode()), job)


def _address_towards(endpoint: Endpoint) -> str:
    """Return the address that this host uses towards etcd; other agents can reach it there, too."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def _text(options: Options, name: str, default: str) -> str:
    value = options.get(name)
    return default if value is None else str(value).strip()


def _flag(options: Options, name: str) -> bool:
    words = _text(options, name, "false").lower()
    if words not in ("true", "false", "1", "0"):
        raise SettingsError("--rdzv-conf {} is {!r}; expected true or false".format(name, words))
    return words in ("true", "1")


def _number(options: Options, name: str, default: float, least: float, most: float) -> float:
    words = _text(options, name, str(default))
    try:
        value = float(words)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise SettingsError("--rdzv-conf {} is {!r}; expected a number from {:g} to {:g}".format(name, words, max(least, 0), most))
    return value
