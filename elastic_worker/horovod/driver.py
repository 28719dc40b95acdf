"""Put our list of hosts into horovodrun's elastic driver. In the launcher, only this module knows the insides of Horovod 0.28."""

import json
import logging
import math
import os
import re
import shlex
import threading
import time
import types
import typing

from elastic_worker.horovod import joining, orphans, progress, watch
from elastic_worker.horovod.arrivals import Arrivals, Place, Slot, WorldLost
from elastic_worker.horovod.losses import Losses
from elastic_worker.warm import begin

POLL_S = 0.05
REMIND_S = 2.0
MEET_S = 20.0
MOST_CONNECTING = 1024
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


def installed(
    hosts: typing.Any,
    script: str,
    timeout_s: typing.Optional[int] = None,
    log: typing.Callable[[str], None] = logging.info,
    still_s: float = math.inf,
) -> None:
    """Make horovodrun take its hosts from `hosts` wherever it would run this script, and report there what its driver does.

    `timeout_s` is gloo's for workers with our library, if the user has set none. `still_s` is how long the workers that have left a world
    wait for one that has not, before that one is ended.
    """
    from horovod.runner import gloo_run, launch
    from horovod.runner.common.util import env
    from horovod.runner.elastic import discovery, driver, rendezvous
    from horovod.runner.elastic.worker import HostUpdateResult
    from horovod.runner.http import http_server

    make_handler, remote_command = gloo_run.create_rendezvous_handler, gloo_run.get_remote_command
    make_worker = gloo_run._create_elastic_worker_fn
    drivers: typing.List[typing.Any] = []

    class Driver(driver.ElasticDriver):  # type: ignore[misc]
        """Report changes, let Arrivals start workers early, and make workers synchronise after every change.

        Workers that hear only of a removal would not synchronise. A host that joins at the same time would wait for them for ever
        (Horovod's issue 3494).
        """

        def __init__(self, server: typing.Any, discovery: typing.Any, *args: typing.Any, **kwargs: typing.Any) -> None:
            self.early = EarlyWorkers(self)
            self.arrivals = Arrivals(self.early)
            self.losses = Losses(log)
            self._reminded_at = 0.0
            self._round, self._begun_at = 0, time.monotonic()
            self._stops: typing.Dict[Slot, threading.Event] = {}
            drivers.append(self)
            if isinstance(discovery, ServedHosts):
                discovery.driver = self
            super().__init__(server, discovery, *args, **kwargs)

        def offered(self, listed: typing.Mapping[str, int]) -> typing.Dict[str, int]:
            """Return the hosts for the driver, and notify workers again: they lose a notification that comes while they meet."""
            self._end_still()
            if self.host_assignments and time.monotonic() >= self._reminded_at + REMIND_S:
                self._notify_workers_host_changes(self._host_manager.current_hosts, HostUpdateResult.mixed)
            return {host: slots for host, slots in self.arrivals.offered(listed).items() if not self._is_in_doubt(host)}

        def _end_still(self) -> None:
            """End the workers that stand still: Horovod's driver waits without a limit until each worker of a world has left it."""
            registry, now = self._worker_registry, time.monotonic()
            left, number = set(registry.get_recorded_slots()), registry.last_rendezvous()
            if not left or number != self._round:
                self._round, self._begun_at = number, now
            elif now >= self._begun_at + still_s:
                self._begun_at = now
                for info in [info for infos in list(self.host_assignments.values()) for info in infos]:
                    slot = (info.hostname, info.local_rank)
                    if slot not in left:
                        log("worker {}:{} has stood still for {:.0f} s, and is ended".format(*slot, still_s))
                        (self._stops.get(slot) or self._host_manager.get_host_event(info.hostname)).set()

        def _is_in_doubt(self, host: str) -> bool:
            """Return whether the driver would use a host again whose worker has failed, and nothing shows that it is still there.

            Its other workers would wait until gloo's timeout and end. Arrivals has its own way: it starts the new worker first.
            """
            is_due = self._host_manager._hosts_state[host].is_resurrected()
            return bool(is_due and not self.arrivals.is_used and hosts.is_doubted(host))

        def _notify_workers_host_changes(self, current_hosts: typing.Any, update_res: typing.Any) -> None:
            self._reminded_at = time.monotonic()
            super()._notify_workers_host_changes(current_hosts, HostUpdateResult.mixed)

        def _update_host_assignments(self, current_hosts: typing.Any) -> typing.Any:
            pending = super()._update_host_assignments(current_hosts)
            hosts.assigned(self.host_assignments, self.world_size())
            self.arrivals.assigned()
            self.losses.assigned()
            return pending

        def _start_worker_process(self, slot_info: typing.Any) -> None:
            slot = (slot_info.hostname, slot_info.local_rank)
            hosts.started(slot_info.hostname)
            self.losses.started(slot, slot_info)
            if not self.arrivals.given_rank(slot):
                super()._start_worker_process(slot_info)
                return
            worker = self.early.taken(slot)
            self._stops[slot] = worker.stop
            thread = threading.Thread(target=lambda: self._handle_worker_exit(slot_info, *worker.end()), daemon=True)
            thread.start()
            self._results.expect(thread)

        def _handle_worker_exit(self, slot_info: typing.Any, exit_code: int, timestamp: float) -> None:
            slot = (slot_info.hostname, slot_info.local_rank)
            self.losses.ended(slot, slot_info, exit_code)
            self.arrivals.ended(slot, is_failure=exit_code != 0)
            hosts.ended(slot_info.hostname, exit_code != 0)
            self._stops.pop(slot, None)
            super()._handle_worker_exit(slot_info, exit_code, timestamp)

    class Client(driver.WorkerNotificationClient):  # type: ignore[misc]
        """Notifies a worker in a thread.

        Horovod does so with the driver's lock held and without a time limit, so that a worker whose host has vanished would stop the driver
        for minutes.
        """

        def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None:
            self._is_sending = threading.Lock()
            super().__init__(*args, **kwargs)

        def notify_hosts_updated(self, timestamp: int, update_res: typing.Any) -> None:
            """Send the notification, unless one is being sent. The driver repeats it until workers have met."""
            if self._is_sending.acquire(blocking=False):
                threading.Thread(target=self._send_update, args=(timestamp, update_res), daemon=True).start()

        def _send_update(self, timestamp: int, update_res: typing.Any) -> None:
            try:
                super().notify_hosts_updated(timestamp, update_res)
            except Exception:  # Horovod's messages may raise anything; a worker that is lost is replaced anyway
                pass
            finally:
                self._is_sending.release()

    class ServedHosts(discovery.HostDiscovery):  # type: ignore[misc]
        driver: typing.Optional[Driver] = None

        def find_available_hosts_and_slots(self) -> typing.Dict[str, int]:
            listed = hosts.find_available_hosts_and_slots()
            return self.driver.offered(listed) if self.driver is not None else dict(listed)

    def chosen(given: str, slots: typing.Optional[int]) -> typing.Any:
        return ServedHosts() if given == script else discovery.HostDiscoveryScript(given, slots)

    def handler(of: typing.Any) -> typing.Any:
        class Handler(make_handler(of)):  # type: ignore[misc]
            def _get_value(self, scope: str, key: str) -> typing.Any:
                if scope == joining.SCOPE:
                    return json.dumps(_answer(of.arrivals, _slot(key), timeout_s)).encode()
                if scope == watch.SCOPE:
                    return json.dumps({"lost": of.losses.wait(_slot(key), MEET_S)}).encode()
                if scope == progress.SCOPE:
                    return json.dumps({"checkpoint": hosts.is_checkpoint_asked()}).encode()
                found = super()._get_value(scope, key)
                if scope == rendezvous.GET_RANK_AND_SIZE:
                    of.losses.ranked(_slot(key), has_rank=not found.startswith(b"-"))
                return found

            def _put_value(self, scope: str, key: str, value: bytes) -> None:
                if scope == progress.SCOPE:
                    hosts.progress(json.loads(value))
                else:
                    super()._put_value(scope, key, value)

        return Handler

    def worker(execute: typing.Any, run_command: str, *others: typing.Any) -> typing.Any:
        """Return what starts workers. Workers of a program that uses our library start with few garbage collections."""
        plain, quick = (make_worker(execute, words, *others) for words in (run_command, quickly(run_command)))
        return lambda *to: (quick if drivers[-1].arrivals.is_used else plain)(*to)

    def by_ssh(command: str, **to: typing.Any) -> str:
        return str(remote_command(orphans.watched(command), **to))

    # In the launcher's view only: the class finds itself by its name in its own module.
    launch.discovery = types.SimpleNamespace(HostDiscoveryScript=chosen, FixedHosts=discovery.FixedHosts)
    driver.DISCOVER_HOSTS_FREQUENCY_SECS = POLL_S
    driver._epoch_time_s = Stamps()
    driver.WorkerNotificationClient = Client
    # Workers that meet ask all at once. From a full queue (of 5) the kernel drops connections, and they come again after 1 to 3 s.
    http_server.RendezvousHTTPServer.request_queue_size = MOST_CONNECTING
    gloo_run.ElasticDriver = Driver
    gloo_run.create_rendezvous_handler = handler
    gloo_run._create_elastic_worker_fn = worker
    # Each pod has its own folder for temporary files: commits of a worker that are kept in the launcher's would go with the launcher.
    env.IGNORE_REGEXES.add("TMPDIR$")
    if not is_by_remote_shell():
        gloo_run.get_remote_command = by_ssh


