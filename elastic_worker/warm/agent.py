"""Become torchrun's agent: import torch, fork the fork server, and run torchrun.

If a container's command is torchrun itself, `launch` puts this program before it. So agent and workers share one import of torch, with its
time and its memory. After any problem before torchrun runs, the command starts plainly.
"""

import ctypes
import importlib
import os
import shutil
import signal
import sys
import typing

from elastic_worker.warm import collector, differences, interpreter
from elastic_worker.warm import program as programs
from elastic_worker.warm.launch import environment_of_workers, listen, step_aside
from elastic_worker.warm.server import serve
from elastic_worker.warm.stub import OURS

SHARED = ("torch", "torch.distributed")
"""Modules that the agent needs too. The server imports the others for its workers while the agent goes to the rendezvous."""
PR_SET_NAME = 15


class StartPlainly(Exception):
    """A reason to start plainly."""


def import_shared(command: typing.Sequence[str]) -> typing.Dict[str, str]:
    """Import in the environment that workers will have, and return that environment. Then restore our own."""
    own = dict(os.environ)
    wanted = environment_of_workers(command, {name: value for name, value in own.items() if name not in OURS})
    _set_environment(wanted)
    with collector.paused():
        for name in SHARED:
            importlib.import_module(name)
    changed = {name: value for name, value in os.environ.items() if wanted.get(name) != value}
    _set_environment({**own, **changed})
    return wanted


def main() -> None:
    """Run with the arguments `-c BOOT root folder room command...` that launch prints."""
    root, folder, _, *command = sys.argv[1:]
    interpreter.leave_path_as_found(root)
    agent = os.getpid()
    try:
        program = _torchrun(command)
        before = interpreter.descriptors()
        environment = import_shared(command)
        kept = interpreter.descriptors() - before
        listener = listen(folder)
        interpreter.fork_once()
        why = differences.of_process()
        if why:
            raise StartPlainly(why)
        is_server = _fork_orphan()
    except (StartPlainly, OSError, ImportError) as why:
        print("elastic_worker: torchrun and its workers start plainly: {}".format(why), file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        _start_plainly(command)
    if is_server:
        step_aside()
        serve(listener, root=root, folder=folder, agent=agent, renewals=0, environment=environment, kept=kept)
    else:
        listener.close()
        _run(program)


def _torchrun(command: typing.Sequence[str]) -> programs.Program:
    program = programs.read_agent(command)
    if program is None:
        raise StartPlainly("{} is not on PATH".format(command[0]))
    return program


def _run(program: programs.Program) -> None:
    arguments = (["-m"] if program.is_module else []) + [program.name, *program.arguments]
    interpreter.retitle([sys.executable, *arguments])
    if not program.is_module:  # the kernel names a process after its script
        ctypes.CDLL(None).prctl(PR_SET_NAME, os.path.basename(program.name).encode(), 0, 0, 0)
    interpreter.run(program, arguments=arguments)


def _fork_orphan() -> bool:
    """Fork a process that is not a child of this one. Return True in the new process."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return False
    if os.fork():
        os._exit(0)
    return True


def _set_environment(wanted: typing.Mapping[str, str]) -> None:
    for name in set(os.environ) - set(wanted):
        del os.environ[name]
    os.environ.update(wanted)


def _start_plainly(command: typing.List[str]) -> typing.NoReturn:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(command[0], command, {name: value for name, value in os.environ.items() if name not in OURS})
