"""Run `true` in a host in the way in which horovodrun would start a worker there.

If the launcher's remote shell is the controller's own script with our `kubectl`, this process asks the API server itself. Otherwise it
uses the shell command that horovodrun would use. The direct way saves a Python interpreter for each new host, whose start takes most of a
second on a busy machine.
"""

import json
import os
import re
import select
import signal
import subprocess
import time
import typing

from elastic_worker.mpi import kubectl

REMOTE_SHELL = "/etc/mpi/kubexec.sh"
CLIENT = "/opt/kube/kubectl"
CALL = re.compile(
    r'^(?:exec )?{} exec \$\{{POD_NAME\}}(?: --container ([a-z0-9-]+))? -- /bin/sh -c "\$\*"$'.format(re.escape(CLIENT)), re.M
)
WITHIN_S = 20.0

Reach = typing.Callable[[str], bool]


def by_command(command: typing.Callable[[str], str]) -> Reach:
    """Return a Reach that runs the shell command that `command` gives for a host."""
    return lambda host: _ends_well(command(host))


def by_exec(environ: typing.Mapping[str, str], script: str = REMOTE_SHELL, client: str = CLIENT) -> typing.Optional[Reach]:
    """Return a Reach that goes through the API server, or None if horovodrun would go another way."""
    try:
        with open(script, encoding="utf-8") as file:
            call = CALL.search(file.read())
        with open(client, encoding="utf-8") as file, open(os.path.abspath(kubectl.__file__), encoding="utf-8") as own:
            is_ours = own.read() in file.read()
        if call is None or not is_ours:
            return None
        api = kubectl.ApiServer(environ)
    except (OSError, UnicodeDecodeError, kubectl.ExecError):
        return None
    container = call.group(1) or ""
    return lambda host: _answers(api, host, container)


def either(direct: typing.Optional[Reach], command: Reach) -> Reach:
    """Return a Reach that uses the command if there is no direct way, or if it fails, because horovodrun will use the command."""
    return command if direct is None else lambda host: direct(host) or command(host)


def _answers(api: kubectl.ApiServer, pod: str, container: str) -> bool:
    query = [("command", word) for word in ("/bin/sh", "-c", "true")] + [("stdout", "true")]
    query += [("container", container)] if container else []
    until = time.monotonic() + WITHIN_S
    try:
        link = kubectl.open_exec(api, pod, query)
        try:
            return _status(link, until) == 0
        finally:
            link.close()
    except (kubectl.ExecError, kubectl.NotNow, OSError, ValueError):
        return False


def _status(link: kubectl.WebSocket, until: float) -> typing.Optional[int]:
    """Return the command's exit status, or None if it did not come in time."""
    while True:
        for message in link.messages():
            if message is None:
                return None
            if message[:1] == bytes([kubectl.STATUS]):
                return kubectl.exit_status(json.loads(message[1:]))
        left_s = until - time.monotonic()
        if left_s <= 0:
            return None
        select.select([link.fileno()], [], [], left_s)
        link.fill()


def _ends_well(command: str) -> bool:
    """Return whether this shell command ends with 0 in time. After that time, end its process group."""
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        process = subprocess.Popen(["/bin/sh", "-c", command], start_new_session=True, **quiet)  # type: ignore[call-overload]
    except OSError:
        return False
    try:
        return bool(process.wait(WITHIN_S) == 0)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return False