def quickly(run_command: str) -> str:
    """Horovodrun's command for a worker, variables first, such that a Python program gets to `elastic.init` sooner."""
    words = shlex.split(run_command)
    first = next((number for number, word in enumerate(words) if not VARIABLE.match(word)), len(words))
    library = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    begun = begin.command(words[first:], library)
    return shlex.join([*words[:first], *begun]) if begun != words[first:] else run_command


def _slot(key: str) -> Slot:
    host, _, number = key.partition(":")
    return host, int(number)


def _answer(arrivals: Arrivals, slot: Slot, timeout_s: typing.Optional[int]) -> typing.Dict[str, typing.Any]:
    """Return the answer to a worker that asks for its place; empty if it has none yet."""
    try:
        place = arrivals.meet(slot, MEET_S)
    except WorldLost as error:
        return {"error": str(error)}
    return {**place._asdict(), "timeout_s": timeout_s} if place is not None else {}


class Stamps:
    """Times in whole seconds, each of them later than the one before: workers ignore a second change with the same time."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self) -> int:
        self._last = max(int(time.time()), self._last + 1)
        return self._last


class EarlyWorkers:
    """The driver, as Arrivals sees it: starts and ends workers that have no rank yet."""

    def __init__(self, driver: typing.Any) -> None:
        self._driver = driver
        self._workers: typing.Dict[Slot, EarlyWorker] = {}

    def is_assigned(self, host: str) -> bool:
        return host in self._driver.host_assignments

    def place(self, slot: Slot) -> typing.Optional[Place]:
        if not self._driver.has_rank_assignment(*slot):
            return None
        info = self._driver.get_slot_info(*slot)
        return Place(info.rank, info.size, info.local_rank, info.local_size, info.cross_rank, info.cross_size)

    def start(self, slot: Slot) -> None:
        """Start a worker. The rank in its variables is only for the prefix of its lines."""
        from horovod.runner.common.util.hosts import SlotInfo

        host, number = slot
        rank = self._driver.world_size() + number
        worker = self._workers[slot] = EarlyWorker()
        info = SlotInfo(hostname=host, rank=rank, local_rank=number, cross_rank=0, size=rank + 1, local_size=number + 1, cross_size=1)

        def work() -> None:
            code, ended_at = self._driver._create_worker_fn(info, [self._driver._shutdown, worker.stop])
            if not worker.has_ended(code, ended_at):
                self._driver.arrivals.ended(slot, is_failure=True)

        threading.Thread(target=work, daemon=True).start()

    def stop(self, slot: Slot) -> None:
        self._workers[slot].stop.set()

    def assign_anew(self, slot: Slot) -> None:
        """Treat the worker as one of the former world: the driver assigns ranks once all workers of that world are ready or lost."""
        threading.Thread(target=self._driver.record_ready, args=slot, daemon=True).start()

    def taken(self, slot: Slot) -> "EarlyWorker":
        """Make it one of the driver's workers."""
        worker = self._workers.pop(slot)
        worker.is_taken = True
        return worker


