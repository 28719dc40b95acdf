"""Try what we put into horovodrun with Horovod's own elastic driver; only its compiled part is missing (HOROVOD_SKIP_COMPILE=1)."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from example_jobs import ROOT, environment
from laptop import alive
from torch_agents import wait_until

from elastic_worker.horovod import orphans

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

BEGIN = """\
import os, sys, threading, time
from unittest import mock
sys.path.insert(0, os.getcwd())
from elastic_worker.horovod import driver as ours

class Hosts:
    def __init__(self): self.listed, self.told, self.doubted = {"w0": 1, "w1": 1}, [], set()
    def find_available_hosts_and_slots(self): return self.listed
    def assigned(self, hosts, size): self.told.append(("assigned", sorted(hosts), size))
    def started(self, host): self.told.append(("started", host))
    def ended(self, host, is_failure): self.told.append(("ended", host))
    def is_doubted(self, host): return host in self.doubted

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
EARLY = """
words = lambda slot: gloo_run._create_elastic_worker_fn(lambda command, *_: command, "A=1 python train.py", {}, None)(slot, None)
slot = mock.Mock(hostname="w1", local_rank=0)
found = launch.discovery.HostDiscoveryScript("/etc/mpi/discover_hosts.sh", None)
hosts.listed = {"w0": 1}
driver = gloo_run.ElasticDriver(mock.Mock(), found, 1, 4)
started, places, over = [], {}, threading.Event()

def work(slot, events):
    started.append(slot.hostname)
    places[slot.hostname] = driver.arrivals.meet((slot.hostname, slot.local_rank), 20)
    over.wait(20)
    return 0, time.time()

assert "begin" not in words(slot), "nobody knows yet whether the program calls elastic.init"
driver.start(1, work)
until(lambda: "w0" in places)
assert "elastic_worker.warm.begin" in words(slot), words(slot)
hosts.listed = {"w0": 1, "w1": 1}
until(lambda: started == ["w0", "w1"])
until(lambda: driver._host_manager.current_hosts.available_hosts == {"w0", "w1"})
assert list(driver.host_assignments) == ["w0"], "the old world goes on until its workers meet"
assert ("started", "w1") not in hosts.told, "a worker without a rank is not at work"
threading.Thread(target=driver.record_ready, args=("w0", 0), daemon=True).start()
until(lambda: "w1" in places)
assert (places["w1"].rank, places["w1"].size) == (1, 2), places
assert ("started", "w1") in hosts.told and started == ["w0", "w1"]
over.set()
until(lambda: ("ended", "w0") in hosts.told and ("ended", "w1") in hosts.told)
driver.stop()
"""
LOST = """
found, over = launch.discovery.HostDiscoveryScript("/etc/mpi/discover_hosts.sh", None), {"w0": threading.Event(), "w1": threading.Event()}
driver = gloo_run.ElasticDriver(mock.Mock(), found, 1, 4)
handler = gloo_run.create_rendezvous_handler(driver)
ask = lambda scope: handler.__new__(handler)._get_value(scope, "w0:0")
driver.start(2, lambda slot, events: (over[slot.hostname].wait(60), (137 if slot.hostname == "w1" else 0, time.time()))[1])
told = []
threading.Thread(target=lambda: told.append(ask("elastic-losses"))).start()
over["w1"].set()
until(lambda: told)
assert told == [b'{"lost": "worker w1:0 ended with status 137"}'], told
assert ask("rank_and_size").startswith(b"0,1,"), "the world without w1"
ours.MEET_S = 0.0
assert ask("elastic-losses") == b'{"lost": ""}', "that loss is not of this world"
over["w0"].set()
driver.stop()
"""
STILL = """
from horovod.runner.elastic import rendezvous
logged, ended = [], []
ours.installed(hosts, "/etc/mpi/discover_hosts.sh", log=logged.append, still_s=0.4)
driver = gloo_run.ElasticDriver(mock.Mock(), launch.discovery.HostDiscoveryScript("/etc/mpi/discover_hosts.sh", None), 1, 4)

def work(slot, events):
    until(lambda: any(event.is_set() for event in events))
    ended.append(slot.hostname)
    return 1, time.time()

driver.start(2, work)
until(lambda: ("started", "w1") in hosts.told)
time.sleep(0.8)
assert not logged and not ended, "a world that works may take its time"
threading.Thread(target=driver.record_ready, args=("w0", 0), daemon=True).start()
until(lambda: list(driver.host_assignments) == ["w0"])
assert ended == ["w1"], ended
assert logged[0] == "worker w1:0 has stood still for 0 s, and is ended", logged
driver.stop()
"""
DOUBTED = """
over, started = {"w0": threading.Event(), "w1": threading.Event()}, []
driver = gloo_run.ElasticDriver(
    mock.Mock(), launch.discovery.HostDiscoveryScript("/etc/mpi/discover_hosts.sh", None), 1, 4, cooldown_range=(1, 2)
)

def work(slot, events):
    started.append(slot.hostname)
    over[slot.hostname].wait(60)
    return 1, time.time()

driver.start(2, work)
until(lambda: len(started) == 2)
hosts.doubted = {"w1"}
threading.Thread(target=driver.record_ready, args=("w0", 0), daemon=True).start()
over["w1"].set()
until(lambda: list(driver.host_assignments) == ["w0"])
client = mock.Mock()
with mock.patch.object(driver, "get_worker_client", return_value=client):
    until(lambda: driver._host_manager._hosts_state["w1"].is_resurrected())
    until(lambda: "w1" not in driver._host_manager.current_hosts.host_slots)
    assert not client.notify_hosts_updated.called, "the others need not know that the host is not used yet"
    hosts.doubted = set()
    until(lambda: client.notify_hosts_updated.called)
    assert driver._host_manager.current_hosts.available_hosts == {"w0", "w1"}
over["w0"].set()
driver.stop()
"""
REMINDED = """
from horovod.runner.elastic import discovery, driver as theirs
class Listed(discovery.HostDiscovery):
    found = {"w0": 1}
    def find_available_hosts_and_slots(self): return self.found
over, client = threading.Event(), mock.Mock()
one = theirs.ElasticDriver(mock.Mock(), Listed(), 1, 4)
one.start(1, lambda slot, events: (over.wait(60), (1, time.time()))[1])
def listed(**hosts):
    Listed.found = hosts
    until(lambda: one._host_manager.current_hosts.host_slots == hosts)
listed(w0=1, w1=1, localhost=0)  # nobody hears of w1: its rank 0 starts still, and has said nothing of itself
with mock.patch.object(one, "get_worker_client", return_value=client):
    for hosts in ({"w0": 1, "w1": 1, "127.0.0.1": 0}, {"w0": 1, "w1": 1, "localhost": 0}):
        client.reset_mock()
        listed(**hosts)
        until(lambda: client.notify_hosts_updated.called)
        assert client.notify_hosts_updated.call_args[0][1] == HostUpdateResult.mixed, "workers would not synchronise"
    threading.Thread(target=one.record_ready, args=("w0", 0), daemon=True).start()
    until(lambda: sorted(one.host_assignments) == ["w0", "w1"])
    client.reset_mock()
    listed(w0=1, w1=1, **{"127.0.0.1": 0})
    time.sleep(0.5)
    assert not client.notify_hosts_updated.called, "the workers have the list's hosts already"
over.set()
one.stop()
"""
STAMPS = """
from horovod.runner.elastic import driver as theirs
stamps = [theirs._epoch_time_s() for _ in range(5)]
assert stamps == sorted(set(stamps)) and stamps[0] >= int(time.time()) - 1, stamps
"""
SILENT = """
import socket
from horovod.runner.elastic.driver import WorkerNotificationClient
found = launch.discovery.HostDiscoveryScript("/etc/mpi/discover_hosts.sh", None)
hosts.listed, over = {"w0": 1}, threading.Event()
driver = gloo_run.ElasticDriver(mock.Mock(), found, 1, 4)
driver.start(1, lambda slot, events: (over.wait(60), (1, time.time()))[1])
silent = socket.create_server(("127.0.0.1", 0))
with mock.patch.object(WorkerNotificationClient, "_probe", return_value={"lo": [silent.getsockname()]}):
    driver.register_worker_server("w0", 0, {}, b"key")
hosts.listed = {"w0": 1, "w1": 1}
silent.settimeout(20)
connection, _ = silent.accept()
for name in ("w2", "w3"):
    hosts.listed = {**hosts.listed, name: 1}
    until(lambda: name in driver._host_manager.current_hosts.available_hosts)
over.set()
driver.stop()
"""
CROWD = """
import socket
from horovod.runner.http import http_server
server = http_server.RendezvousHTTPServer(("127.0.0.1", 0), http_server.RendezvousHandler, 0)
crowd = [socket.create_connection(server.server_address, timeout=3) for _ in range(64)]
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
from horovod.runner.common.util import env
assert env.is_exportable("TMPDIR_OF_MINE") and not env.is_exportable("TMPDIR"), "a worker would write into its launcher's folder"
"""
SSH = """
import shlex
words = gloo_run.get_remote_command(shlex.quote("cd /tmp; env A='b c' train"), host="w0", port=2222, identity_file="key")
*to, remote = shlex.split(words)
assert to[-5:] == ["w0", "-p", "2222", "-i", "key"], words
assert remote.endswith(") </dev/null >/dev/null 2>&1 & cd /tmp; env A='b c' train"), remote
"""


