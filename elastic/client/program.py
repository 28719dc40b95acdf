"""Write the program that carries a function to the workers as text, and read from the log what the function returned.

Only the text of the function travels, never a pickle: a function that needs more than its arguments and its own imports is refused.
This module is pure, except that it reads the function's source.
"""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any

from elastic.client.errors import BadProgram

MARK = "elastic-result: "
LARGEST_PROGRAM = 100_000
"""Largest size of a program in bytes. Linux takes at most 128 KiB for one environment variable."""
LARGEST_RESULT = 64_000
VARIABLE = "ELASTIC_PROGRAM"
INSTALL_S = 1800
FUTURE = "from __future__ import annotations"

_MAIN = """
if __name__ == "__main__":
    import json as _json
    import os as _os

    _arguments = _json.loads({arguments!r})
    _result = {name}(*_arguments[0], **_arguments[1])
    if _os.environ.get("RANK", "0") == "0":
        try:
            _text = _json.dumps(_result)
        except (TypeError, ValueError) as _error:
            raise TypeError(f"{name} returned a value that JSON cannot hold ({{_error}}); return numbers, texts, lists and dicts") from None
        if len(_text) > {largest}:
            raise ValueError(f"{name} returned {{len(_text)}} characters of JSON, more than {largest}; save it to a file instead")
        print({mark!r} + _text, flush=True)
"""

_INSTALL = """
if __name__ == "__main__":
    import fcntl as _fcntl
    import importlib as _importlib
    import os as _os
    import site as _site
    import subprocess as _subprocess
    import sys as _sys

    _lock = _os.open(_sys.prefix, _os.O_RDONLY)
    _fcntl.flock(_lock, _fcntl.LOCK_EX)  # processes that share this Python install one after the other; only the first has work to do
    _pip = [_sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "--retries", "2"]
    _done = _subprocess.run([*_pip, *{packages!r}], stderr=_subprocess.PIPE, text=True, timeout={timeout}, check=False)
    _sys.stderr.write(_done.stderr)
    _os.close(_lock)
    if _done.returncode:
        _errors = [line for line in _done.stderr.splitlines() if line.startswith("ERROR:")] or _done.stderr.splitlines()[-1:]
        _network = " (the package index was not reached)" if "connection broken" in _done.stderr else ""
        raise RuntimeError("pip install " + {names!r} + " failed" + _network + ": " + " ".join(_errors))
    if _site.ENABLE_USER_SITE:  # pip installs there if it may not write into Python's own folder
        _site.addsitedir(_site.getusersitepackages())
    _importlib.invalidate_caches()
"""


def program_of(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, packages: Sequence[str] = ()) -> str:
    """Return a script that installs the packages, calls the function and prints the value that rank 0 returns."""
    source = _source(function)
    try:
        inspect.signature(function).bind(*args, **kwargs)
        arguments = json.dumps([list(args), dict(kwargs)])
    except TypeError as error:
        raise BadProgram(f"the arguments of {function.__name__} do not work: {error}; they travel as JSON") from error
    install = ""
    if packages:
        names = " ".join(_requirements(packages))
        install = _INSTALL.format(packages=list(packages), names=names, timeout=INSTALL_S)
    main = _MAIN.format(arguments=arguments, name=function.__name__, mark=MARK, largest=LARGEST_RESULT)
    return checked(f"{FUTURE}\n{install}\n{source}\n{main}", function.__name__)


def _requirements(packages: Sequence[str]) -> Sequence[str]:
    """Return the packages if each is a requirement for `pip install`; an option of pip is refused."""
    if isinstance(packages, str):
        raise BadProgram(f"packages is {packages!r}, but must be a list: [{packages!r}]")
    for one in packages:
        if not isinstance(one, str) or not one or one.startswith("-") or not one.isprintable():
            raise BadProgram(f"packages has {one!r}; each is a requirement such as 'tqdm' or 'tqdm>=4'")
    return packages


def checked(program: str, name: str) -> str:
    if (size := len(program.encode())) > LARGEST_PROGRAM:
        raise BadProgram(
            f"{name} has {size} bytes, more than {LARGEST_PROGRAM}; put it into the image, and submit a script that imports it"
        )
    return program


def _source(function: Callable[..., Any]) -> str:
    if not inspect.isfunction(function) or function.__name__ == "<lambda>":
        named = getattr(function, "__name__", type(function).__name__)
        raise BadProgram(f"{named} is no function made with def; the text of a function travels to the workers, so it needs one")
    if function.__code__.co_freevars:
        raise BadProgram(
            f"{function.__name__} uses {', '.join(function.__code__.co_freevars)} of the function around it; pass them as arguments"
        )
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise BadProgram(f"the source of {function.__name__} cannot be read: {error}; write it in a file or a notebook cell") from error
    parsed = ast.parse(text).body[0]
    if not isinstance(parsed, ast.FunctionDef):
        raise BadProgram(f"{function.__name__} is no plain function; call asyncio.run inside one")
    if parsed.decorator_list:
        raise BadProgram(f"{function.__name__} has decorators, which do not travel with it; decorate inside the function")
    if missing := sorted(_outer_names(compile(f"{FUTURE}\n{text}", function.__name__, "exec", dont_inherit=True))):
        raise BadProgram(
            f"{function.__name__} uses {', '.join(missing)} from outside; import inside the function, or pass it as an argument"
        )
    return text


def _outer_names(code: CodeType) -> set[str]:
    """Return the names that the code, or code inside it, looks up although neither it nor Python defines them."""
    names: dict[str, set[str]] = {"LOAD": set(), "STORE": set()}
    for instruction in dis.get_instructions(code):
        kind, _, scope = instruction.opname.partition("_")
        if kind in names and scope in ("GLOBAL", "NAME"):
            names[kind].add(str(instruction.argval))
    inner = [_outer_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return names["LOAD"].union(*inner) - names["STORE"] - set(dir(builtins)) - {"__name__", "__file__"}


def escaped(text: str) -> str:
    """Escape the text for a container's environment variable, because Kubernetes replaces $(NAME) by another variable there."""
    return text.replace("$", "$$")


def result_in(log: str) -> Any:
    """Return the value that rank 0 returned, from the last line that holds it. Raise KeyError if no line does."""
    for line in reversed(log.splitlines()):
        _, mark, text = line.partition(MARK)
        if mark:
            return json.loads(text)
    raise KeyError(MARK)
