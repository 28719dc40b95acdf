"""Use the dashboard of a laptop cluster in Debian's Chromium, as a person does at a desk and on a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import chromium
import pytest
import yaml
from chromium import Page

from elastic.api.kinds import KINDS
from elastic.kube import connect
from elastic.kube.following import resource_of
from elastic.kube.resources import EVENTS, Object
from elastic.local.cluster import LocalCluster
from elastic.local.dashboard import link
from elastic.local.files import Layout

pytestmark = [
    pytest.mark.integration,
    pytest.mark.full,
    pytest.mark.timeout(900),
    pytest.mark.skipif(chromium.PROGRAM is None, reason="needs Chromium; install Debian's package chromium"),
]
EXAMPLE = Path(__file__).parents[2] / "examples" / "pytorch-elastic" / "job.yaml"
HOSTILE = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"
PATIENCE_S = 300.0
WORLD = "document.querySelector('.facts dd')?.firstChild.textContent"
"""A JavaScript expression for the first of a job's facts."""


def example() -> Object:
    """Return the example's job, with enough steps for the whole test."""
    made: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    (container,) = made["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["env"] = [{"name": "STEPS", "value": "100000"}, {"name": "STEP_SECONDS", "value": "0.2"}]
    return made


def event(job: Object) -> Object:
    about = {"kind": "PyTorchJob", "namespace": "default", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
    said = {"type": "Warning", "reason": "Hostile", "message": HOSTILE, "lastTimestamp": "2026-01-01T00:00:00Z"}
    return {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "hostile", "namespace": "default"}, "involvedObject": about, **said}


async def test_a_person_sees_and_scales_a_job_and_a_hostile_event_is_text(tmp_path: Path) -> None:
    cluster = LocalCluster(data_dir=tmp_path / "lab", nodes=2, dashboard=True, allow_changes=True)
    with cluster:
        async with connect(cluster.kubeconfig) as kube, chromium.opened(tmp_path / "chromium") as page:
            job = await kube.create(resource_of(KINDS["PyTorchJob"]), example(), namespace="default")
            await page.size(1280)
            url = link(Layout(cluster.data_dir))
            assert url is not None
            await page.open(url)
            await _follow_to(page, "elastic-demo")
            await page.wait(f"{WORLD}?.startsWith('1/')", within_s=PATIENCE_S)
            await _scale(page, 2)
            await page.wait(f"{WORLD}?.startsWith('2/')", within_s=PATIENCE_S)
            await kube.create(EVENTS, event(job), namespace="default")
            await page.wait("document.querySelector('[aria-label=Events]').textContent.includes('onerror')")
            await _read_log(page)
            for width in (1280, 390):
                await page.size(width)
                await page.wait(f"document.documentElement.scrollWidth <= {width} && document.querySelectorAll('canvas').length === 3")
                await page.picture(tmp_path / f"job-{width}.png", whole=True)
            assert await page.ask("document.querySelectorAll('main script, main img').length") == 0
            assert "elastic-demo" in await page.ask("document.title")
            cluster.kill("dashboard")
            await page.wait("document.getElementById('live').textContent !== 'Live'")
            await page.wait("document.getElementById('live').textContent === 'Live'", within_s=PATIENCE_S)
            said = [words for words in page.said if "net::ERR" not in words and "status of 503" not in words]
            assert said == [], "only the connection was lost, and a dashboard that has just started says so"
            assert {address.split("/")[2] for address in page.asked if address.startswith("http")} == {url.split("/")[2]}


async def _follow_to(page: Page, name: str) -> None:
    found = f"[...document.querySelectorAll('tbody a')].find((one) => one.textContent === '{name}')"
    await page.wait(found, within_s=PATIENCE_S)
    await page.ask(f"{found}.click()")
    await page.wait(f"document.querySelector('h1')?.textContent === '{name}'")


async def _scale(page: Page, workers: int) -> None:
    await page.ask(f"document.getElementById('scale-to').value = {workers}")
    await page.ask("[...document.querySelectorAll('main button')].find((one) => one.textContent === 'Scale').click()")
    await page.wait("document.getElementById('confirm').open")
    await page.ask("document.getElementById('confirm-go').click()")


async def _read_log(page: Page) -> None:
    await page.wait("/step/.test(document.querySelector('pre').textContent)", within_s=PATIENCE_S)