def in_horovod(tmp_path: Path, program: str) -> None:
    """Run a program by the environment's Python."""
    path = tmp_path / "program.py"
    path.write_text(BEGIN.replace("os.getcwd()", repr(str(ROOT))) + program)
    python = environment("horovod-driver") / "bin" / "python"
    done = subprocess.run([python, path], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_the_driver_says_what_it_does_and_has_workers_synchronise_after_a_removal_too(tmp_path: Path) -> None:
    in_horovod(tmp_path, TELLS)


def test_a_new_hosts_worker_starts_early_and_gets_its_rank_when_the_others_meet(tmp_path: Path) -> None:
    in_horovod(tmp_path, EARLY)


def test_a_worker_hears_of_the_end_of_another_one_once_and_only_in_their_world(tmp_path: Path) -> None:
    in_horovod(tmp_path, LOST)


def test_a_worker_that_stands_still_while_the_others_wait_for_it_is_ended(tmp_path: Path) -> None:
    """A worker was stopped by SIGSTOP. The others noticed after gloo's timeout, and then Horovod's driver waited for it for ever."""
    in_horovod(tmp_path, STILL)


def test_a_host_whose_worker_failed_is_used_again_only_once_it_was_reached(tmp_path: Path) -> None:
    """A pod was killed. Horovod used its host again three seconds later, and all others waited there for a worker that could not start."""
    in_horovod(tmp_path, DOUBTED)


def test_a_line_without_slots_reminds_a_driver_without_our_library_of_a_host_its_workers_did_not_hear_of(tmp_path: Path) -> None:
    """It starts no worker there, and has no worker notified that has all hosts of the list."""
    in_horovod(tmp_path, REMINDED)


def test_two_changes_in_one_second_have_two_times(tmp_path: Path) -> None:
    in_horovod(tmp_path, STAMPS)


def test_the_driver_goes_on_while_a_worker_does_not_answer(tmp_path: Path) -> None:
    """A host that vanishes answers nobody, and Horovod's driver waited for its rank 0 with its lock held."""
    in_horovod(tmp_path, SILENT)


def test_workers_that_ask_all_at_once_are_all_heard(tmp_path: Path) -> None:
    """Horovod's server queues five connections; the kernel drops further ones, and they come again after seconds."""
    in_horovod(tmp_path, CROWD)


def test_a_script_of_the_users_own_is_run_as_ever(tmp_path: Path) -> None:
    in_horovod(tmp_path, LEAVES_ALONE)


def test_new_hosts_are_reached_as_horovodrun_reaches_them_and_over_ssh_a_watcher_runs_next_to_each_worker(tmp_path: Path) -> None:
    in_horovod(tmp_path, SSH + REMOTE)


@pytest.mark.parametrize("ends_when_told", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_worker_started_by_ssh_ends_when_the_connection_does(tmp_path: Path, ends_when_told: bool) -> None:
    """The connection is a shell here, which starts the command as sshd does: leader of its own group."""
    refuses, note = "" if ends_when_told else 'trap "" TERM; ', tmp_path / "pid"
    command = orphans.watched(shlex.quote(f"sh -c '{refuses}echo $$ >{note}; while :; do sleep 0.1; done'"))
    connection = subprocess.Popen(["sh", "-c", f"setsid sh -c {command} & wait"])
    wait_until(lambda: note.exists() and note.read_text().endswith("\n"), what="the worker runs", patience_s=30)
    worker = int(note.read_text())
    connection.kill()
    connection.wait()
    wait_until(lambda: not alive([worker]), what="the worker has ended", patience_s=60)


def test_the_watcher_ends_with_its_worker(tmp_path: Path) -> None:
    command = orphans.watched(shlex.quote(f"echo $$ >{tmp_path / 'pid'}; exit 3"))
    done = subprocess.run(["sh", "-c", f"setsid --wait sh -c {command}"], timeout=30)
    assert done.returncode == 3
    group = int((tmp_path / "pid").read_text())
    wait_until(lambda: not is_group(group), what="nothing is left", patience_s=30)


def is_group(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
