"""Check the program that runs before horovodrun in the launcher of an elastic MPIJob: its flags, reports and limits."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elastic.membership.hosts import LauncherReport
from elastic_training.rendezvous.launcher_delivery import WRAPPER, commits_folder, deliver, deliver_to_worker, library_folder, runs_horovod
from elastic_worker.horovod import flags, run
from elastic_worker.horovod.hosts import Hosts
from elastic_worker.horovod.reach import by_command
from elastic_worker.horovod.server import Answer, Host, Unavailable, _answer
from elastic_worker.startup.deliver import deliver as copy_library

DISCOVERS = "--host-discovery-script=/etc/mpi/discover_hosts.sh"
ADDED = ["--network-interface", "eth0", "--blacklist-cooldown-range", "1", "60", "--gloo-timeout-seconds", "60"]


def test_elastic_training_in_pods_gets_the_flags_without_which_it_does_not_survive() -> None:
    assert flags.completed([DISCOVERS, "python", "train.py"], {}, "eth0") == [*ADDED, DISCOVERS, "python", "train.py"]


@pytest.mark.parametrize(
    ("own", "kept"),
    [
        (["--network-interfaces=net1"], ADDED[2:]),
        (["--blacklist-cooldown-range", "5", "20"], [*ADDED[:2], *ADDED[5:]]),
        (["--gloo-timeout-seconds=5"], ADDED[:5]),
        (["--config-file", "own.yaml"], []),
    ],
)
def test_the_users_own_flags_stand(own: list[str], kept: list[str]) -> None:
    assert flags.completed([DISCOVERS, *own], {}, "eth0") == [*kept, DISCOVERS, *own]


def test_the_users_own_variable_and_a_launcher_without_that_interface_stand_too() -> None:
    assert flags.completed([DISCOVERS], {"HOROVOD_GLOO_TIMEOUT_SECONDS": "5"}, "") == [*ADDED[2:5], DISCOVERS]


def test_a_static_run_gets_no_flags() -> None:
    assert flags.completed(["-np", "2", "python", "train.py"], {}, "eth0") == ["-np", "2", "python", "train.py"]


@pytest.mark.parametrize(
    ("words", "environ", "wanted"),
    [
        ([], {}, 60.0),
        (["--gloo-timeout-seconds", "10"], {}, 60.0),
        (["--gloo-timeout-seconds", "600"], {}, 600.0),
        (["--gloo-timeout-seconds=90", "python"], {"HOROVOD_GLOO_TIMEOUT_SECONDS": "600"}, 90.0),
        ([], {"HOROVOD_GLOO_TIMEOUT_SECONDS": "120"}, 120.0),
        (["--gloo-timeout-seconds"], {}, 60.0),
        (["--config-file", "own.yaml"], {}, float("inf")),
    ],
)
def test_a_worker_may_stand_still_for_as_long_as_a_new_one_may_start(words: list[str], environ: dict[str, str], wanted: float) -> None:
    assert flags.still_s([DISCOVERS, *words], environ) == wanted


class Served:
    """Answers as a server would, and keeps the reports."""

    def __init__(self) -> None:
        self.reports: list[Mapping[str, Any]] = []
        self.answer: Answer | None = None
        self._changed = threading.Condition()

    def give(self, *hosts: Host, error: str = "") -> None:
        with self._changed:
            number = int(self.answer.version) + 1 if self.answer else 1
            self.answer = Answer(str(number), list(hosts), error)
            self._changed.notify_all()

    def read(self, after: str = "") -> Answer:
        with self._changed:
            self._changed.wait_for(lambda: self.answer is not None and self.answer.version != after, timeout=2)
            if self.answer is None:
                raise Unavailable("the server is away")
            return self.answer

    def report(self, report: Mapping[str, Any]) -> Answer:
        self.reports.append(report)
        return self.read()


def host(name: str, *, listed: bool = True, unproven: bool = False) -> Host:
    return Host(name, f"uid-{name}", 2, listed, unproven)


def until(claim: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def started(served: Served, *, first_list_s: float = 20.0, command: Callable[[str], str] = lambda name: "true") -> Hosts:
    hosts = Hosts(lambda: served, by_command(command), lambda: {"fallen-back": 1}, lambda text: None, first_list_s)
    hosts.start()
    return hosts


def test_the_driver_gets_the_newest_list_and_never_an_empty_one_for_trouble() -> None:
    served = Served()
    hosts = started(served)
    served.give(host("w0"), host("w1", listed=False))
    assert hosts.find_available_hosts_and_slots() == {"w0": 2}
    served.give(host("w0"), host("w1"))
    until(lambda: hosts.find_available_hosts_and_slots() == {"w0": 2, "w1": 2})
    served.give(host("w0", listed=False), error="no host can be listed yet")
    served.give(host("w0", listed=False), error="no host can be listed yet")
    time.sleep(0.1)
    assert hosts.find_available_hosts_and_slots() == {"w0": 2, "w1": 2}


def test_without_a_first_list_the_script_is_asked_until_there_is_one() -> None:
    served = Served()
    hosts = started(served, first_list_s=0.1)
    assert hosts.find_available_hosts_and_slots() == {"fallen-back": 1}
    served.give(host("w0"))
    until(lambda: hosts.find_available_hosts_and_slots() == {"w0": 2})


def test_the_acts_of_the_driver_are_reported_as_a_whole(tmp_path: Path) -> None:
    served = Served()
    served.give(host("w0", listed=False, unproven=True))
    noted = tmp_path / "noted"
    hosts = started(served, command=lambda name: f"echo {name} >>{noted}")
    until(lambda: bool(served.reports) and served.reports[-1]["proven"] == ["uid-w0"])
    assert noted.read_text() == "w0\n"
    hosts.assigned(["w0"], 2)
    hosts.started("w0")
    hosts.started("w0")
    hosts.ended("w0")
    expected = {"assigned": ["w0"], "working": ["w0"], "assignment": 1, "size": 2, "proven": ["uid-w0"]}
    until(lambda: {key: served.reports[-1][key] for key in expected} == expected)
    hosts.ended("w0")
    until(lambda: served.reports[-1]["working"] == [])
    assert len({report["launcher"] for report in served.reports}) == 1


def test_a_host_that_cannot_be_reached_is_tried_again_and_not_called_proven(tmp_path: Path) -> None:
    served, noted = Served(), tmp_path / "noted"
    served.give(host("w0", listed=False, unproven=True))
    started(served, command=lambda name: f"echo {name} >>{noted}; false")
    until(noted.exists)

    def is_tried_again() -> bool:
        served.give(host("w0", listed=False, unproven=True))
        return noted.read_text().count("w0") >= 2

    until(is_tried_again)
    assert all(report["proven"] == [] for report in served.reports)


def test_a_host_whose_worker_failed_is_doubted_until_a_command_was_run_there_again(tmp_path: Path) -> None:
    served, here, tried = Served(), tmp_path / "here", tmp_path / "tried"
    here.touch()
    served.give(host("w0", unproven=True), host("w1", unproven=True))
    hosts = started(served, command=lambda name: f"echo {name} >>{tried}; test -e {here}")
    until(lambda: bool(served.reports) and served.reports[-1]["proven"] == ["uid-w0", "uid-w1"])
    for name in ("w0", "w1"):
        hosts.started(name)
    here.unlink()
    hosts.ended("w0", is_failure=True)
    hosts.ended("w1", is_failure=False)
    assert (hosts.is_doubted("w0"), hosts.is_doubted("w1"), hosts.is_doubted("unknown")) == (True, False, False)
    before = tried.read_text().count("w0")
    until(lambda: tried.read_text().count("w0") >= before + 2)
    assert hosts.is_doubted("w0"), "it was tried again, and could not be reached"
    here.touch()
    until(lambda: not hosts.is_doubted("w0"))


def test_another_pod_of_the_same_name_is_not_doubted() -> None:
    served = Served()
    served.give(host("w0"))
    hosts = started(served, command=lambda name: "false")
    assert hosts.find_available_hosts_and_slots() == {"w0": 2}
    hosts.started("w0")
    hosts.ended("w0", is_failure=True)
    assert hosts.is_doubted("w0")
    served.give(host("w0")._replace(uid="another"))
    until(lambda: not hosts.is_doubted("w0"))


@pytest.mark.parametrize("text", [b"", b"[]", b"5", b'{"hosts": 1}', b'{"hosts": [{"name": 5}], "version": "v"}', b'{"error": "no"}'])
def test_an_answer_that_cannot_be_read_is_told_as_such(text: bytes) -> None:
    with pytest.raises(Unavailable):
        _answer(503, text)


def test_a_name_that_a_shell_would_misread_is_left_out() -> None:
    fields = b'"uid": "u", "slots": 1, "listed": true, "unproven": false'
    text = b'{"version": "v", "hosts": [{"name": "w0;reboot", ' + fields + b'}, {"name": "w1", ' + fields + b"}]}"
    assert [found.name for found in _answer(200, text).hosts] == ["w1"]


class Image:
    """A launcher's container with the library, and a horovodrun that says how it was called."""

    def __init__(self, folder: Path) -> None:
        self.library, self.bin = folder / "library", folder / "bin"
        copy_library(str(self.library))
        (self.library / "elastic_worker/horovod/run.py").write_text("import os, sys; print('ours', sys.argv[1:], os.environ['PATH'])\n")
        self.bin.mkdir()
        self.put("horovodrun", f"#!{sys.executable}\nimport os, sys; print('plain', sys.argv[1:], os.environ['PATH'])\n")

    def put(self, name: str, text: str) -> Path:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)
        return self.bin / name

    def run(self, *command: str) -> str:
        environment = {"PATH": f"{self.bin}:/usr/bin:/bin", "ELASTIC_LIBRARY": str(self.library)}
        done = subprocess.run(["/bin/sh", "-c", WRAPPER, "elastic", *command], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


def test_horovodrun_is_ours_however_the_command_calls_it_and_path_is_the_users_again(image: Image) -> None:
    path = f"{image.bin}:/usr/bin:/bin"
    assert image.run("horovodrun", "-np", "1") == f"ours ['-np', '1'] {path}"
    assert image.run(str(image.bin / "horovodrun"), "-np", "1") == f"ours ['-np', '1'] {path}"
    assert image.run("sh", "-c", "horovodrun -np 1") == f"ours ['-np', '1'] {path}"


def test_anything_else_is_left_alone(image: Image) -> None:
    assert image.run("echo", "mpirun") == "mpirun"


def test_an_interpreter_that_is_too_old_for_us_runs_horovodrun_as_it_is(image: Image) -> None:
    old = image.put("old-python", f'#!/bin/sh\n[ "$1" = -c ] && exit 1\nexec {sys.executable} "$@"\n')
    image.put("horovodrun", f"#!{old}\nimport sys; print('plain', sys.argv[1:])\n")
    assert image.run("horovodrun", "-np", "1").startswith("plain")


def test_the_launcher_keeps_what_the_user_wrote_and_one_without_a_command_stays_as_it_is() -> None:
    spec: dict[str, Any] = {"containers": [{"name": "mpi", "command": ["horovodrun"], "args": ["-np", "1"], "env": [{"name": "A"}]}]}
    deliver(spec, job_uid="0d9f", image="elastic:1", hosts_url="https://rdzv:8443/v1/jobs/0d9f/hosts")
    first = spec["containers"][0]
    assert (first["command"][-1], first["args"]) == ("horovodrun", ["-np", "1"])
    assert [entry["name"] for entry in first["env"]] == ["A", "ELASTIC_LIBRARY", "ELASTIC_HOSTS_URL", "ELASTIC_COMMITS"]
    folder = "/tmp/elastic-0d9f-horovod"
    assert spec["initContainers"][0]["command"][-1] == folder == first["volumeMounts"][0]["mountPath"]
    plain: dict[str, Any] = {"containers": [{"name": "mpi", "args": ["horovodrun"]}]}
    before = repr(plain)
    deliver(plain, job_uid="0d9f", image="elastic:1", hosts_url="u")
    assert repr(plain) == before


def test_the_programs_right_to_be_run_does_not_depend_on_how_the_package_came(image: Image) -> None:
    assert os.access(image.library / "bin/horovodrun", os.X_OK)


def test_workers_get_the_library_if_the_launcher_gives_it_and_keep_their_commits_in_the_pod() -> None:
    spec: dict[str, Any] = {"containers": [{"name": "mpi", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}
    deliver_to_worker(spec, job_uid="0d9f", image="elastic:1")
    mounts = {mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    assert mounts == {"/data", library_folder("0d9f"), commits_folder("0d9f")}
    assert spec["initContainers"][0]["command"][-1] == library_folder("0d9f")


@pytest.mark.parametrize(
    ("container", "runs"),
    [
        ({"command": ["horovodrun"]}, True),
        ({"command": ["/bin/sh", "-c"], "args": ["exec horovodrun -np 1 python train.py"]}, True),
        ({"command": ["mpirun"], "args": ["python"]}, False),
        ({}, False),
    ],
)
def test_only_a_launcher_that_names_horovodrun_has_workers_with_the_library(container: dict[str, Any], runs: bool) -> None:
    assert runs_horovod({"containers": [container]}) is runs


def test_a_host_with_ranks_whose_pod_has_ended_is_lost() -> None:
    served = Served()
    served.give(host("w0"), host("w1"), host("w2"))
    hosts = started(served)
    until(lambda: len(hosts.find_available_hosts_and_slots()) == 3)
    hosts.assigned(["w0", "w1"], 2)
    served.give(host("w0"))
    assert hosts.lost() == ["w1"], "w2 had no ranks"


def test_horovodrun_is_started_again_once_after_the_loss_of_a_host() -> None:
    failed = RuntimeError("rc 1")
    assert run.may_start_again(failed, ["w1"], {})
    assert run.may_start_again(SystemExit(1), ["w1"], {})
    assert not run.may_start_again(failed, [], {}), "the program's own failure"
    assert not run.may_start_again(SystemExit(0), ["w1"], {})
    assert not run.may_start_again(KeyboardInterrupt(), ["w1"], {})
    assert not run.may_start_again(failed, ["w1"], {run.STARTED_AGAIN_AT: str(int(time.time()) - 5)}), "soon after the last time"
    assert run.may_start_again(failed, ["w1"], {run.STARTED_AGAIN_AT: str(int(time.time()) - 500)})


def test_a_checkpoint_is_asked_for_while_a_host_with_ranks_leaves() -> None:
    served = Served()
    served.give(host("w0"), host("w1"))
    hosts = started(served)
    until(lambda: len(hosts.find_available_hosts_and_slots()) == 2)
    hosts.assigned(["w0"], 1)
    served.give(host("w0"), host("w1")._replace(leaving=True))
    until(lambda: "w1" in hosts._leaving)
    assert not hosts.is_checkpoint_asked()
    served.give(host("w0")._replace(leaving=True), host("w1"))
    until(hosts.is_checkpoint_asked)


def test_progress_goes_with_the_next_report() -> None:
    served = Served()
    served.give(host("w0"))
    hosts = started(served)
    hosts.progress({"step": 7, "values": {"loss": 0.5}, "other": 1})
    hosts.assigned(["w0"], 1)
    until(lambda: served.reports[-1].get("step") == 7)
    assert served.reports[-1]["values"] == {"loss": 0.5}
    assert "other" not in served.reports[-1]


@pytest.mark.parametrize("bad", [None, [], {}, {"step": -1}, {"step": "7"}, {"step": 2**60}, {"values": {"loss": 1}}])
def test_progress_that_the_server_would_refuse_is_left_out(bad: object) -> None:
    hosts = Hosts(Served, by_command(str), dict, print)
    hosts.progress({"step": 3})
    hosts.progress(bad)
    assert hosts._report()["step"] == 3
    hosts.progress({"step": 4, "values": {"nan": float("nan"), "text": "x", "n" * 65: 1.0, **{str(n): n for n in range(50)}}})
    assert sorted(hosts._report()["values"].values()) == [float(n) for n in range(32)]
    msgspec.convert(hosts._report(), LauncherReport)


def test_workers_find_the_library_behind_the_users_own_path() -> None:
    found = run.for_workers("https://h:1/v1/jobs/0d9f/hosts", {"PYTHONPATH": "/mine"})
    assert found["ELASTIC_JOB_UID"] == "0d9f"
    bootstrap, mine, library = found["PYTHONPATH"].split(":")
    assert os.listdir(bootstrap)
    assert not {name for name in os.listdir(bootstrap) if not name.startswith(("sitecustomize.", "__"))}
    assert mine == "/mine"
    assert (Path(library) / "elastic_worker").is_dir()
    assert run.for_workers("https://h:1/v1/jobs/0d9f/hosts", found)["PYTHONPATH"] == found["PYTHONPATH"]


def test_a_timeout_that_may_be_the_users_own_is_left_alone() -> None:
    assert not flags.has_own_timeout(["-np", "1"], {})
    assert flags.has_own_timeout(["--gloo-timeout-seconds=5"], {})
    assert flags.has_own_timeout(["--config-file", "f"], {})
    assert flags.has_own_timeout([], {"HOROVOD_GLOO_TIMEOUT_SECONDS": "5"})
