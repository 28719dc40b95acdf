"""Measure the laptop cluster's API server: pods created per second, the list of 5,000 pods, watch latency and memory.

If KUBEBUILDER_ASSETS names a folder with kube-apiserver and etcd, the same load runs on them after ours, and the ratios are printed. Every
phase is bounded. The whole takes one to three minutes.

    python benchmarks/apiserver.py [--pods 5000] [--seconds 10] [--rate 200] [--watchers 10]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from cryptography.hazmat.primitives import serialization

from elastic import certificates
from elastic.local.ports import free_port

IN_FLIGHT = 32
SENT = re.compile(rb'"sent":"([0-9.]+)"')


@dataclass
class Target:
    name: str
    url: str
    token: str
    pids: list[int]


@dataclass
class Result:
    creates_per_s: float
    create_cpu_ms: float
    list_ms: float
    list_mb: float
    watch_p50_ms: float
    watch_p99_ms: float
    writes_per_s: float
    memory_mb: float
    cpu_s: float


def tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


def ended(processes: list[subprocess.Popen[bytes]]) -> None:
    for p in reversed(processes):
        p.terminate()
    for p in reversed(processes):
        try:
            p.wait(20)
        except subprocess.TimeoutExpired:
            p.kill()


@contextmanager
def ours(folder: Path) -> Iterator[Target]:
    ready = folder / "ready"
    process = subprocess.Popen([sys.executable, "-m", "elastic.local.apiserver", "--data-dir", str(folder), "--ready-file", str(ready)])
    try:
        wait_until(lambda: ready.exists() and bool(ready.read_text()), lambda: "the laptop server did not start")
        yield Target("laptop", f"https://127.0.0.1:{ready.read_text().strip()}", (folder / "admin.token").read_text(), [process.pid])
    finally:
        ended([process])


@contextmanager
def real(folder: Path, assets: Path) -> Iterator[Target]:
    """Run kube-apiserver with its own etcd, without controllers."""
    port, etcd_port, peer_port = free_port(), free_port(), free_port()
    key = certificates.new_key()
    (folder / "sa.key").write_bytes(certificates.key_pem(key))
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / "sa.pub").write_bytes(public)
    (folder / "tokens.csv").write_text("bench,admin,1,system:masters\n")
    etcd_url = f"http://127.0.0.1:{etcd_port}"
    peer = f"http://127.0.0.1:{peer_port}"
    log = (folder / "log").open("wb")
    commands = [
        [assets / "etcd", "--data-dir", folder / "etcd", "--listen-client-urls", etcd_url, "--advertise-client-urls", etcd_url,
         "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"],
        [assets / "kube-apiserver", f"--etcd-servers={etcd_url}", f"--secure-port={port}", f"--cert-dir={folder}",
         "--bind-address=127.0.0.1", f"--service-account-key-file={folder}/sa.pub", f"--service-account-signing-key-file={folder}/sa.key",
         "--service-account-issuer=https://kubernetes.default.svc", f"--token-auth-file={folder}/tokens.csv", "--authorization-mode=RBAC",
         "--service-cluster-ip-range=10.96.0.0/16", "--disable-admission-plugins=ServiceAccount"],
    ]  # fmt: skip
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            processes.append(subprocess.Popen([str(c) for c in command], stdout=log, stderr=log))
        target = Target("kube-apiserver + etcd", f"https://127.0.0.1:{port}", "bench", [p.pid for p in processes])
        wait_until(
            lambda: any(p.poll() is not None for p in processes) or asyncio.run(is_ready(target)),
            lambda: f"kube-apiserver did not start: {tail(folder / 'log')}",
            90,
        )
        yield target
    finally:
        ended(processes)
        log.close()


def wait_until(holds: Callable[[], bool], complaint: Callable[[], str], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise SystemExit(complaint())
        time.sleep(0.1)


def session(target: Target) -> aiohttp.ClientSession:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    return aiohttp.ClientSession(connector=connector, headers={"Authorization": f"Bearer {target.token}"}, base_url=target.url)


async def is_ready(target: Target) -> bool:
    try:
        async with session(target) as s, s.get("/readyz") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


def pod(number: int) -> dict[str, object]:
    """Return a worker pod as an operator makes it. It has about 2 kB."""
    env = [{"name": f"VARIABLE_{i}", "value": f"value-of-variable-{i}"} for i in range(16)]
    container = {
        "name": "pytorch", "image": "example.com/train:1", "command": ["torchrun", "train.py"], "env": env,
        "resources": {"limits": {"cpu": "2", "memory": "4Gi"}}, "ports": [{"name": "master", "containerPort": 23456}],
    }  # fmt: skip
    labels = {"training.kubeflow.org/job-name": "bench", "training.kubeflow.org/replica-index": str(number)}
    spec = {"containers": [container], "restartPolicy": "Never", "automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"bench-{number}", "labels": labels}, "spec": spec}


PODS = "/api/v1/namespaces/default/pods"


async def create_all(s: aiohttp.ClientSession, count: int) -> float:
    numbers = iter(range(count))

    async def worker() -> None:
        for n in numbers:
            async with s.post(PODS, json=pod(n)) as answer:
                text = await answer.text()
                if answer.status != 201:
                    raise SystemExit(f"create was answered {answer.status}: {text[:300]}")

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return count / (time.perf_counter() - started)


async def list_all(s: aiohttp.ClientSession) -> tuple[float, float]:
    times, size = [], 0
    for _ in range(3):
        started = time.perf_counter()
        async with s.get(PODS) as answer:
            size = len(await answer.read())
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000, size / 1e6


async def watch_latency(s: aiohttp.ClientSession, *, watchers: int, rate: float, seconds: float) -> tuple[list[float], float]:
    """Return the seconds from sending each write to reading its event at every watcher, and the achieved rate."""
    latencies: list[float] = []
    opened = asyncio.Semaphore(0)

    async def watch() -> None:
        async with s.get(
            PODS, params={"watch": "true", "resourceVersion": await newest(s)}, timeout=aiohttp.ClientTimeout(total=None)
        ) as answer:
            opened.release()
            async for line in answer.content:
                now = time.perf_counter()
                found = SENT.search(line)
                if found:
                    latencies.append(now - float(found[1]))

    tasks = [asyncio.create_task(watch()) for _ in range(watchers)]
    for _ in range(watchers):
        await asyncio.wait_for(opened.acquire(), 30)
    sent, started = 0, time.perf_counter()
    pending: set[asyncio.Task[None]] = set()
    while (now := time.perf_counter()) - started < seconds:
        due = started + sent / rate
        if now < due:
            await asyncio.sleep(due - now)
        if len(pending) >= 4 * IN_FLIGHT:
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.create_task(touch(s, sent % 200))
        pending.add(task)
        task.add_done_callback(pending.discard)
        sent += 1
    await asyncio.gather(*pending)
    achieved = sent / (time.perf_counter() - started)
    await asyncio.sleep(0.5)
    for t in tasks:
        t.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return latencies, achieved


async def newest(s: aiohttp.ClientSession) -> str:
    async with s.get(PODS, params={"limit": "1"}) as answer:
        return str((await answer.json())["metadata"]["resourceVersion"])


async def touch(s: aiohttp.ClientSession, number: int) -> None:
    body = json.dumps({"metadata": {"annotations": {"sent": repr(time.perf_counter())}}})
    headers = {"Content-Type": "application/merge-patch+json"}
    async with s.patch(f"{PODS}/bench-{number}", data=body, headers=headers) as answer:
        await answer.read()


def memory_mb(pids: list[int]) -> float:
    def resident(pid: int) -> int:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

    return sum(resident(p) for p in pids) / 1024


def cpu_s(pids: list[int]) -> float:
    tick = os.sysconf("SC_CLK_TCK")
    fields = [Path(f"/proc/{p}/stat").read_text().rpartition(")")[2].split() for p in pids]
    return sum(int(f[11]) + int(f[12]) for f in fields) / tick


async def measure(target: Target, args: argparse.Namespace) -> Result:
    async with session(target) as s:
        await asyncio.sleep(1)
        before = cpu_s(target.pids)
        creates = await create_all(s, args.pods)
        create_cpu = (cpu_s(target.pids) - before) * 1000 / args.pods
        list_ms, list_mb = await list_all(s)
        latencies, writes = await watch_latency(s, watchers=args.watchers, rate=args.rate, seconds=args.seconds)
    if not latencies:
        raise SystemExit(f"{target.name}: no watcher saw a write")
    ordered = sorted(latencies)
    p50, p99 = ordered[len(ordered) // 2] * 1000, ordered[int(len(ordered) * 0.99)] * 1000
    return Result(creates, create_cpu, list_ms, list_mb, p50, p99, writes, memory_mb(target.pids), cpu_s(target.pids))


ROWS = (
    ("pods created per second", "creates_per_s", "{:.0f}"),
    ("CPU per created pod, ms", "create_cpu_ms", "{:.2f}"),
    ("list of all pods, ms", "list_ms", "{:.0f}"),
    ("list of all pods, MB", "list_mb", "{:.1f}"),
    ("watch latency p50, ms", "watch_p50_ms", "{:.2f}"),
    ("watch latency p99, ms", "watch_p99_ms", "{:.2f}"),
    ("writes per second meanwhile", "writes_per_s", "{:.0f}"),
    ("memory at the end, MB", "memory_mb", "{:.0f}"),
    ("CPU seconds used", "cpu_s", "{:.1f}"),
)


def print_results(results: dict[str, Result]) -> None:
    names = list(results)
    print(f"\n{'':30}" + "".join(f"{n:>24}" for n in names) + ("" if len(names) < 2 else f"{'laptop / real':>16}"))
    for title, field, form in ROWS:
        values = [getattr(results[n], field) for n in names]
        ratio = f"{values[0] / values[1]:>16.2f}" if len(values) > 1 and values[1] else ""
        print(f"{title:30}" + "".join(f"{form.format(v):>24}" for v in values) + ratio)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--watchers", type=int, default=10)
    args = parser.parse_args()
    results: dict[str, Result] = {}
    with tempfile.TemporaryDirectory(prefix="bench-apiserver-") as root:
        folder = Path(root) / "ours"
        folder.mkdir()
        with ours(folder) as target:
            results[target.name] = asyncio.run(measure(target, args))
        assets = os.environ.get("KUBEBUILDER_ASSETS")
        if assets and (Path(assets) / "kube-apiserver").exists():
            folder = Path(root) / "real"
            folder.mkdir()
            with real(folder, Path(assets)) as target:
                results[target.name] = asyncio.run(measure(target, args))
    print_results(results)


if __name__ == "__main__":
    main()
