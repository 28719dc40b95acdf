"""Run real horovodrun on one machine, without Kubernetes and containers.

Hosts are names that a stand-in for ssh leads back here, and the list of hosts comes from a real rendezvous server. For tests and
benchmarks.
"""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch_agents import ROOT, Server, serving, wait_until

from elastic.membership.hosts import Host, HostFacts
from elastic.membership.tokens import Role, job_token
from elastic.membership.wire import Expectation

SSH = """\
#!/bin/bash
while [[ $1 == -* ]]; do case $1 in -o | -p | -i) shift ;; esac; shift; done
host=$1; shift
[ -e "{folder}/unreachable-$host" ] && exit 255
exec setsid --fork --wait /bin/sh -c "$*"
"""
"""As sshd, it makes the command the leader of a session, and leaves it running when it ends itself."""
LAUNCH = """\
import logging, sys
sys.path.insert(0, {root!r})
from elastic_worker.horovod import run, server
if __name__ == "__main__":
    run.FOLDER = {folder!r}
    run.INTERFACE = "lo"
    logging.basicConfig(level=logging.INFO, format="%(created).3f driver: %(message)s")
    run.log = logging.info
    run.main()
"""
TRAIN = """\
import os, sys, time
BEGAN = time.time()
sys.path.append({root!r})
def note(*words):
    with open(os.path.join({folder!r}, "log"), "a") as log:
        log.write(f"{{time.time():.3f}} {{os.environ['HOROVOD_HOSTNAME']}} {{' '.join(map(str, words))}}\\n")
note("process", os.getpid())
import torch
import horovod.torch as hvd
STEPS, PACE_S, EVERY = int(os.environ["STEPS"]), float(os.environ["PACE_S"]), int(os.environ["EVERY"])
WITH = os.environ["LIBRARY"] == "1"
torch.set_num_threads(1)
slow, late = (os.path.join({folder!r}, what + os.environ["HOROVOD_HOSTNAME"]) for what in ("slow-", "late-"))
if os.path.exists(slow):
    time.sleep(float(open(slow).read()))
def noted(name, call):
    def run(*arguments):
        note(name)
        return call(*arguments)
    return run
if WITH:
    from elastic_worker import horovod as elastic
    from elastic_worker.horovod import joining
    joining.place = noted("asks", joining.place)
    elastic.init(hvd)
else:
    hvd.init()
note("init", hvd.rank(), hvd.size())
if os.path.exists(os.path.join({folder!r}, "forks-" + os.environ["HOROVOD_HOSTNAME"])) and os.fork() == 0:
    for number in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    until = time.time() + 300
    while not os.path.exists(os.path.join({folder!r}, "released")) and time.time() < until:
        time.sleep(0.1)
    os._exit(0)
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), named_parameters=model.named_parameters())
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)
if WITH:
    state = elastic.state(hvd, state)
state.restore, state.on_reset = noted("lost", state.restore), noted("met", state.on_reset)
hvd.elastic.init = noted("meets", hvd.elastic.init)
@hvd.elastic.run
def train(state):
    note("enters", state.step, hvd.rank(), hvd.size())
    while state.step < STEPS:
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        loss = ((model(x).squeeze(1) - x.sum(1)) ** 2).mean()
        loss.backward()
        optimizer.step()
        state.step += 1
        time.sleep(float(open(late).read()) if os.path.exists(late) else PACE_S)
        if hvd.rank() == 0:
            note("step", state.step, hvd.size(), f"{{loss.item():.6f}}")
        if WITH:
            state.step_done(EVERY, loss=loss.item())
        elif state.step % EVERY == 0:
            state.commit()
    note("done", state.step, hvd.size())
train(state)
"""


@dataclass(frozen=True)
class Step:
    at: float
    number: int
    size: int


