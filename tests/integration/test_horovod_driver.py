"""What we put into horovodrun, in Horovod's own elastic driver; only its compiled part is missing (HOROVOD_SKIP_COMPILE=1)."""

import subprocess
from pathlib import Path

import pytest
from example_jobs import ROOT, environment

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

BEGIN = """\
import os, sys, threading, time
from unittest import mock
sys.path.insert(0, os.getcwd())
from elastic_worker.horovod import driver as ours

class Hosts:
    def __init__(self): self.listed, self.told = {"w0": 1, "w1": 1}, []
    def find_available_hosts_and_slots(self): return self.listed
    def assigned(self, hosts, size): self.told.append(("assigned", sorted(hosts), size))
    def started(self, host): self.told.append(("started", host))
    def ended(self, host): self.told.append(("ended", host))

def until(claim):
    end = time.monotonic() + 20
    while not claim():
        assert time.monotonic() < end
        time.sleep(0.01)

hosts = Hosts()
ours.installed(hosts, "/etc/mpi/discover_hosts.sh")
from horovod.runner import gloo_run, launch
from horovod.runner.elastic.worker import HostUpdateResult
"""
TELLS = """
found = launch.discovery.HostDiscoveryScript("/etc/mpi/discover_hosts.sh", None)
driver = gloo_run.ElasticDriver(mock.Mock(), found, 1, 4)
client, over = mock.Mock(), {"w0": threading.Event(), "w1": threading.Event()}

def work(slot, events):
    over[slot.hostname].wait(20)
    return 1, time.time()

driver.start(2, work)
until(lambda: len(hosts.told) == 3)
assert hosts.told[0] == ("assigned", ["w0", "w1"], 2), hosts.told
assert sorted(hosts.told[1:]) == [("started", "w0"), ("started", "w1")], hosts.told
with mock.patch.object(driver, "get_worker_client", return_value=client):
    hosts.listed = {"w0": 1}
    until(lambda: client.notify_hosts_updated.called)
assert client.notify_hosts_updated.call_args[0][1] == HostUpdateResult.mixed, "workers would not synchronise"
over["w1"].set()
until(lambda: ("ended", "w1") in hosts.told)
over["w0"].set()
driver.stop()
"""
LEAVES_ALONE = """
open("own.sh", "w").write("#!/bin/sh\\necho own:3\\n")
os.chmod("own.sh", 0o755)
if __name__ == "__main__":
    assert launch.discovery.HostDiscoveryScript("./own.sh", None).find_available_hosts_and_slots() == {"own": 3}
"""
REMOTE = """
sys.argv[1:] = ["-np", "1", "-p", "2222", "-i", "key", "python", "train.py"]
assert ours.remote_true()("w0").split()[-6:] == ["w0", "-p", "2222", "-i", "key", "true"], ours.remote_true()("w0")
os.environ["OMPI_MCA_plm_rsh_agent"] = "/etc/mpi/kubexec.sh"
assert ours.remote_true()("w0") == "/etc/mpi/kubexec.sh w0 true"
"""


def in_horovod(tmp_path: Path, program: str) -> None:
    """Run by the environment's Python."""
    path = tmp_path / "program.py"
    path.write_text(BEGIN.replace("os.getcwd()", repr(str(ROOT))) + program)
    python = environment("horovod-driver") / "bin" / "python"
    done = subprocess.run([python, path], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_the_driver_says_what_it_does_and_has_workers_synchronise_after_a_removal_too(tmp_path: Path) -> None:
    in_horovod(tmp_path, TELLS)


def test_a_script_of_the_users_own_is_run_as_ever(tmp_path: Path) -> None:
    in_horovod(tmp_path, LEAVES_ALONE)


def test_new_hosts_are_reached_as_horovodrun_reaches_them(tmp_path: Path) -> None:
    in_horovod(tmp_path, REMOTE)
