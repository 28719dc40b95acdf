"""Read the files of the data folder, and make missing ones: CA, server certificate, signing key, admin token and kubeconfig."""

from __future__ import annotations

import base64
import secrets
import ssl
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography.hazmat.primitives.asymmetric import ec

from elastic import certificates
from elastic.certificates import Pair
from elastic.local.files import take_folder
from elastic.runtime.files import write_private

SERVICE_ADDRESS = "10.96.0.1"
FRONT_PROXY = "front-proxy-client"
NAMES = (
    "127.0.0.1",
    "::1",
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    SERVICE_ADDRESS,
)


def _kept(path: Path, make: bytes) -> bytes:
    if not path.exists():
        write_private(path, make)
    return path.read_bytes()


@dataclass(frozen=True, slots=True)
class DataDir:
    root: Path
    ca: Pair
    signing_key: ec.EllipticCurvePrivateKey
    admin_token: str

    @classmethod
    def open(cls, root: Path, sans: tuple[str, ...]) -> DataDir:
        take_folder(root)
        if not (root / "ca.key").exists():
            made = certificates.make_ca("elastic-local-ca")
            write_private(root / "ca.crt", made.certificate)
            write_private(root / "ca.key", made.key)
        ca = Pair((root / "ca.crt").read_bytes(), (root / "ca.key").read_bytes())
        signing = certificates.load_key(_kept(root / "sa.key", certificates.key_pem(certificates.new_key())))
        token = _kept(root / "admin.token", secrets.token_urlsafe(32).encode()).decode().strip()
        data = cls(root, ca, signing, token)
        data._ensure_pair("server", "kube-apiserver", (*NAMES, *sans))
        data._ensure_pair("kubelet-client", "kube-apiserver-kubelet-client", ())
        data._ensure_front_proxy()
        return data

    def _ensure_front_proxy(self) -> None:
        """Make the front proxy's certificate. Its holder may speak for any user, so the CA signs nothing else and its key is not kept."""
        authority, certificate = self.root / "front-proxy-ca.crt", self.root / "front-proxy-client.crt"
        if authority.exists() and certificate.exists():
            return
        ca = certificates.make_ca("front-proxy-ca")
        pair = certificates.issue(ca, FRONT_PROXY)
        write_private(self.root / "front-proxy-client.key", pair.key)
        write_private(authority, ca.certificate)
        write_private(certificate, pair.certificate)

    def _ensure_pair(self, name: str, common_name: str, names: tuple[str, ...]) -> None:
        certificate, key = self.root / f"{name}.crt", self.root / f"{name}.key"
        if certificate.exists() and key.exists() and certificates.covers(certificate.read_bytes(), names):
            return
        pair = certificates.issue(self.ca, common_name, names=names)
        write_private(key, pair.key)
        write_private(certificate, pair.certificate)

    @property
    def database(self) -> Path:
        return self.root / "objects.db"

    def server_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.root / "server.crt", self.root / "server.key")
        return context

    def kubelet_context(self) -> ssl.SSLContext:
        """Return the TLS context for node agents. They have their own certificates, and ask for one that our CA has signed."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(self.root / "kubelet-client.crt", self.root / "kubelet-client.key")
        return context

    def write_kubeconfig(self, port: int) -> Path:
        cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority-data": base64.b64encode(self.ca.certificate).decode()}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "elastic",
            "clusters": [{"name": "elastic", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": self.admin_token}}],
            "contexts": [{"name": "elastic", "context": {"cluster": "elastic", "user": "admin", "namespace": "default"}}],
        }
        path = self.root / "kubeconfig"
        write_private(path, yaml.safe_dump(config, sort_keys=False).encode())
        return path
