"""Run real etcds on loopback for tests: one member or three, with or without TLS and users."""

import base64
import contextlib
import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any, Self

import pytest

from elastic.local.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
UNPACKED = ROOT / ".cache/etcd/usr/bin/etcd"
PROGRAM = os.environ.get("ELASTIC_TEST_ETCD") or (str(UNPACKED) if UNPACKED.exists() else shutil.which("etcd"))
needs_etcd = pytest.mark.skipif(PROGRAM is None, reason="there is no etcd: scripts/setup-tests unpacks Debian's etcd-server")
PATIENCE_S = 60.0


class Etcd:
    """A cluster of etcd members. Their ports and data outlive restarts."""

    def __init__(
        self, folder: Path, *, members: int = 1, certificate: tuple[Path, Path, Path] | None = None, options: tuple[str, ...] = ()
    ) -> None:
        """Set up the members. `certificate` is CA, certificate and key for TLS to clients. `options` go to the program too."""
        self.folder = folder
        self.scheme = "https" if certificate is not None else "http"
        self._certificate = certificate
        self._options = options
        self.ports, self._peers = free_ports(members), free_ports(members)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._tokens: dict[str, str] = {}

    @property
    def endpoint(self) -> str:
        return ",".join(f"{self.scheme}://127.0.0.1:{port}" for port in self.ports)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *which: int) -> None:
        for index in which or range(len(self.ports)):
            with open(self.folder / f"etcd-{index}.log", "ab") as log:
                self._processes[index] = subprocess.Popen(self._command(index), stdout=log, stderr=log)
        for index in which or range(len(self.ports)):
            self._wait_until_it_serves(index)

    def _command(self, index: int) -> list[str]:
        assert PROGRAM is not None
        client, peer = f"{self.scheme}://127.0.0.1:{self.ports[index]}", f"http://127.0.0.1:{self._peers[index]}"
        cluster = ",".join(f"etcd-{other}=http://127.0.0.1:{port}" for other, port in enumerate(self._peers))
        command = [PROGRAM, f"--name=etcd-{index}", f"--data-dir={self.folder / f'data-{index}'}", "--log-level=error"]
        command += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}"]
        command += [f"--initial-advertise-peer-urls={peer}", f"--initial-cluster={cluster}"]
        command += ["--heartbeat-interval=200", "--election-timeout=2000"]  # a busy machine loses no leader
        if self._certificate is not None:
            command += [f"--cert-file={self._certificate[1]}", f"--key-file={self._certificate[2]}"]
        return [*command, *self._options]

    def _wait_until_it_serves(self, index: int) -> None:
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.call("kv/range", {"key": "AA=="}, index=index)
                return
            except (OSError, http.client.HTTPException, AssertionError):
                assert time.monotonic() < until, self.log(index)
                time.sleep(0.1)

    def kill(self, *which: int) -> None:
        for index in which or list(self._processes):
            process = self._processes.pop(index)
            process.kill()
            process.wait()

    def pause(self, index: int) -> None:
        self._processes[index].send_signal(signal.SIGSTOP)

    def go_on(self, index: int) -> None:
        self._processes[index].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)
        self.kill()

    def log(self, index: int = 0) -> str:
        return (self.folder / f"etcd-{index}.log").read_text(errors="replace")[-3000:]

    def call(self, path: str, body: dict[str, Any], *, index: int = 0, user: str = "") -> dict[str, Any]:
        """Make one call as an administrator, or as this user."""
        headers = {"Authorization": self._tokens[user]} if user else {}
        connection: http.client.HTTPConnection
        if self._certificate is not None:
            tls = ssl.create_default_context(cafile=str(self._certificate[0]))
            connection = http.client.HTTPSConnection("127.0.0.1", self.ports[index], context=tls, timeout=5)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.ports[index], timeout=5)
        try:
            connection.request("POST", f"/v3/{path}", json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        answer: dict[str, Any] = json.loads(text)
        if response.status != 200 and "user name is empty" not in str(answer):
            raise AssertionError(answer)
        return answer

    def log_in(self, user: str, password: str) -> None:
        self._tokens[user] = self.call("auth/authenticate", {"name": user, "password": password})["token"]

    def ask_for_passwords(self, user: str, password: str, prefix: str) -> None:
        """Enable authentication with root, and a user whose role allows one prefix."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        permission = {"permType": "READWRITE", "key": coded(prefix), "range_end": coded(end)}
        for path, body in (
            ("auth/user/add", {"name": "root", "password": "root"}),
            ("auth/role/add", {"name": "root"}),
            ("auth/user/grant", {"user": "root", "role": "root"}),
            ("auth/user/add", {"name": user, "password": password}),
            ("auth/role/add", {"name": user}),
            ("auth/role/grant", {"name": user, "perm": permission}),
            ("auth/user/grant", {"user": user, "role": user}),
            ("auth/enable", {}),
        ):
            self.call(path, body)
        self.log_in("root", "root")

    def keys(self, prefix: str, *, user: str = "") -> list[str]:
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        answer = self.call("kv/range", {"key": coded(prefix), "range_end": coded(end), "keys_only": True}, user=user)
        return [base64.b64decode(pair["key"]).decode() for pair in answer.get("kvs", [])]

    def value(self, key: str) -> bytes | None:
        pairs = self.call("kv/range", {"key": coded(key)}).get("kvs", [])
        return base64.b64decode(pairs[0]["value"]) if pairs else None

    def fill(self) -> None:
        """Write until the quota is used up."""
        with contextlib.suppress(AssertionError):
            for _ in range(64):
                self.call("kv/put", {"key": coded("filling"), "value": coded("x" * 1_000_000)})
        assert self.call("maintenance/alarm", {"action": "GET"}).get("alarms"), "it still takes writes"

    def make_room(self) -> None:
        """Make room after the quota is used up, as an administrator does."""
        self.compact()
        self.call("maintenance/defragment", {})
        for alarm in self.call("maintenance/alarm", {"action": "GET"})["alarms"]:
            self.call("maintenance/alarm", {"action": "DEACTIVATE", **alarm})

    def compact(self) -> None:
        """Forget all history."""
        revision = self.call("kv/range", {"key": "AA=="})["header"]["revision"]
        self.call("kv/compaction", {"revision": revision, "physical": True})


def coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
