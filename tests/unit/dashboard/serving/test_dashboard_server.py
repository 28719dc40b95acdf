"""The dashboard's server lets users in, answers them by their rights, and makes the changes that they ask for."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
from cli_api import Api, path_of, running, served
from dashboard_scene import HOSTILE, Scene, job, kube, node, owned, pod, read, scene, send, until
from prometheus_client import CollectorRegistry, generate_latest
from train_job_builders import owned as lowered
from train_job_builders import train_job

from elastic.kube.access import from_kubeconfig
from elastic.membership.training import TrainingProgress
from elastic.runtime import signed_cookie
from elastic.runtime.one_time import OneTimeToken
from elastic_training.dashboard.running import metrics
from elastic_training.dashboard.serving.guard import HEADERS
from elastic_training.dashboard.serving.sessions import LaptopSessions

# --- who is let in


def own_cookie(browser: aiohttp.ClientSession) -> str:
    return signed_cookie.name(f"127.0.0.1:{browser._base_url.port}")


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
        assert (await read(browser, f"/login?token={first}"))[2]["Location"] == "/#/login?refused"
        assert (await read(browser, "/api/jobs"))[0] == 401
        assert token.current() != first
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("cookie", ["", "9999999999", "9999999999.", "9999999999." + "0" * 64, "-1.x", "１２.x", "9" * 5000 + ".x"])
async def test_a_cookie_that_we_did_not_make_does_not_count(tmp_path: Path, cookie: str):
    async with scene().served(tmp_path, is_logged_in=False) as browser:
        assert (await read(browser, "/api/jobs", Cookie=f"{own_cookie(browser)}={cookie}".encode().decode("latin-1")))[0] == 401


async def test_a_session_outlives_the_process_and_ends_with_its_time_or_a_logout(tmp_path: Path):
    now = [1000.0]
    shown = scene()
    first = LaptopSessions(tmp_path, kube(), clock=lambda: now[0])
    cookie = await first.begin(OneTimeToken(tmp_path / "token").current())
    again = LaptopSessions(tmp_path, kube(), clock=lambda: now[0])
    async with shown.served(tmp_path, sessions=again, is_logged_in=False) as browser:
        headers = {"Cookie": f"{own_cookie(browser)}={cookie}"}
        assert (await read(browser, "/api/jobs", **headers))[0] == 200
        now[0] += 13 * 3600
        assert (await read(browser, "/api/jobs", **headers))[0] == 401
        now[0] -= 13 * 3600
        assert (await send(browser, "/api/session/end", {}, **headers))[0] == 200
        assert (await read(browser, "/api/jobs", **headers))[0] == 401


async def test_two_dashboards_in_one_browser_leave_each_others_sessions_alone(tmp_path: Path):
    """Cookies know no ports: to be let in by the second one ended the session with the first."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    async with scene().served(tmp_path / "one") as browser, scene().served(tmp_path / "two", is_logged_in=False) as other:
        first, second = str(browser._base_url).rstrip("/"), str(other._base_url).rstrip("/")
        link = f"{second}/login?token={OneTimeToken(tmp_path / 'two' / 'token').current()}"
        async with aiohttp.ClientSession(cookie_jar=browser.cookie_jar) as both:
            assert (await both.get(link)).status == 200
            assert [(await both.get(f"{url}/api/jobs")).status for url in (first, second)] == [200, 200]
            assert (await both.post(f"{second}/api/session/end", json={}, headers={"Origin": second})).status == 200
            assert [(await both.get(f"{url}/api/jobs")).status for url in (first, second)] == [200, 401]


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
    "host",
    [
        *("evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil", "[::2]:80", "169.254.169.254"),
        *("127.0.0.1:1@evil", "127.0.0.1:30070, evil", "localhost:", "[::1]evil", "[::1]:80:80"),
    ],
)
async def test_a_name_that_is_not_ours_is_refused(tmp_path: Path, host: str):
    async with scene().served(tmp_path) as browser:
        assert (await read(browser, "/api/jobs", Host=host))[0] == 421
        assert (await read(browser, "/", Host=host))[0] == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:65535", "127.0.0.1:1", "[::1]", "[::1]:80"])
