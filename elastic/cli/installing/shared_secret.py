"""Make the Secret with the key and the certificate that controller and rendezvous server share.

It is created once, because the tokens of running jobs depend on the key.
"""

from __future__ import annotations

import base64
import secrets

import click

from elastic.kube.resources import Object

NAME = "elastic-installation"
ETCD_MEMBERS = 3
NEEDS = "the Secret elastic-installation is missing, and making it needs the Python package cryptography: pip install cryptography"


def names(namespace: str) -> tuple[str, ...]:
    """Return the names that the certificate is valid for: the server, and the members of the component etcd."""
    members = (f"elastic-etcd-{index}.elastic-etcd.{namespace}.svc" for index in range(ETCD_MEMBERS))
    return (f"elastic-rendezvous.{namespace}.svc", "localhost", "127.0.0.1", *members)


def made(namespace: str) -> Object:
    """Return a new Secret. The key of its CA is thrown away."""
    try:
        from elastic import certificates
    except ModuleNotFoundError as error:
        raise click.ClickException(NEEDS) from error
    ca = certificates.make_ca("elastic-installation-ca")
    server = certificates.issue(ca, "elastic-rendezvous", names=names(namespace))
    files = {"server.key": secrets.token_hex(32).encode(), "ca.crt": ca.certificate, "tls.crt": server.certificate, "tls.key": server.key}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": NAME, "namespace": namespace},
        "type": "Opaque",
        "data": {name: base64.b64encode(content).decode() for name, content in files.items()},
    }
