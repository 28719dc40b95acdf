"""Two nodes as network namespaces, run under `unshare --user --map-root-user --net --mount`. The link between them is cut silently.

On the near node: the rendezvous server, worker w0 and a standby controller. On the far node: worker w1 and the leader. It prints what
happened as JSON. Each process is this script again, with its role as the first argument.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

from rendezvous_members import Member, expecting
from torch_agents import wait_until

from elastic.local.installation import ensure_installation
from elastic.membership.client import RendezvousClient, RendezvousError
from elastic.membership.tokens import control_token, load_keys
from elastic_training.controller.acting.leading import give_signs

NEAR, FAR, PORT = "10.77.0.1", "10.77.0.2", 8443
CUT_S = 24.0
"""Longer than the 19 s after which a silent member is given up."""
BEHIND_S = 60.0


class Place:
    """Folder of the installation, which the processes share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.installation = folder / "installation"
        self.port = PORT
        self.key = load_keys(self.installation)[0]
        self.ca = (self.installation / "ca.crt").read_text()

    def client(self) -> RendezvousClient:
        async def token() -> str:
            return control_token(self.key)

        return RendezvousClient(f"https://{NEAR}:{PORT}", token, self.ca, gives_signs=True)


def member(place: Place, name: str) -> None:
    """Follow the server, and print each world that is entered or left."""
    follower, known = Member(place, job="job", name=name, host=NEAR), (0, False)  # type: ignore[arg-type]
    while True:
        if (now := (follower.generation, follower.is_in_world)) != known:
            known = now
            print(json.dumps({"generation": now[0], "is_in_world": now[1], "size": follower.presence.view.size}), flush=True)
        time.sleep(0.05)


async def controller(place: Place, *, leads: bool) -> None:
    """Listen to the worlds; the leader also sends the expectation and its signs."""
    async with place.client() as client, asyncio.TaskGroup() as tasks:

        async def listen() -> None:
            async for world in client.worlds():
                print(world.phase, flush=True)

        tasks.create_task(listen())
        if leads:
            await client.expect("job", expecting(2, min=1, term=2))
            tasks.create_task(give_signs(client.lead, None, errors=(RendezvousError,), left=lambda: 1.0))


class Nodes:
    """The namespaces and their processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        ip("link", "add", "bridge", "type", "bridge")
        ip("link", "set", "bridge", "up")
        for name, address in (("near", NEAR), ("far", FAR)):
            ip("netns", "add", name)
            ip("link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"to-{name}", "master", "bridge", "up")
            ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")

    def start(self, node: str, log: str, *command: str) -> None:
        with open(self._folder / f"{log}.log", "wb") as out:
            run = ["ip", "netns", "exec", node, sys.executable, *command]
            self._processes.append(subprocess.Popen(run, stdout=out, stderr=subprocess.STDOUT))

    def log(self, name: str) -> str:
        path = self._folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def cut(self) -> None:
        """Drop all packets between the nodes. Both interfaces stay up, so no connection breaks."""
        ip("link", "set", "to-far", "nomaster")

    def heal(self) -> None:
        ip("link", "set", "to-far", "master", "bridge")

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def main(folder: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)  # for the names of the namespaces
    ensure_installation(folder / "installation", addresses=(NEAR,))
    nodes, here, place = Nodes(folder), __file__, str(folder)
    with contextlib.closing(nodes):
        installation = str(folder / "installation")
        nodes.start(
            "near", "server", "-m", "elastic_training.rendezvous.main", "--installation", installation, "--listen", f"{NEAR}:{PORT}"
        )
        wait_until(lambda: "serving" in nodes.log("server"), what="the server serves", patience_s=BEHIND_S)
        nodes.start("near", "standby", here, place, "standby")
        nodes.start("far", "leader", here, place, "leader")
        nodes.start("near", "w0", here, place, "w0")
        nodes.start("far", "w1", here, place, "w1")
        wait_until(lambda: all('"size": 2' in nodes.log(name) for name in ("w0", "w1")), what="a world of two", patience_s=BEHIND_S)
        wait_until(lambda: all(nodes.log(name) for name in ("standby", "leader")), what="both controllers listen", patience_s=BEHIND_S)
        nodes.cut()
        before = len(nodes.log("server"))
        cut_at = time.monotonic()
        wait_until(lambda: time.monotonic() >= cut_at + CUT_S, what="the cut lasts longer than a silent member is waited for")
        during = nodes.log("server")[before:]
        nodes.heal()
        wait_until(lambda: "this server is reached again" in nodes.log("server"), what="the server is reached", patience_s=BEHIND_S)
        print(json.dumps({"during": during, **{name: nodes.log(name).splitlines() for name in ("w0", "w1")}}))


if __name__ == "__main__":
    where, role = Path(sys.argv[1]), sys.argv[2]
    if role == "scene":
        main(where)
    elif role.startswith("w"):
        member(Place(where), role)
    else:
        asyncio.run(controller(Place(where), leads=role == "leader"))
