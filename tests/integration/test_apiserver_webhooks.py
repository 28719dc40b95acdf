"""Admission webhooks of the laptop's API server: whom they are asked about, how they are reached, and what their answers do."""

from __future__ import annotations

import base64
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from api_process import CONFIG_MAPS, MERGE, PODS, ApiProcess, Client, closing, config_map, running

from elastic import certificates
from elastic.api.crd import crd
from elastic.api.kinds import KINDS

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    with running(tmp_path_factory.mktemp("hooked")) as started:
        yield started


class Asked:
    """A webhook's answers, all the same, and what it was asked."""

    def __init__(self, **answer: Any) -> None:
        self.requests: list[dict[str, Any]] = []
        self._answer = {"allowed": True, **answer}

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(request)
        return self._answer

    @property
    def names(self) -> list[str]:
        return [r["name"] for r in self.requests]


SERVICE_NAME = "hook.default.svc"
Review = Callable[[dict[str, Any]], dict[str, Any]]


@contextlib.asynccontextmanager
async def webhook(folder: Path, answer: Review) -> AsyncIterator[tuple[str, str]]:
    """Serve an admission webhook over TLS. Yield its URL and CA bundle."""
    ca = certificates.make_ca("webhook-ca")
    pair = certificates.issue(ca, "webhook", names=("127.0.0.1", SERVICE_NAME))
    (folder / "hook.crt").write_bytes(pair.certificate)
    (folder / "hook.key").write_bytes(pair.key)

    async def review(request: web.Request) -> web.Response:
        asked = (await request.json())["request"]
        response = {"uid": asked["uid"], **answer(asked)}
        return closing(web.json_response({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))

    app = web.Application()
    app.router.add_post("/review", review)
    runner = web.AppRunner(app)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "hook.crt", folder / "hook.key")
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    try:
        yield f"https://127.0.0.1:{port}/review", base64.b64encode(ca.certificate).decode()
    finally:
        await runner.cleanup()


