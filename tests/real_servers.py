"""Run a real Kubernetes control plane for tests: etcd and kube-apiserver on loopback.

Controller manager and scheduler run too if their programs are there. The programs come from one folder, as in envtest, and all files are
written below another. stop() ends every process, and restart() kills a process and starts it again.
"""

from __future__ import annotations

import base64
import json
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives import serialization

from elastic.certificates import Pair, issue, load_key, make_ca
from elastic.local.ports import free_ports
from elastic.local.sandbox import linux

READY_WITHIN_S = 120
STOPPED_WITHIN_S = 30
NEEDED = ("etcd", "kube-apiserver")
SERVICE_RANGE = "10.96.0.0/16"


class ControlPlane:
    def __init__(
        self, assets: Path, folder: Path, *, node_grace_s: float = 50.0, api_flags: tuple[str, ...] = (), has_scheduler: bool = True
    ) -> None:
        self._has_scheduler = has_scheduler
        self._node_grace_s = node_grace_s
        self._api_flags = api_flags
        self.assets = assets
        self.folder = folder
        self.kubeconfig = folder / "admin.kubeconfig"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, list[str | Path]] = {}
        self._ca = make_ca("kube-ca")
        self._etcd, self._etcd_peer, self._api, self._manager, self._scheduler = free_ports(5)

    @staticmethod
    def missing(assets: Path) -> list[str]:
        return [name for name in NEEDED if not (assets / name).is_file()]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self._write_certificates()
        self._start_etcd()
        self._start_api_server()
        self._wait_for("/readyz")
        if (self.assets / "kube-controller-manager").is_file():
            self._start_controller_manager()
            # The server refuses pods without this account.
            self._wait_for("/api/v1/namespaces/default/serviceaccounts/default")
        if self._has_scheduler and (self.assets / "kube-scheduler").is_file():
            self._start_scheduler()

    def stop(self) -> None:
        for process in reversed(self._processes.values()):
            process.terminate()
            try:
                process.wait(STOPPED_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._api}"

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    def restart(self, name: str) -> None:
        """Kill a process and start it again. The new one may not be ready yet."""
        process = self._processes[name]
        process.kill()
        process.wait()
        self._begin(name)

    def _write_certificates(self) -> None:
        (self.folder / "ca.crt").write_bytes(self._ca.certificate)
        names = ("127.0.0.1", "10.96.0.1", "localhost", "kubernetes.default.svc")
        self._write("server", issue(self._ca, "kube-apiserver", names=names))
        self._write("proxy", issue(self._ca, "front-proxy-client"))
        accounts = make_ca("service-accounts").key
        (self.folder / "sa.key").write_bytes(accounts)
        public = load_key(accounts).public_key()
        pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        (self.folder / "sa.pub").write_bytes(pem)
        self._write_kubeconfig("admin", "admin", ("system:masters",))
        self._write_kubeconfig("manager", "system:kube-controller-manager", ())
        self._write_kubeconfig("scheduler", "system:kube-scheduler", ())

    def _write(self, name: str, pair: Pair) -> None:
        (self.folder / f"{name}.crt").write_bytes(pair.certificate)
        (self.folder / f"{name}.key").write_bytes(pair.key)

    def _write_kubeconfig(self, name: str, user: str, organizations: tuple[str, ...]) -> None:
        pair = issue(self._ca, user, organizations=organizations)
        self._write(name, pair)
        cluster = {"server": f"https://127.0.0.1:{self._api}", "certificate-authority-data": _encoded(self._ca.certificate)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [
                {"name": user, "user": {"client-certificate-data": _encoded(pair.certificate), "client-key-data": _encoded(pair.key)}}
            ],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user, "namespace": "default"}}],
            "current-context": "test",
        }
        (self.folder / f"{name}.kubeconfig").write_text(json.dumps(config))

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{self._etcd_peer}"
        self._run(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )

    def _start_api_server(self) -> None:
        self._run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd}",
            f"--secure-port={self._api}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--tls-cert-file={self.folder / 'server.crt'}",
            f"--tls-private-key-file={self.folder / 'server.key'}",
            f"--client-ca-file={self.folder / 'ca.crt'}",
            f"--service-account-key-file={self.folder / 'sa.pub'}",
            f"--service-account-signing-key-file={self.folder / 'sa.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--authorization-mode=Node,RBAC",
            f"--requestheader-client-ca-file={self.folder / 'ca.crt'}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={self.folder / 'proxy.crt'}",
            f"--proxy-client-key-file={self.folder / 'proxy.key'}",
            # Node agents answer an API server only if it shows a certificate.
            f"--kubelet-client-certificate={self.folder / 'admin.crt'}",
            f"--kubelet-client-key={self.folder / 'admin.key'}",
            "--enable-aggregator-routing=true",
            "--allow-privileged=true",
            *self._api_flags,
        )

    def _start_controller_manager(self) -> None:
        self._run(
            "kube-controller-manager",
            *self._as_component("manager", self._manager),
            f"--service-account-private-key-file={self.folder / 'sa.key'}",
            f"--root-ca-file={self.folder / 'ca.crt'}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            "--horizontal-pod-autoscaler-sync-period=2s",
            # A new node has a taint until the controller manager has looked at it.
            "--node-monitor-period=1s",
            f"--node-monitor-grace-period={self._node_grace_s}s",
        )

    def _start_scheduler(self) -> None:
        self._run("kube-scheduler", *self._as_component("scheduler", self._scheduler), "--leader-elect=false")

    def _as_component(self, name: str, port: int) -> tuple[str, ...]:
        file = self.folder / f"{name}.kubeconfig"
        return (
            f"--kubeconfig={file}",
            f"--authentication-kubeconfig={file}",
            f"--authorization-kubeconfig={file}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
        )

    def _run(self, name: str, *arguments: str) -> None:
        self._commands[name] = [self.assets / name, *arguments]
        self._begin(name)

    def _begin(self, name: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                self._commands[name],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                preexec_fn=linux.die_with_parent,  # a test that is killed leaves no servers behind
            )

    def _wait_for(self, path: str) -> None:
        tls = ssl.create_default_context(cadata=self._ca.certificate.decode())
        tls.load_cert_chain(self.folder / "admin.crt", self.folder / "admin.key")
        give_up_at = time.monotonic() + READY_WITHIN_S
        while True:
            try:
                with urllib.request.urlopen(f"https://127.0.0.1:{self._api}{path}", context=tls, timeout=10) as answer:
                    answer.read()
                    return
            except (OSError, urllib.error.URLError) as error:
                self._check_alive()
                if time.monotonic() > give_up_at:
                    raise TimeoutError(f"kube-apiserver does not give {path} after {READY_WITHIN_S} s: {error}") from error
            time.sleep(0.2)

    def _check_alive(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None:
                tail = (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{name} ended with {process.returncode}: {tail}")


def machine_address() -> str:
    """Return an address that is not on loopback, because a real server refuses loopback endpoints. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


def _encoded(pem: bytes) -> str:
    return base64.b64encode(pem).decode()
