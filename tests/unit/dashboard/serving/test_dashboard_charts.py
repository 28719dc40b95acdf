"""Check the charts of a job's page in Debian's Chromium: their axes, captions and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cli_api import running
from dashboard_browser import JOB, NEEDS, looked_at
from dashboard_scene import Scene, job

from elastic.membership.training import TrainingProgress

pytestmark = NEEDS


def trained(*, seconds: int, speed: float = 1.0, noise: float = 0.0, conditions: Any = None) -> Scene:
    """Return a scene with a job that has reported its progress each 5 s."""
    status = running() if conditions is None else {**running(), "conditions": conditions}
    shown, step = Scene(), 0.0
    shown.now = 1_700_000_000.0
    shown.put(job(status=status))
    for at in range(0, seconds, 5):
        shown.now = 1_700_000_000.0 + at
        told = {"phase": "running", "size": 3, "step": int(step), "highest": int(step), "values": {"samples": step, "loss": 1.0 / (at + 1)}}
        shown.book.hear(TrainingProgress(job="uid-train", generation=1, **told))
        step += 5 * (speed + noise * (at // 10 % 2))
    return shown


def section(title: str) -> str:
    """Return the JavaScript expression for a chart's section."""
    return f"[...document.querySelectorAll('.charts section')].find((one) => one.querySelector('h3').textContent === '{title}')"


WRITTEN = """
window.written = {};
const fillText = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
  (written[this.canvas.closest("section")?.querySelector("h3").textContent] ??= new Set()).add(text);
  fillText.call(this, text, ...place);
};
"""
"""A script that collects the text on the axes of charts, by their titles."""


async def test_noise_of_the_speed_does_not_look_like_a_change(tmp_path: Path) -> None:
    """A speed between 9.07 and 9.08 samples a second filled the chart from bottom to top."""
    async with looked_at(trained(seconds=300, speed=9.07, noise=0.01), tmp_path, "#/") as page:
        await page.ask(WRITTEN)
        await page.ask(f"location.hash = '{JOB}'")
        await page.wait("window.written.Speed?.size > 3")
        labels = await page.ask("[...window.written.Speed].filter((one) => !one.includes(':')).map(Number)")
        assert min(labels) == 0
        assert max(labels) <= 10


async def test_a_chart_says_which_line_is_which_and_the_values_under_the_pointer(tmp_path: Path) -> None:
    async with looked_at(trained(seconds=300), tmp_path, JOB) as page:
        await page.wait("document.querySelectorAll('canvas').length === 3")
        workers, loss = (f"{section(title)}.querySelector('.caption')" for title in ("Workers", "Loss"))
        await page.wait(f"{workers}.textContent === 'now training 3 asked for 3'")
        borders = f"[...{workers}.querySelectorAll('.stroke')].map((one) => getComputedStyle(one).borderTopStyle)"
        assert await page.ask(borders) == ["solid", "dashed"]
        newest = await page.ask(f"{loss}.textContent")
        assert newest.startswith("now 0.00")
        await page.ask(f"{section('Loss')}.scrollIntoView({{ block: 'center' }})")
        box = await page.ask(
            f"(({{ left, top, height }}) => ({{ left, top, height }}))({section('Loss')}.querySelector('.u-over').getBoundingClientRect())"
        )
        await page.tell("Input.dispatchMouseEvent", type="mouseMoved", x=box["left"] + 2, y=box["top"] + box["height"] / 2)
        first = await page.ask("new Date(1700000000000).toLocaleTimeString(undefined, { hourCycle: 'h23' })")
        await page.wait(f"{loss}.textContent === '{first} 1'")
        await page.tell("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
        await page.wait(f"{loss}.textContent === {newest!r}")


async def test_a_finished_jobs_values_are_last_ones_and_not_present_ones(tmp_path: Path) -> None:
    async with looked_at(trained(seconds=300, conditions=[{"type": "Succeeded", "status": "True"}]), tmp_path, JOB) as page:
        await page.wait("document.querySelectorAll('canvas').length === 3")
        caption = f"{section('Speed')}.querySelector('.caption').textContent"
        await page.wait(f"{caption}.endsWith('samples/s')")
        assert (await page.ask(caption)).startswith("last ")
        assert "Step295" in await page.ask("document.querySelector('.facts').textContent")


async def test_a_charts_table_is_of_its_whole_time(tmp_path: Path) -> None:
    """The table had only the newest 20 rows, but said that it had the chart's values."""
    shown = trained(seconds=5400)
    async with looked_at(shown, tmp_path, JOB) as page:
        await page.wait("document.querySelectorAll('canvas').length === 3")
        await page.ask(f"{section('Loss')}.querySelector('details').open = true")
        rows = f"[...{section('Loss')}.querySelectorAll('tbody tr')].map((one) => one.querySelector('th').textContent)"
        await page.wait(f"{rows}.length > 20")
        times = await page.ask(rows)
        assert len(times) <= 50
        ends = [
            await page.ask(f"new Date({at}000).toLocaleTimeString(undefined, {{ hourCycle: 'h23' }})")
            for at in (1_700_005_395, 1_700_000_000)
        ]
        assert [times[0], times[-1]] == ends
        said = await page.ask(f"{section('Loss')}.querySelector('summary').textContent")
        assert said.startswith(f"Values as a table ({len(times)} of ")


async def test_thinned_rows_are_spread_over_the_time_with_both_ends(tmp_path: Path) -> None:
    async with looked_at(Scene(job()), tmp_path, JOB) as page:
        for times in ([], [1], list(range(50)), list(range(51)), [1] * 60, [*range(0, 10**6, 1000), *range(10**6, 10**6 + 500)]):
            found = await page.ask(
                f"import('/format.js').then(({{ thinned }}) => thinned({times}.map((at) => ({{ at }})), 50).map((row) => row.at))"
            )
            assert len(found) <= 50
            assert set(found) <= set(times)
            assert [*found[:1], *found[-1:]] == [*times[:1], *times[-1:]]
            assert found == sorted(found)
        assert len([at for at in found if at < 10**6]) > 40
