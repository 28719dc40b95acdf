"""The script discover_hosts.sh of elastic MPIJobs, run as it is against a real server, with each program by which it may ask."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from job_builders import Cluster, job, replica
from torch_agents import Server, serving, wait_until

from elastic.membership.hosts import Host, HostFacts
from elastic.membership.tokens import Role, job_token
from elastic.membership.wire import Expectation
from elastic_training.controller.deciding.derivation import derive
from elastic_training.controller.facts.settings import Rendezvous, Settings
from elastic_training.controller.frameworks import mpi_discovery

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

TOOLS = ("sh", "cat", "sed", "grep", "tr", "date", "mkdir", "rmdir", "sleep", "mv", "rm")
ASKING = ("curl", "python3", "wget")


class Launcher:
    """A launcher's container: the script, what it mounts, and only the programs of its image."""

    def __init__(self, folder: Path, server: Server, *, program: str = "curl", transport: str = "Exec", bound_s: int = 60) -> None:
        self.folder = folder
        self.bin, self.proven = folder / "bin", folder / "proven"
        self.bin.mkdir()
        for tool in (*TOOLS, program):
            found = sys.executable if tool == "python3" else shutil.which(tool)
            if found is None:
                pytest.skip(f"{tool} is not here")
            (self.bin / tool).symlink_to(os.path.realpath(found))
        self._mount(server, self._script(server, transport, bound_s))
        self._bound_s = bound_s

    def _script(self, server: Server, transport: str, bound_s: int) -> str:
        """Return the script that the controller writes, with the folders of this test."""
        kinds = {"Launcher": replica(kind="MPIJob"), "Worker": replica(1, kind="MPIJob")}
        one = job("MPIJob", **kinds, elasticPolicy={"minReplicas": 1, "maxReplicas": 3}, mpiTransport=transport)
        settings = Settings(rendezvous=Rendezvous(endpoint=f"127.0.0.1:{server.port}", ca=server.ca))
        cluster = Cluster(one, settings=settings)
        cluster.settle()
        cluster.run_all()
        text = mpi_discovery.script(derive(one, cluster.look()))
        text = text.replace("/etc/mpi/", f"{self.folder}/").replace(f"bound={mpi_discovery.FIRST_ANSWER_S}", f"bound={bound_s}")
        return text.replace(f"at={mpi_discovery.FOLDER}", f"at={self.folder}")

    def _mount(self, server: Server, script: str) -> None:
        (self.folder / "token").write_text(job_token(server.key, "job-uid", Role.LAUNCHER))
        (self.folder / "ca.crt").write_text(server.ca)
        for name in ("kubexec.sh", "bin/ssh"):  # what the launcher runs commands with: here it notes the last words
            (self.folder / name).write_text(f'#!/bin/sh\nset -x\necho "$@" >>{self.proven}\n')
        (self.folder / "discover_hosts.sh").write_text(script)
        for name in ("kubexec.sh", "bin/ssh", "discover_hosts.sh"):
            (self.folder / name).chmod(0o755)

    def wait_for_first_answer(self, bound_s: int) -> None:
        """Let the script wait at most this long from now on."""
        path = self.folder / "discover_hosts.sh"
        path.write_text(path.read_text().replace(f"bound={self._bound_s}", f"bound={bound_s}"))
        self._bound_s = bound_s

    def start(self) -> "subprocess.Popen[str]":
        environment = {"PATH": str(self.bin), "TMPDIR": str(self.folder)}
        path = self.folder / "discover_hosts.sh"
        return subprocess.Popen([path], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def stop_clock(self, at: int) -> None:
        """Let it be this time for the script from now on."""
        draft = self.bin / "date.new"
        draft.write_text(f"#!/bin/sh\necho {at}\n")
        draft.chmod(0o755)
        draft.replace(self.bin / "date")

    def poll(self) -> tuple[int, str]:
        """Return exit status and output of one call, except the line without slots, which comes ten seconds after the first answer."""
        status, out = self.printed()
        return status, "".join(line for line in out.splitlines(keepends=True) if not line.endswith(":0\n"))

    def printed(self) -> tuple[int, str]:
        process = self.start()
        out, _ = process.communicate(timeout=60)
        return process.returncode, out


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as running:
        yield running


def expect(server: Server, *names: str, number: int = 1) -> None:
    hosts = tuple(Host(name=name, uid=f"uid-{name.split('.')[0]}", slots=2, is_ready=True) for name in names)
    server.expect("job-uid", Expectation(hosts=HostFacts(hosts=hosts), speaker="c", number=number))


def made(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


@pytest.mark.parametrize("program", ASKING)
def test_it_waits_for_the_first_answer_proves_each_host_and_prints_the_list(server: Server, tmp_path: Path, program: str) -> None:
    launcher = Launcher(made(tmp_path, "launcher"), server, program=program)
    first = launcher.start()
    time.sleep(1)
    assert first.poll() is None, "before the controller has spoken there is nothing to print"
    expect(server, "w0")
    out, errors = first.communicate(timeout=30)
    assert (first.returncode, out) == (0, "w0:2\n"), errors
    expect(server, "w0", "w1", number=2)
    assert launcher.poll() in ((0, "w0:2\n"), (0, "w0:2\nw1:2\n")), "the child of the first poll may have proven the second host by now"
    wait_until(lambda: launcher.poll() == (0, "w0:2\nw1:2\n"), what="the second host is proven by the first poll's child")
    assert launcher.proven.read_text().splitlines() == ["w0 true", "w1 true"]


def test_over_ssh_it_proves_by_ssh(server: Server, tmp_path: Path) -> None:
    launcher = Launcher(made(tmp_path, "launcher"), server, transport="SSH")
    expect(server, "w0.train.team.svc")
    assert launcher.poll() == (0, "w0.train.team.svc:2\n")
    assert launcher.proven.read_text().endswith("w0.train.team.svc true\n")


def test_a_call_that_fails_later_ends_with_an_error_and_prints_nothing(server: Server, tmp_path: Path) -> None:
    launcher = Launcher(made(tmp_path, "launcher"), server)
    expect(server, "w0")
    assert launcher.poll() == (0, "w0:2\n")
    server.kill()
    wait_until(lambda: launcher.poll() == (1, ""), what="the child in the background has lost the server too")
    server.start()
    assert launcher.poll() == (1, ""), "a new server knows nothing before the controller has spoken"


def test_without_any_answer_it_falls_back_to_the_controllers_list(server: Server, tmp_path: Path) -> None:
    launcher = Launcher(made(tmp_path, "launcher"), server, bound_s=3)
    server.kill()
    at = time.monotonic()
    assert launcher.poll() == (0, "train-worker-0:1\n")
    assert time.monotonic() - at >= 2, "the script counts whole seconds"
    launcher.wait_for_first_answer(3600)
    assert launcher.poll() == (0, "train-worker-0:1\n"), "it has waited once already"
    server.start()
    expect(server, "w0")
    wait_until(lambda: launcher.poll() == (0, "w0:2\n"), what="the server's list, once there is one")


def test_a_line_without_slots_changes_every_ten_seconds(server: Server, tmp_path: Path) -> None:
    """Horovodrun compares its workers with the list after a change only. None in the first moments, in which it may look for interfaces."""
    launcher = Launcher(made(tmp_path, "launcher"), server)
    expect(server, "w0")
    assert launcher.poll() == (0, "w0:2\n")
    later = int(time.time()) // 20 * 20 + 20
    launcher.stop_clock(later + 10)
    assert launcher.printed() == (0, "w0:2\n127.0.0.1:0\n")
    launcher.stop_clock(later + 20)
    assert launcher.printed() == (0, "w0:2\nlocalhost:0\n")
    launcher.stop_clock(later + 60)  # or its child would wait for ever for the half minute after which it ends
    wait_until(lambda: not list(launcher.folder.glob("elastic-hosts-*/follower")), what="the child in the background has ended")


def test_another_jobs_token_gets_no_list(server: Server, tmp_path: Path) -> None:
    launcher = Launcher(made(tmp_path, "launcher"), server, bound_s=0)
    expect(server, "w0")
    (launcher.folder / "token").write_text(job_token(server.key, "other", Role.LAUNCHER))
    assert launcher.poll() == (0, "train-worker-0:1\n")
    assert not launcher.proven.exists()
