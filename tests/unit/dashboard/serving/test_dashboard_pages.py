"""The dashboard's pages in Debian's Chromium over objects that a test names.

Hostile text stays text, no request goes to another host, and no page is wider than a phone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import chromium
from cli_api import running
from dashboard_browser import JOB, NEEDS, looked_at
from dashboard_scene import Scene, event, job, kube, node, owned, pod

from elastic.kube.resources import NODES, Resource
from elastic.membership.training import TrainingProgress
from elastic.runtime.one_time import OneTimeToken
from elastic_training.dashboard.serving.callers import LaptopOwner
from elastic_training.dashboard.serving.sessions import LaptopSessions

pytestmark = NEEDS
HOSTILE = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"
COUNTED_CLOCK = """
const begin = setInterval;
window.setInterval = (call, ms) => begin(() => { call(); window.ticks += 1; }, Math.min(ms, 100));
"""
NARROW, WIDE = 390, 1280


def scene() -> Scene:
    rescale = {
        "id": "r1",
        "at": "2026-01-01T00:00:00Z",
        "cause": "plan",
        "reason": HOSTILE,
        "fromSize": 1,
        "toSize": 2,
        "phases": {"round": 900},
    }
    shown = Scene(
        job(HOSTILE, status=running(generation=2, lastRescale=rescale), elasticPolicy={"minReplicas": 1, "maxReplicas": 4}),
        owned(pod(0, of=HOSTILE)),
        node(taints=[{"key": HOSTILE, "value": HOSTILE, "effect": "NoSchedule"}]),
        event(of=HOSTILE, message=HOSTILE, reason=HOSTILE),
    )
    for at in range(0, 60, 5):
        shown.now = 1_700_000_000.0 + at
        told = {"phase": "running", "size": 2, "step": at, "highest": at, "values": {"loss": 1.0 / (at + 1)}}
        shown.book.hear(TrainingProgress(job=f"uid-{HOSTILE}", generation=2, **told))
    return shown


async def test_hostile_text_stays_text_on_every_page_and_at_every_width(tmp_path: Path) -> None:
    shown = scene()
    served = shown.served(tmp_path, allows_changes=True, reclaim=("true",), is_logged_in=False)
    async with served as browser, chromium.opened(tmp_path / "chromium") as page:
        url = str(browser._base_url).rstrip("/")
        await page.open(f"{url}/login?token={OneTimeToken(tmp_path / 'token').current()}")
        for width in (WIDE, NARROW):
            await page.size(width, dark=width == NARROW)
            await page.ask("location.hash = '#/'")
            await page.wait("document.querySelector('h1')?.textContent === 'Jobs' && document.querySelector('tbody a')")
            assert await page.ask("document.querySelector('tbody a').textContent") == HOSTILE
            assert await page.ask("document.documentElement.scrollWidth") <= width
            await page.ask("document.querySelector('tbody a').click()")
            await page.wait("document.querySelectorAll('canvas').length === 3 && document.querySelector('[aria-label=Workers] tbody tr')")
            assert await page.ask("document.querySelector('h1').textContent") == HOSTILE
            assert HOSTILE in await page.ask("document.querySelector('[aria-label=Events] tbody').textContent")
            assert HOSTILE in await page.ask("document.querySelector('[aria-label=Changes] tbody').textContent")
            await page.wait(f"document.documentElement.scrollWidth <= {width}")
            await page.ask("location.hash = '#/nodes'")
            await page.wait(
                "document.querySelector('h1')?.textContent === 'Nodes' && document.querySelector('[aria-label=Nodes] tbody tr')"
            )
            assert await page.ask("document.documentElement.scrollWidth") <= width
            assert await page.ask("document.querySelectorAll('main script, main img, [onerror]').length") == 0
            assert "owned" not in (await page.ask("document.title")).split()[0]
        assert page.said == []
        assert {address.split("/")[2] for address in page.asked if address.startswith("http")} == {url.removeprefix("http://")}


async def test_a_page_is_live_and_keeps_the_focus(tmp_path: Path) -> None:
    shown = Scene(job(status=running()), job("other", status=running()))
    async with shown.served(tmp_path, is_logged_in=False) as browser, chromium.opened(tmp_path / "chromium") as page:
        url = str(browser._base_url).rstrip("/")
        await page.open(f"{url}/login?token={OneTimeToken(tmp_path / 'token').current()}")
        await page.wait("document.querySelectorAll('tbody a').length === 2")
        await page.ask("document.querySelectorAll('tbody a')[1].focus()")
        shown.put(job(workers=7, status=running(worldSize=7)))
        await page.wait("document.querySelectorAll('tbody tr')[1].textContent.includes('7/7')")
        assert await page.ask("document.activeElement.textContent") == "train"
        shown.drop(job("other"))
        await page.wait("document.querySelectorAll('tbody a').length === 1")
        assert await page.ask("document.activeElement.textContent") == "train"


async def test_the_keyboard_reaches_the_content_and_answers_a_question(tmp_path: Path) -> None:
    shown = Scene(job(status=running(), elasticPolicy={"minReplicas": 1, "maxReplicas": 4}))
    async with shown.served(tmp_path, allows_changes=True, is_logged_in=False) as browser, chromium.opened(tmp_path / "chromium") as page:
        url = str(browser._base_url).rstrip("/")
        await page.open(f"{url}/login?token={OneTimeToken(tmp_path / 'token').current()}")
        await page.wait("document.querySelector('tbody a')")
        await page.press("Tab")
        assert await page.ask("document.activeElement.className") == "skip"
        assert await page.ask("getComputedStyle(document.activeElement).outlineStyle") != "none"
        await page.press("Enter")
        assert await page.ask("document.activeElement.id") == "main"
        await page.ask("document.querySelector('tbody a').click()")
        await page.wait("document.querySelector('[role=group]:not([hidden]) button')")
        assert await page.ask("document.activeElement.tagName") == "H1"
        await page.ask("document.querySelector('[role=group] button').focus()")
        await page.press("Enter")
        await page.wait("document.getElementById('confirm').open")
        await page.press("Escape")
        await page.wait("!document.getElementById('confirm').open")
        assert await page.ask("document.activeElement.textContent") == "Scale"


def trains(*, step: int = 0, workers: int = 3, **more: Any) -> dict[str, Any]:
    return job(status=running(generation=step), workers=workers, elasticPolicy={"minReplicas": 1, "maxReplicas": 4}, **more)


async def test_a_page_that_is_drawn_again_keeps_what_is_typed_and_the_focus(tmp_path: Path) -> None:
    """Each draw took the tools out and put them back, and what was typed then went nowhere."""
    shown = Scene(trains())
    async with looked_at(shown, tmp_path, JOB, allows_changes=True) as page:
        await page.wait("document.getElementById('scale-to')?.value === '3'")
        await page.ask("document.getElementById('scale-to').select()")
        for step in (1, 2):
            shown.now += 10.0 * step
            shown.book.hear(TrainingProgress(job="uid-train", phase="running", size=2, step=step, highest=step))
            shown.put(trains(step=step, workers=4))
            await page.wait(f"document.querySelectorAll('.facts dd')[1]?.firstChild.textContent === '{step}'")
            await page.tell("Input.insertText", text=str(step))
        assert await page.ask("document.activeElement.id") == "scale-to"
        assert await page.ask("document.activeElement.value") == "12"
        await page.ask("document.querySelector('[aria-label=Changes] > button').focus()")
        shown.put(trains(runPolicy={"suspend": True}))
        await page.wait("document.activeElement.textContent === 'Resume'")
        assert page.said == []


LOSSES = "[...(document.querySelectorAll('.charts section')[0]?.querySelectorAll('td') ?? [])].map((cell) => cell.textContent).join()"


def lose(shown: Scene, loss: float) -> None:
    shown.now += 10.0
    shown.book.hear(TrainingProgress(job="uid-train", phase="running", size=3, step=1, highest=1, values={"loss": loss}))
    shown.news.tell("uid-train")


async def test_a_tab_among_many_is_live_and_has_missed_nothing_while_it_was_hidden(tmp_path: Path) -> None:
    """Each tab held one of the six connections that a browser has to a server, and the seventh stayed blank."""
    shown = Scene(trains())
    lose(shown, 0.4)
    async with looked_at(shown, tmp_path, JOB) as page:
        await page.wait(f"{LOSSES} === '0.4'")
        (own,) = [one for one in (await page.tell("Target.getTargets"))["targetInfos"] if one["type"] == "page"]
        for _ in range(7):
            await page.tell("Target.createTarget", url=f"{own['url'].partition('#')[0]}{JOB}")
        await page.wait("document.hidden")
        lose(shown, 0.3)
        lose(shown, 0.2)
        await page.tell("Target.activateTarget", targetId=own["targetId"])
        await page.wait(f"{LOSSES} === '0.2,0.3,0.4'")
        lose(shown, 0.1)
        await page.wait(f"{LOSSES} === '0.1,0.2,0.3,0.4'")
        await page.tell("Page.reload")
        await page.wait(f"!document.hidden && {LOSSES} === '0.1,0.2,0.3,0.4'")


ENDLESS_LOGS = """
window.logs = [];
const plain = window.fetch;
window.fetch = (path, options) => {
  const url = new URL(path, location);
  if (!url.pathname.endsWith("/logs")) return plain(path, options);
  logs.push({ lines: url.searchParams.get("lines"), signal: options.signal });
  const body = new ReadableStream({ start: (open) => options.signal.addEventListener("abort", () => open.error(options.signal.reason)) });
  return Promise.resolve(new Response(body));
};
"""
"""Logs are answered in the page: nothing, and without end."""


async def test_a_log_that_is_followed_holds_no_connection_while_its_page_is_hidden_and_goes_on_after_it(tmp_path: Path) -> None:
    """It was the second connection of a tab, of six that a browser has."""
    shown = Scene(trains(), owned(pod(0)))
    async with looked_at(shown, tmp_path, "#/nodes") as page:
        await page.ask(ENDLESS_LOGS)
        await page.ask(f"location.hash = '{JOB}'")
        await page.wait("document.getElementById('log-of')?.value === 'train-worker-0'")
        await page.wait("window.logs.length === 1")
        (own,) = [one for one in (await page.tell("Target.getTargets"))["targetInfos"] if one["type"] == "page"]
        await page.tell("Target.createTarget", url="about:blank")
        await page.wait("document.hidden && window.logs[0].signal.aborted")
        await page.tell("Target.activateTarget", targetId=own["targetId"])
        await page.wait("window.logs.length === 2")
        assert await page.ask("window.logs.map((one) => one.lines)") == ["200", "2000"]
        assert await page.ask("[...document.querySelectorAll('main button')].some((one) => one.textContent === 'Stop')")


async def test_a_user_who_is_not_logged_in_reads_why_and_the_command_for_this_cluster(tmp_path: Path) -> None:
    """After Log out and without a link, too, it said that the link had been used, and named a command for another folder."""
    served = Scene(trains()).served(tmp_path, command_options="--data-dir lab", is_logged_in=False)
    async with served as browser, chromium.opened(tmp_path / "chromium") as page:
        url, token = str(browser._base_url).rstrip("/"), OneTimeToken(tmp_path / "token").current()
        reads = "document.querySelector('h1')?.textContent + ': ' + document.querySelector('pre')?.textContent"
        await page.open(url)
        await page.wait(f"{reads} === 'You are not logged in: elastic dashboard --data-dir lab'")
        await page.open(f"{url}/login?token={token}")
        await page.wait("document.querySelector('tbody a')")
        await page.ask("document.getElementById('logout').click()")
        await page.wait(f"{reads} === 'You are not logged in: elastic dashboard --data-dir lab'")
        await page.open(f"{url}/login?token={token}")
        await page.wait(f"{reads} === 'This link has been used: elastic dashboard --data-dir lab'")


async def test_a_failed_job_shows_why_and_the_log_of_the_worker_that_failed_first(tmp_path: Path) -> None:
    why = f"restarts used: 3 of 3.{'.' * 300} First of all train-worker-2 failed: ValueError: bad batch."
    failed = {"conditions": [{"type": "Failed", "status": "True", "message": why}], "elastic": {"restarts": {"user": 4, "collateral": 4}}}
    ended = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"reason": "Error", "exitCode": 1}}}]}
    shown = Scene(*(owned({**pod(index), "status": ended}) for index in range(4)))
    shown.put(job(status=failed, elasticPolicy={"minReplicas": 1, "maxReplicas": 4, "maxRestarts": 3}))
    async with looked_at(shown, tmp_path, JOB) as page:
        await page.wait("document.querySelectorAll('#log-of option').length === 4")
        assert await page.ask("document.querySelector('.failure').textContent") == why
        assert await page.ask("document.getElementById('log-of').value") == "train-worker-2"
        assert "Error" in await page.ask("document.getElementById('log-of').selectedOptions[0].textContent")
        assert await page.ask("document.querySelector('[aria-label=Workers] .state').className") == "state bad"
        facts = await page.ask("document.querySelector('.facts').textContent")
        assert facts.endswith("Restarts4 program failed 4, peer was lost 4; 3 of 3 allowed restarts used")
        await page.ask(
            "const choice = document.getElementById('log-of'); choice.value = 'train-worker-0'; choice.dispatchEvent(new Event('change'))"
        )
        shown.drop(owned(pod(3)))
        await page.wait("document.querySelectorAll('#log-of option').length === 3")
        assert await page.ask("document.getElementById('log-of').value") == "train-worker-0"


async def test_a_node_that_was_given_notice_cannot_be_reclaimed_again_and_its_button_keeps_the_focus(tmp_path: Path) -> None:
    """The next message about nodes brought the button back while the notice ran."""
    shown = Scene(node("node-0"), node("node-1"))
    button = "document.querySelector('[aria-label$=\"node-1\"]')"
    spot = {"key": "aws-node-termination-handler/spot-itn", "value": "x", "effect": "NoSchedule"}
    options = {"allows_changes": True, "reclaim": ("sh", "-c", "exit"), "command_options": "--data-dir lab"}
    async with looked_at(shown, tmp_path, "#/nodes", **options) as page:
        await page.wait(f"{button}?.getAttribute('aria-label') === 'Reclaim node-1'")
        await page.ask(f"{button}.focus()")
        await page.press("Enter")
        await page.wait("document.getElementById('confirm').open")
        words = await page.ask("document.getElementById('confirm-text').textContent")
        assert "It is lost 120 s later" in words
        assert words.endswith("elastic node add node-1 --data-dir lab")
        await page.ask("document.getElementById('confirm-go').click()")
        given = f"{button}.textContent === 'Given notice' && document.activeElement === {button}"
        await page.wait(given)
        shown.put(node("node-0", unschedulable=True), node("node-1", taints=[spot]))
        await page.wait("document.querySelector('main').textContent.includes('cordoned')")
        assert await page.ask(given)
        assert await page.ask("document.querySelector('[aria-label=\"Reclaim node-0\"]').textContent") == "Reclaim"
        await page.press("Enter")
        assert not await page.ask("document.getElementById('confirm').open")


CLOCK_BY_HAND = """
window.clocks = [];
window.setInterval = (call, ms) => clocks.push([call, ms]);
window.pass = (now) => { Date.now = () => now; for (const [call, ms] of clocks) if (ms <= 1000) call(); };
"""
"""`pass` is the second that ends at a time."""


async def test_a_notice_counts_down_each_second(tmp_path: Path) -> None:
    """It moved in steps of ten seconds."""
    lost_at = 2_000_000_000
    taint = {"key": "ToBeDeletedByClusterAutoscaler", "value": str(lost_at), "effect": "NoSchedule"}
    shown = Scene(trains(), owned(pod(0, node="node-0")), node("node-0", taints=[taint]))
    async with looked_at(shown, tmp_path, "#/nodes") as page:
        await page.tell("Page.addScriptToEvaluateOnNewDocument", source=CLOCK_BY_HAND)
        for place, table in (("#/nodes", "Nodes"), (JOB, "Workers")):
            await page.ask(f"location.hash = '{place}'")
            await page.tell("Page.reload")
            notice = f"document.querySelector('[aria-label={table}] tbody td.wide')?.textContent"
            await page.wait(f"{notice}?.includes(', in ')")
            by = 1000 * await page.ask(f"Date.parse(document.querySelector('[aria-label={table}] td.wide time').dateTime) / 1000")
            for left in (43, 42, 1, 0):
                await page.ask(f"pass({by - 1000 * left})")
                assert (await page.ask(notice)).endswith(f", in {left} s" if left else ", now")


async def test_a_cell_without_a_value_has_no_name_on_a_phone(tmp_path: Path) -> None:
    """A node without workers had the word "Workers", and nothing behind it."""
    async with looked_at(Scene(node("node-0")), tmp_path, "#/nodes") as page:
        await page.size(NARROW)
        await page.wait("document.querySelector('[aria-label=Nodes] tbody tr')")
        cells = "[...document.querySelectorAll('[aria-label=Nodes] tbody td')]"
        assert await page.ask(f"{cells}.filter((one) => one.checkVisibility()).map((one) => one.dataset.name)") == [
            "State",
            "Kind",
            "CPU",
            "Memory",
            "GPUs",
        ]


async def test_instead_of_the_page_of_a_job_that_is_not_there_stands_why(tmp_path: Path) -> None:
    """Its empty cards stood above the reason, and a connection was called lost."""
    shown = Scene(trains())
    async with looked_at(shown, tmp_path, JOB, allows_changes=True) as page:
        await page.wait("document.querySelector('.facts')")
        shown.drop(trains())
        await page.wait("document.querySelector('.failure')?.textContent === 'This job was deleted.'")
        assert await page.ask("document.getElementById('live').textContent") == ""
        assert await page.ask("document.querySelector('[role=group]').hidden")
        await page.ask("location.hash = '#/jobs/default/wrong'")
        await page.wait("document.querySelector('h1')?.textContent === 'There is no such job'")
        assert await page.ask("document.activeElement.tagName") == "H1"
        assert await page.ask("document.querySelectorAll('main section, canvas').length") == 1
        assert "there is no job wrong in namespace default" in await page.ask("document.querySelector('main').textContent")
        assert await page.ask("document.getElementById('live').textContent") == ""


class WithoutNodes(LaptopOwner):
    """May list everything but nodes."""

    async def may_read(self, resource: Resource, namespace: str) -> bool:
        return resource != NODES


async def test_a_user_who_may_not_list_nodes_reads_so_for_as_long_as_the_page_is_open(tmp_path: Path) -> None:
    """The page's clock once drew "0 nodes" over the sentence."""
    sessions = LaptopSessions(tmp_path, kube())
    sessions._owner = WithoutNodes(kube())
    served = scene().served(tmp_path, sessions=sessions, is_logged_in=False)
    async with served as browser, chromium.opened(tmp_path / "chromium") as page:
        url = str(browser._base_url).rstrip("/")
        await page.tell("Page.addScriptToEvaluateOnNewDocument", source=COUNTED_CLOCK)
        await page.open(f"{url}/login?token={OneTimeToken(tmp_path / 'token').current()}")
        await page.wait("document.querySelector('tbody a')")
        await page.ask("window.ticks = 0; location.hash = '#/nodes'")
        await page.wait("window.ticks > 2 && document.querySelector('main p')?.textContent.startsWith('You may not list nodes')")
        assert await page.ask("document.querySelector('main').innerText.trim().split('\\n').length") == 3, "heading, blank line, sentence"
