"""Who is let in, what each answer says to browsers, and what streams send."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import aiohttp
import pytest
from aiohttp import web
from cli_api import Api, running, served
from dashboard_scene import Scene, event, job, kube, node, owned, pod
from prometheus_client import CollectorRegistry, generate_latest

from dashboard.running import metrics
from dashboard.serving import server as server_module
from dashboard.serving import sessions as sessions_module
from dashboard.serving import stream as stream_module
from dashboard.serving.callers import Caller
from dashboard.serving.guard import HEADERS
from dashboard.serving.sessions import COOKIE, ClusterSessions, LaptopSessions, Session, user_of
from elastic.kube.access import from_kubeconfig
from elastic.membership.training import Progress
from elastic.runtime import signed_cookie
from elastic.runtime.one_time import OneTimeToken

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"


def scene() -> Scene:
    return Scene(job(status=running(generation=4)), owned(pod(0)), owned(pod(1)), node(), event(message=HOSTILE))


async def read(browser: aiohttp.ClientSession, path: str, **headers: str):
    async with browser.get(path, headers=headers, allow_redirects=False) as response:
        return response.status, await response.read(), response.headers


async def send(browser: aiohttp.ClientSession, path: str, body: object, **headers: str):
    own = {"Origin": str(browser._base_url).rstrip("/"), **headers}
    async with browser.post(path, json=body, headers=own) as response:
        return response.status, await response.json()


# --- who is let in


async def test_without_a_session_only_pages_are_served(tmp_path: Path):
    async with scene().served(tmp_path, is_logged_in=False) as browser:
        for path in ("/api/jobs", "/api/nodes", "/api/stream", "/api/jobs/default/train", "/api/jobs/default/train/logs"):
            assert (await read(browser, path))[0] == 401
        for path in ("/", "/main.js", "/app.css", "/uplot/uPlot.esm.js", "/uplot/LICENSE", "/api/session"):
            assert (await read(browser, path))[0] == 200
        assert (await read(browser, "/../process.py"))[0] == 404
        assert (await read(browser, "/__init__.py"))[0] == 404


async def test_a_link_lets_one_browser_in_and_another_link_is_there_for_the_next(tmp_path: Path):
    token = OneTimeToken(tmp_path / "token")
    first = token.current()
    async with scene().served(tmp_path, is_logged_in=False) as browser:
        status, _, headers = await read(browser, f"/login?token={first}")
        cookie = headers["Set-Cookie"]
        assert (status, headers["Location"]) == (303, "/")
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
        assert (await read(browser, "/api/jobs"))[0] == 200
        browser.cookie_jar.clear()
        assert (await read(browser, f"/login?token={first}"))[2]["Location"] == "/#/login"
        assert (await read(browser, "/api/jobs"))[0] == 401
        assert token.current() != first
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("cookie", ["", "9999999999", "9999999999.", "9999999999." + "0" * 64, "-1.x", "１２.x", "9" * 5000 + ".x"])
async def test_a_cookie_that_we_did_not_make_is_none(tmp_path: Path, cookie: str):
    async with scene().served(tmp_path, is_logged_in=False) as browser:
        assert (await read(browser, "/api/jobs", Cookie=f"{COOKIE}={cookie}".encode().decode("latin-1")))[0] == 401


async def test_a_session_outlives_the_process_and_ends_with_its_time_or_a_logout(tmp_path: Path):
    now = [1000.0]
    shown = scene()
    first = LaptopSessions(tmp_path, kube(), clock=lambda: now[0])
    cookie = await first.begin(OneTimeToken(tmp_path / "token").current())
    again = LaptopSessions(tmp_path, kube(), clock=lambda: now[0])
    async with shown.served(tmp_path, sessions=again, is_logged_in=False) as browser:
        headers = {"Cookie": f"{COOKIE}={cookie}"}
        assert (await read(browser, "/api/jobs", **headers))[0] == 200
        now[0] += 13 * 3600
        assert (await read(browser, "/api/jobs", **headers))[0] == 401
        now[0] -= 13 * 3600
        assert (await send(browser, "/api/session/end", {}, **headers))[0] == 200
        assert (await read(browser, "/api/jobs", **headers))[0] == 401


# --- what holds for every request and answer


async def test_every_answer_has_the_headers_that_keep_pages_apart(tmp_path: Path):
    async with scene().served(tmp_path) as browser:
        for path in ("/", "/nothing", "/api/jobs", "/api/jobs/default/none", "/api/session", "/api/stream?of=nothing", "/login?token=x"):
            headers = (await read(browser, path))[2]
            for name, value in HEADERS.items():
                assert headers[name] == value, path
        assert "unsafe" not in HEADERS["Content-Security-Policy"]
        assert (await read(browser, "/api/jobs"))[2]["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil", "[::2]:80", "169.254.169.254"]
)
async def test_a_name_that_is_not_ours_is_refused(tmp_path: Path, host: str):
    async with scene().served(tmp_path) as browser:
        assert (await read(browser, "/api/jobs", Host=host))[0] == 421
        assert (await read(browser, "/", Host=host))[0] == 421


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}]
)
async def test_pages_of_other_sites_get_nothing(tmp_path: Path, headers: dict[str, str]):
    async with scene().served(tmp_path) as browser:
        assert (await read(browser, "/api/jobs", **headers))[0] == 403


async def test_a_change_needs_our_page_our_type_and_the_flag(tmp_path: Path):
    async with scene().served(tmp_path, allows_changes=True) as browser:
        path = "/api/jobs/default/train/scale"
        async with browser.post(path, json={"workers": 2}) as response:
            assert response.status == 403
        assert (await send(browser, path, {"workers": 2}, Origin="http://127.0.0.1:1"))[0] == 403
        own = str(browser._base_url).rstrip("/")
        async with browser.post(path, data='{"workers": 2}', headers={"Origin": own, "Content-Type": "text/plain"}) as response:
            assert response.status == 415
        async with browser.post(path, data="x" * 200_000, headers={"Origin": own, "Content-Type": "application/json"}) as response:
            assert response.status == 413
    async with scene().served(tmp_path) as browser:
        status, answer = await send(browser, path, {"workers": 2})
        assert (status, answer["error"]) == (403, "this dashboard only reads; start it with --allow-changes")


@pytest.mark.parametrize(
    "body", [{}, {"workers": -1}, {"workers": "2"}, {"workers": 1.5}, {"workers": 2, "more": 1}, [], {"workers": 10**9}]
)
async def test_a_change_that_cannot_be_meant_so_is_refused_in_words(tmp_path: Path, body: object):
    async with scene().served(tmp_path, allows_changes=True) as browser:
        status, answer = await send(browser, "/api/jobs/default/train/scale", body)
        assert status == 400
        assert answer["error"]


async def test_changes_are_made_in_the_users_name(tmp_path: Path):
    api = Api(job())
    with served(api, tmp_path) as kubeconfig:
        async with scene().served(tmp_path, allows_changes=True, api=from_kubeconfig(kubeconfig).server) as browser:
            assert (await send(browser, "/api/jobs/default/train/scale", {"workers": 2}))[0] == 200
            assert (await send(browser, "/api/jobs/default/train/suspend", {"suspended": True}))[0] == 200
    changes = [(path.rpartition("/")[2], body) for method, path, body in api.asked if method == "PATCH"]
    assert changes == [("scale", {"spec": {"replicas": 2}}), ("train", {"spec": {"runPolicy": {"suspend": True}}})]


async def test_a_refusal_of_the_api_server_reaches_the_user(tmp_path: Path):
    api = Api(job())
    api.refuses = (403, "you may not scale")
    with served(api, tmp_path) as kubeconfig:
        async with scene().served(tmp_path, allows_changes=True, api=from_kubeconfig(kubeconfig).server) as browser:
            assert await send(browser, "/api/jobs/default/train/scale", {"workers": 2}) == (403, {"error": "you may not scale"})


async def test_a_node_that_is_there_is_reclaimed_by_the_command_of_the_laptop(tmp_path: Path):
    ran = tmp_path / "ran"
    async with scene().served(tmp_path, allows_changes=True, reclaim=("sh", "-c", 'echo "$0" >' + str(ran))) as browser:
        assert (await send(browser, "/api/nodes/node-0;touch x/reclaim", {}))[0] == 404
        assert (await send(browser, "/api/nodes/node-0/reclaim", {}))[0] == 200
        await until(lambda: ran.exists() and bool(ran.read_text()))
    assert ran.read_text() == "node-0\n"


# --- what is said


async def test_the_list_says_what_a_job_is_and_how_it_trains(tmp_path: Path):
    shown = scene()
    for at in range(0, 30, 5):
        shown.now = 1000.0 + at
        shown.book.hear(Progress(job="uid-train", generation=5, phase="running", size=2, step=at, highest=at, values={"loss": 0.5}))
    async with shown.served(tmp_path) as browser:
        (row,) = json.loads((await read(browser, "/api/jobs"))[1])
    assert (row["name"], row["state"], row["world"], row["wanted"], row["generation"]) == ("train", "Running", 2, 3, 4)
    assert (row["step"], row["loss"], row["rate"], row["unit"]) == (25, 0.5, 1.0, "steps")


def test_prometheus_gets_the_progress_of_jobs_that_are_not_over():
    shown = Scene(job(status=running()), job("done", status={"conditions": [{"type": "Succeeded", "status": "True"}]}))
    for at in range(0, 30, 5):
        shown.now = 1000.0 + at
        shown.book.hear(Progress(job="uid-train", generation=5, phase="running", size=2, step=at, highest=at, values={"loss": 0.5}))
    registry = CollectorRegistry()
    registry.register(metrics.Progress(shown.observer, shown.views))
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    labels = 'job="train",kind="PyTorchJob",namespace="default"'
    assert sorted(lines) == [
        f"elastic_job_loss{{{labels}}} 0.5",
        f'elastic_job_speed{{{labels},unit="steps"}} 1.0',
        f"elastic_job_step{{{labels}}} 25.0",
        f"elastic_job_world_size{{{labels}}} 2.0",
    ]


async def test_a_jobs_page_has_its_history_workers_and_events_as_they_are(tmp_path: Path):
    async with scene().served(tmp_path) as browser:
        page = json.loads((await read(browser, "/api/jobs/default/train"))[1])
    assert [worker["pod"] for worker in page["workers"]] == ["train-worker-0", "train-worker-1"]
    assert [event["message"] for event in page["events"]] == [HOSTILE]
    assert page["history"]["columns"][:3] == ["at", "world", "wanted"]
    assert page["history"]["rows"][-1][1:3] == [3.0, 3.0]


async def test_a_script_for_a_name_is_text_in_json(tmp_path: Path):
    shown = Scene(job("<script>alert(1)</script>"))
    async with shown.served(tmp_path) as browser:
        _, body, headers = await read(browser, "/api/jobs")
    assert headers["Content-Type"] == "application/json; charset=utf-8"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert json.loads(body)[0]["name"] == "<script>alert(1)</script>"


async def test_jobs_of_two_kinds_with_one_name_are_told_apart(tmp_path: Path):
    shown = Scene(job(), job(kind="TFJob"))
    async with shown.served(tmp_path) as browser:
        status, body, _ = await read(browser, "/api/jobs/default/train")
        assert (status, b"?kind=" in body) == (409, True)
        assert json.loads((await read(browser, "/api/jobs/default/train?kind=TFJob"))[1])["job"]["kind"] == "TFJob"


async def test_logs_are_read_in_the_users_name_and_bounded(tmp_path: Path):
    api = Api(job())
    api.logs = {"train-worker-0": "step 1\n" * 500_000}
    with served(api, tmp_path) as kubeconfig:
        async with scene().served(tmp_path, api=from_kubeconfig(kubeconfig).server) as browser:
            status, body, headers = await read(browser, "/api/jobs/default/train/logs?rank=0")
            assert (status, len(body), headers["Content-Type"]) == (200, 2 * 1024 * 1024, "text/plain; charset=utf-8")
            assert (await read(browser, "/api/jobs/default/train/logs?rank=7"))[0] == 404
            assert (await read(browser, "/api/jobs/default/train/logs?rank=x"))[0] == 400
            assert (await read(browser, "/api/jobs/default/train/logs?pod=other"))[0] == 404
            assert await read(browser, "/api/jobs/default/train/logs?pod=train-worker-1") != 200


# --- in a cluster


class Judge(Api):
    """An API server that knows two tokens; `alice` may list jobs and pods in the namespace default, `root` everything."""

    def answer(self, method, url, body):
        if not url.endswith("selfsubjectaccessreviews"):
            return super().answer(method, url, body)
        self.asked.append((method, url, body))
        if self.token not in ("alice", "root"):
            return 401, {"kind": "Status", "code": 401, "reason": "Unauthorized", "message": "Unauthorized"}
        asked = body["spec"]["resourceAttributes"]
        mine = asked.get("namespace") == "default" and asked["resource"] in ("pytorchjobs", "pods")
        return 201, {"status": {"allowed": self.token == "root" or mine}}


@pytest.fixture
def judged(tmp_path: Path):
    api = Judge()
    shown = Scene(job(status=running()), owned(pod(0)), event(message="secret"), node())
    other = job("hidden")
    other["metadata"]["namespace"] = "elsewhere"
    shown.put(other)
    with served(api, tmp_path) as kubeconfig:
        access = from_kubeconfig(kubeconfig)

        class Told(ClusterSessions):
            async def _of_token(self, token):
                api.token = token
                return await super()._of_token(token)

        yield shown, api, lambda: Told(access)


async def test_nobody_sees_more_than_the_api_server_would_show_them(judged, tmp_path: Path):
    shown, _, sessions = judged
    async with shown.served(tmp_path, sessions=sessions(), is_logged_in=False) as browser:
        alice = {"Authorization": "Bearer alice"}
        assert [row["name"] for row in json.loads((await read(browser, "/api/jobs", **alice))[1])] == ["train"]
        assert (await read(browser, "/api/jobs/elsewhere/hidden", **alice))[0] == 404
        page = json.loads((await read(browser, "/api/jobs/default/train", **alice))[1])
        assert ([worker["pod"] for worker in page["workers"]], page["events"], page["hidden"]) == (["train-worker-0"], [], ["events"])
        assert (await read(browser, "/api/nodes", **alice))[0] == 403
        assert (await read(browser, "/api/jobs", Authorization="Bearer mallory"))[0] == 401
        root = {"Authorization": "Bearer root"}
        assert [row["name"] for row in json.loads((await read(browser, "/api/jobs", **root))[1])] == ["train", "hidden"]
        assert json.loads((await read(browser, "/api/nodes", **root))[1])["nodes"][0]["occupants"][0]["pod"] == "train-worker-0"


async def test_what_another_namespace_says_of_a_job_is_not_shown(judged, tmp_path: Path):
    """Whoever may make pods and Events in one namespace may name a job of another in them."""
    shown, _, sessions = judged
    forged, said = owned(pod(0)), event("forged", message="pay here")
    for found in (forged, said):
        found["metadata"]["namespace"] = "elsewhere"
    forged["metadata"]["name"] = "a-first"
    said["involvedObject"]["namespace"] = "elsewhere"
    told = shown.news.version
    shown.put(forged, said, event("nobody", of="no-such-job"))
    assert shown.news.version == told
    async with shown.served(tmp_path, sessions=sessions(), is_logged_in=False) as browser:
        page = json.loads((await read(browser, "/api/jobs/default/train", Authorization="Bearer root"))[1])
    assert [worker["pod"] for worker in page["workers"]] == ["train-worker-0"]
    assert [one["message"] for one in page["events"]] == ["secret"]


async def test_a_stream_says_nothing_of_jobs_that_its_caller_never_saw(judged, tmp_path: Path):
    shown, _, sessions = judged
    alice = {"Authorization": "Bearer alice"}
    async with (
        shown.served(tmp_path, sessions=sessions(), is_logged_in=False) as browser,
        browser.get("/api/stream", headers=alice) as response,
    ):
        stream = events(response)
        await anext(stream)
        hidden = job("hidden")
        hidden["metadata"]["namespace"] = "elsewhere"
        shown.drop(hidden)
        shown.drop(job())
        assert await anext(stream) == ("changed", {"jobs": [], "gone": ["uid-train"]})


def claimed(subject: object, number: int = 0) -> str:
    """A token as an API server accepts it; only what it says of its user matters here."""
    payload = base64.urlsafe_b64encode(json.dumps({"iss": "https://here", "sub": subject, "jti": number}).encode()).decode().rstrip("=")
    return f"h.{payload}.s"


def test_accounts_of_one_namespace_are_one_user_and_a_token_that_says_nothing_is_its_own():
    mine = [user_of(claimed(f"system:serviceaccount:mine:{name}")) for name in ("a", "b")]
    others = [
        user_of(claimed("system:serviceaccount:other:a")),
        user_of(claimed("alice")),
        user_of("opaque"),
        user_of("opaque-2"),
        user_of("a.%.c"),
    ]
    assert mine[0] == mine[1]
    assert len({*mine, *others}) == 6


async def test_who_gets_themself_many_tokens_ends_no_session_of_others(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(sessions_module, "MOST_SESSIONS", 3)
    api = Api()
    api.answer = lambda method, url, body: (201, {"status": {"allowed": True}})  # type: ignore[method-assign]
    with served(api, tmp_path) as kubeconfig:
        times = itertools.count()
        sessions = ClusterSessions(from_kubeconfig(kubeconfig), clock=lambda: float(next(times)))
        cookie = await sessions.begin(claimed("alice"))
        for number in range(10):
            assert await sessions.begin(claimed("system:serviceaccount:mine:bot", number)) is not None
        request = cast("web.Request", SimpleNamespace(headers={}, cookies={COOKIE: cookie}))
        assert await sessions.of(request) is not None
        assert len(sessions._known) == 3
        await sessions.close()


def test_no_user_takes_the_places_of_all_others():
    places = stream_module.Places()
    with contextlib.ExitStack() as taken:
        for number in range(stream_module.MOST_OF_A_USER):
            taken.enter_context(places.taken(Session(f"token-{number}", cast("Caller", None), "mine")))
        with pytest.raises(stream_module.NoPlace), places.taken(Session("another", cast("Caller", None), "mine")):
            pass
        taken.enter_context(places.taken(Session("alice", cast("Caller", None), "alice")))
    assert (places.count, len(places._taken)) == (0, 0)


def test_a_cookie_of_bytes_that_are_no_text_is_none():
    """As the server reads them; it answered 500, with a traceback in its log."""
    assert not signed_cookie.is_good(b"key", "9999999999.\udcff", 0.0)


async def test_a_question_about_rights_is_asked_once_in_a_while(judged, tmp_path: Path):
    shown, api, sessions = judged
    async with shown.served(tmp_path, sessions=sessions(), is_logged_in=False) as browser:
        await read(browser, "/api/jobs", Authorization="Bearer alice")
        asked = len(api.asked)
        for _ in range(20):
            assert (await read(browser, "/api/jobs", Authorization="Bearer alice"))[0] == 200
        assert len(api.asked) == asked


async def test_a_token_becomes_a_cookie_for_streams(judged, tmp_path: Path):
    shown, _, sessions = judged
    async with shown.served(tmp_path, sessions=sessions(), is_logged_in=False) as browser:
        assert (await send(browser, "/api/session", {"token": "mallory"}))[0] == 401
        assert (await send(browser, "/api/session", {"token": "root"}))[0] == 200
        async with browser.get("/api/stream") as response:
            assert b"hidden" in await response.content.readuntil(b"\n\n")
        assert (await send(browser, "/api/session/end", {}))[0] == 200
        assert (await read(browser, "/api/jobs"))[0] == 401


async def test_without_an_answer_about_rights_nothing_is_shown(judged, tmp_path: Path):
    shown, api, sessions = judged
    api.answer = lambda method, url, body: (500, {"kind": "Status", "code": 500, "message": "down"})
    async with shown.served(tmp_path, sessions=sessions(), is_logged_in=False) as browser:
        assert (await read(browser, "/api/jobs", Authorization="Bearer root"))[0] == 503


# --- streams


async def events(response: aiohttp.ClientResponse):
    while True:
        text = (await response.content.readuntil(b"\n\n")).decode()
        if text.startswith("event: "):
            name, _, data = text.removeprefix("event: ").partition("\ndata: ")
            yield name, json.loads(data)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(stream_module, "LEAST_GAP_S", 0.01)


async def test_the_stream_of_jobs_begins_with_all_and_goes_on_with_changes(tmp_path: Path):
    shown = scene()
    async with shown.served(tmp_path) as browser, browser.get("/api/stream") as response:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        stream = events(response)
        name, jobs = await anext(stream)
        assert (name, [row["name"] for row in jobs]) == ("jobs", ["train"])
        shown.put(job(workers=7), job("other"))
        name, news = await anext(stream)
        assert (name, sorted((row["name"], row["wanted"]) for row in news["jobs"])) == ("changed", [("other", 3), ("train", 7)])
        shown.drop(job("other"))
        assert await anext(stream) == ("changed", {"jobs": [], "gone": ["uid-other"]})


async def test_however_often_a_job_changes_it_is_sent_once_a_message(tmp_path: Path):
    shown = scene()
    async with shown.served(tmp_path) as browser, browser.get("/api/stream") as response:
        stream = events(response)
        await anext(stream)
        for workers in range(4, 200):
            shown.put(job(workers=workers))
        _, news = await anext(stream)
        assert [row["wanted"] for row in news["jobs"]] == [199]


async def test_the_stream_of_a_job_sends_its_page_and_new_rows_until_it_is_gone(tmp_path: Path):
    shown = scene()
    async with shown.served(tmp_path) as browser, browser.get("/api/stream?of=job&namespace=default&name=train") as response:
        stream = events(response)
        assert (await anext(stream))[0] == "job"
        assert len((await anext(stream))[1]["rows"]) == 1
        shown.now += 100
        shown.put(job(workers=5))
        assert (await anext(stream))[1]["job"]["wanted"] == 5
        assert [row[2] for row in (await anext(stream))[1]["rows"]] == [5.0]
        shown.drop(job())
        assert (await anext(stream))[0] == "gone"


async def test_there_are_only_so_many_streams_of_one_session(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(stream_module, "MOST_OF_ONE", 2)
    async with scene().served(tmp_path) as browser:
        first, second = await browser.get("/api/stream"), await browser.get("/api/stream")
        await first.content.readuntil(b"\n\n")
        await second.content.readuntil(b"\n\n")
        assert (await read(browser, "/api/stream"))[0] == 429
        first.close()
        await until(lambda: open_streams() == 1)
        async with browser.get("/api/stream") as response:
            assert response.status == 200
        second.close()


async def test_a_client_that_takes_nothing_is_dropped(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(stream_module, "TAKEN_WITHIN_S", 0.3)
    monkeypatch.setattr(stream_module, "BYTES_A_SECOND", 1 << 40)
    shown = Scene(*(job(f"train-{number}", status=long_status()) for number in range(500)))
    async with shown.served(tmp_path) as browser:
        _, writer = await asyncio.open_connection("127.0.0.1", browser._base_url.port, limit=1024)
        cookie = next(iter(browser.cookie_jar))
        writer.write(f"GET /api/stream HTTP/1.1\r\nHost: localhost\r\nCookie: {COOKIE}={cookie.value}\r\n\r\n".encode())
        await until(lambda: open_streams() == 1)
        workers = itertools.count(4)

        def is_dropped() -> bool:
            many = next(workers)
            shown.put(*(job(f"train-{number}", workers=many, status=long_status()) for number in range(500)))
            return open_streams() == 0

        await until(is_dropped)
        writer.close()


def long_status():
    return running(waitsFor="x" * 1000)


async def until(is_so) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def open_streams() -> int:
    return sum(places.count for places in PLACES)


PLACES: list[stream_module.Places] = []


@pytest.fixture(autouse=True)
def counted_places(monkeypatch):
    PLACES.clear()

    class Counted(stream_module.Places):
        def __init__(self):
            super().__init__()
            PLACES.append(self)

    monkeypatch.setattr(server_module, "Places", Counted)
