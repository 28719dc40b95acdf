"""Run the API server as a process: its access control, its faults on purpose, and logs and exec through a node's agent."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from api_process import CONFIG_MAPS, PATIENCE_S, PODS, ApiProcess, Json, closing, config_map, running

from elastic import certificates
from elastic.api import KINDS
from elastic.api.crd import crd

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    with running(tmp_path_factory.mktemp("api"), "--faults", "1", "--san", "api.example.test") as started:
        yield started


# ---------------------------------------------------------------------- access
def test_keys_and_kubeconfig_are_readable_by_the_owner_only(server: ApiProcess) -> None:
    for name in ("kubeconfig", "admin.token", "ca.key", "server.key", "sa.key", "objects.db", "objects.db-wal"):
        assert stat.S_IMODE((server.folder / name).stat().st_mode) == 0o600, name


async def test_without_a_token_only_health_and_version_are_answered(server: ApiProcess) -> None:
    context = ssl.create_default_context(cafile=server.folder / "ca.crt")
    async with aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(ssl=context)) as anonymous:
        for path, expected in (("/readyz", 200), ("/version", 200), ("/api", 403), (PODS, 403), ("/faults", 403), ("/metrics", 403)):
            async with anonymous.get(path) as answer:
                assert answer.status == expected, path
        async with anonymous.get(PODS, headers={"Authorization": "Bearer made-up"}) as answer:
            assert answer.status == 401


def test_a_token_of_invalid_text_is_a_wrong_token(server: ApiProcess) -> None:
    context = ssl.create_default_context(cafile=server.folder / "ca.crt")
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as s,
    ):
        s.sendall(b"GET /api HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\xfe\xfc\r\nConnection: close\r\n\r\n")
        assert s.recv(1000).startswith(b"HTTP/1.1 401 ")


def test_a_request_that_cannot_be_read_stays_out_of_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with running(tmp_path) as one:
        context = ssl.create_default_context(cafile=tmp_path / "ca.crt")
        with (
            socket.create_connection(("127.0.0.1", one.port), timeout=30) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as s,
        ):
            s.sendall(b"GET /api HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\x01\r\n\r\n")
            assert s.recv(1000).startswith(b"HTTP/1.0 400 ")
    logged = capfd.readouterr().err
    assert "secret" not in logged
    assert "Traceback" not in logged


async def test_a_token_lasts_a_year_at_most(server: ApiProcess) -> None:
    path = "/api/v1/namespaces/default/serviceaccounts"
    async with server.client() as client:
        await client.make(path, {"metadata": {"name": "robot"}})
        body = {"spec": {"expirationSeconds": 2**32}}
        async with client.session.post(f"{path}/robot/token", json=body) as answer:
            made = await answer.json()
            assert answer.headers["Warning"] == '299 - "requested expiration of 4294967296 seconds shortened to 31536000 seconds"'
        assert made["spec"]["expirationSeconds"] == 31_536_000
        status, refused = await client.ask("POST", f"{path}/robot/token", {"spec": {"expirationSeconds": 2**32 + 1}})
        assert (status, "may not specify a duration larger than 2^32 seconds" in refused["message"]) == (422, True)


def test_the_certificate_names_what_it_was_asked_to(server: ApiProcess) -> None:
    names = ("127.0.0.1", "localhost", "kubernetes.default.svc", "10.96.0.1", "api.example.test")
    assert certificates.covers((server.folder / "server.crt").read_bytes(), names)


def test_plain_http_is_not_served(server: ApiProcess) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as s:
        s.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        assert b"200" not in s.recv(100)


def test_an_address_that_is_not_loopback_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "elastic.local.apiserver", "--data-dir", str(tmp_path), "--listen", "0.0.0.0:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "--listen is 0.0.0.0:0 but only a loopback address is served" in done.stderr


def test_a_socket_handed_in_is_served_too(tmp_path: Path) -> None:
    with socket.socket() as inherited:
        inherited.bind(("127.0.0.1", 0))
        inherited.listen()
        ready = tmp_path / "ready"
        command = [sys.executable, "-m", "elastic.local.apiserver", "--data-dir", str(tmp_path), "--ready-file", str(ready)]
        flags = ["--listen", "127.0.0.1:0", "--listen-fd", str(inherited.fileno())]
        with subprocess.Popen([*command, *flags], pass_fds=(inherited.fileno(),)) as process:
            try:
                end = time.monotonic() + PATIENCE_S
                while not (ready.exists() and ready.read_text()):
                    assert time.monotonic() < end
                    time.sleep(0.02)
                context = ssl.create_default_context(cafile=tmp_path / "ca.crt")
                url = f"https://127.0.0.1:{inherited.getsockname()[1]}/readyz"
                with urllib.request.urlopen(url, context=context, timeout=PATIENCE_S) as answer:
                    assert answer.read() == b"ok"
            finally:
                process.terminate()


async def test_an_account_may_do_what_its_role_says_and_no_more(server: ApiProcess) -> None:
    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
    async with server.client() as admin:
        await admin.make("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "reader"}})
        rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]
        rules.append({"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["create"]})
        await admin.make(f"{rbac}/roles", {"metadata": {"name": "reads"}, "rules": rules})
        subject = {"kind": "ServiceAccount", "name": "reader", "namespace": "default"}
        binding = {"metadata": {"name": "reads"}, "roleRef": {"kind": "Role", "name": "reads"}, "subjects": [subject]}
        await admin.make(f"{rbac}/rolebindings", binding)
        token = (await admin.make("/api/v1/namespaces/default/serviceaccounts/reader/token", {}))["status"]["token"]
        async with server.client(token) as reader:
            assert (await reader.ask("GET", CONFIG_MAPS))[0] == 200
            assert (await reader.ask("POST", CONFIG_MAPS, config_map("x")))[0] == 403
            assert (await reader.ask("GET", "/api/v1/namespaces/kube-system/configmaps"))[0] == 403
            more = {"metadata": {"name": "more"}, "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]}
            status, refused = await reader.ask("POST", f"{rbac}/roles", more)
            assert status == 403
            assert "attempting to grant RBAC permissions not currently held" in refused["message"]
            same = {"metadata": {"name": "same"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]}
            assert (await reader.ask("POST", f"{rbac}/roles", same))[0] == 201
        await admin.ask("DELETE", "/api/v1/namespaces/default/serviceaccounts/reader")
        async with server.client(token) as reader:
            assert (await reader.ask("GET", CONFIG_MAPS))[0] == 401


# ---------------------------------------------------------------------- faults
async def test_faults_on_purpose_meet_the_chosen_requests(server: ApiProcess) -> None:
    async with server.client() as admin, server.client(**{"User-Agent": "victim/1"}) as victim:

        async def faults(*rules: dict[str, Any]) -> None:
            assert (await admin.ask("PUT", "/faults", list(rules)))[0] == 200

        try:
            await faults({"agent": "victim", "path": CONFIG_MAPS, "method": "GET", "status": 429, "retry_after_s": 3, "times": 1})
            async with victim.session.get(CONFIG_MAPS) as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (429, "3")
            assert (await victim.ask("GET", CONFIG_MAPS))[0] == 200
            await faults({"agent": "victim", "drop": True})
            with pytest.raises(aiohttp.ClientError):
                await victim.ask("GET", CONFIG_MAPS)
            assert (await admin.ask("GET", CONFIG_MAPS))[0] == 200
            await faults({"agent": "victim", "gone": True})
            async with victim.session.get(CONFIG_MAPS, params={"watch": "true", "resourceVersion": "999999"}) as answer:
                assert '"code":410' in await answer.text()
            await faults({"agent": "victim", "end_watch_after_s": 0.2})
            async with victim.session.get(CONFIG_MAPS, params={"watch": "true"}) as answer:
                await answer.read()
            await admin.make(CONFIG_MAPS, config_map("fresh"))
            await faults({"agent": "victim", "stale_by": 1})
            _, stale = await victim.ask("GET", CONFIG_MAPS)
            assert "fresh" not in [o["metadata"]["name"] for o in stale["items"]]
            status, refused = await admin.ask("PUT", "/faults", [{"colour": "red"}])
            assert status == 400
            assert "colour" in refused["message"]
        finally:
            await faults()


# ---------------------------------------------------------------------- logs and exec
@contextlib.asynccontextmanager
async def agent(server: ApiProcess) -> AsyncIterator[int]:
    """Run a node's agent that lets in only clients with a certificate of the cluster's CA, and yield its port."""
    ca = certificates.Pair((server.folder / "ca.crt").read_bytes(), (server.folder / "ca.key").read_bytes())
    pair = certificates.issue(ca, "node", names=("127.0.0.1",))
    (server.folder / "node.crt").write_bytes(pair.certificate)
    (server.folder / "node.key").write_bytes(pair.key)

    async def logs(request: web.Request) -> web.Response:
        return closing(web.Response(text=f"{request.path} {dict(request.query)}\n"))

    async def run(request: web.Request) -> web.WebSocketResponse:
        channel = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await channel.prepare(request)
        async for message in channel:
            await channel.send_bytes(b"\x01" + message.data[1:].upper())
            await channel.close(code=1000)
        return channel

    app = web.Application()
    app.router.add_get("/containerLogs/{tail:.*}", logs)
    app.router.add_get("/exec/{tail:.*}", run)
    runner = web.AppRunner(app)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=server.folder / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(server.folder / "node.crt", server.folder / "node.key")
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    assert site._server is not None
    try:
        yield site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    finally:
        await runner.cleanup()


async def placed_pod(server: ApiProcess, port: int, name: str) -> None:
    async with server.client() as admin:
        status = {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}], "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}
        await admin.make("/api/v1/nodes", {"metadata": {"name": name}, "status": status})
        spec = {"nodeName": name, "containers": [{"name": "main", "image": "any"}]}
        await admin.make(PODS, {"metadata": {"name": name}, "spec": spec})


async def test_logs_come_from_the_agent_of_the_pods_node(server: ApiProcess) -> None:
    async with agent(server) as port, server.client() as admin:
        await placed_pod(server, port, "logging")
        async with admin.session.get(f"{PODS}/logging/log", params={"tailLines": "5", "container": "main"}) as answer:
            assert await answer.text() == "/containerLogs/default/logging/main {'tailLines': '5'}\n"
            assert answer.content_type == "text/plain"


async def test_exec_frames_pass_both_ways_and_the_end_is_told(server: ApiProcess) -> None:
    async with agent(server) as port, server.client() as admin:
        await placed_pod(server, port, "running")
        path = f"{PODS}/running/exec?command=cat&stdin=true&stdout=true"
        async with admin.session.ws_connect(path, protocols=("v5.channel.k8s.io", "v4.channel.k8s.io")) as channel:
            assert channel.protocol == "v5.channel.k8s.io"
            await channel.send_bytes(b"\x00hello")
            assert (await channel.receive_bytes()) == b"\x01HELLO"
            assert (await channel.receive()).type is aiohttp.WSMsgType.CLOSE
            assert channel.close_code == 1000


# ---------------------------------------------------------------------- kubectl
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_shows_a_job_in_numbers_and_words(server: ApiProcess, tmp_path: Path) -> None:
    status: Json = {"conditions": [{"type": "Running", "status": "True"}], "replicaStatuses": {"Worker": {"active": 3}}}
    status["elastic"] = {"worldSize": 3, "restarts": {"user": 2, "plan": 5}, "restartCount": 2}
    template = {"spec": {"containers": [{"name": "pytorch", "image": "x"}]}}
    spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": 4, "template": template}}}
    job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "shown"}, "spec": spec}

    def kubectl(*arguments: str, given: object = None) -> str:
        command = ["kubectl", "--kubeconfig", str(server.kubeconfig), "--cache-dir", str(tmp_path), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, input=json.dumps(given), check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    kubectl("create", "-f", "-", given=crd(KINDS["PyTorchJob"]))
    kubectl("wait", "--for=condition=Established", "crd/pytorchjobs.kubeflow.org")
    kubectl("create", "-f", "-", given=job)
    kubectl("patch", "pytorchjob", "shown", "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
    heading, row = (line.split() for line in kubectl("get", "pytorchjobs").splitlines())
    assert heading == ["NAME", "STATE", "AGE", "WORKERS", "WANTED", "WORLD", "RESTARTS", "RESCALED", "WAITS", "FOR"]
    assert (row[0:2], row[3:7]) == (["shown", "Running"], ["3", "4", "3", "2"])


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_finds_what_it_needs(server: ApiProcess, tmp_path: Path) -> None:
    def kubectl(*arguments: str, given: str | None = None, fails: bool = False) -> str:
        command = ["kubectl", "--kubeconfig", str(server.folder / "kubeconfig"), "--cache-dir", str(tmp_path), *arguments]
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode != 0) is fails, f"{arguments}: {done.stderr}"
        return done.stderr if fails else done.stdout

    manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: by-kubectl}\ndata: {a: b}\n"
    assert "configmap/by-kubectl created" in kubectl("apply", "-f", "-", given=manifest)
    assert "unchanged" in kubectl("apply", "-f", "-", given=manifest)
    assert "serverside-applied" in kubectl("apply", "--server-side", "-f", "-", given=manifest)
    assert "by-kubectl" in kubectl("get", "configmaps")
    assert "labeled" in kubectl("label", "configmap", "by-kubectl", "x=y")
    assert kubectl("auth", "can-i", "create", "pods").strip() == "yes"
    assert "namespace/kubectl-made created" in kubectl("create", "namespace", "kubectl-made")
    assert "restartPolicy" in kubectl("explain", "pod.spec")
    misspelt = "apiVersion: v1\nkind: Podd\nmetadata: {name: p}\n"
    assert 'no matches for kind "Podd"' in kubectl("apply", "-f", "-", given=misspelt, fails=True)
    assert "Name:" in kubectl("describe", "configmap", "by-kubectl")
    assert 'configmap "by-kubectl" deleted' in kubectl("delete", "configmap", "by-kubectl")
