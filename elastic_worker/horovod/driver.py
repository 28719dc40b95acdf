"""Puts our list of hosts into horovodrun's elastic driver. The only module that knows Horovod's insides, of 0.28."""

import types
import typing

POLL_S = 0.2


def installed(hosts: typing.Any, script: str) -> None:
    """Make horovodrun take its hosts from `hosts` wherever it would run this script, and say there what its driver does."""
    from horovod.runner import gloo_run, launch
    from horovod.runner.elastic import discovery, driver
    from horovod.runner.elastic.worker import HostUpdateResult

    class ServedHosts(discovery.HostDiscovery):  # type: ignore[misc]
        def find_available_hosts_and_slots(self) -> typing.Dict[str, int]:
            return dict(hosts.find_available_hosts_and_slots())

    def chosen(given: str, slots: typing.Optional[int]) -> typing.Any:
        return ServedHosts() if given == script else discovery.HostDiscoveryScript(given, slots)

    class Driver(driver.ElasticDriver):  # type: ignore[misc]
        """Says what it does, and has workers synchronise after every change: those that were told of a removal only would not, and a host
        that joins at the same time would wait for them for ever (Horovod's issue 3494)."""

        def _notify_workers_host_changes(self, current_hosts: typing.Any, update_res: typing.Any) -> None:
            super()._notify_workers_host_changes(current_hosts, HostUpdateResult.mixed)

        def _update_host_assignments(self, current_hosts: typing.Any) -> typing.Any:
            pending = super()._update_host_assignments(current_hosts)
            hosts.assigned(self.host_assignments, self.world_size())
            return pending

        def _start_worker_process(self, slot_info: typing.Any) -> None:
            hosts.started(slot_info.hostname)
            super()._start_worker_process(slot_info)

        def _handle_worker_exit(self, slot_info: typing.Any, exit_code: int, timestamp: float) -> None:
            hosts.ended(slot_info.hostname)
            super()._handle_worker_exit(slot_info, exit_code, timestamp)

    # In the launcher's view only: the class finds itself by its name in its own module.
    launch.discovery = types.SimpleNamespace(HostDiscoveryScript=chosen, FixedHosts=discovery.FixedHosts)
    driver.DISCOVER_HOSTS_FREQUENCY_SECS = POLL_S
    gloo_run.ElasticDriver = Driver


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
    """The shell command that runs `true` in a host, as horovodrun with these arguments (sys.argv) starts workers there."""
    from horovod.runner.launch import parse_args
    from horovod.runner.util.remote import get_remote_command

    given = parse_args()

    def command(host: str) -> str:
        return str(get_remote_command("true", host, given.ssh_port, given.ssh_identity_file))

    return command