class EarlyWorker:
    """A worker's process. Once it is taken, its end is heard through `end`."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self._changed = threading.Condition()
        self._end: typing.Optional[typing.Tuple[int, float]] = None
        self.is_taken = False

    def has_ended(self, exit_code: int, at: float) -> bool:
        with self._changed:
            self._end = exit_code, at
            self._changed.notify_all()
            return self.is_taken

    def end(self) -> typing.Tuple[int, float]:
        """Wait for the end of the process and return its exit code and time."""
        with self._changed:
            self._changed.wait_for(lambda: self._end is not None)
            assert self._end is not None
            return self._end


def run() -> None:
    """Be horovodrun, with the arguments in sys.argv."""
    from horovod.runner.launch import run_commandline

    run_commandline()


def by_script(script: str) -> typing.Callable[[], typing.Dict[str, int]]:
    """Horovod's own discovery: runs the script at each call."""
    from horovod.runner.elastic.discovery import HostDiscoveryScript

    found: typing.Callable[[], typing.Dict[str, int]] = HostDiscoveryScript(script, None).find_available_hosts_and_slots
    return found


def remote_true() -> typing.Callable[[str], str]:
    """Return what gives the shell command that runs `true` in a host, as horovodrun with sys.argv starts workers there."""
    from horovod.runner.launch import parse_args
    from horovod.runner.util.remote import get_remote_command

    given = parse_args()

    def command(host: str) -> str:
        return str(get_remote_command("true", host, given.ssh_port, given.ssh_identity_file))

    return command


def is_by_remote_shell() -> bool:
    """Tell whether horovodrun starts workers by /etc/mpi/kubexec.sh, or else by ssh."""
    from horovod.runner.common.util import env

    return bool(env.is_kubeflow_mpi())
