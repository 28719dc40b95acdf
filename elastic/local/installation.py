"""Make the laptop's installation: the key, CA and certificate that controller and rendezvous server share. They survive restarts."""

from __future__ import annotations

import secrets
from pathlib import Path

from elastic import certificates
from elastic.certificates import Pair
from elastic.membership.tokens import autoscaler_token, load_keys
from elastic.runtime.files import write_private

SERVICE = "elastic-rendezvous.elastic-system.svc"
"""The name by which pods find the rendezvous server."""
ETCD_SERVICE = "elastic-etcd.elastic-system.svc"
"""The name by which pods find the installation's etcd."""
AUTOSCALER_TOKEN = "autoscaler.rendezvous-token"
"""File with the token that the autoscaler shows to the rendezvous server. The autoscaler does not get the key."""


def ensure_installation(folder: Path, *, addresses: tuple[str, ...]) -> None:
    """Make missing files. An existing key stays, because the tokens of running jobs depend on it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = folder / "server.key"
    if not key.exists():
        write_private(key, secrets.token_hex(32).encode())
    write_private(folder / AUTOSCALER_TOKEN, autoscaler_token(load_keys(folder)[0]).encode())
    ca = _ca(folder)
    names = (SERVICE, ETCD_SERVICE, "localhost", "127.0.0.1", *addresses)
    certificate = folder / "tls.crt"
    if certificate.exists() and certificates.covers(certificate.read_bytes(), names):
        return
    pair = certificates.issue(ca, "elastic-rendezvous", names=names)
    write_private(folder / "tls.key", pair.key)
    write_private(certificate, pair.certificate)


def _ca(folder: Path) -> Pair:
    certificate, key = folder / "ca.crt", folder / "ca.key"
    if not key.exists():
        made = certificates.make_ca("elastic-installation-ca")
        write_private(certificate, made.certificate)
        write_private(key, made.key)
    return Pair(certificate.read_bytes(), key.read_bytes())
