"""exec, attach and port-forward, as kubectl asks for them over WebSocket and over SPDY, which is also what a real API server speaks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator

import pytest
from grounds import Ground
from laptop import NAMESPACE, PATIENCE_S, container, kill, phase, pod, shell, until

from elastic.kube.client import Kube
from elastic.kube.resources import PODS
from elastic.local import LocalCluster

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed"),
]
SPDY = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false", "KUBECTL_PORT_FORWARD_WEBSOCKETS": "false"}
SOCKETS = dict.fromkeys(SPDY, "true")
SERVE = 'cd "$TMPDIR"; echo served > page; echo begun; exec python -m http.server 8123 --bind 127.0.0.1'


@pytest.fixture(scope="module")
def cluster(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with ground.cluster(tmp_path_factory.mktemp("streams"), nodes=1, control_plane=False) as running:
        yield running


@pytest.fixture(params=[SOCKETS, SPDY], ids=["websocket", "spdy"])
def protocol(request: pytest.FixtureRequest) -> dict[str, str]:
    found: dict[str, str] = request.param
    return found


async def kubectl(cluster: LocalCluster, *arguments: str, given: bytes = b"", **environment: str) -> tuple[int, str, str]:
    command = ["kubectl", "--kubeconfig", str(cluster.kubeconfig), *arguments]
    done = await asyncio.to_thread(
        subprocess.run, command, input=given, capture_output=True, timeout=PATIENCE_S, env={**os.environ, **environment}
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@contextlib.asynccontextmanager
async def process(cluster: LocalCluster, *arguments: str, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run kubectl in the background during a block."""
    command = ["kubectl", "--kubeconfig", str(cluster.kubeconfig), *arguments]
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.DEVNULL}
    running = await asyncio.create_subprocess_exec(*command, env={**os.environ, **environment}, **pipes)
    try:
        yield running
    finally:
        with contextlib.suppress(ProcessLookupError):
            running.terminate()
        await running.wait()


async def test_exec_carries_every_stream_and_the_exit_code(
    cluster: LocalCluster, kube: Kube, unique: str, protocol: dict[str, str]
) -> None:
    name = f"beside-{unique}"
    await kube.create(PODS, pod(name, container("sleep", "1000", env=[{"name": "MINE", "value": "42"}])), namespace=NAMESPACE)
    await phase(kube, name, "Running")
    script = "hostname; echo $MINE; cat; echo wrong >&2; exit 3"
    code, out, err = await kubectl(cluster, "exec", "-i", name, "--", "sh", "-c", script, given=b"typed", **protocol)
    assert (code, out) == (3, f"{name}\n42\ntyped"), err
    assert err.startswith("wrong\n")
    long = os.urandom(500_000)
    code, out, err = await kubectl(
        cluster, "exec", "-i", name, "--", "sh", "-c", "wc -c; head -c 500000 /dev/zero | wc -c", given=long, **protocol
    )
    assert (code, out.split()) == (0, ["500000", "500000"]), err
    code, out, err = await kubectl(cluster, "exec", name, "--", "no-such-program", **protocol)
    assert code != 0
    assert 'exec: "no-such-program": not found' in err


async def test_exec_without_streams_and_with_a_terminal_ends_too(
    cluster: LocalCluster, kube: Kube, unique: str, protocol: dict[str, str]
) -> None:
    name = f"quiet-{unique}"
    await kube.create(PODS, pod(name, container("sleep", "1000")), namespace=NAMESPACE)
    await phase(kube, name, "Running")
    assert (await kubectl(cluster, "exec", name, "--", "true", **protocol))[0] == 0
    terminal = [
        "script",
        "-qec",
        f"kubectl --kubeconfig {cluster.kubeconfig} exec -it {name} -- sh -c 'test -t 0 && tty; exit 5'",
        "/dev/null",
    ]
    done = await asyncio.to_thread(
        subprocess.run, terminal, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S, env={**os.environ, **protocol}
    )
    assert (done.returncode, b"/dev/pts/" in done.stdout) == (5, True), done.stdout


async def test_run_gives_a_program_its_input_and_shows_all_that_it_says(
    cluster: LocalCluster, kube: Kube, unique: str, protocol: dict[str, str]
) -> None:
    """Also what it said before kubectl had attached, for the input was made for this client."""
    run = ["run", "--rm", "-i", f"counts-{unique}", "--image=any", "--restart=Never", "--command", "--"]
    code, out, err = await kubectl(cluster, *run, "sh", "-c", "echo how many; wc -c; exit 3", given=os.urandom(500_000), **protocol)
    shown = [line for line in out.splitlines() if not line.startswith("pod ")]
    assert (code, shown) == (3, ["how many", "500000"]), err


async def test_an_input_for_many_outlives_its_clients_and_the_agent(
    cluster: LocalCluster, kube: Kube, unique: str, protocol: dict[str, str]
) -> None:
    name = f"asked-{unique}"
    script = 'while read word; do echo "got $word"; done'
    await kube.create(PODS, pod(name, shell(script, stdin=True)), namespace=NAMESPACE)
    await phase(kube, name, "Running")

    async def answers() -> bool:
        return (await kubectl(cluster, "logs", name))[0] == 0

    for word in ("first", "second"):
        async with process(cluster, "attach", "-i", name, **protocol) as attached, asyncio.timeout(PATIENCE_S):
            assert attached.stdin is not None
            assert attached.stdout is not None
            attached.stdin.write(f"{word}\n".encode())
            assert await attached.stdout.readline() == f"got {word}\n".encode()
        await kill(cluster, "agents")
        await until(answers, "the new agent")
    assert (await phase(kube, name, "Running", "Failed", "Succeeded"))["status"]["phase"] == "Running"


