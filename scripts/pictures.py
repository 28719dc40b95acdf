"""Make docs/dashboard-desk.png and docs/dashboard-phone.png in Chromium: `python scripts/pictures.py [FOLDER]`. Look at them afterwards.

The job is made up: 90 minutes with a growth, a spot node that is taken back, a number of workers set by hand, and a crash. The server and
its pages are the dashboard's own. Needs Debian's package chromium.
"""

from __future__ import annotations

import asyncio
import datetime
import math
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "unit")]

import chromium  # noqa: E402
from dashboard_scene import Scene, event, job, node, owned, pod  # noqa: E402

from elastic.membership.training import TrainingProgress  # noqa: E402
from elastic.runtime.one_time import OneTimeToken  # noqa: E402

NAME = "llama-finetune"
LENGTH_S, REPORT_S, PAUSE_S = 5400, 5.0, 1.0
SAMPLES_A_SECOND, STEPS_A_SECOND = 64, 1.6
PICTURES = {"desk": (1280, 1180), "phone": (390, 844)}


@dataclass(frozen=True)
class Change:
    at: float
    world: int
    wanted: int
    cause: str
    reason: str
    restarts: tuple[str, ...] = ()


STORY = (
    Change(0, 2, 3, "start", "the first members have come; 2 members"),
    Change(620, 3, 3, "plan", f"{NAME}-worker-2 joined; 3 members"),
    Change(1800, 2, 3, "disruption", f"{NAME}-worker-1 left: its node is taken back (aws-spot)", ("disruption",)),
    Change(1890, 3, 3, "plan", f"{NAME}-worker-3 joined; 3 members", ("disruption",)),
    Change(3480, 4, 4, "plan", f"{NAME}-worker-1 joined; 4 members", ("disruption",)),
    Change(4700, 3, 4, "user", f"a worker of {NAME}-worker-2 ended with status 1", ("disruption", "user")),
    Change(4730, 4, 4, "plan", f"{NAME}-worker-2 joined; 4 members", ("disruption", "user")),
)


def scene(end: float) -> Scene:
    begin, draw = end - LENGTH_S, random.Random(7)
    shown = Scene(node("node-0"), node("node-1"), event(of=NAME, message=f"PyTorchJob {NAME} trains with 4 workers", reason="Rescaled"))
    shown.put(*(owned(pod(index, of=NAME, node=f"node-{index % 2}")) for index in range(4)))
    shown.log = "".join(f"step {step} loss {1.1 + 2 * math.exp(-step / 2600):.3f}\n" for step in range(8500, 8640, 20))
    step = samples = 0.0
    for generation, (change, later) in enumerate(zip(STORY, [*STORY[1:], None], strict=True), start=1):
        shown.now = begin + change.at
        shown.put(object_of(change, generation, begin=begin))
        hear(shown, generation, size=0, phase="forming")
        shown.now += PAUSE_S
        while shown.now < (end if later is None else begin + later.at):
            loss = 1.1 + 2.0 * math.exp(-step / 2600) + draw.uniform(-0.02, 0.02)
            values = {"samples": samples, "loss": loss}
            hear(shown, generation, size=change.world, phase="running", step=int(step), highest=int(step), values=values)
            passed = REPORT_S * draw.uniform(0.985, 1.015)
            step += STEPS_A_SECOND * passed
            samples += SAMPLES_A_SECOND * change.world * passed
            shown.now += REPORT_S
    shown.now = end
    return shown


def object_of(change: Change, generation: int, *, begin: float) -> dict[str, Any]:
    before = STORY[generation - 2].world if generation > 1 else 0
    phases = {"detect": 200, "drain": 300, "round": 100, "start": 200, "firstStep": 400}
    rescale = {"id": f"r{generation}", "at": stamp(begin + change.at), "cause": change.cause, "reason": change.reason}
    elastic = {
        "worldSize": change.world,
        "generation": generation,
        "ranks": ",".join(map(str, range(change.world))),
        "restarts": {cause: change.restarts.count(cause) for cause in change.restarts},
        "lastRescale": {**rescale, "fromSize": before, "toSize": change.world, "phases": phases},
    }
    words = f"PyTorchJob default/{NAME} is running."
    running = {"type": "Running", "status": "True", "reason": "PyTorchJobRunning", "message": words, "lastTransitionTime": stamp(begin)}
    status = {"conditions": [running], "replicaStatuses": {"Worker": {"active": change.wanted}}, "elastic": elastic}
    made = job(NAME, status=status, workers=change.wanted, elasticPolicy={"minReplicas": 1, "maxReplicas": 4, "maxRestarts": 3})
    made["metadata"]["creationTimestamp"] = stamp(begin)
    return made


def hear(shown: Scene, generation: int, **told: Any) -> None:
    shown.book.hear(TrainingProgress(job=f"uid-{NAME}", generation=generation, **told))


def stamp(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def make(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        data = Path(name)
        served = scene(time.time()).served(data, allows_changes=True, is_logged_in=False)
        async with served as browser, chromium.opened(data / "chromium") as page:
            url = str(browser._base_url).rstrip("/")
            for picture, (width, height) in PICTURES.items():
                await page.size(width, height)
                await page.open(f"{url}/login?token={OneTimeToken(data / 'token').current()}")
                await page.wait("document.querySelector('tbody a')")
                await page.ask("document.querySelector('tbody a').click()")
                await page.wait("document.querySelectorAll('canvas').length === 3")
                await page.wait("document.querySelector('[aria-label=Workers] tbody tr')")
                await page.wait("document.getElementById('live').textContent === 'Live'")
                await page.wait("document.querySelector('pre[aria-label=Log]').textContent")
                await page.picture(folder / f"dashboard-{picture}.png")


def main() -> None:
    if chromium.PROGRAM is None:
        raise SystemExit("there is no Chromium; install Debian's package chromium")
    asyncio.run(make(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs"))


if __name__ == "__main__":
    main()
