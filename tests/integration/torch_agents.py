"""A rendezvous server process and torchrun agents on loopback, for tests and benchmarks that need neither Kubernetes nor containers."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from elastic.local.installation import ensure_installation
from elastic.local.ports import free_port
from elastic.membership.client import RendezvousClient
from elastic.membership.tokens import control_token, job_token, load_keys
from elastic.membership.wire import Decoder, Expectation, WorldReport, encode
from elastic_training.rendezvous.delivery import WRAPPER

PATIENCE_S = 120.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.2
"""Seconds between two looks of a wait. Many of them ask a server, and looks without a pause would take a core from it."""
ROOT = Path(__file__).parent.parent.parent

# It averages its gradients itself: the first DistributedDataParallel of a process imports torch._dynamo, which takes as long as torch.
TRAINING = """
import os, sys, time, json
import torch
import torch.distributed as dist

steps, pace, folder = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
checkpoint = os.path.join(folder, "checkpoint.json")
model = torch.nn.Linear(4, 1)
start = json.load(open(checkpoint))["step"] if os.path.exists(checkpoint) else 0
def tell(what, step):
    with open(os.path.join(folder, "log"), "a") as log:
        log.write(f"{time.time():.3f} {os.environ['ELASTIC_MEMBER']} {what} rank={rank} size={size} step={step}\\n")
for step in range(start, steps):
    model.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    if step == start:
        tell("first", step)
    if rank == 0:
        with open(checkpoint + ".tmp", "w") as file:
            json.dump({"step": step + 1}, file)
        os.replace(checkpoint + ".tmp", checkpoint)
    crash = os.path.join(folder, "crash-" + os.environ["ELASTIC_MEMBER"])
    if os.path.exists(crash):
        os.remove(crash)
        os._exit(3)
    if size == 1 and os.path.exists(os.path.join(folder, "finish")):
        break
    time.sleep(pace)
