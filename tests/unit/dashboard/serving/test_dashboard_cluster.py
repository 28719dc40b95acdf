"""Check that the dashboard of a cluster shows each user only the objects that the API server would show."""

from __future__ import annotations

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
from dashboard_scene import Scene, event, events, job, node, owned, pod, read, send

from elastic.kube.access import from_kubeconfig
from elastic.runtime import signed_cookie
from elastic_training.dashboard.serving import sessions as sessions_module
from elastic_training.dashboard.serving import stream as stream_module
from elastic_training.dashboard.serving.callers import Caller
from elastic_training.dashboard.serving.sessions import ClusterSessions, Session, user_of


class Judge(Api):
    """An API server that knows two tokens: `alice` may list jobs and pods in the namespace default, and `root` may list everything."""

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


async def test_an_answer_costs_the_same_questions_whether_the_job_is_there_or_not(judged, tmp_path: Path):
    """The API server was asked for the caller's rights only if there was a job of this name.

    A user without rights learnt the name from the time of the answer, or from another answer if the API server had not answered.
    """
    shown, api, sessions = judged
    questions = []
    for name in ("hidden", "nothing"):
        async with shown.served(tmp_path, sessions=sessions(), is_logged_in=False) as browser:
            alice = {"Authorization": "Bearer alice"}
            await read(browser, "/api/jobs/default/train", **alice)
            before = len(api.asked)
            status, body, _ = await read(browser, f"/api/jobs/elsewhere/{name}", **alice)
            assert status == 404
            asked = [body["spec"]["resourceAttributes"] for _, _, body in api.asked[before:]]
            questions.append((sorted(map(str, asked)), body.replace(name.encode(), b"")))
    assert questions[0] == questions[1]
    assert questions[0][0]


async def test_an_invalid_name_is_not_asked_for(judged, tmp_path: Path):
    shown, api, sessions = judged
    async with shown.served(tmp_path, sessions=sessions(), is_logged_in=False) as browser:
        root = {"Authorization": "Bearer root"}
        await read(browser, "/api/jobs", **root)
        before = len(api.asked)
        assert (await read(browser, f"/api/jobs/{'x' * 300}/train", **root))[0] == 404
        assert (await read(browser, "/api/jobs/default/train?kind=Nonsense", **root))[0] == 404
        assert len(api.asked) == before


async def test_facts_from_another_namespace_about_a_job_are_not_shown(judged, tmp_path: Path):
    """A user who may create pods and Events in one namespace may name a job of another namespace in them."""
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


async def test_events_of_an_earlier_pod_of_the_same_name_are_not_shown(judged, tmp_path: Path):
    """The page of a job that was deleted and made again told how the pods of the first one had ended."""
    shown, _, sessions = judged
    of_pod = {"kind": "Pod", "namespace": "default", "name": "train-worker-0"}
    for name, uid in (("earlier", "uid-of-one-before"), ("present", pod(0)["metadata"]["uid"]), ("unnamed", "")):
        shown.put(event(name, message=name) | {"involvedObject": of_pod | {"uid": uid}})
    async with shown.served(tmp_path, sessions=sessions(), is_logged_in=False) as browser:
        page = json.loads((await read(browser, "/api/jobs/default/train", Authorization="Bearer root"))[1])
    assert {one["message"] for one in page["events"]} == {"secret", "present", "unnamed"}


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
    """Return a token for a user. Only its claims about the user matter here."""
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


async def test_a_user_with_many_tokens_ends_no_session_of_others(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(sessions_module, "MOST_SESSIONS", 3)
    api = Api()
    api.answer = lambda method, url, body: (201, {"status": {"allowed": True}})  # type: ignore[method-assign]
    with served(api, tmp_path) as kubeconfig:
        times = itertools.count()
        sessions = ClusterSessions(from_kubeconfig(kubeconfig), clock=lambda: float(next(times)))
        cookie = await sessions.begin(claimed("alice"))
        for number in range(10):
            assert await sessions.begin(claimed("system:serviceaccount:mine:bot", number)) is not None
        request = cast("web.Request", SimpleNamespace(headers={}, host="localhost", cookies={signed_cookie.NAME: cookie}))
        assert await sessions.of(request) is not None
        assert len(sessions._known) == 3
        await sessions.close()


def test_no_user_takes_the_places_of_all_others():
    places = stream_module.StreamPlaces()
    with contextlib.ExitStack() as taken:
        for number in range(stream_module.MOST_OF_A_USER):
            taken.enter_context(places.taken(Session(f"token-{number}", cast("Caller", None), "mine"), list))
        with pytest.raises(stream_module.NoPlace), places.taken(Session("another", cast("Caller", None), "mine"), list):
            pass
        taken.enter_context(places.taken(Session("alice", cast("Caller", None), "alice"), list))
    assert (places.count, len(places._taken)) == (0, 0)


async def test_if_all_places_are_taken_the_user_with_most_gives_one_to_a_user_with_fewer(tmp_path: Path, monkeypatch):
    """Two users, or one with accounts in two namespaces, took all places. Everybody else was told to close other pages."""
    monkeypatch.setattr(stream_module, "MOST_CLIENTS", 4)
    api = Api()
    api.answer = lambda method, url, body: (201, {"status": {"allowed": True}})  # type: ignore[method-assign]
    with served(api, tmp_path) as kubeconfig:
        sessions = ClusterSessions(from_kubeconfig(kubeconfig))
        shown = Scene(job())
        async with shown.served(tmp_path, sessions=sessions, is_logged_in=False) as browser:

            async def opened(user: str):
                response = await browser.get("/api/stream", headers={"Authorization": f"Bearer {claimed(user)}"})
                if response.status == 200:
                    await response.content.readuntil(b"\n\n")
                return response

            greedy = [await opened(user) for user in ("one", "one", "two", "two")]
            late = [await opened("three"), await opened("three")]
            assert [response.status for response in [*greedy, *late]] == [200] * 5 + [429]
            with pytest.raises(aiohttp.ClientError):
                await greedy[0].content.readuntil(b"never")
            shown.put(job(workers=7))
            for response in (*greedy[1:], late[0]):
                assert b"changed" in await response.content.readuntil(b"\n\n")
                response.close()


def test_a_cookie_of_invalid_text_does_not_count():
    """The server answered 500 to a cookie with these bytes, with a traceback in its log."""
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
