"""Says whether a connection to an etcd failed because of a mistake about TLS, which no later attempt mends.

An etcd closes a connection without a word if it is asked in plain text and expects TLS, or the other way round. It may also close a
connection before its alert about a client's certificate is read. So one more connection finds out why.
"""

import http.client
import re
import socket
import ssl
import typing

NOT_TRUSTED = "its certificate is not accepted"
NOT_KNOWN = "it does not accept this agent's certificate, or asks for one"
NO_TLS = "it speaks no TLS"
ONLY_TLS = "it speaks TLS only"
PROBE_S = 1.0
"""Limit for each step of such a connection."""
_ABOUT_OUR_CERTIFICATE = re.compile("ALERT_(.*CERTIFICATE|UNKNOWN_CA|HANDSHAKE_FAILURE|ACCESS_DENIED|DECRYPT_ERROR)")
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})
_SUDDEN_END = (ssl.SSLEOFError, ConnectionResetError, BrokenPipeError)


def mistake(error: BaseException, host: str, port: int, tls: typing.Optional[ssl.SSLContext]) -> str:
    """Say which mistake an error of a new connection shows; empty if it may heal by itself."""
    return _told_by(error) or (_probed(host, port, tls) if isinstance(error, _SUDDEN_END) else "")


def _told_by(error: BaseException) -> str:
    reason = str(getattr(error, "reason", None) or "")
    if isinstance(error, ssl.SSLCertVerificationError):
        return "{} ({})".format(NOT_TRUSTED, error.verify_message)
    if isinstance(error, ssl.SSLError) and _ABOUT_OUR_CERTIFICATE.search(reason):
        return "{} ({})".format(NOT_KNOWN, reason)
    if isinstance(error, ssl.SSLError) and reason in _NO_TLS:
        return NO_TLS
    if isinstance(error, http.client.BadStatusLine) and str(getattr(error, "line", "")).startswith("\x15\x03"):
        return ONLY_TLS  # an alert of TLS
    return ""


def _probed(host: str, port: int, tls: typing.Optional[ssl.SSLContext]) -> str:
    """Connect once more, and say what is wrong if that can be seen."""
    try:
        if tls is None:
            return _only_tls(host, port)
        return _no_tls(host, port) or _about_our_certificate(host, port, tls)
    except (OSError, ValueError):
        return ""


def _only_tls(host: str, port: int) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent, and nothing that it says is used
    with socket.create_connection((host, port), timeout=PROBE_S) as sock:
        try:
            with context.wrap_socket(sock):
                return ONLY_TLS
        except ssl.SSLError as error:
            return ONLY_TLS if _told_by(error).startswith(NOT_KNOWN) else ""


def _no_tls(host: str, port: int) -> str:
    with socket.create_connection((host, port), timeout=PROBE_S) as sock:
        sock.sendall(b"GET /version HTTP/1.0\r\n\r\n")
        try:
            return NO_TLS if sock.recv(5) == b"HTTP/" and b" 400 " not in sock.recv(64) else ""
        except OSError:
            return ""


def _about_our_certificate(host: str, port: int, tls: ssl.SSLContext) -> str:
    """Read an alert, which an etcd sends after the handshake of TLS 1.3."""
    with socket.create_connection((host, port), timeout=PROBE_S) as sock:
        try:
            with tls.wrap_socket(sock, server_hostname=host) as secure:
                secure.recv(1)
        except ssl.SSLError as error:
            return _told_by(error)
    return ""
