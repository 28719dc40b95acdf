"""Prove that a sandbox works on this machine by running a container in it, because granted permissions alone prove less."""

import os
from pathlib import Path

from elastic.local.sandbox import NO_GROUP, Input, Launch, Sandbox, SandboxError
from elastic.local.sandbox.init import exit_code
from elastic.local.sandbox.inputs import open_console

POD = "trial"


def prove(sandbox: Sandbox, folder: Path) -> None:
    """Run a container. Raise SandboxError with the reason if that fails."""
    hosts = folder / "trial-hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    launch = Launch(id=POD, pod=POD, argv=["true"], env={"PATH": os.defpath}, cwd="/", log="", record="", hosts=str(hosts))
    sandbox.create(POD, hostname=POD)
    problem, theirs = os.pipe()
    console, _ = open_console(Input.NONE, os.open(os.devnull, os.O_WRONLY))
    try:
        pid = sandbox.spawn(launch, console=console, group=NO_GROUP, problem=theirs)
        os.close(theirs)
        words = os.read(problem, 4096).decode(errors="replace")
        code = exit_code(os.waitpid(pid, 0)[1])
    finally:
        os.close(problem)
        console.leave()
        sandbox.destroy(POD)
        hosts.unlink()
    if code:
        raise SandboxError(words or f"a container in it ended with {code}")
