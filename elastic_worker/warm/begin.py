"""Run a program in this interpreter as a plain start would, with few garbage collections at first.

The collector resumes once the program says that it has started (`collector.resume`). This module imports nothing for the program.
"""

import os
import sys
import typing

from elastic_worker.warm import collector, interpreter
from elastic_worker.warm import program as programs

BOOT = (
    "import sys; sys.path[:not getattr(sys.flags, 'safe_path', False)] = [sys.argv[1]]; from elastic_worker.warm.begin import main; main()"
)
"""Code that puts the library's folder into sys.path in place of the working folder, whose modules may hide those that `main` imports."""
GUARD = """\
root=$1 python=$2; shift 2
[ -f "$root/elastic_worker/warm/begin.py" ] || exec "$python" "$@"
exec "$python" -c "{}" "$root" "$@"
""".format(BOOT)


def command(words: typing.Sequence[str], root: str) -> typing.List[str]:
    """Return the words with `main` before the program; unchanged if they are not an interpreter with a script or a module.

    `root` is the folder of elastic_worker on the machine that runs them. If it does not exist there, the words run as they are.
    """
    if not words or not programs.is_python(words[0]) or programs.read(unbuffered(words[1:])) is None:
        return list(words)
    return ["sh", "-c", GUARD, "sh", root, *words]


def unbuffered(arguments: typing.Sequence[str]) -> typing.List[str]:
    """Return an interpreter's arguments with -u before them."""
    return list(arguments) if list(arguments[:1]) == ["-u"] else ["-u", *arguments]


def main() -> None:
    """Run with the arguments `-c BOOT root SCRIPT|-m MODULE arguments...` that `command` writes."""
    root, *arguments = sys.argv[1:]
    sys.path.remove(root)
    program = programs.read(unbuffered(arguments))
    if program is None or programs.shadow(program, folder=os.getcwd(), loaded=sys.modules):
        os.execv(sys.executable, [sys.executable, *arguments])
    interpreter.retitle([sys.executable, *arguments])
    collector.postpone()
    interpreter.run(program, arguments=arguments)
