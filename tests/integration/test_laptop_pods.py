"""Pods of the laptop cluster are real processes, in both sandboxes: what a container finds, and what it says."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from grounds import Ground
from laptop import NAMESPACE, container, get, gone, log_of, make, phase, pod, service, shell, until

from elastic.kube.client import Kube
from elastic.kube.resources import CONFIG_MAPS, EVENTS, PODS, SERVICE_ACCOUNTS
from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180), pytest.mark.sandboxes("netns", "loopback")]


@pytest.fixture(scope="module")
def cluster(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with ground.cluster(tmp_path_factory.mktemp("pods"), nodes=2, control_plane=False) as running:
        yield running


async def test_a_pod_runs_its_init_container_and_sees_secrets_config_maps_and_volumes(kube: Kube, unique: str) -> None:
    name, work, conf = f"one-{unique}", f"/elastic-test-{unique}-w", f"/elastic-test-{unique}-c"
    token = base64.b64encode(b"s3cret").decode()
    volumes = [{"name": "w", "emptyDir": {}}, {"name": "c", "configMap": {"name": name}}]
    wanted = [{"name": "w", "mountPath": work}, {"name": "c", "mountPath": conf}]
    await make(
        kube,
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": {"token": token}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"greeting": "hello"}},
        pod(
            name,
            shell(
                f"cat {work}/prepared {conf}/greeting; echo $TOKEN $(TOKEN) $POD_IP; hostname; echo 'all well' > /dev/termination-log",
                env=[
                    {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": name, "key": "token"}}},
                    {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                ],
                volumeMounts=wanted,
            ),
            initContainers=[shell(f"echo prepared > {work}/prepared", name="prepare", volumeMounts=wanted[:1])],
            volumes=volumes,
        ),
    )
    done = await phase(kube, name, "Succeeded", "Failed")
    text = await log_of(kube, name)
    assert done["status"]["phase"] == "Succeeded", done["status"]
    assert text.splitlines() == ["prepared", f"hellos3cret s3cret {done['status']['podIP']}", name]
    ended = done["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (0, "Completed", "all well\n")
    await kube.delete(PODS, name, namespace=NAMESPACE)
    await gone(kube, name)
    assert not Path(work).exists()


async def test_two_pods_serve_the_same_port_and_find_each_other_by_the_names_of_their_services(kube: Kube, unique: str) -> None:
    first, second = f"a-{unique}", f"b-{unique}"
    for name in (first, second):
        labels = {"app": name}
        script = f"echo {name} > index; exec python -m http.server 8765"
        await make(kube, service(name, labels, 8765), pod(name, shell(f'cd "$TMPDIR"; {script}'), labels=labels))
    ask = (
        "import sys, time, urllib.request\n"
        "for url in sys.argv[1:]:\n"
        "    for attempt in range(200):\n"
        "        try: print(urllib.request.urlopen(url, timeout=5).read().decode().strip()); break\n"
        "        except OSError: time.sleep(0.1)\n"
    )
    urls = [f"http://{first}:8765/index", f"http://{second}.{NAMESPACE}.svc.cluster.local:8765/index"]
    await make(kube, pod(f"c-{unique}", container("python", "-c", ask, *urls)))
    await phase(kube, f"c-{unique}", "Succeeded")
    assert (await log_of(kube, f"c-{unique}")).split() == [first, second]
    for name in (first, second, f"c-{unique}"):
        await kube.delete(PODS, name, namespace=NAMESPACE, grace_s=0)


async def test_a_name_that_is_nobodys_is_not_found_at_once_and_an_address_without_a_name_is_no_error(
    cluster: LocalCluster, kube: Kube, unique: str
) -> None:
    if cluster.sandbox == "loopback":
        pytest.skip("asks the machine's name servers")
    ask = (
        "import socket\n"
        "try: socket.getaddrinfo('pypi.example.test', 443)\n"
        "except socket.gaierror as error: print(error.errno == socket.EAI_NONAME)\n"
        "print(socket.getnameinfo(('10.64.99.99', 80), socket.NI_NUMERICSERV)[0])\n"
    )
    name = f"lost-{unique}"
    # If a name server had to be waited for, the pod would not end in time.
    await make(kube, pod(name, container("env", "RES_OPTIONS=timeout:30 attempts:5", "python", "-c", ask)))
    await phase(kube, name, "Succeeded")
    assert (await log_of(kube, name)).split() == ["True", "10.64.99.99"]


async def test_a_container_without_a_command_says_why_it_does_not_start(kube: Kube, unique: str) -> None:
    name = f"bare-{unique}"
    await make(kube, pod(name, {"name": "main", "image": "any"}))

    async def waiting() -> dict | None:
        found = await get(kube, name)
        statuses = (found or {}).get("status", {}).get("containerStatuses") or [{}]
        state = statuses[0].get("state", {}).get("waiting", {})
        return state if state.get("reason") == "CreateContainerConfigError" else None

    assert "images are not pulled" in (await until(waiting, "a reason"))["message"]
    events = (await kube.list(EVENTS, namespace=NAMESPACE, fields=f"involvedObject.name={name}")).items
    assert [event["reason"] for event in events].count("Failed") <= 1
    await kube.delete(PODS, name, namespace=NAMESPACE, grace_s=0)


async def test_a_pod_waits_for_a_secret_that_comes_later(kube: Kube, unique: str) -> None:
    name = f"late-{unique}"
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": name, "key": "a"}}}]
    await make(kube, pod(name, shell("echo $A", env=env)))

    async def complains() -> bool:
        found = await get(kube, name)
        return "not found" in json.dumps((found or {}).get("status"))

    await until(complains, "a complaint about the secret")
    await make(kube, {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"a": "there"}})
    await phase(kube, name, "Succeeded")
    assert await log_of(kube, name) == "there\n"


WHO_AM_I = """\
import json, os, pathlib, ssl, urllib.error, urllib.request
at = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")
server = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
path = f"/api/v1/namespaces/{(at / 'namespace').read_text()}/secrets"
asked = urllib.request.Request(server + path, headers={"Authorization": "Bearer " + (at / "token").read_text()})
try:
    urllib.request.urlopen(asked, context=ssl.create_default_context(cafile=at / "ca.crt"))