class Lab:
    """A job's launcher and its hosts."""

    def __init__(self, folder: Path, server: Server, python: Path, *, library: bool, job: str = "job") -> None:
        self.folder, self.server, self.python, self.library, self.job = folder, server, python, library, job
        folder.mkdir(parents=True)
        (folder / "bin").mkdir()
        self._put("bin/ssh", SSH.format(folder=folder))
        self._put("train.py", TRAIN.format(folder=str(folder), root=str(ROOT)))
        self._put("launch.py", LAUNCH.format(folder=str(folder), root=str(ROOT)))
        self._put("token", job_token(server.key, job, Role.LAUNCHER))
        self._put("ca.crt", server.ca)
        self._number = 0
        self.process: subprocess.Popen[bytes] | None = None

    def _put(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def expect(self, *ready: str, leaving: tuple[str, ...] = (), least: int = 1) -> None:
        """Say as the controller does which pods are ready, and which of them leave."""
        self._number += 1
        hosts = tuple(Host(name=name, uid=f"uid-{name}", is_ready=True, leaving=name in leaving) for name in ready)
        facts = HostFacts(hosts=hosts, least=least)
        self.server.expect(self.job, Expectation(hosts=facts, speaker="lab", number=self._number))

    def start(self, *flags: str, steps: int = 100_000, pace_s: float = 0.05, every: int = 5, **environment: str) -> None:
        self.run(
            str(self.folder / "launch.py"), "/etc/mpi/discover_hosts.sh", *flags, steps=steps, pace_s=pace_s, every=every, **environment
        )

    def run(self, program: str, script: str, *flags: str, steps: int, pace_s: float, every: int, **environment: str) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "ELASTIC_", "OMPI_"))}
        env |= {"PATH": f"{self.folder}/bin:{env['PATH']}", "STEPS": str(steps), "PACE_S": str(pace_s), "EVERY": str(every)}
        env |= {"LIBRARY": str(int(self.library)), "ELASTIC_COMMITS": str(self.folder), "OMP_NUM_THREADS": "1"}
        env |= {"ELASTIC_HOSTS_URL": f"https://127.0.0.1:{self.server.port}/v1/jobs/{self.job}/hosts"} | environment
        words = [str(self.python), program, "--host-discovery-script", script, "-np", "1", "--min-np", "1", "--max-np", "8", *flags]
        with open(self.folder / "out", "ab") as out:
            self.process = subprocess.Popen(
                [*words, str(self.python), str(self.folder / "train.py")],
                env=env,
                cwd=self.folder,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def lines(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []

    def steps(self) -> list[Step]:
        found = [re.match(r"(\S+) \S+ step (\d+) (\d+) ", line) for line in self.lines()]
        return [Step(float(one[1]), int(one[2]), int(one[3])) for one in found if one]

    def until_listed(self, *names: str, after: float, patience_s: float = 120.0) -> float:
        """Return the time at which horovodrun got a list with exactly these hosts."""
        wanted, found = ", ".join(f"{name}:1" for name in sorted(names)), list[float]()

        def is_listed() -> bool:
            lines = re.findall(r"^(\S+) driver: hosts: (.*)$", self.output(), re.MULTILINE)
            found.extend(float(at) for at, hosts in lines if hosts == wanted and float(at) > after)
            return bool(found)

        wait_until(is_listed, what=self.story, patience_s=patience_s)
        return found[0]

    def until_step(self, *, size: int, after: float = 0.0, patience_s: float = 120.0) -> Step:
        """Return the first step in a world of this size after this time."""
        chosen: list[Step] = []

        def is_there() -> bool:
            chosen.extend([step for step in self.steps() if step.size == size and step.at > after][:1])
            assert self.process is None or self.process.poll() is None or chosen, self.story()
            return bool(chosen)

        wait_until(is_there, what=self.story, patience_s=patience_s)
        return chosen[0]

    def until_met(self, *, after: float, patience_s: float = 120.0) -> Step:
        """Return the first step of a world whose workers have met after this time, of whatever size."""
        chosen: list[Step] = []

        def is_there() -> bool:
            met = [float(line.split()[0]) for line in self.lines() if line.split()[2] == "enters"]
            first = min((at for at in met if at > after), default=None)
            chosen.extend([step for step in self.steps() if first is not None and step.at >= first][:1])
            assert self.process is None or self.process.poll() is None or chosen, self.story()
            return bool(chosen)

        wait_until(is_there, what=self.story, patience_s=patience_s)
        return chosen[0]

    def until_steady(self, *, size: int, steps: int = 20, patience_s: float = 120.0) -> None:
        """Wait until a world of this size made this number of newest steps."""
        began = len(self.steps())

        def is_steady() -> bool:
            newest = self.steps()[began:][-steps:]
            assert self.process is None or self.process.poll() is None, self.story()
            return len(newest) == steps and all(step.size == size for step in newest)

        wait_until(is_steady, what=self.story, patience_s=patience_s)

    def workers(self, host: str) -> list[int]:
        """Return the training processes that run on this host now."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line, environment = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
                command = line.replace(b" ", b"\0").split(b"\0")
                is_training = str(self.folder / "train.py").encode() in command[1:3] and command[0].endswith((b"python", b"python3"))
                if is_training and f"HOROVOD_HOSTNAME={host}\0".encode() in environment:
                    found.append(int(folder.name))
        return found

    def kill(self, host: str, number: signal.Signals = signal.SIGKILL) -> float:
        """End the host's training processes; when that was."""
        pids = self.workers(host)
        assert pids, self.story()
        at = time.time()
        for pid in pids:
            os.kill(pid, number)
        return at

    def newest_process(self, host: str) -> int:
        """Return the host's newest training process, without its children."""
        return int([line.split()[3] for line in self.lines() if line.split()[1:3] == [host, "process"]][-1])

    def output(self) -> str:
        return (self.folder / "out").read_text(errors="replace") if (self.folder / "out").exists() else ""

    def story(self) -> str:
        return "\n".join([*self.lines()[-30:], "--- output", self.output()[-5000:], "--- server", self.server.log()[-2000:]])

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(20)
        for name in {line.split()[1] for line in self.lines()}:
            for pid in self.workers(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def lab(folder: Path, python: Path, *, library: bool) -> Iterator[Lab]:
    with serving(folder) as server:
        one = Lab(folder / "lab", server, python, library=library)
        try:
            yield one
        finally:
            one.end()
