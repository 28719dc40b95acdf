"""Make the Access of our client from the official client: address, certificates, token, headers and proxy.

The official client loads kubeconfigs, with their exec plugins and renewals of tokens. It sends nothing for us.
"""

from __future__ import annotations

import ssl
import threading
from typing import Any

from kubernetes.client import rest

from elastic.kube.access import Access, AccessError, SlowToken, expecting


def access_of(api: Any) -> Access:
    """Return the Access of an ApiClient. Raise AccessError if it has a setting that our client cannot honour."""
    configuration = api.configuration
    server = str(configuration.host).rstrip("/")
    headers = {name: str(value) for name, value in api.default_headers.items() if name.lower() != "user-agent"}
    if api.cookie:
        headers["Cookie"] = str(api.cookie)
    return Access(
        server=server,
        tls=_tls(configuration) if server.startswith("https://") else None,
        token=HookedToken(configuration),
        headers=headers,
        proxy=_proxy(configuration),
    )


def authorization(configuration: Any) -> str:
    """Return the header Authorization of the official client; empty if it sends none. A hook that renews the token may take long."""
    shown = configuration.auth_settings().values()
    return next((str(one["value"]) for one in shown if str(one.get("key")).lower() == "authorization" and one.get("value")), "")


class HookedToken(SlowToken):
    """The token of a configuration, which its refresh_api_key_hook may renew at each request."""

    def __init__(self, configuration: Any) -> None:
        self._configuration, self._lock = configuration, threading.Lock()

    def __call__(self) -> str:
        with self._lock:
            try:
                return authorization(self._configuration).removeprefix("Bearer ")
            except Exception as error:  # a hook is code of the user or of a cloud provider
                raise AccessError(f"the token for {self._configuration.host} cannot be renewed: {error}") from error

    def is_due(self) -> bool:
        return self._configuration.refresh_api_key_hook is not None

    def unexpired(self) -> str:
        return ""


def _tls(configuration: Any) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=getattr(configuration, "ca_cert_data", None))
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
    except OSError as error:  # also of OpenSSL
        files = ", ".join(filter(None, (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)))
        raise AccessError(f"the certificates for {configuration.host} cannot be used ({files}): {error}") from error
    if not configuration.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif configuration.assert_hostname is False:
        context.check_hostname = False
    if name := configuration.tls_server_name or configuration.assert_hostname:
        expecting(context, str(name))
    return context


def _proxy(configuration: Any) -> str | None:
    proxy = configuration.proxy
    if not proxy or rest.should_bypass_proxies(configuration.host, configuration.no_proxy or ""):
        return None
    if not str(proxy).startswith("http") or configuration.proxy_headers or getattr(configuration, "proxy_ssl_context", None):
        words = f"the proxy {proxy} of the configuration cannot be used: only its URL is honoured"
        raise AccessError(f"{words}, which must begin with http:// or https:// and may hold user and password")
    return str(proxy)
