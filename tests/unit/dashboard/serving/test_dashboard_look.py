"""A person looks through the dashboard in Debian's Chromium: why a job failed, its log, the cause of a change, and how two jobs compare."""

from __future__ import annotations

from pathlib import Path

from cli_api import running
from dashboard_browser import JOB, NEEDS, looked_at
from dashboard_scene import Scene, event, job, owned, pod

from elastic.membership.training import TrainingProgress

pytestmark = NEEDS
WHY = "rank 0: ValueError: no such data set (train.py:12)"
FAILED = {"conditions": [{"type": "Failed", "status": "True", "message": WHY}]}
BEGAN = 1_700_000_000.0


def changed(name: str = "train", *, loss: float = 1.0) -> Scene:
    """Return a scene with a job that has trained for five minutes, and lost a worker in their middle."""
    shown = Scene()
    shown.now = BEGAN
    lost = {"id": "r1", "at": "2023-11-14T22:15:50Z", "cause": "disruption", "reason": "worker-2 was lost", "fromSize": 3, "toSize": 2}
    shown.put(job(name, status=running(lastRescale={**lost, "phases": {"firstStep": 500}})))
    train(shown, name, loss=loss)
    return shown


def train(shown: Scene, name: str, *, loss: float) -> None:
    for at in range(0, 300, 5):
        shown.now = BEGAN + at
        told = {"phase": "running", "size": 3, "step": at, "highest": at, "values": {"loss": loss / (at + 1)}}
        shown.book.hear(TrainingProgress(job=f"uid-{name}", generation=1, **told))


async def test_the_list_says_why_a_job_failed_and_sorts_by_a_column(tmp_path: Path) -> None:
    """Both failed jobs had an empty cell, and the reason was one click away."""
    shown = Scene(
        job("b", workers=2, status=running(worldSize=2)), job("a", status=FAILED), job("c", workers=9, status=running(worldSize=9))
    )
    async with looked_at(shown, tmp_path, "#/") as page:
        names = "[...document.querySelectorAll('tbody a')].map((one) => one.textContent).join('')"
        await page.wait(f"{names} === 'abc'")
        assert WHY in await page.ask("document.querySelector('tbody tr').textContent")
        sort = "[...document.querySelectorAll('th button')].find((one) => one.textContent === 'Workers')"
        await page.ask(f"{sort}.click()")
        await page.wait(f"{names} === 'abc' && {sort}.parentElement.getAttribute('aria-sort') === 'ascending'")
        await page.ask(f"{sort}.click()")
        await page.wait(f"{names} === 'cba'")
        shown.put(job("b", workers=12, status=running(worldSize=12)))
        await page.wait(
            f"{names} === 'bca'",
        )
        await page.ask(f"{sort}.click()")
        await page.wait(f"{names} === 'abc' && !{sort}.parentElement.hasAttribute('aria-sort')")


async def test_the_log_is_open_and_below_the_loss(tmp_path: Path) -> None:
    """It was hidden behind a button, below four charts and four tables."""
    shown = changed()
    shown.put(owned(pod(0)))
    async with looked_at(shown, tmp_path, JOB) as page:
        await page.wait("document.querySelector('pre[aria-label=Log]').textContent.includes('second line')")
        titles = await page.ask("[...document.querySelectorAll('main h2, main h3')].map((one) => one.textContent)")
        assert titles[:4] == ["Loss", "Speed", "Logs", "Workers"]
        assert not {"Generation", "World"} & set(titles)


async def test_a_worker_that_comes_later_has_its_log_shown(tmp_path: Path) -> None:
    shown = changed()
    async with looked_at(shown, tmp_path, JOB) as page:
        await page.wait("document.querySelector('[aria-label=Logs]').textContent.includes('There are no workers yet')")
        shown.put(owned(pod(0)))
        await page.wait("document.querySelector('pre[aria-label=Log]').textContent.includes('second line')")


DRAWN = """
window.drawn = new Set();
const fillText = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...place) { drawn.add(text); fillText.call(this, text, ...place); };
"""


SMOOTH = """
window.smooth = () => {
  const one = document.querySelector(".options input[type=range]");
  one.value = 0.9;
  one.dispatchEvent(new Event("input"));
};
"""


async def test_a_chart_marks_each_change_with_its_cause_and_can_be_smoothed(tmp_path: Path) -> None:
    async with looked_at(changed(), tmp_path, "#/") as page:
        await page.ask(DRAWN)
        await page.ask(f"location.hash = '{JOB}'")
        await page.wait("window.drawn.has('3→2 disruption')")
        for control in ("document.querySelector('.options input[type=checkbox]').click()", "smooth()"):
            await page.ask(SMOOTH)
            await page.ask("drawn.clear()")
            await page.ask(control)
            await page.wait("window.drawn.has('3→2 disruption')")
        table = "[...document.querySelectorAll('.charts section:first-child td')].map((one) => one.textContent)"
        assert "1" in await page.ask(table), "the table has the measured values"
        phases = await page.ask("document.querySelector('[aria-label=Changes] tbody').textContent")
        assert "first step 0.5 s" in phases
        assert page.said == []


async def test_routine_events_are_shown_on_demand(tmp_path: Path) -> None:
    """Ten of fifteen rows said that a container had started."""
    shown = changed()
    shown.put(event("a", message="Started container pytorch", reason="Started"), event("b", message="it shrank", reason="Rescaled"))
    async with looked_at(shown, tmp_path, JOB) as page:
        events = "document.querySelector('[aria-label=Events]:not(div)').textContent"
        await page.wait(f"{events}.includes('it shrank')")
        assert "Started container" not in await page.ask(events)
        await page.ask("document.querySelector('section[aria-label=Events] input').click()")
        await page.wait(f"{events}.includes('Started container')")


async def test_the_definition_has_the_yaml(tmp_path: Path) -> None:
    async with looked_at(changed(), tmp_path, JOB) as page:
        await page.ask("document.querySelector('[aria-label=Definition] details').open = true")
        await page.wait("document.querySelector('pre[aria-label=YAML]').textContent.includes('kind: PyTorchJob')")


CHOOSE = """
{
  const one = document.getElementById("compare-b");
  one.value = "PyTorchJob/default/other";
  one.dispatchEvent(new Event("change"));
}
"""


async def test_two_jobs_are_compared_by_step(tmp_path: Path) -> None:
    shown = changed()
    shown.put(job("other", status=running()))
    train(shown, "other", loss=4.0)
    async with looked_at(shown, tmp_path, JOB) as page:
        await page.ask("[...document.querySelectorAll('a')].find((one) => one.textContent === 'compare').click()")
        await page.wait("document.querySelectorAll('canvas').length === 2")
        await page.ask(CHOOSE)
        caption = "document.querySelector('.charts .caption').textContent"
        await page.wait(f"{caption}.includes('default/train 0.003') && {caption}.includes('default/other 0.013')")
        figures = await page.ask("document.querySelector('[aria-label=Figures]').textContent")
        assert "Least loss0.003380.0135" in figures
        assert await page.ask("location.hash.includes('other')")
        assert page.said == []
