"""Let the API server reach pods in their own network through their nodes' agents: pods that serve webhooks, and pods/proxy."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from grounds import Ground
from laptop import NAMESPACE, PATIENCE_S, Object, container, pod, service, until

from elastic.certificates import Pair, issue, make_ca
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import CONFIG_MAPS, PODS, SERVICES, Resource
from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.sandboxes("netns", "loopback")]

HOOKS = Resource("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", namespaced=False)
ASKED = {"asks": "pod"}
SERVER = """
import http.server, json, os, pathlib, ssl
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.say({"path": self.path, "accept": self.headers["Accept"], "token": self.headers["Authorization"]})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = asked["request"]["object"]["metadata"]["name"]
        response = {"uid": asked["request"]["uid"], "allowed": name.startswith("good"), "status": {"message": "not good"}}
        self.say({"apiVersion": asked["apiVersion"], "kind": asked["kind"], "response": response})
    def say(self, answer):
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("0.0.0.0", 8443), Answers)
if os.environ["PAIR"]:
    pair = pathlib.Path(os.environ["TMPDIR"], "pair.pem")
    pair.write_text(os.environ["PAIR"])
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pair)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""
ENDLESS = """
import socket, threading
def answer(peer):
    try:
        peer.recv(65536)
        while True:
            peer.sendall(b"HTTP/1.1 100 Continue\\r\\n\\r\\n" * 3000)
    except OSError:
        peer.close()
server = socket.create_server(("0.0.0.0", 8443), backlog=100)
while True:
    threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()
"""


@pytest.fixture(scope="module")
def cluster(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    if ground.assets is not None:
        pytest.skip("a real API server goes to pods by itself, and finds no way into the network of the laptop's")
    with ground.cluster(tmp_path_factory.mktemp("reached"), nodes=1, control_plane=False) as running:
        yield running


async def served(kube: Kube, name: str, pair: Pair | None = None, *, program: str = SERVER) -> None:
    """Create a pod and its service by this name, and wait until the pod is ready. With a certificate it serves TLS."""
    text = (pair.certificate + b"\n" + pair.key).decode() if pair else ""
    main = container(
        "python", "-c", program, env=[{"name": "PAIR", "value": text}],
        readinessProbe={"tcpSocket": {"port": 8443}, "periodSeconds": 1}, ports=[{"name": "serving", "containerPort": 8443}],
    )  # fmt: skip
    made = service(name, {"app": name}, 443)
    made["spec"]["ports"] = [{"name": "web", "port": 443, "targetPort": "serving"}]
    await kube.create(SERVICES, made, namespace=NAMESPACE)
    await kube.create(PODS, pod(name, main, labels={"app": name}), namespace=NAMESPACE)

    async def ready() -> bool:
        found = await kube.get(PODS, name, namespace=NAMESPACE)
        return any(c["type"] == "Ready" and c["status"] == "True" for c in found["status"].get("conditions", ()))

    await until(ready, f"{name} is ready")


def hook(name: str, ca: Pair) -> Object:
    client = {
        "service": {"name": name, "namespace": NAMESPACE, "path": "/review", "port": 443},
        "caBundle": base64.b64encode(ca.certificate).decode(),
    }
    rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}
    webhook = {
        "name": f"{name}.example.com", "clientConfig": client, "rules": [rule], "objectSelector": {"matchLabels": {**ASKED, "by": name}},
        "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 30,
    }  # fmt: skip
    kind = "ValidatingWebhookConfiguration"
    return {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "webhooks": [webhook]}


async def made(kube: Kube, name: str, by: str) -> str:
    """Try to create a config map. Return the API server's refusal, or an empty string."""
    labels = {**ASKED, "by": by}
    try:
        await kube.create(CONFIG_MAPS, {"metadata": {"name": name, "labels": labels}}, namespace=NAMESPACE)
    except KubeError as error:
        return error.message
    return ""


async def test_a_webhook_served_by_a_pod_decides_what_comes_in(cluster: LocalCluster, kube: Kube, unique: str) -> None:
    name, ca = f"hook-{unique}", make_ca("webhooks")
    await served(kube, name, issue(ca, name, names=(f"{name}.{NAMESPACE}.svc",)))
    await kube.create(HOOKS, hook(name, ca))
    try:
        assert await made(kube, f"good-{unique}", name) == ""
        assert await made(kube, f"bad-{unique}", name) == f'admission webhook "{name}.example.com" denied the request: not good'
        await kube.delete(HOOKS, name)
        # A server with another authority's certificate is not believed.
        await kube.create(HOOKS, hook(name, make_ca("another")))
        assert "certificate verify failed" in await made(kube, f"good-too-{unique}", name)
    finally:
        await kube.delete(HOOKS, name)


async def raw(cluster: LocalCluster, path: str) -> tuple[str, str]:
    command = ["kubectl", "--kubeconfig", str(cluster.kubeconfig), "get", "--raw", path]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=PATIENCE_S)
    return done.stdout, done.stderr


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
async def test_requests_are_passed_on_to_pods_and_services(cluster: LocalCluster, kube: Kube, unique: str) -> None:
    name, below = f"shown-{unique}", f"/api/v1/namespaces/{NAMESPACE}"
    await served(kube, name)
    places = (f"pods/{name}", f"pods/http:{name}:serving", f"services/{name}", f"services/{name}:web")
    for place in places:
        out, err = await raw(cluster, f"{below}/{place}/proxy/metrics/x?y=1&z=2")
        assert out, err
        assert (json.loads(out)["path"], json.loads(out)["token"]) == ("/metrics/x?y=1&z=2", None), place
    for place, words in ((f"pods/{name}:1", "error trying to reach service: dial tcp"), (f"services/{name}:other", "no service port")):
        out, err = await raw(cluster, f"{below}/{place}/proxy/")
        assert (out, "ServiceUnavailable" in err, words in err) == ("", True, True), err


async def test_a_pod_that_only_says_continue_keeps_the_api_server_from_nothing(cluster: LocalCluster, kube: Kube, unique: str) -> None:
    """Forty requests to such a pod made others wait for as long as the client lived."""
    name = f"endless-{unique}"
    await served(kube, name, program=ENDLESS)
    path = PODS.path(namespace=NAMESPACE, name=name, subresource="proxy")

    async def refused() -> KubeError:
        with pytest.raises(KubeError) as error:
            await kube.request("GET", f"{path}/")
        return error.value

    errors = await asyncio.gather(*(refused() for _ in range(40)), kube.get(PODS, name, namespace=NAMESPACE))
    words = {(error.code, error.message) for error in errors if isinstance(error, KubeError)}
    assert words == {(503, "error trying to reach service: it sent more than 16 informational answers and no final one")}