async def test_this_machine_is_ours_at_any_port(tmp_path: Path, host: str):
    async with scene().served(tmp_path) as browser:
        assert (await read(browser, "/", Host=host))[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
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


async def test_invalid_text_is_refused_in_words(tmp_path: Path):
    async with scene().served(tmp_path, is_logged_in=False) as browser:
        own = {"Origin": str(browser._base_url).rstrip("/"), "Content-Type": "application/json"}
        async with browser.post("/api/session", data=b'{"token":"\xff"}', headers=own) as response:
            assert (response.status, bool((await response.json())["error"])) == (400, True)


async def test_changes_are_made_in_the_users_name(tmp_path: Path):
    api = Api(job())
    with served(api, tmp_path) as kubeconfig:
        async with scene().served(tmp_path, allows_changes=True, api=from_kubeconfig(kubeconfig).server) as browser:
            assert (await send(browser, "/api/jobs/default/train/scale", {"workers": 2}))[0] == 200
            assert (await send(browser, "/api/jobs/default/train/suspend", {"suspended": True}))[0] == 200
    changes = [(path.rpartition("/")[2], body) for method, path, body in api.asked if method == "PATCH"]
    assert changes == [("scale", {"spec": {"replicas": 2}}), ("train", {"spec": {"runPolicy": {"suspend": True}}})]


async def test_the_job_of_a_train_job_is_shown_as_a_train_job_and_suspended_by_it(tmp_path: Path):
    api = Api(lowered(train_job()), train_job())
    with served(api, tmp_path) as kubeconfig:
        shown = Scene(lowered(train_job()))
        async with shown.served(tmp_path, allows_changes=True, api=from_kubeconfig(kubeconfig).server) as browser:
            row = json.loads((await read(browser, "/api/jobs/team/fit"))[1])["job"]
            assert (row["title"], row["kind"], row["wanted"]) == ("TrainJob", "PyTorchJob", 2)
            assert (await send(browser, "/api/jobs/team/fit/suspend", {"suspended": True}))[0] == 200
    assert [(path, body) for method, path, body in api.asked if method == "PATCH"] == [(path_of(train_job()), {"spec": {"suspend": True}})]


async def test_a_refusal_of_the_api_server_reaches_the_user(tmp_path: Path):
    api = Api(job())
    api.refuses = (403, "you may not scale")
    with served(api, tmp_path) as kubeconfig:
        async with scene().served(tmp_path, allows_changes=True, api=from_kubeconfig(kubeconfig).server) as browser:
            assert await send(browser, "/api/jobs/default/train/scale", {"workers": 2}) == (403, {"error": "you may not scale"})


async def test_a_node_that_is_there_is_reclaimed_by_the_command_of_the_laptop(tmp_path: Path):
    ran = tmp_path / "ran"
    async with scene().served(tmp_path, allows_changes=True, reclaim=("sh", "-c", 'echo "$0 $*" >' + str(ran))) as browser:
        assert (await send(browser, "/api/nodes/node-0;touch x/reclaim", {}))[0] == 404
        assert (await send(browser, "/api/nodes/node-0/reclaim", {}))[0] == 200
        await until(lambda: ran.exists() and bool(ran.read_text()))
    assert ran.read_text() == "--seconds 120 node-0\n"


# --- what is said


async def test_the_list_says_what_a_job_is_and_how_it_trains(tmp_path: Path):
    shown = scene()
    for at in range(0, 30, 5):
        shown.now = 1000.0 + at
        shown.book.hear(TrainingProgress(job="uid-train", generation=5, phase="running", size=2, step=at, highest=at, values={"loss": 0.5}))
    async with shown.served(tmp_path) as browser:
        (row,) = json.loads((await read(browser, "/api/jobs"))[1])
    assert (row["name"], row["state"], row["world"], row["wanted"], row["generation"]) == ("train", "Running", 2, 3, 4)
    assert (row["step"], row["loss"], row["rate"], row["unit"]) == (25, 0.5, 1.0, "steps")
    assert (row["steppedAt"], row["stepDueS"]) == (datetime.fromtimestamp(1025, UTC).isoformat(), 15.0)


def test_a_number_that_no_float_holds_is_no_number():
    """It ended the watch of all jobs, and with it the process."""
    huge = job(name="huge", status=running(step=10**400, worldSize=10**400))
    huge["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 10**400
    shown = scene()
    shown.put(huge)
    registry = CollectorRegistry()
    registry.register(metrics.ProgressCollector(shown.observer, shown.views))
    assert 'job="huge"' in generate_latest(registry).decode()


def test_prometheus_gets_the_progress_of_jobs_that_are_not_over():
    shown = Scene(job(status=running()), job("done", status={"conditions": [{"type": "Succeeded", "status": "True"}]}))
    for at in range(0, 30, 5):
        shown.now = 1000.0 + at
        shown.book.hear(TrainingProgress(job="uid-train", generation=5, phase="running", size=2, step=at, highest=at, values={"loss": 0.5}))
    registry = CollectorRegistry()
    registry.register(metrics.ProgressCollector(shown.observer, shown.views))
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    labels = 'job="train",kind="PyTorchJob",namespace="default"'
    assert sorted(lines) == [
        f"elastic_job_loss{{{labels}}} 0.5",
        f'elastic_job_speed{{{labels},unit="steps"}} 1.0',
        f"elastic_job_step{{{labels}}} 25.0",
        f"elastic_job_world_size{{{labels}}} 2.0",
    ]
    shown.now += 60
    assert "elastic_job_speed{" not in generate_latest(registry).decode(), "no step has come for long, so nobody knows how fast it is"


async def test_a_jobs_page_has_its_history_workers_and_events_as_they_are(tmp_path: Path):
    async with scene().served(tmp_path) as browser:
        page = json.loads((await read(browser, "/api/jobs/default/train"))[1])
    assert [worker["pod"] for worker in page["workers"]] == ["train-worker-0", "train-worker-1"]
    assert [event["message"] for event in page["events"]] == [HOSTILE]
    assert page["history"]["columns"][:3] == ["at", "world", "wanted"]
    assert page["history"]["rows"][-1][1:3] == [3.0, 3.0]


@pytest.mark.parametrize(
    ("state", "message", "failed"),
    [
        ("Failed", "it failed. First of all train-worker-0 failed: rank 0: ValueError: no.", "train-worker-0"),
        ("Failed", "it failed. First of all another failed: no.", "train-worker-1"),
        ("Failed", "it failed.", "train-worker-1"),
        ("Running", "it runs.", ""),
    ],
)
async def test_the_worker_to_look_at_is_the_one_that_failed_the_job(tmp_path: Path, state: str, message: str, failed: str):
    policy = {"maxRestarts": 3, "restartBudget": {"hang": 1}}
    status = {"conditions": [{"type": state, "status": "True", "message": message}], "elastic": {"restarts": {"user": 2, "hang": 1}}}
    ended = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"reason": "Error"}}}]}
    shown = Scene(job(status=status, elasticPolicy=policy), owned(pod(0)), owned({**pod(1), "status": ended}))
    async with shown.served(tmp_path) as browser:
        page = json.loads((await read(browser, "/api/jobs/default/train"))[1])
    assert (page["failed"], page["restartsCharged"]) == (failed, [2, 3])


