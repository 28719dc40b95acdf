"""Simulate the part of an API server that the commands about jobs use.

The server stores objects by path. It lists, creates, deletes and merge-patches them, and returns logs.
tests/integration/test_cli_commands.py checks the commands with a real API server.
"""

import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml
from click.testing import CliRunner, Result

from elastic.api.kinds import API_VERSION, KINDS
from elastic.cli import main
from elastic.cli.installing.manifests import RESOURCES
from elastic.kube.resources import TRAIN_JOBS

PYTORCH = KINDS["PyTorchJob"]
Object = dict[str, Any]
OF_GROUPS = {"Lease": "leases", "PodMetrics": "pods", "JobSet": "jobsets"}
OF_CLUSTER = {
    "CustomResourceDefinition": "customresourcedefinitions",
    "APIService": "apiservices",
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
}


def path_of(object: Object) -> str:
    metadata = object["metadata"]
    if object["kind"] == TRAIN_JOBS.kind:
        return TRAIN_JOBS.path(namespace=metadata["namespace"], name=metadata["name"])
    if object["kind"] in KINDS:
        return f"/apis/{API_VERSION}/namespaces/{metadata['namespace']}/{KINDS[object['kind']].plural}/{metadata['name']}"
    if object["kind"] in ("Namespace", "Node"):
        return f"/api/v1/{object['kind'].lower()}s/{metadata['name']}"
    if object["kind"] in OF_CLUSTER:
        return f"/apis/{object['apiVersion']}/{OF_CLUSTER[object['kind']]}/{metadata['name']}"
    if object["kind"] in OF_GROUPS:
        return f"/apis/{object['apiVersion']}/namespaces/{metadata['namespace']}/{OF_GROUPS[object['kind']]}/{metadata['name']}"
    if object["kind"] in RESOURCES:
        return RESOURCES[object["kind"]].path(namespace=metadata.get("namespace"), name=metadata["name"])
    return f"/api/v1/namespaces/{metadata['namespace']}/{object['kind'].lower()}s/{metadata['name']}"


