"""Read a worker's program from the arguments that torchrun gives an interpreter, and find obstacles to running it warm.

Only the two forms that torchrun writes are accepted: `-u SCRIPT ...` and `-u -m MODULE ...`.
"""

import dataclasses
import importlib.machinery
import os
import re
import shutil
import typing

LARGEST_SOURCE = 16 * 1024 * 1024
READ_AT_IMPORT = re.compile(
    rb"""["'](OMP|KMP|GOMP|MKL|OPENBLAS|BLIS|NUMEXPR|GOTO|VECLIB|PYTORCH|ATEN|C10|DNNL|ONEDNN"""
    rb"""|TORCH|TORCHINDUCTOR|TORCHDYNAMO)_(?!NCCL_)[A-Z]"""
)
"""Variables that take effect when torch or numpy is loaded. A script that sets such a variable does it before its own import of torch."""
WRITES_ENVIRONMENT = re.compile(rb"environ|putenv")
INTERPRETER = re.compile(r"python[0-9.]*\Z")


@dataclasses.dataclass(frozen=True)
class Program:
    """A script by its path as given, or a module by its name."""

    name: str
    is_module: bool
    arguments: typing.Tuple[str, ...]

    def script(self, folder: str) -> str:
        """Return the script's absolute path, as the interpreter forms it."""
        return self.name if os.path.isabs(self.name) else os.path.join(folder, self.name)

    def import_folder(self, folder: str) -> str:
        """Return the first entry of sys.path."""
        return folder if self.is_module else os.path.dirname(os.path.realpath(self.script(folder)))


def read(arguments: typing.Sequence[str]) -> typing.Optional[Program]:
    """Return the program in an interpreter's arguments, or None if they have another form."""
    if len(arguments) < 2 or arguments[0] != "-u":
        return None
    is_module = arguments[1] == "-m"
    rest = arguments[2:] if is_module else arguments[1:]
    if not rest or not rest[0] or rest[0].startswith("-"):
        return None
    return Program(name=rest[0], is_module=is_module, arguments=tuple(rest[1:]))


def is_python(word: str) -> bool:
    """Return whether this word of a command is a Python interpreter."""
    return INTERPRETER.match(os.path.basename(word)) is not None


def read_agent(command: typing.Sequence[str]) -> typing.Optional[Program]:
    """Return torchrun as a program, from a command that launch.is_torchrun accepts; None if its script cannot be found."""
    if os.path.basename(command[0]) == "torchrun":
        path = shutil.which(command[0])
        return Program(name=os.path.abspath(path), is_module=False, arguments=tuple(command[1:])) if path else None
    rest = command[2:] if command[1] == "-u" else command[1:]
    return Program(name=rest[1], is_module=True, arguments=tuple(rest[2:]))


def obstacle(program: Program, *, folder: str, loaded: typing.Iterable[str]) -> str:
    """Return why the program must start plainly; empty if it may start warm. `loaded` are the modules that are imported already."""
    if program.is_module:
        path = _module_file(program.name, folder)
    else:
        path = program.script(folder)
        if not os.path.exists(path):
            return "there is no file {}".format(path)
        if not os.path.isfile(path) or path.endswith((".pyc", ".pyz", ".zip")):
            return "{} is not a Python source file".format(program.name)
    return (_of_source(path) if path else "") or shadow(program, folder=folder, loaded=loaded)


def shadow(program: Program, *, folder: str, loaded: typing.Iterable[str]) -> str:
    """Say whether the program's folder has a module with the name of a module that is imported already; empty if not."""
    return _of_folder(program.import_folder(folder), frozenset(name.partition(".")[0] for name in loaded))


def _module_file(name: str, folder: str) -> str:
    """Return the source file of a module in the working folder; empty for installed modules, which are not checked."""
    stem = os.path.join(folder, *name.split("."))
    for path in (stem + ".py", os.path.join(stem, "__main__.py")):
        if os.path.isfile(path):
            return path
    return ""


def _of_source(path: str) -> str:
    if os.path.getsize(path) > LARGEST_SOURCE:
        return "{} is very large".format(path)
    with open(path, "rb") as file:
        source = file.read()
    if source.startswith(b"PK\x03\x04"):
        return "{} is an archive".format(path)
    found = READ_AT_IMPORT.search(source) if WRITES_ENVIRONMENT.search(source) else None
    if found:
        return "{} names {}..., which is read when torch is imported".format(path, found.group(0)[1:].decode())
    return ""


def _of_folder(folder: str, loaded: typing.FrozenSet[str]) -> str:
    suffixes = tuple(importlib.machinery.all_suffixes())
    with os.scandir(folder or ".") as entries:
        for entry in entries:
            name, dot, rest = entry.name.partition(".")
            if name not in loaded:
                continue
            is_module = dot + rest in suffixes or (not dot and os.path.isfile(os.path.join(entry.path, "__init__.py")))
            if is_module:
                return "the program's folder has a module {} of its own".format(name)
    return ""
