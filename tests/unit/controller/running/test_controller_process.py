"""Check the start of the control plane's processes, and the lines of their logs."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import pytest
from aiohttp import web
from click.testing import CliRunner
from served_api import refusal, served

from elastic.local.installation import ensure_installation
from elastic.logs import Line
from elastic_training.controller.watching.own_pod import NoPod, own_image
from elastic_training.rendezvous.main import main as rendezvous_main


def test_a_line_of_the_log_is_one_object_with_the_fields_of_the_event() -> None:
    log, stream = logging.getLogger("test.logs"), io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Line())
    log.addHandler(handler)
    try:
        log.warning("something\nhappened", extra={"job": "j", "path": Path("/x")})
        try:
            raise ValueError("why")
        except ValueError:
            log.exception("it broke")
    finally:
        log.removeHandler(handler)
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first | {"at": ""} == {
        "at": "",
        "level": "warning",
        "logger": "test.logs",
        "message": "something\nhappened",
        "job": "j",
        "path": "/x",
    }
    assert first["at"].endswith("Z")
    assert "ValueError: why" in second["traceback"]


async def test_the_worker_image_is_the_controllers_own_if_that_was_asked_for() -> None:
    async def handler(request: web.Request) -> web.Response:
        assert request.path == "/api/v1/namespaces/default/pods/me"
        return web.json_response({"spec": {"containers": [{"name": "controller", "image": "reg.example/elastic:7"}]}})

    async with served(handler) as kube:
        assert await own_image(kube, pod="me") == "reg.example/elastic:7"


async def test_outside_a_pod_there_is_no_own_image_and_the_error_says_what_to_do() -> None:
    async def handler(_: web.Request) -> web.Response:
        return refusal(404, "NotFound")

    async with served(handler) as kube:
        with pytest.raises(NoPod, match=r"--worker-image is own, but pod default/me could not be read .* name the image"):
            await own_image(kube, pod="me")


def test_the_rendezvous_server_says_in_words_that_it_runs_in_no_pod(tmp_path: Path) -> None:
    ensure_installation(tmp_path, addresses=())
    flags = ["--installation", str(tmp_path), "--listen", "127.0.0.1:0", "--in-cluster"]
    result = CliRunner().invoke(rendezvous_main, flags, env={"KUBERNETES_SERVICE_HOST": ""})
    assert result.exit_code == 1
    assert "this is not a pod with a service account" in result.output
