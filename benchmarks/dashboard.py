"""Measure the cost of the dashboard with many jobs.

It counts the CPU time of the dashboard's process while all jobs train and browsers watch, and the bytes that a browser gets. Objects go
through its caches as a watch brings them. Each job reports every 5 s, as the rendezvous server sends it, and each second some workers
change. The browsers are another process.

    python -m benchmarks.dashboard [--jobs 500] [--workers 50] [--lists 10] [--pages 10] [--seconds 30]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import resource
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from elastic.kube.access import Access
from elastic.kube.client import Kube
from elastic.kube.resources import Object
from elastic.membership.training import TrainingProgress
from elastic.runtime import signed_cookie
from elastic.runtime.one_time import OneTimeToken
from elastic_training.dashboard.history.book import Book
from elastic_training.dashboard.serving.changes import Reclaims
from elastic_training.dashboard.serving.guard import Guard
from elastic_training.dashboard.serving.news import News
from elastic_training.dashboard.serving.server import Server, ServingSettings
from elastic_training.dashboard.serving.sessions import LaptopSessions
from elastic_training.dashboard.serving.stream import Streams
from elastic_training.dashboard.serving.views import Views
from elastic_training.dashboard.watching.observer import Observer

REPORT_EVERY_S = 5.0
CHANGED_WORKERS_A_SECOND = 20
BEAT_S = 0.05


class Cluster:
    """Makes objects as an API server would send them."""

    def __init__(self, jobs: int, workers: int) -> None:
        self.jobs, self.workers = jobs, workers
        self._versions = itertools.count(1)
        kube = Kube(Access("http://127.0.0.1:9", None, lambda: None))
        self.kube, self.observer, self.news = kube, Observer(kube, kinds=["PyTorchJob"]), News()
        self.book = Book(job_of_uid=self.observer.job_of_uid)
        self.views = Views(self.observer, self.book)
        self.streams = Streams(self.observer, self.book, self.views, self.news)
        self.observer.job_changed = self._changed
        self.observer.subscribe()
        for number in range(jobs):
            self._take(self._job(number))
            for index in range(workers):
                self._take(self._pod(number, index, "Running"))

    def _changed(self, uid: str) -> None:
        self.book.see(uid)
        self.news.tell(uid)

    def _take(self, found: Object) -> None:
        cache: Any = self.observer._pods if found["kind"] == "Pod" else self.observer._jobs["PyTorchJob"]
        cache._put(found)

    def _metadata(self, name: str, uid: str, **more: Any) -> Object:
        return {"name": name, "namespace": "team", "uid": uid, "resourceVersion": str(next(self._versions)), **more}

    def _job(self, number: int) -> Object:
        status = {
            "conditions": [{"type": "Running", "status": "True", "reason": "Running", "message": "it runs."}],
            "replicaStatuses": {"Worker": {"active": self.workers}},
            "elastic": {"worldSize": self.workers, "generation": 3, "ranks": ",".join(map(str, range(self.workers)))},
        }
        spec = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 64}, "pytorchReplicaSpecs": {"Worker": {"replicas": self.workers}}}
        metadata = self._metadata(f"train-{number}", f"job-{number}", creationTimestamp="2026-01-01T00:00:00Z")
        return {"kind": "PyTorchJob", "metadata": metadata, "spec": spec, "status": status}

    def _pod(self, number: int, index: int, phase: str) -> Object:
        prefix = "training.kubeflow.org/"
        names = {
            "job-name": f"train-{number}",
            "operator-name": "pytorchjob-controller",
            "replica-type": "worker",
            "replica-index": str(index),
        }
        labels = {prefix + name: value for name, value in names.items()}
        owners = [{"uid": f"job-{number}", "controller": True}]
        metadata = self._metadata(f"train-{number}-worker-{index}", f"pod-{number}-{index}", labels=labels, ownerReferences=owners)
        spec = {"nodeName": f"node-{(number * 7 + index) % 800}", "containers": [{"name": "pytorch"}]}
        return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": phase}}

    async def live(self) -> None:
        began, reports, changes = time.monotonic(), 0, 0
        while True:
            passed = time.monotonic() - began
            while reports < passed * self.jobs / REPORT_EVERY_S:
                number, step = reports % self.jobs, 10 * (reports // self.jobs)
                values = {"samples": step * 640.0, "loss": 1.0 + 1.0 / (step + 1)}
                uid = f"job-{number}"
                self.book.hear(
                    TrainingProgress(job=uid, generation=3, phase="running", size=self.workers, step=step, highest=step, values=values)
                )
                self.news.tell(uid)
                reports += 1
            while changes < passed * CHANGED_WORKERS_A_SECOND:
                phase = "Pending" if changes % 2 else "Running"
                self._take(self._pod(changes % self.jobs, changes % self.workers, phase))
                changes += 1
            await asyncio.sleep(BEAT_S)


async def watch(url: str, cookie: str, queries: list[str], seconds: float) -> dict[str, list[float]]:
    """Read a stream for each query, as browsers do. Return the bytes of each first message, and the bytes a second after it."""
    headers = {"Cookie": f"{signed_cookie.name(urlsplit(url).netloc)}={cookie}"}
    got, first = [0.0] * len(queries), [0.0] * len(queries)

    async def follow(session: aiohttp.ClientSession, at: int, query: str) -> None:
        async with session.get(f"{url}/api/stream?{query}", headers=headers) as response:
            async for chunk in response.content.iter_any():
                got[at] += len(chunk)
                if not first[at] and chunk.endswith(b"\n\n"):
                    first[at] = got[at]

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        tasks = [asyncio.create_task(follow(session, at, query)) for at, query in enumerate(queries)]
        await asyncio.sleep(seconds / 3)
        before = list(got)
        await asyncio.sleep(seconds)
        rate = [(now - then) / seconds for now, then in zip(got, before, strict=True)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {"first": first, "rate": rate}


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


async def measure(options: argparse.Namespace) -> None:
    cluster = Cluster(options.jobs, options.workers)
    living = asyncio.create_task(cluster.live())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sessions = LaptopSessions(folder, cluster.kube)
        cookie = await sessions.begin(OneTimeToken(folder / "token").current())
        server = Server(
            observer=cluster.observer,
            views=cluster.views,
            streams=cluster.streams,
            sessions=sessions,
            guard=Guard(),
            reclaims=Reclaims(()),
            settings=ServingSettings(),
            is_ready=lambda: True,
        )
        opened = socket.create_server(("127.0.0.1", 0), backlog=128)
        url = f"http://127.0.0.1:{opened.getsockname()[1]}"
        pages = [f"of=job&namespace=team&name=train-{number}" for number in range(options.pages)]
        async with server.serving(opened, None):
            began, cpu = time.monotonic(), time.process_time()
            await asyncio.sleep(options.seconds / 3)
            alone = (time.process_time() - cpu) / (time.monotonic() - began)
            command = ["--watch", url, str(cookie), json.dumps(["of=jobs"] * options.lists + pages), str(options.seconds)]
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "benchmarks.dashboard", *command, stdout=asyncio.subprocess.PIPE
            )
            await asyncio.sleep(options.seconds / 3)
            began, cpu = time.monotonic(), time.process_time()
            out, _ = await child.communicate()
            watched = (time.process_time() - cpu) / (time.monotonic() - began)
    living.cancel()
    found = json.loads(out)
    lists, pages_ = slice(0, options.lists), slice(options.lists, None)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{options.jobs} jobs of {options.workers} workers, a report each {REPORT_EVERY_S:g} s")
    print(f"  CPU without a browser       {alone * 1000:7.0f} ms/s")
    print(f"  CPU with {options.lists} lists, {options.pages} pages  {watched * 1000:7.0f} ms/s")
    print(f"  a list: first {median(found['first'][lists]) / 1024:.0f} KiB, then {median(found['rate'][lists]) / 1024:.1f} KiB/s")
    print(f"  a job's page: first {median(found['first'][pages_]) / 1024:.0f} KiB, then {median(found['rate'][pages_]) / 1024:.1f} KiB/s")
    print(f"  memory {memory:.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--lists", type=int, default=10, help="browsers that show the list")
    parser.add_argument("--pages", type=int, default=6, help="browsers that show a job")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--watch", nargs=4, metavar=("URL", "COOKIE", "QUERIES", "SECONDS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.watch:
        url, cookie, queries, seconds = options.watch
        print(json.dumps(asyncio.run(watch(url, cookie, json.loads(queries), float(seconds)))))
    else:
        asyncio.run(measure(options))


if __name__ == "__main__":
    main()
