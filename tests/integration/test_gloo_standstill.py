"""A rank that hangs in torch's deadlock at its end is ended once all others have ended with 0; one that still works is left alone.

The deadlock is torch's own, made certain: rank 0 lets go of its group, which its DistributedDataParallel held last, while a collective is
under way in it; rank 1 takes part in that a moment later.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_agents import Agents, Server, serving, wait_until

from elastic.membership.wire import Budget, Expectation
from elastic_worker.gloo_deadlock import procfs
from elastic_worker.gloo_deadlock.last_workers import LastWorkers

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(400)]

DEADLOCK = """
import os, sys, time
import torch
import torch._dynamo
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    parallel = DistributedDataParallel(torch.nn.Linear(4, 1))
    loss = parallel(torch.ones(2, 4)).sum()
    loss.backward()
    value = torch.ones(4)
    dist.barrier()
    hangs = os.path.join(sys.argv[3], "hangs")
    if rank == 0:
        work = dist.all_reduce(value, async_op=True)
        del work, value
        dist.destroy_process_group()
        with open(hangs + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.replace(hangs + ".new", hangs)
    else:
        while not os.path.exists(hangs):
            time.sleep(0.02)
        peer, used = open(hangs).read(), []
        while len(used) < 10 or len(set(used[-10:])) > 1:  # until its process has stood still for a second
            used.append(" ".join(open("/proc/" + peer + "/stat").read().rsplit(")", 1)[1].split()[11:13]))
            time.sleep(0.1)
        dist.all_reduce(value)
        del parallel, loss
        dist.destroy_process_group()

main()
print("went on", flush=True)
"""
ALIVE = {
    "uploads": "while True: far.send(b'x'); time.sleep(0.5)",
    "waits for a slow peer": "near.recv(1)",
    "writes to a disk": "out = os.open('out', os.O_WRONLY | os.O_CREAT)\nwhile True: os.write(out, b'x'); os.fsync(out)",
    "waits for a file that another process has locked": "fcntl.flock(os.open('lock', os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)",
    "waits for a lock in shared memory": "lock = multiprocessing.get_context('fork').Lock(); lock.acquire(); lock.acquire()",
    "sleeps": "time.sleep(600)",
    "joins a thread of its own": "thread = threading.Thread(target=time.sleep, args=(600,)); thread.start(); thread.join()",
    "computes": "while True: pass",
}
LOOKS = 5


def names(count: int) -> tuple[str, ...]:
    return tuple(f"train-worker-{index}" for index in range(count))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as running:
        yield running


def test_a_rank_that_hangs_at_its_end_is_ended_and_the_job_has_succeeded(server: Server, tmp_path: Path) -> None:
    """One job with warm workers and one with plainly started ones, side by side: the agents do little but wait."""
    libraries = {"warm": tmp_path / "library", "plain": None}
    jobs = {how: Agents(tmp_path / how, server, job=f"job-{how}", script=DEADLOCK, library=at) for how, at in libraries.items()}
    try:
        for agents in jobs.values():
            server.expect(agents.job, Expectation(members=names(2), min=2, max=2, budget=Budget(max_restarts=0)))
            for name in names(2):
                agents.start(name)
        for agents in jobs.values():
            ends_well_in_spite_of_the_deadlock(agents, server)
    finally:
        for agents in jobs.values():
            agents.stop()


def ends_well_in_spite_of_the_deadlock(agents: Agents, server: Server) -> None:
    wait_until(
        lambda: all(process.poll() is not None for process in agents.processes.values()),
        what=lambda: f"both agents end\n{agents.describe()}",
        patience_s=200,
    )
    assert [process.returncode for process in agents.processes.values()] == [0, 0], agents.describe()
    text = "".join(agents.output(name) for name in names(2))
    assert "torch's known deadlock" in text, agents.describe()
    assert "(pt_gloo_runloop), which waits for that lock" in text
    assert text.count("went on") == 1
    wait_until(lambda: (world := server.world(agents.job)) is not None and world.phase == "finished", what=agents.describe, patience_s=10)
    world = server.world(agents.job)
    assert world is not None
    assert world.restarts == {}


@pytest.mark.parametrize("what", ALIVE)
def test_a_process_that_may_still_work_is_left_alone_however_long_that_takes(what: str, tmp_path: Path) -> None:
    """Its agent looks as often as it does in some minutes."""
    preface = "import fcntl, multiprocessing, os, socket, threading, time\nnear, far = socket.socketpair()\nprint('ready', flush=True)\n"
    locker = None
    if "locked" in what:
        lock = "import fcntl, os, time\nfcntl.flock(os.open('lock', os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)"
        hold = f"{lock}\nprint('locked', flush=True)\ntime.sleep(600)"
        locker = subprocess.Popen([sys.executable, "-c", hold], cwd=tmp_path, stdout=subprocess.PIPE)
        assert locker.stdout is not None
        locker.stdout.readline()
    process = subprocess.Popen([sys.executable, "-c", preface + ALIVE[what]], cwd=tmp_path, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.3)
        ending = LastWorkers()
        for look in range(LOOKS):
            assert not ending.deadlocked([process.pid], now=60.0 * look)
            time.sleep(0.2)
        assert process.poll() is None
    finally:
        for one in (process, locker):
            if one is not None:
                os.kill(one.pid, signal.SIGKILL)
                one.communicate()


def test_a_stand_in_that_names_no_worker_of_ours_is_not_believed(tmp_path: Path) -> None:
    code = "open('/proc/self/comm', 'w').write('for 1')\nprint('ready', flush=True)\nimport time\ntime.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(procfs.Unreadable):
            procfs.worker_of(process.pid)
    finally:
        process.kill()
        process.communicate()