tell("done", steps)
dist.destroy_process_group()
"""


def wait_until(holds: Callable[[], bool], *, what: str | Callable[[], str], patience_s: float = PATIENCE_S) -> float:
    """Wait for a condition; returns the seconds it took."""
    began, pause_s = time.monotonic(), FIRST_PAUSE_S
    while not holds():
        if time.monotonic() - began > patience_s:
            raise AssertionError(f"not within {patience_s:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.3, LONGEST_PAUSE_S)
    return time.monotonic() - began


class Server:
    """A rendezvous server as a process, on a port that stays the same over restarts."""

    module = "elastic_training.rendezvous.main"

    def __init__(self, folder: Path, *flags: str) -> None:
        self._flags = flags
        self.installation = folder / "installation"
        ensure_installation(self.installation, addresses=())
        self._folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.key = load_keys(self.installation)[0]
        self.ca = (self.installation / "ca.crt").read_text()

    def start(self) -> None:
        ready = self._folder / "ready"
        ready.unlink(missing_ok=True)
        arguments = [
            "--installation",
            str(self.installation),
            "--listen",
            f"127.0.0.1:{self.port}",
            "--ready-file",
            str(ready),
            *self._flags,
        ]
        with open(self._folder / "server.log", "ab") as log:
            self.process = subprocess.Popen([sys.executable, "-m", self.module, *arguments], stderr=log, stdout=log)
        wait_until(ready.exists, what="the server serves")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(20)

    def log(self) -> str:
        """Return the server's log, which is empty if it was never started."""
        path = self._folder / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def client(self) -> RendezvousClient:
        async def token() -> str:
            return control_token(self.key)

        return RendezvousClient(f"https://127.0.0.1:{self.port}", token, self.ca)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Listen like a controller during a block, to show the server that it is not cut off. The kernel answers even if nobody reads."""
        tls = ssl.create_default_context(cadata=self.ca)
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=tls, timeout=20)
        try:
            connection.request("GET", "/v1/worlds", headers={"Authorization": f"Bearer {control_token(self.key)}"})
            assert connection.getresponse().status == 200
            yield
        finally:
            connection.close()

    def call(self, method: str, path: str, *, token: str = "", body: bytes = b"") -> tuple[int, bytes]:
        """Make one plain request, and return the status and the body."""
        tls = ssl.create_default_context(cadata=self.ca)
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=tls, timeout=20)
        try:
            connection.request(method, path, body, {"Authorization": f"Bearer {token}"} if token else {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def expect(self, job: str, expectation: Expectation) -> None:
        body = encode(expectation)
        status, text = self.call("PUT", f"/v1/jobs/{job}/expectation", token=control_token(self.key), body=body)
        assert status == 204, text

    def world(self, job: str) -> WorldReport | None:
        status, text = self.call("GET", f"/v1/jobs/{job}/world", token=control_token(self.key))
        return Decoder[WorldReport](WorldReport).decode(text) if status == 200 else None


class Agents:
    """The torchrun agents of one job, each with its own log."""

    def __init__(
        self,
        folder: Path,
        server: Server | None,
        *,
        job: str,
        steps: int = 1_000_000,
        pace_s: float = 0.05,
        script: str = TRAINING,
        python: str = sys.executable,
        library: Path | None = None,
    ) -> None:
        """Set up the agents of a job. With a folder for the library they start as in a pod: warm, through the wrapper.

        The agents of a subclass meet at another place than a server.
        """
        self._python = python
        self._library = library
        if library is not None:
            subprocess.run([python, str(ROOT / "elastic_worker/startup/deliver.py"), str(library)], check=True, capture_output=True)
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.server = server
        self.job = job
        self._arguments = [str(steps), str(pace_s), str(folder)]
        self._script = folder / "train.py"
        self._script.write_text(script)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *, nnodes: str = "1:8", workers: int = 1, **environment: str) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "ELASTIC_", "TORCHELASTIC_"))}
        env |= {
            "PET_RDZV_ID": self.job,
            "PET_NNODES": nnodes,
            "PET_NPROC_PER_NODE": str(workers),
            "PET_MAX_RESTARTS": "1000000",
            "ELASTIC_MEMBER": name,
            "ELASTIC_POD_UID": f"uid-{name}",
            "ELASTIC_POD_IP": "127.0.0.1",
            "TEST_POD": self._mark(name),
            "LOGLEVEL": "INFO",
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }
        env |= self.rendezvous() | environment
        command = [self._python, "-m", "torch.distributed.run", str(self._script), *self._arguments]
        if self._library is not None:
            command = ["/bin/sh", "-c", WRAPPER, "elastic", *command]
            env |= {"ELASTIC_LIBRARY": str(self._library), "ELASTIC_JOB_UID": self.job, "ELASTIC_TERMINATION_LOG": os.devnull}
        with open(self.folder / f"{name}.out", "ab") as log:
            self.processes[name] = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)

    def rendezvous(self) -> dict[str, str]:
        """Return the settings of the place where these agents meet."""
        assert self.server is not None
        return {
            "PET_RDZV_BACKEND": "elastic",
            "PET_RDZV_ENDPOINT": f"127.0.0.1:{self.server.port}",
            "ELASTIC_TOKEN": job_token(self.server.key, self.job),
            "ELASTIC_CA": self.server.ca,
        }

    def situation(self) -> str:
        """Return the facts that are known at the rendezvous."""
        assert self.server is not None
        try:
            world: object = self.server.world(self.job)
        except (OSError, http.client.HTTPException) as error:
            world = f"no rendezvous server answers ({error})"
        return f"{world}\n--- server\n{self.server.log()[-3000:]}"

    def output(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text(errors="replace")

    def signal(self, name: str, number: signal.Signals) -> None:
        """Signal only the agent, as a kubelet signals the first process of a container."""
        os.kill(self.processes[name].pid, number)

    def kill_pod(self, name: str) -> None:
        """Kill all processes of this agent at once, as the loss of a node does. Their relation to the agent does not matter."""

        def is_gone() -> bool:
            pids = self._pod_pids(name)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not pids  # a process that was being forked is found in the next look

        wait_until(is_gone, what=f"all processes of {name} are gone")
        self.processes[name].wait()

    def _mark(self, name: str) -> str:
        """Return the mark in the environment of an agent's processes. Workers have sessions of their own, and lose their parent with it."""
        return f"{self.folder}/{name}"

    def _pod_pids(self, name: str) -> list[int]:
        mark = f"TEST_POD={self._mark(name)}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def worker_pids(self, name: str) -> list[int]:
        pid = self.processes[name].pid
        try:
            return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            return []

    def log(self) -> list[dict[str, str]]:
        """Return the lines of the training scripts: time, member, what, rank, size, step."""
        path = self.folder / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        found = (
            re.fullmatch(r"(?P<at>\S+) (?P<member>\S+) (?P<what>\S+) rank=(?P<rank>\d+) size=(?P<size>\d+) step=(?P<step>\d+)", line)
            for line in lines
        )
        return [match.groupdict() for match in found if match]

    def step(self) -> int:
        """Return the step that the newest checkpoint holds."""
        path = self.folder / "checkpoint.json"
        return int(json.loads(path.read_text())["step"]) if path.exists() else 0

    def wait_for_world(self, size: int, *, after: float = 0.0, patience_s: float = PATIENCE_S) -> float:
        """Wait until `size` workers took their first step in a world of that size after this moment; returns the time of the last one."""

        def entered() -> list[float]:
            return [float(e["at"]) for e in self.log() if e["what"] == "first" and int(e["size"]) == size and float(e["at"]) >= after]

        wait_until(
            lambda: len(entered()) >= size, what=lambda: f"a world of {size} takes its first step\n{self.describe()}", patience_s=patience_s
        )
        return max(entered())

    def describe(self) -> str:
        """Return the text that a failed test shows. It holds everything that exists, and never fails itself."""
        tails = "\n".join(f"--- {name}\n{self.output(name)[-4000:]}" for name in self.processes)
        living = {name: self._pod_pids(name) for name in self.processes}
        now = f"now {time.time():.3f}, processes {living}"
        return f"{tails}\n--- log\n{self.log()[-12:]}\n{now}, {self.situation()}"

    def stop(self) -> None:
        for name in self.processes:
            self.kill_pod(name)


class Proxy:
    """A network in between that can be cut: established connections break, new ones are refused."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._is_cut = threading.Event()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._is_cut.set()
        for held in self._sockets:
            with contextlib.suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._is_cut.clear()

    def close(self) -> None:
        self.cut()
        self._listener.close()
        for held in self._sockets:
            held.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._is_cut.is_set():
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def serving(folder: Path, *flags: str) -> Iterator[Server]:
    """Run a server for a block of code."""
    server = Server(folder, *flags)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def grow_and_lose_worker_0(agents: Agents, env: Mapping[str, str]) -> None:
    """Run one agent, then two, then the second one alone. Each world takes its first step."""
    agents.start("w0", nnodes="1:2", **env)
    agents.wait_for_world(1)
    at = time.time()
    agents.start("w1", nnodes="1:2", **env)
    agents.wait_for_world(2, after=at)
    at = time.time()
    agents.kill_pod("w0")
    agents.wait_for_world(1, after=at)
