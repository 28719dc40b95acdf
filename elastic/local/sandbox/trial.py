"""`python -m elastic.local.sandbox.trial FOLDER`: makes one netns sandbox with one container, and says on stderr why if that fails."""

import os
import sys
from pathlib import Path

from elastic.local.sandbox import Launch, SandboxError
from elastic.local.sandbox.init import exit_code
from elastic.local.sandbox.netns import Netns

POD = "trial"


def trial(folder: Path) -> str:
    """An empty text if all went well."""
    stage = folder / "stage"
    stage.mkdir()
    hosts = folder / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    sandbox = Netns(stage)
    sandbox.create(POD, hostname=POD)
    problem, theirs = os.pipe()
    log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY)
    launch = Launch(
        id=POD,
        pod=POD,
        argv=["true"],
        env={"PATH": os.defpath},
        cwd="/",
        log="",
        record="",
        hosts=str(hosts),
    )
    pid = sandbox.spawn(launch, log=log, problem=theirs)
    os.close(theirs)
    words = os.read(problem, 4096).decode(errors="replace")
    code = exit_code(os.waitpid(pid, 0)[1])
    return words or ("" if code == 0 else f"a container in it ended with {code}")


def main() -> int:
    try:
        words = trial(Path(sys.argv[1]))
    except (OSError, SandboxError) as error:
        words = str(error)
    if words:
        print(words, file=sys.stderr)
    return 1 if words else 0


if __name__ == "__main__":
    sys.exit(main())
