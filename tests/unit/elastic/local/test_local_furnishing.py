"""Check the objects that the laptop cluster creates in its API, and those that it deletes."""

from __future__ import annotations

from aiohttp import web
from served_api import served

from elastic.local.furnishing import withdraw_metrics


async def test_metrics_groups_without_an_autoscaler_are_withdrawn() -> None:
    deleted: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        if request.method == "DELETE":
            deleted.append(request.path.rpartition("/")[2])
            return web.json_response({})
        assert request.query["labelSelector"] == "app.kubernetes.io/managed-by=elastic-autoscaler"
        items = [{"metadata": {"name": name}} for name in ("v1beta1.custom.metrics.k8s.io", "v1beta1.external.metrics.k8s.io")]
        return web.json_response({"kind": "APIServiceList", "apiVersion": "apiregistration.k8s.io/v1", "metadata": {}, "items": items})

    async with served(answer) as kube:
        await withdraw_metrics(kube)
    assert deleted == ["v1beta1.custom.metrics.k8s.io", "v1beta1.external.metrics.k8s.io"]
