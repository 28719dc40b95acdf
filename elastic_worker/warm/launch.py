"""Start the fork server before torchrun's agent, and print what the shell must export so that torchrun uses the server.

The wrapper runs this file by its path with the options -I -S. It imports the standard library only. If workers are to start plainly, it
prints nothing, and one line on stderr says why. It never fails the container.
"""

import contextlib
import os
import shlex
import shutil
import socket
import stat
import sys
import tempfile
import time
import typing

SWITCH = "ELASTIC_WARM_START"
PYTHON_EXEC = "PYTHON_EXEC"
FOLDER = "ELASTIC_WARM"
OFF = ("off", "no", "false", "0")
REFUSED = ("PYTHONINSPECT", "PYTHONPROFILEIMPORTTIME", "PYTHONDUMPREFS")
LONGEST_INTERPRETER = 120
BACKLOG = 256
PREFIX = "elastic-warm-"
OLD_S = 60.0
MOST_SWEPT = 64
SWEEP_PATIENCE_S = 0.1
TITLE_ROOM = " " * 2048
"""Reserves room in the server's command line, in which a worker writes its own for `ps`."""
BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from elastic_worker.warm.{} import main; main()"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

Environment = typing.Mapping[str, str]


def obstacle(environment: Environment, executable: str) -> str:
    """Return why workers must not start warm in this environment; empty if they may."""
    if environment.get(SWITCH, "").strip().lower() in OFF:
        return "{} is {}".format(SWITCH, environment[SWITCH])
    if environment.get(PYTHON_EXEC):
        return "PYTHON_EXEC is set to {}".format(environment[PYTHON_EXEC])
    unusual = [name for name in REFUSED if environment.get(name)]
    if unusual:
        return "{} is set".format(unusual[0])
    if not hasattr(os, "pidfd_open"):
        return "this system has no process file descriptors"
    if not executable or len(executable) > LONGEST_INTERPRETER or any(letter.isspace() for letter in executable):
        return "the interpreter's path {!r} cannot stand in the first line of a script".format(executable)
    return ""


def runs_no_python(command: typing.Sequence[str], environment: Environment) -> bool:
    """Return whether torchrun will start programs that are no Python scripts, so that nothing would ask the fork server."""
    return environment.get("PET_NO_PYTHON", "0") not in ("", "0") or any(word.replace("_", "-") == "--no-python" for word in command)


def workers_per_agent(command: typing.Sequence[str], environment: Environment) -> int:
    """Estimate how many workers torchrun will start. A wrong estimate costs one plain start."""
    asked = environment.get("PET_NPROC_PER_NODE", "1")
    for index, word in enumerate(command):
        name, equals, value = word.replace("_", "-").partition("=")
        if name == "--nproc-per-node":
            asked = value if equals else "".join(command[index + 1 : index + 2])
    if asked.isdigit():
        return int(asked)
    devices = 0 if asked == "cpu" else len([name for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit()])
    return devices or os.cpu_count() or 1


def environment_of_workers(command: typing.Sequence[str], environment: Environment) -> typing.Dict[str, str]:
    """Return the environment in which workers import torch. torchrun limits the threads of several workers on one machine."""
    wanted = dict(environment)
    if workers_per_agent(command, environment) > 1:
        wanted.setdefault("OMP_NUM_THREADS", "1")
    return wanted


@contextlib.contextmanager
def address_in(folder: str) -> typing.Iterator[str]:
    """Yield the socket's address through a descriptor of its folder, whose path may be too long for an address.

    stub.py has a copy of this function, because both files must stand alone.
    """
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield "/proc/self/fd/{}/socket".format(descriptor)
    finally:
        os.close(descriptor)


def sweep(parent: str, *, now: float) -> None:
    """Remove folders of servers that were killed, because nothing listens there any more."""
    names = [name for name in os.listdir(parent) if name.startswith(PREFIX)]
    for folder in [os.path.join(parent, name) for name in names[:MOST_SWEPT]]:
        try:
            if now - os.stat(folder).st_mtime < OLD_S:
                continue
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.settimeout(SWEEP_PATIENCE_S)
                with address_in(folder) as address:
                    probe.connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue


def make_folder(executable: str) -> str:
    """Make a folder that holds the stub as an executable file."""
    sweep(tempfile.gettempdir(), now=time.time())
    folder = tempfile.mkdtemp(prefix=PREFIX)
    try:
        path = os.path.join(folder, "python")
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "stub.py")) as source, open(path, "w") as file:
            file.write("#!{} -IS\n{}".format(executable, source.read()))
        os.chmod(path, stat.S_IRWXU)
        if not os.access(path, os.X_OK):
            raise PermissionError("nothing in {} can be executed".format(tempfile.gettempdir()))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def listen(folder: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with address_in(folder) as address:
        listener.bind(address)
    listener.listen(BACKLOG)
    return listener


def server_command(root: str, folder: str, listener: socket.socket, *, agent: int, renewals: int) -> typing.List[str]:
    """Return the command that starts the fork server."""
    words = [root, folder, str(listener.fileno()), str(agent), str(renewals), TITLE_ROOM]
    return [sys.executable, "-u", "-c", BOOT.format("server"), *words]


def step_aside() -> None:
    """In a child: start a new session, read nothing, and write to standard error only."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)


def is_torchrun(command: typing.Sequence[str]) -> bool:
    """Return whether the command is torchrun itself, in one of its two forms, so that warm.agent can run it."""
    words = [os.path.basename(command[0]), *command[1:4]] if command else [""]
    if words[1:2] == ["-u"]:
        del words[1]
    return words[0] == "torchrun" or (words[0].startswith("python") and words[1:3] == ["-m", "torch.distributed.run"])


def start_server(folder: str, *, agent: int, environment: Environment) -> None:
    """Start the fork server in a session of its own; it ends with the agent."""
    try:
        listener = listen(folder)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    arguments = server_command(ROOT, folder, listener, agent=agent, renewals=0)
    if os.fork() == 0:
        try:
            step_aside()
            os.set_inheritable(listener.fileno(), True)
            os.execve(sys.executable, arguments, dict(environment))
        finally:
            os._exit(127)
    listener.close()


def main(arguments: typing.Sequence[str]) -> int:
    """Run `launch.py PID COMMAND...`. PID is the process that will become torchrun's agent."""
    agent, command = int(arguments[0]), arguments[1:]
    why = obstacle(os.environ, sys.executable)
    if not why and runs_no_python(command, os.environ):
        why = "torchrun runs them without Python (--no-python)"
    if not why:
        try:
            os.close(os.pidfd_open(agent))  # fail here, and not in the server, if the kernel or a sandbox refuses this
            folder = make_folder(sys.executable)
            if not is_torchrun(command):
                start_server(folder, agent=agent, environment=environment_of_workers(command, os.environ))
        except OSError as error:
            why = str(error)
    if why:
        print("elastic_worker: workers start plainly: {}".format(why), file=sys.stderr)
        return 0
    print("export PYTHON_EXEC={} ELASTIC_WARM={}".format(shlex.quote(os.path.join(folder, "python")), shlex.quote(folder)))
    if is_torchrun(command):
        words = [sys.executable, "-u", "-c", BOOT.format("agent"), ROOT, folder, TITLE_ROOM]
        print('set -- {} "$@"'.format(" ".join(map(shlex.quote, words))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