class Api:
    """The objects that the server stores, and the requests that it received."""

    def __init__(self, *objects: Object, kinds: bool = True) -> None:
        self.objects = {path_of(one): one for one in (namespace("default"), *objects)}
        self.logs: dict[str, str] = {}
        self.asked: list[tuple[str, str, Any]] = []
        self.has_kinds = kinds
        self.status_of_new: Object = {}
        self.refuses: tuple[int, str] | None = None
        self.headers: Mapping[str, str] = {}
        """Headers of the newest request."""

    def answer(self, method: str, url: str, body: Any) -> tuple[int, Any]:
        split = urlsplit(url)
        self.asked.append((method, split.path, body))
        if self.refuses is not None:
            return status(*self.refuses)
        if split.path.endswith("/log"):
            name = split.path.split("/")[-2]
            return (200, self.logs[name]) if name in self.logs else status(400, f"container of {name} has not begun")
        if split.path in ("/version", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"):
            return 200, {"gitVersion": "v1.36.0", "status": {"allowed": True}}
        known = self.objects.get(split.path.removesuffix("/scale").removesuffix("/eviction"))
        if method == "GET" and "watch=true" in split.query:
            return 200, ""  # an empty watch: nothing changes
        if method == "POST" and not split.path.endswith("/eviction"):
            return self._create(split.path, body)
        if method == "GET":
            return (200, known) if known is not None else self._list(split.path, parse_qs(split.query))
        if known is None:
            return status(404, f'"{split.path.rpartition("/")[2]}" not found')
        if method == "PATCH" and (body.get("metadata") or {}).get("uid", known["metadata"].get("uid")) != known["metadata"].get("uid"):
            return status(409, "Precondition failed: UID in precondition")
        if method == "DELETE" and (body.get("preconditions") or {}).get("uid") not in (None, known["metadata"].get("uid")):
            return status(409, "Precondition failed: UID in precondition")
        if method == "DELETE" or split.path.endswith("/eviction"):
            del self.objects[path_of(known)]
        elif split.path.endswith("/scale"):
            known["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = body["spec"]["replicas"]
        else:
            merge(known, body)
        return 200, known

    def _create(self, path: str, body: Any) -> tuple[int, Any]:
        if path.startswith("/apis/kubeflow.org") and not self.has_kinds:
            return 404, "404 page not found"
        where = path.split("/namespaces/")
        if len(where) == 2 and f"/api/v1/namespaces/{where[1].split('/')[0]}" not in self.objects:
            name = where[1].split("/")[0]
            code, refusal = status(404, f'namespaces "{name}" not found')
            return code, refusal | {"details": {"name": name, "kind": "namespaces"}}
        body["metadata"] |= {"uid": f"uid-{body['metadata']['name']}"} | ({"namespace": where[1].split("/")[0]} if len(where) == 2 else {})
        body.setdefault("kind", "Namespace")
        body["status"] = self.status_of_new
        self.objects[path_of(body)] = body
        return 201, body

    def _list(self, path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
        plural = path.rpartition("/")[2]
        root = 3 if path.startswith("/apis") else 2
        if (path.count("/") - root) % 2 == 0 and path.count("/") > root:
            return status(404, f'"{plural}" not found')
        if path.startswith("/apis/kubeflow.org") and not self.has_kinds:
            return 404, "404 page not found"
        where = path.rpartition("/")[0]
        inside = [
            one for at, one in self.objects.items() if f"/{plural}/" in at and (at.startswith(f"{where}/") or "/namespaces/" not in where)
        ]
        group = path.split("/namespaces/")[0].rpartition(f"/{plural}")[0] or path.split("/namespaces/")[0]
        wanted = dict(part.split("=") for part in query.get("labelSelector", [""])[0].split(",") if "=" in part)
        inside = [one for one in inside if path_of(one).startswith(f"{group}/")]
        items = [one for one in inside if wanted.items() <= (one["metadata"].get("labels") or {}).items()]
        return 200, {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}


def merge(target: Object, patch: Object) -> None:
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            merge(target[key], value)
        else:
            target[key] = value


def status(code: int, message: str) -> tuple[int, Any]:
    return code, {"kind": "Status", "code": code, "reason": "Refused", "message": message}


@contextmanager
def served(
    api: Api, folder: Path, *, tls: ssl.SSLContext | None = None, cluster: Object | None = None, user: Object | None = None
) -> Iterator[Path]:
    """Serve the API and yield the path of its kubeconfig. `cluster` and `user` add fields to the kubeconfig."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            api.headers = dict(self.headers)
            code, answer = api.answer(self.command, self.path, json.loads(self.rfile.read(length) or b"null"))
            data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_DELETE = _answer

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket.listen(128)  # with the default queue of five, a command with many parallel requests waits for seconds
    server.handle_error = lambda request, address: None  # type: ignore[method-assign]  # a command may close a connection early, which is not an error
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    address = f"http{'s' if tls is not None else ''}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(
        yaml.safe_dump(
            {
                "current-context": "test",
                "contexts": [{"name": "test", "context": {"cluster": "test"} | ({"user": "test"} if user else {})}],
                "clusters": [{"name": "test", "cluster": {"server": address, **(cluster or {})}}],
            }
            | ({"users": [{"name": "test", "user": user}]} if user else {})
        )
    )
    try:
        yield kubeconfig
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def elastic(kubeconfig: Path, *words: str) -> Result:
    return CliRunner().invoke(main, [words[0], "--kubeconfig", str(kubeconfig), *words[1:]], env={"KUBECONFIG": ""})


def namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def job(name: str = "train", *, kind: str = "PyTorchJob", status: Object | None = None, workers: int = 3, **more: Any) -> Object:
    metadata = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{name}",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "managedFields": [],
    }
    replicas = {"Worker": {"replicas": workers, "template": {}}}
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": metadata,
        "spec": {KINDS[kind].replica_key: replicas, **more},
        "status": status or {},
    }


def pod(index: int, *, of: str = "train", node: str = "node-0", **more: Any) -> Object:
    labels = {
        "training.kubeflow.org/job-name": of,
        "training.kubeflow.org/replica-type": "worker",
        "training.kubeflow.org/replica-index": str(index),
    }
    metadata = {
        "name": f"{of}-worker-{index}",
        "namespace": "default",
        "uid": f"pod-{index}",
        "labels": labels,
        "ownerReferences": [{"uid": f"uid-{of}"}],
    }
    state = {"phase": "Running", "containerStatuses": [{"name": "pytorch", "state": {"running": {}}, "restartCount": 0}]}
    spec = {"nodeName": node, "containers": [{"name": "pytorch"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {**state, **more}}


def running(**elastic: Any) -> Object:
    """Return the status of a job that is running with three workers."""
    return {
        "conditions": [{"type": "Running", "status": "True", "reason": "PyTorchJobRunning", "message": "it runs."}],
        "replicaStatuses": {"Worker": {"active": 3}},
        "elastic": {"worldSize": 3, **elastic},
    }
