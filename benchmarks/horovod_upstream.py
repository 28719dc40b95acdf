"""Run Horovod's own elastic integration tests with the rendezvous server's list of hosts, and count the tests that pass.

The ways are Horovod's static script, curl as in a user's own script, and the library in the launcher. No code of Horovod is kept here.

    scripts/frameworks horovod
    git clone --depth 1 https://github.com/horovod/horovod
    pip install --target site pytest mock parameterized
    python -m benchmarks.horovod_upstream horovod/test site [--ways script curl library]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.horovod import ENVIRONMENT, ROOT
from benchmarks.rendezvous import Server, start
from elastic.membership.hosts import Host, HostFacts
from elastic.membership.tokens import Role, job_token
from elastic.membership.wire import Expectation

WAYS = ("script", "curl", "library")
LOOK_EVERY_S = 0.02
PLUGIN = '''
"""Gives each of Horovod's cases our list of hosts. The benchmark outside follows the case's schedule."""
import contextlib, itertools, json, os, sys, time
import pytest

sys.path[:0] = [os.environ["OURS"], os.environ["THEIRS"] + "/integration", os.environ["THEIRS"] + "/utils"]
FOLDER, URL, WAY = (os.environ[name] for name in ("FOLDER", "URL", "WAY"))
numbers = itertools.count(1)


class Current:
    """The hosts of the case that runs."""

    def __getattr__(self, name):
        return getattr(self.hosts, name)


current = Current()


@contextlib.contextmanager
def replaced(logfile, schedule):
    job = "case-%d" % next(numbers)
    with open(FOLDER + "/case.new", "w") as file:
        json.dump({"job": job, "log": str(logfile), "schedule": schedule}, file)
    os.replace(FOLDER + "/case.new", FOLDER + "/case")
    folder = FOLDER + "/" + job
    while not os.path.exists(folder + "/token"):
        time.sleep(0.01)
    url = URL + "/v1/jobs/" + job + "/hosts"
    if WAY == "library":
        from elastic_worker.horovod.hosts import Hosts
        from elastic_worker.horovod.server import Server

        current.hosts = Hosts(lambda: Server(url, folder), lambda host: True, dict, print)
        current.hosts.start()
        yield "/etc/mpi/discover_hosts.sh"
        return
    script = folder + "/discover.sh"
    with open(script, "w") as file:
        file.write("#!/bin/sh\\nexec curl -fsS --max-time 5 --cacert %s/ca.crt" % folder)
        file.write(' -H "Authorization: Bearer $(cat %s/token)" %s\\n' % (folder, url))
    os.chmod(script, 0o755)
    yield script


@pytest.fixture(autouse=True, scope="session")
def our_hosts():
    import elastic_common

    if WAY != "script":
        elastic_common._temp_discovery_script = replaced
    if WAY == "library":
        from elastic_worker.horovod import driver

        driver.installed(current, "/etc/mpi/discover_hosts.sh")
'''


class Follower:
    """Tells the hosts of the present case as a controller would. The number of lines in the case's log chooses them."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._server, self._folder = server, folder
        self._job, self._said, self._number = "", list[str](), 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(LOOK_EVERY_S)
            if (self._folder / "case").exists():
                self._look(json.loads((self._folder / "case").read_text()))

    def _look(self, case: dict[str, object]) -> None:
        job, log, schedule = str(case["job"]), Path(str(case["log"])), case["schedule"]
        assert isinstance(schedule, list)
        epoch = len(log.read_text().splitlines()) if log.exists() else 0
        if job != self._job:
            self._job, self._said = job, []
        wanted = next(hosts for when, hosts in schedule if when in (epoch, None))
        if wanted == self._said:
            return
        self._said = wanted
        every = {line for _, hosts in schedule for line in hosts if line in wanted or when_listed(schedule, line) < epoch}
        self._expect(job, every, wanted)
        if not (self._folder / job).exists():
            (self._folder / job).mkdir()
            (self._folder / job / "ca.crt").write_text(self._server.ca)
            draft = self._folder / job / "token.new"
            draft.write_text(job_token(self._server.key, job, Role.LAUNCHER))
            draft.replace(self._folder / job / "token")

    def _expect(self, job: str, there: set[str], wanted: list[str]) -> None:
        """Tell the server the hosts of a job. Hosts that are not wanted any more leave."""
        self._number += 1
        hosts = tuple(
            Host(name=name, uid=name.replace(".", "-"), slots=int(slots), is_ready=True, is_local=True, leaving=line not in wanted)
            for line in sorted(there)
            for name, _, slots in [line.partition(":")]
        )
        self._server.expect({job: Expectation(hosts=HostFacts(hosts=hosts), speaker="benchmark", number=self._number)})


def when_listed(schedule: list[tuple[int | None, list[str]]], line: str) -> float:
    """Return the first epoch with this host."""
    return next(float("inf") if when is None else when for when, hosts in schedule if line in hosts)


def run(way: str, tests: Path, site: Path, log: Path | None) -> str:
    """Run the tests one way. Return the last line of pytest, and the cases that failed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "installation").mkdir()
        (folder / "ours_upstream.py").write_text(PLUGIN)
        server = start(folder / "installation")
        Follower(server, folder)
        env = {key: value for key, value in os.environ.items() if not key.startswith(("HOROVOD_", "ELASTIC_", "OMPI_", "PYTEST_"))}
        env |= {"PATH": f"{ENVIRONMENT}/bin:{env['PATH']}", "PYTHONPATH": f"{site.resolve()}:{folder}", "FOLDER": name, "WAY": way}
        env |= {"URL": f"https://localhost:{server.port}", "OURS": str(ROOT), "THEIRS": str(tests.resolve())}
        words = [f"{ENVIRONMENT}/bin/python", "-m", "pytest", "-q", "-rfEs", "-p", "ours_upstream", "-p", "no:cacheprovider"]
        try:
            done = subprocess.run(
                [*words, "--tb=short", f"{tests.resolve()}/integration/test_elastic_torch.py"],
                env=env, cwd=folder, capture_output=True, text=True,
            )  # fmt: skip
        finally:
            server.process.terminate()
            server.process.wait()
        if log is not None:
            log.mkdir(exist_ok=True)
            (log / way).write_text(done.stdout + done.stderr)
    lines = done.stdout.splitlines()
    return "\n".join([lines[-1] if lines else done.stderr, *(line for line in lines if line.startswith(("FAILED", "ERROR")))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", type=Path, help="the folder test of a clone of Horovod")
    parser.add_argument("site", type=Path, help="a folder with pytest, mock and parameterized")
    parser.add_argument("--log", type=Path, help="a folder for the whole output of each way")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    options = parser.parse_args()
    for way in options.ways:
        print(f"{way}: {run(way, options.tests, options.site, options.log)} (load {os.getloadavg()[0]:.1f})", flush=True)


if __name__ == "__main__":
    main()