except urllib.error.HTTPError as refused:
    print(json.loads(refused.read())["message"])
"""


async def test_a_pod_is_its_service_account_to_the_api_server(kube: Kube, unique: str) -> None:
    name = f"who-{unique}"
    await until(lambda: get(kube, "default", resource=SERVICE_ACCOUNTS), "there is an account")
    await make(kube, pod(name, container("python", "-c", WHO_AM_I)))
    await phase(kube, name, "Succeeded")
    assert 'User "system:serviceaccount:default:default" cannot list resource "secrets"' in await log_of(kube, name)


async def test_a_config_map_in_a_volume_follows_its_object(kube: Kube, unique: str) -> None:
    name, path = f"live-{unique}", f"/elastic-test-{unique}-live"
    await make(
        kube,
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": "old"}},
        pod(
            name,
            shell(f"until grep -q new {path}/value; do sleep 0.1; done; echo seen", volumeMounts=[{"name": "v", "mountPath": path}]),
            volumes=[{"name": "v", "configMap": {"name": name}}],
        ),
    )
    await phase(kube, name, "Running")
    await kube.patch(CONFIG_MAPS, name, {"data": {"value": "new"}}, namespace=NAMESPACE)
    await phase(kube, name, "Succeeded")


async def test_logs_are_followed_to_the_end_and_read_from_their_tail(kube: Kube, unique: str) -> None:
    name = f"talk-{unique}"
    await make(kube, pod(name, shell("for i in 1 2 3 4 5; do echo line $i; sleep 0.1; done")))
    await phase(kube, name, "Running", "Succeeded")
    assert await log_of(kube, name, follow=True) == "".join(f"line {index}\n" for index in range(1, 6))
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/log"
    assert (await kube.request("GET", path, params={"tailLines": "2"}))["text"] == "line 4\nline 5\n"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
async def test_kubectl_exec_runs_next_to_the_container(cluster: LocalCluster, kube: Kube, unique: str) -> None:
    name = f"beside-{unique}"
    await make(kube, pod(name, container("sleep", "1000", env=[{"name": "MINE", "value": "42"}])))
    await phase(kube, name, "Running")
    command = [
        "kubectl",
        "--kubeconfig",
        str(cluster.kubeconfig),
        "exec",
        "-i",
        name,
        "--",
        "sh",
        "-c",
        "hostname; echo $MINE; cat; exit 3",
    ]
    done = await asyncio.to_thread(subprocess.run, command, input="typed", capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, f"{name}\n42\ntyped"), done.stderr
    await kube.delete(PODS, name, namespace=NAMESPACE, grace_s=0)


async def test_a_path_that_cannot_be_a_link_is_refused_without_namespaces(cluster: LocalCluster, kube: Kube, unique: str) -> None:
    name = f"path-{unique}"
    wanted = [{"name": "v", "mountPath": "/usr/share"}]
    script = shell("ls /usr/share | wc -l", volumeMounts=wanted)
    await make(kube, pod(name, script, volumes=[{"name": "v", "emptyDir": {}}]))
    if cluster.sandbox == "netns":
        await phase(kube, name, "Succeeded")
        assert (await log_of(kube, name)).strip() == "0"
        return

    async def refused() -> bool:
        return "mountPath /usr/share exists on this machine" in json.dumps((await get(kube, name) or {}).get("status"))

    await until(refused, "the reason")
    await kube.delete(PODS, name, namespace=NAMESPACE, grace_s=0)


@pytest.mark.sandboxes("netns")
async def test_a_volume_may_hide_the_data_folder_of_the_cluster(cluster: LocalCluster, kube: Kube, unique: str) -> None:
    """If the data folder was below /tmp, a container with a volume at /tmp ended again and again before its command began."""
    name, over = f"over-{unique}", str(cluster.data_dir.resolve().parent)
    wanted = [
        {"name": "in", "mountPath": f"{over}/in"},
        {"name": "over", "mountPath": over},
        {"name": "in", "mountPath": f"/new-{unique}/in"},
    ]
    script = shell(f"ls {over}; cat {over}/in/greeting /new-{unique}/in/greeting; cat /etc/hosts", volumeMounts=wanted)
    volumes = [{"name": "over", "emptyDir": {}}, {"name": "in", "configMap": {"name": name}}]
    await make(
        kube,
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"greeting": "hello\n"}},
        pod(name, script, volumes=volumes),
    )
    done = await phase(kube, name, "Succeeded", "Failed")
    text = await log_of(kube, name)
    assert done["status"]["phase"] == "Succeeded", (done["status"], text)
    assert text.splitlines()[:3] == ["in", "hello", "hello"]
    assert name in text
