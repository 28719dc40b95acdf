"""The holder of sandboxes answers many at once, and each gets its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from elastic.local.agent import memory
from elastic.local.agent.dial import dial
from elastic.local.descriptors import readable
from elastic.local.sandbox import Input, Launch, Mount, Record, SandboxError
from elastic.local.sandbox.channel import Channel, listen_inside

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


@pytest.fixture(params=["netns", "loopback"])
def holder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    process = subprocess.Popen([sys.executable, "-m", "elastic.local.sandbox.holder", str(tmp_path), request.param], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    yield tmp_path
    process.terminate()
    process.wait(20)
    process.stdout.close()


def launch(folder: Path, name: str, script: str, **fields: object) -> Launch:
    env = {"PATH": os.environ["PATH"]}
    given = {
        "argv": ["sh", "-c", script],
        "env": env,
        "cwd": "/",
        "log": str(folder / f"{name}.log"),
        "record": str(folder / f"{name}.json"),
    }
    return Launch(**{"id": name, "pod": "p", **given, **fields})


async def test_descriptors_reach_the_caller_that_asked_for_them(holder: Path) -> None:
    """Answers that came in one read, the last with a descriptor, were once mixed up: the first took it and the last had none."""
    channel = await Channel.open(holder)
    address = await channel.create("p", hostname="p")
    await channel.run(launch(holder, "server", "exec python3 -m http.server 8000"))

    async def look() -> bool:
        for _ in range(20):
            await channel.describe()
        return True

    async def connect() -> bool:
        for _ in range(50):
            connection = await channel.dial("p", port=8000, inside=False)
            try:
                while not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    try:
                        if connection.getpeername() == (address, 8000):
                            return True
                    except OSError:
                        await asyncio.sleep(0.01)
            finally:
                connection.close()
            await asyncio.sleep(0.05)
        return False

    assert all(await asyncio.gather(*(work() for work in [look, connect, look, connect, look] * 4)))
    await channel.close()


async def test_a_server_at_a_pods_loopback_is_reached_from_inside_only(holder: Path) -> None:
    channel = await Channel.open(holder)
    address = await channel.create("p", hostname="p")
    await channel.run(launch(holder, "server", "exec python3 -m http.server 8000 --bind 127.0.0.1"))
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(OSError):
                (await dial(channel, "p", ip=address, port=8000, inside=True)).close()
                break
            await asyncio.sleep(0.05)
    if address.startswith("127."):
        (await dial(channel, "p", ip=address, port=8000, inside=False)).close()
    else:
        with pytest.raises(ConnectionRefusedError):
            await dial(channel, "p", ip=address, port=8000, inside=False)
    assert await channel.create("q", hostname="q"), "the holder is back in its own network"
    await channel.close()


@pytest.mark.parametrize("holder", ["netns"], indirect=True)
async def test_the_way_out_of_a_pod_stays_the_same_when_others_come(holder: Path) -> None:
    """The bridge once took the lowest hardware address of its ports: with a new pod it could change, and what the others sent was lost."""
    channel = await Channel.open(holder)
    ended: asyncio.Queue[str] = asyncio.Queue()
    channel.subscribe(ended.put_nowait)
    ask = "import socket; socket.socket().connect_ex(('10.64.0.1', 9)); print(open('/proc/net/arp').read().split()[12])"
    seen = set()
    for pod in ("first", "second", "third", "fourth", "fifth"):
        await channel.create(pod, hostname=pod)
        await channel.run(launch(holder, pod, "", argv=[sys.executable, "-c", ask], pod=pod))
        await ended.get()
        seen.add((holder / f"{pod}.log").read_text())
    assert seen == {"02:00:0a:40:00:01\n"}
    await channel.close()


async def test_a_program_that_cannot_start_says_why(holder: Path) -> None:
    channel = await Channel.open(holder)
    ended: asyncio.Queue[str] = asyncio.Queue()
    channel.subscribe(ended.put_nowait)
    await channel.create("p", hostname="p")
    await channel.run(launch(holder, "absent", "", argv=["no-such-program"]))
    await channel.run(launch(holder, "lost", "true", cwd="/no/such/folder"))
    assert {await ended.get(), await ended.get()} == {"absent", "lost"}
    assert "not found in $PATH" in (holder / "absent.json").read_text()
    assert "workingDir /no/such/folder" in (holder / "lost.json").read_text()
    await channel.close()


async def test_a_volume_reaches_a_path_that_the_machine_does_not_have(holder: Path) -> None:
    channel = await Channel.open(holder)
    ended: asyncio.Queue[str] = asyncio.Queue()
    channel.subscribe(ended.put_nowait)
    await channel.create("p", hostname="pod-name")
    (holder / "volume").mkdir()
    target = f"/elastic-test-{os.getpid()}/deep/down"
    script = f"hostname > {target}/name; echo $$ > {target}/pid"
    await channel.run(launch(holder, "writer", script, mounts=[Mount(str(holder / "volume"), target)]))
    await ended.get()
    assert (holder / "volume/name").read_text() == "pod-name\n"
    await channel.destroy("p")
    assert not Path(target).exists()
    await channel.close()


def test_only_a_network_of_its_own_has_sockets_inside(holder: Path) -> None:
    if list(holder.glob("podnet-*.so")):
        with pytest.raises(SandboxError, match="no second socket is needed"):
            listen_inside(holder, 45678)
        return
    with listen_inside(holder, 45678) as server:
        assert server.getsockname() == ("10.64.0.1", 45678)


GROW = "import time; held = bytearray(200 << 20); time.sleep(1000)"
LIMIT = 60 << 20


async def test_the_kernel_ends_a_container_above_its_limit_and_the_record_says_so(holder: Path) -> None:
    channel = await Channel.open(holder)
    if not (await channel.describe())["limits_memory"]:
        await channel.close()
        pytest.skip("no control group can be made here")
    ended: asyncio.Queue[str] = asyncio.Queue()
    channel.subscribe(ended.put_nowait)
    await channel.create("p", hostname="p")
    await channel.run(launch(holder, "hungry", "", argv=["python3", "-c", GROW], id="p/hungry/0", memory=LIMIT))
    assert await ended.get() == "p/hungry/0"
    record = msgspec.json.decode((holder / "hungry.json").read_bytes(), type=Record)
    assert (record.exit_code, record.oom) == (137, True)
    await channel.close()


async def test_if_the_kernel_does_not_a_container_is_watched_and_ended_as_a_whole(holder: Path) -> None:
    channel = await Channel.open(holder)
    ended: asyncio.Queue[str] = asyncio.Queue()
    channel.subscribe(ended.put_nowait)
    await channel.create("p", hostname="p")
    # The shell survives what it starts, so only the end of the whole tree ends it.
    script = f"python3 -c '{GROW}' & while true; do sleep 1; done"
    await channel.run(launch(holder, "watched", script))

    async def kill() -> None:
        await channel.signal("watched", signal.SIGKILL, out_of_memory=True)

    await memory.watch(LIMIT, pids=lambda: channel.tree("watched"), kill=kill)
    assert await ended.get() == "watched"
    record = msgspec.json.decode((holder / "watched.json").read_bytes(), type=Record)
    assert (record.exit_code, record.oom) == (137, True)
    await channel.close()


async def test_an_input_outlives_its_writers_until_it_is_ended(holder: Path) -> None:
    """As an agent does that is killed and started again, while the container goes on."""
    first = await Channel.open(holder)
    await first.create("p", hostname="p")
    await first.run(launch(holder, "reader", "cat", input=Input.PIPE))
    descriptor, is_first = await first.input("reader")
    os.write(descriptor, b"one\n")
    os.close(descriptor)
    await first.close()
    second = await Channel.open(holder)
    ended: asyncio.Queue[str] = asyncio.Queue()
    second.subscribe(ended.put_nowait)
    descriptor, is_first_again = await second.input("reader")
    os.write(descriptor, b"two\n")
    await second.end_input("reader")
    with pytest.raises(SandboxError, match="takes no input"):
        await second.input("reader")
    os.close(descriptor)
    assert await ended.get() == "reader"
    assert (is_first, is_first_again, (holder / "reader.log").read_text()) == (True, False, "one\ntwo\n")
    await second.close()


async def test_input_that_a_container_does_not_read_is_bounded(holder: Path) -> None:
    channel = await Channel.open(holder)
    await channel.create("p", hostname="p")
    await channel.run(launch(holder, "deaf", "sleep 1000", input=Input.PIPE))
    descriptor, _ = await channel.input("deaf")
    assert os.write(descriptor, bytes(100 << 20)) < 1 << 20
    os.close(descriptor)
    await channel.close()


async def test_a_terminal_is_read_to_its_very_end(holder: Path) -> None:
    channel = await Channel.open(holder)
    ended: asyncio.Queue[str] = asyncio.Queue()
    channel.subscribe(ended.put_nowait)
    await channel.create("p", hostname="p")
    script = "tty; read word; echo $word; seq 30000; (sleep 0.1; exec seq 30000 40000) & wait; exit 3"
    await channel.run(launch(holder, "shown", script, input=Input.TERMINAL))
    descriptor, _ = await channel.input("shown")
    os.write(descriptor, b"typed\n")
    await channel.end_input("shown")
    os.close(descriptor)
    assert await ended.get() == "shown"
    lines = (holder / "shown.log").read_text().split()
    shown = {line for line in lines[:3] if not line.isdigit()}
    record = msgspec.json.decode((holder / "shown.json").read_bytes(), type=Record)
    assert (record.exit_code, "typed" in shown, lines[-1], lines.count("30000")) == (3, True, "40000", 2)
    assert any(line.startswith("/dev/pts/") for line in shown)
    await channel.close()


async def test_a_program_next_to_a_container_ends_when_nobody_wants_it_any_more(holder: Path) -> None:
    """The program of a probe that took too long went on, and each further probe added one."""
    channel = await Channel.open(holder)
    await channel.create("p", hostname="p")
    await channel.run(launch(holder, "main", "sleep 1000"))
    reader, writer = os.pipe()
    nowhere = os.open(os.devnull, os.O_RDWR)
    program = launch(holder, "main", "echo begun; sleep 1000")
    end = await channel.join(program, (nowhere, writer, nowhere), terminal=False)
    os.close(writer)
    async with asyncio.timeout(40):
        await readable(reader)
        assert os.read(reader, 100) == b"begun\n"
        end.cancel()
        # Its output ends with the last process that holds it.
        await readable(reader)
        assert os.read(reader, 100) == b""
    assert (await channel.describe())["running"] == ["main"]
    for descriptor in (reader, nowhere):
        os.close(descriptor)
    await channel.close()


async def test_containers_share_memory_within_their_pod_alone(holder: Path) -> None:
    """MPICH took pods with one IPC namespace for one machine, and failed when it shared memory with another."""
    channel = await Channel.open(holder)
    if (await channel.describe())["mode"] != "netns":
        await channel.close()
        pytest.skip("pods have no namespaces here")
    ended: asyncio.Queue[str] = asyncio.Queue()
    channel.subscribe(ended.put_nowait)
    for pod in ("p", "q"):
        await channel.create(pod, hostname=pod)
    for name, pod in (("one", "p"), ("two", "p"), ("three", "q")):
        await channel.run(launch(holder, name, "readlink /proc/self/ns/ipc", pod=pod))
    assert {await ended.get() for _ in range(3)} == {"one", "two", "three"}
    one, two, three = ((holder / f"{name}.log").read_text() for name in ("one", "two", "three"))
    assert (one == two, one != three) == (True, True)
    await channel.close()