def configuration(kind: str, url: str, bundle: str, **fields: Any) -> dict[str, Any]:
    rule = {"operations": ["CREATE", "UPDATE", "DELETE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}
    hook = {
        "name": "check.example.com", "clientConfig": {"url": url, "caBundle": bundle}, "rules": [rule], "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "objectSelector": {"matchLabels": {"checked": "yes"}}, **fields,
    }  # fmt: skip
    return {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "check"}, "webhooks": [hook]}


def checked(name: str, **data: str) -> dict[str, Any]:
    made = config_map(name, **data)
    made["metadata"]["labels"] = {"checked": "yes"}
    return made


def by_service(kind: str, port: int, bundle: str, **fields: Any) -> dict[str, Any]:
    service = {"name": "hook", "namespace": "default", "path": "/review", "port": port}
    made = configuration(kind, "", bundle, **fields)
    made["webhooks"][0]["clientConfig"] = {"service": service, "caBundle": bundle}
    return made


@contextlib.asynccontextmanager
async def registered(server: ApiProcess, made: dict[str, Any]) -> AsyncIterator[Client]:
    async with server.client() as admin:
        await admin.make(HOOKS, made)
        try:
            yield admin
        finally:
            await admin.ask("DELETE", f"{HOOKS}/check")


HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


async def test_a_validating_webhook_refuses_and_warns_as_a_real_server_lets_it(server: ApiProcess, tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        seen.append(request)
        bad = (request["object"] or {}).get("data", {}).get("mood") == "bad"
        if bad:
            return {"allowed": False, "status": {"code": 403, "message": "no bad moods"}}
        return {"allowed": True, "warnings": ["looked at it"]}

    async with webhook(tmp_path, answer) as (url, bundle), server.client() as admin:
        await admin.make(HOOKS, configuration("ValidatingWebhookConfiguration", url, bundle))
        try:
            await admin.make(CONFIG_MAPS, config_map("unlabelled", mood="bad"))
            assert seen == []
            status, refused = await admin.ask("POST", CONFIG_MAPS, checked("moody", mood="bad"))
            assert (status, refused["message"]) == (403, 'admission webhook "check.example.com" denied the request: no bad moods')
            async with admin.session.post(CONFIG_MAPS, json=checked("moody", mood="good")) as made:
                assert made.status == 201
                assert made.headers["Warning"] == '299 - "looked at it"'
            status, _ = await admin.ask("PATCH", f"{CONFIG_MAPS}/moody", {"data": {"mood": "bad"}}, media=MERGE)
            assert status == 403
            assert (await admin.ask("DELETE", f"{CONFIG_MAPS}/moody"))[0] == 200
            operations = [r["operation"] for r in seen]
            assert operations == ["CREATE", "CREATE", "UPDATE", "DELETE"]
            assert seen[2]["oldObject"]["data"]["mood"] == "good"
            assert seen[3]["object"] is None
            assert seen[0]["userInfo"]["username"] == "kubernetes-admin"
            assert seen[0]["resource"] == {"group": "", "version": "v1", "resource": "configmaps"}
        finally:
            await admin.ask("DELETE", f"{HOOKS}/check")


async def test_a_webhook_that_does_not_answer_blocks_only_if_its_policy_says_so(server: ApiProcess, tmp_path: Path) -> None:
    async with server.client() as admin:
        await admin.make(HOOKS, configuration("ValidatingWebhookConfiguration", "https://127.0.0.1:1/review", ""))
        try:
            status, failed = await admin.ask("POST", CONFIG_MAPS, checked("blocked"))
            assert status == 500
            assert 'failed calling webhook "check.example.com"' in failed["message"]
            hook = configuration("ValidatingWebhookConfiguration", "https://127.0.0.1:1/review", "", failurePolicy="Ignore")
            await admin.ask("PATCH", f"{HOOKS}/check", {"webhooks": hook["webhooks"]}, media=MERGE)
            assert (await admin.ask("POST", CONFIG_MAPS, checked("passed")))[0] == 201
        finally:
            await admin.ask("DELETE", f"{HOOKS}/check")


async def test_a_mutating_webhook_changes_what_is_stored(server: ApiProcess, tmp_path: Path) -> None:
    patch = base64.b64encode(b'[{"op": "add", "path": "/data", "value": {"added": "yes"}}]').decode()
    allow = {"allowed": True, "patchType": "JSONPatch", "patch": patch}
    async with webhook(tmp_path, lambda _: allow) as (url, bundle), server.client() as admin:
        await admin.make(MUTATING, configuration("MutatingWebhookConfiguration", url, bundle))
        try:
            made = await admin.make(CONFIG_MAPS, checked("mutated"))
            assert made["data"] == {"added": "yes"}
        finally:
            await admin.ask("DELETE", f"{MUTATING}/check")


SERVICES = "/api/v1/namespaces/default/services"
VALIDATING = "ValidatingWebhookConfiguration"


async def test_a_webhook_behind_a_service_is_reached_by_its_name_and_held_to_it(server: ApiProcess, tmp_path: Path) -> None:
    asked = Asked()
    async with webhook(tmp_path, asked) as (url, bundle):
        port = urlsplit(url).port or 0
        async with registered(server, by_service(VALIDATING, port, bundle)) as admin:
            status, refused = await admin.ask("POST", CONFIG_MAPS, checked("too-early"))
            assert status == 500
            assert f'Post "https://hook.default.svc:{port}/review?timeout=10s": service "hook" not found' in refused["message"]
            service = {
                "metadata": {"name": "hook"},
                "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
            }
            await admin.make(SERVICES, service)
            await admin.make(CONFIG_MAPS, checked("by-name"))
            await admin.ask("DELETE", f"{SERVICES}/hook")
            assert asked.names == ["by-name"]


async def test_a_webhook_in_a_pod_is_reached_once_the_pod_is_ready(server: ApiProcess, tmp_path: Path) -> None:
    asked = Asked()
    async with webhook(tmp_path, asked) as (url, bundle), registered(server, by_service(VALIDATING, 443, bundle)) as admin:
        port = urlsplit(url).port
        spec = {"selector": {"app": "hook"}, "ports": [{"port": 443, "targetPort": "https"}]}
        await admin.make(SERVICES, {"metadata": {"name": "hook"}, "spec": spec})
        container = {"name": "main", "image": "none", "ports": [{"name": "https", "containerPort": port}]}
        await admin.make(PODS, {"metadata": {"name": "hook", "labels": {"app": "hook"}}, "spec": {"containers": [container]}})
        status, refused = await admin.ask("POST", CONFIG_MAPS, checked("too-early"))
        assert (status, 'no endpoints available for service "hook"' in refused["message"]) == (500, True)
        ready = {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
        await admin.ask("PATCH", f"{PODS}/hook/status", {"status": ready}, media=MERGE)
        await admin.make(CONFIG_MAPS, checked("in-a-pod"))
        for path in (f"{SERVICES}/hook", f"{PODS}/hook"):
            await admin.ask("DELETE", path, {"gracePeriodSeconds": 0})
        assert asked.names == ["in-a-pod"]


async def test_conditions_choose_what_a_webhook_is_asked_about(server: ApiProcess, tmp_path: Path) -> None:
    asked = Asked()
    conditions = [
        {"name": "not-the-controller", "expression": "request.userInfo.username != 'system:serviceaccount:default:controller'"},
        {"name": "asked-for", "expression": "object.data.ask == 'yes'"},
    ]
    async with (
        webhook(tmp_path, asked) as (url, bundle),
        registered(server, configuration(VALIDATING, url, bundle, matchConditions=conditions)) as admin,
    ):
        await admin.make(CONFIG_MAPS, checked("no", ask="no"))
        await admin.make(CONFIG_MAPS, checked("yes", ask="yes"))
        assert asked.names == ["yes"]
        status, refused = await admin.ask("POST", CONFIG_MAPS, {**checked("unclear"), "data": None})
        assert (status, "no such key: data" in refused["message"]) == (403, True)


async def test_namespaces_are_chosen_by_their_labels(server: ApiProcess, tmp_path: Path) -> None:
    asked = Asked()
    selector = {"matchLabels": {"kubernetes.io/metadata.name": "default"}}
    async with (
        webhook(tmp_path, asked) as (url, bundle),
        registered(server, configuration(VALIDATING, url, bundle, namespaceSelector=selector)) as admin,
    ):
        await admin.make(CONFIG_MAPS, checked("inside"))
        await admin.make("/api/v1/namespaces/kube-public/configmaps", checked("outside"))
        assert asked.names == ["inside"]


async def test_a_dry_run_asks_only_webhooks_without_side_effects(server: ApiProcess, tmp_path: Path) -> None:
    asked = Asked(warnings=["seen"])
    async with webhook(tmp_path, asked) as (url, bundle), registered(server, configuration(VALIDATING, url, bundle)) as admin:
        status, _ = await admin.ask("POST", CONFIG_MAPS, checked("dry"), dryRun="All", fieldManager="me")
        assert status == 201
        assert asked.requests[0]["dryRun"] is True
        options = {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "dryRun": ["All"], "fieldManager": "me"}
        assert asked.requests[0]["options"] == options
        assert (await admin.ask("GET", f"{CONFIG_MAPS}/dry"))[0] == 404


async def test_a_webhook_for_scale_sees_a_scale(server: ApiProcess, tmp_path: Path) -> None:
    asked = Asked(allowed=False)
    rule = {"operations": ["*"], "apiGroups": ["kubeflow.org"], "apiVersions": ["*"], "resources": ["pytorchjobs/scale"]}
    jobs = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
    template = {"spec": {"containers": [{"name": "pytorch", "image": "i"}]}}
    spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": 1, "template": template}}}
    made = configuration(VALIDATING, "", "", rules=[rule], objectSelector={})
    async with webhook(tmp_path, asked) as (url, bundle):
        made["webhooks"][0]["clientConfig"] = {"url": url, "caBundle": bundle}
        async with registered(server, made) as admin:
            await admin.make("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd(KINDS["PyTorchJob"]))
            await admin.make(jobs, {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "fit"}, "spec": spec})
            status, refused = await admin.ask("PATCH", f"{jobs}/fit/scale", {"spec": {"replicas": 4}}, media=MERGE)
            assert (status, refused["message"]) == (400, 'admission webhook "check.example.com" denied the request without explanation')
    [request] = asked.requests
    assert request["kind"] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    assert (request["oldObject"]["spec"], request["object"]["spec"]) == ({"replicas": 1}, {"replicas": 4})