async def test_a_container_with_a_terminal_sees_its_size_and_what_is_typed(
    cluster: LocalCluster, unique: str, protocol: dict[str, str]
) -> None:
    inside = 'test -t 1 && until [ "$(stty size)" = "33 77" ]; do sleep 0.05; done; echo sized; read word; echo "hello $word"; exit 4'
    run = ["run", "--rm", "-it", f"typed-{unique}", "--image=any", "--restart=Never", "--command", "--", "sh", "-c", inside]
    command = shlex.join(["kubectl", "--kubeconfig", str(cluster.kubeconfig), *run])
    terminal = ["script", "-qec", f"stty rows 33 columns 77; {command}", "/dev/null"]
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    shown = await asyncio.create_subprocess_exec(*terminal, env={**os.environ, **protocol}, **pipes)
    assert shown.stdin is not None
    assert shown.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        await shown.stdout.readuntil(b"sized\r\n")
        shown.stdin.write(b"Ada\n")
        rest = await shown.stdout.readuntil(b"hello Ada\r\n")
        shown.stdin.close()
        rest += await shown.stdout.read()
        assert (await shown.wait(), b"Ada\r\nhello Ada\r\n" in rest) == (4, True), rest


async def test_attach_follows_a_container_to_its_end(cluster: LocalCluster, kube: Kube, unique: str, protocol: dict[str, str]) -> None:
    name = f"told-{unique}"
    script = 'until [ -e "$TMPDIR/go" ]; do echo waiting; sleep 0.05; done; echo over'
    await kube.create(PODS, pod(name, shell(script)), namespace=NAMESPACE)
    await phase(kube, name, "Running")
    environment = {**os.environ, **protocol}
    command = ["kubectl", "--kubeconfig", str(cluster.kubeconfig), "attach", name]
    attached = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert attached.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        while await attached.stdout.readline() != b"waiting\n":
            pass
        # Its own exit code means nothing: the container may end, and everything in it, before the shell does.
        await kubectl(cluster, "exec", name, "--", "sh", "-c", 'touch "$TMPDIR/go"')
        rest = (await attached.stdout.read()).splitlines()
        assert (rest[-1], await attached.wait()) == (b"over", 0)


async def test_logs_know_the_time_of_each_line(cluster: LocalCluster, kube: Kube, unique: str) -> None:
    name = f"timed-{unique}"
    script = 'echo first; until [ -e "$TMPDIR/go" ]; do sleep 0.05; done; echo second; echo third'
    await kube.create(PODS, pod(name, shell(script)), namespace=NAMESPACE)
    await phase(kube, name, "Running")

    async def begun() -> bool:
        return "first" in (await kubectl(cluster, "logs", name))[1]

    await until(begun, "its first line")
    between = (await kubectl(cluster, "exec", name, "--", "sh", "-c", 'sleep 1; date -u +%Y-%m-%dT%H:%M:%S.%NZ; touch "$TMPDIR/go"'))[
        1
    ].strip()
    await phase(kube, name, "Succeeded")
    lines = (await kubectl(cluster, "logs", name, "--timestamps"))[1].splitlines()
    assert [line.split(" ")[1] for line in lines] == ["first", "second", "third"]
    assert lines[0].split(" ")[0] < between < lines[1].split(" ")[0] <= lines[2].split(" ")[0]
    # A server passes the time on without its fraction.
    assert (await kubectl(cluster, "logs", name, f"--since-time={between}"))[1] == "second\nthird\n"
    assert (await kubectl(cluster, "logs", name, "--since=1h", "--tail=1"))[1] == "third\n"
    assert (await kubectl(cluster, "logs", name, "--limit-bytes=9"))[1] == "first\nsec"


@contextlib.asynccontextmanager
async def forwarded(cluster: LocalCluster, name: str, port: int, environment: dict[str, str]) -> AsyncIterator[int]:
    """Run kubectl port-forward in the background, and yield the local port."""
    async with process(cluster, "port-forward", f"pod/{name}", f":{port}", **environment) as forwarding:
        assert forwarding.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            found = re.match(rb"Forwarding from 127.0.0.1:(\d+)", await forwarding.stdout.readline())
        assert found is not None
        yield int(found[1])


async def fetched(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /page HTTP/1.0\r\n\r\n")
    try:
        return (await reader.read()).rpartition(b"\r\n\r\n")[2]
    finally:
        writer.close()


async def test_port_forward_carries_connections_side_by_side(
    cluster: LocalCluster, kube: Kube, unique: str, protocol: dict[str, str]
) -> None:
    name = f"served-{unique}"
    look = "import socket; socket.create_connection(('127.0.0.1', 8123)).close()"
    probe = {"exec": {"command": ["python", "-c", look]}, "periodSeconds": 1}
    await kube.create(PODS, pod(name, shell(SERVE, readinessProbe=probe)), namespace=NAMESPACE)
    assert (await kubectl(cluster, "wait", "--for=condition=Ready", f"pod/{name}", f"--timeout={PATIENCE_S:.0f}s"))[0] == 0
    async with forwarded(cluster, name, 8123, protocol) as port, asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(*(fetched(port) for _ in range(8))) == [b"served\n"] * 8