async def test_a_job_whose_saves_fail_says_so_in_the_list(tmp_path: Path):
    unsaved = [{"message": "the save of step 11 failed on rank 0 (train-worker-0): No space left on device"}]
    async with Scene(job(status=running(failedSaves=unsaved))).served(tmp_path) as browser:
        page = json.loads((await read(browser, "/api/jobs/default/train"))[1])
    assert page["job"]["waitsFor"] == f"a save that succeeds: {unsaved[0]['message']}"
    assert page["job"]["stillSince"] == ""


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


async def test_the_definition_of_a_job_is_what_its_user_wrote(tmp_path: Path) -> None:
    written = job(status=running())
    container = {"image": "train:1", "command": ["python", "train.py"], "args": ["--name", "a b"], "resources": {"limits": {"cpu": 2}}}
    written["spec"]["pytorchReplicaSpecs"]["Worker"]["template"] = {"spec": {"containers": [container]}}
    written["metadata"] |= {"managedFields": [{"manager": "x"}], "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}
    async with Scene(written).served(tmp_path) as browser:
        status, body, _ = await read(browser, "/api/jobs/default/train/definition")
        found = json.loads(body)
        (role,) = found["roles"]
        assert status == 200
        assert (role["type"], role["image"], role["command"], role["args"]) == (
            "Worker",
            "train:1",
            ["python", "train.py"],
            ["--name", "a b"],
        )
        assert role["resources"] == {"cpu": "2"}
        assert "managedFields" not in found["yaml"]
        assert "last-applied" not in found["yaml"]
        assert "kind: PyTorchJob" in found["yaml"]
        assert not found["isCut"]
        assert (await read(browser, "/api/jobs/default/other/definition"))[0] == 404


async def test_a_job_that_only_the_cache_still_has_answers_with_the_refusal(tmp_path: Path) -> None:
    shown = Scene(job(status=running()))
    shown.objects.clear()
    async with shown.served(tmp_path) as browser:
        status, body, _ = await read(browser, "/api/jobs/default/train/definition")
        assert (status, json.loads(body)) == (404, {"error": "there is no such object"})


async def test_the_usage_of_pods_is_not_measured_without_a_metrics_server(tmp_path: Path) -> None:
    async with scene().served(tmp_path) as browser:
        status, body, _ = await read(browser, "/api/jobs/default/train/usage")
        assert (status, json.loads(body)) == (200, {"isMeasured": False, "pods": {}})


async def test_the_usage_of_pods_is_read_with_the_rights_of_the_caller(tmp_path: Path) -> None:
    shown = scene()
    containers = [{"name": "a", "usage": {"cpu": "250m", "memory": "64Mi"}}, {"name": "b", "usage": {"cpu": "1", "memory": "64Mi"}}]
    listed = {
        "kind": "PodMetricsList",
        "metadata": {},
        "items": [
            {"metadata": {"namespace": "default", "name": "train-worker-0"}, "containers": containers},
            {"metadata": {"namespace": "default", "name": "train-worker-1"}, "containers": []},
        ],
    }
    shown.lists["/apis/metrics.k8s.io/v1beta1/namespaces/default/pods"] = listed
    async with shown.served(tmp_path) as browser:
        _, body, _ = await read(browser, "/api/jobs/default/train/usage")
        assert json.loads(body) == {"isMeasured": True, "pods": {"train-worker-0": {"cpus": 1.25, "memory": 128 * 2**20}}}


async def test_a_node_counts_the_gpus_and_workers_of_jobs_that_have_not_ended(tmp_path: Path) -> None:
    def with_gpu(index: int, phase: str):
        made = owned(pod(index, node="node-0"))
        made["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 2}}
        made["status"] = {"phase": phase}
        return made

    ended = with_gpu(1, "Failed")
    ended["status"]["containerStatuses"] = [{"state": {"terminated": {"exitCode": 1, "message": "ValueError: bad\nmore"}}}]
    async with Scene(job(status=running()), with_gpu(0, "Running"), ended, node()).served(tmp_path) as browser:
        _, body, _ = await read(browser, "/api/nodes")
        (found,) = json.loads(body)["nodes"]
        assert ([one["pod"] for one in found["occupants"]], found["gpusUsed"]) == (["train-worker-0"], 2)
        _, body, _ = await read(browser, "/api/jobs/default/train")
        page = json.loads(body)
        assert page["job"]["gpus"] == 2
        assert [worker["ended"] for worker in page["workers"]] == ["", "exit code 1: ValueError: bad"]
