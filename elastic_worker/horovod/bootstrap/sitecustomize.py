"""Prepare each Python process of a worker that our launcher starts; Python imports this module before the program.

It watches for the import of Horovod, so that `elastic_worker.horovod.watch` learns which connections Horovod opens. A process that does not
import Horovod pays for nothing else. A `sitecustomize` of the image or of the user runs as if this one were not there.
"""

import importlib.util
import os
import sys
import types
import typing

BASICS = "horovod.common.basics"
"""Has the class through which every binding (torch, TensorFlow, MXNet) initialises Horovod."""


class Finder:
    """Finds Horovod's module by the other finders, and begins the watch once it is imported."""

    def find_spec(self, name: str, path: typing.Any = None, target: typing.Any = None) -> typing.Any:
        """Return the spec that Python would find, with a loader that also begins the watch."""
        if name != BASICS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            _watch_after(spec.loader)
        return spec


def _watch_after(loader: typing.Any) -> None:
    load = loader.exec_module

    def exec_module(module: types.ModuleType) -> None:
        load(module)
        try:
            from elastic_worker.horovod import watch

            watch.install(module, os.environ)
        except Exception as error:  # with any version of Horovod or our library, training must go on as without us
            print("elastic-training: this worker does not hear of losses: {!r}".format(error), file=sys.stderr, flush=True)

    loader.exec_module = exec_module


def _run_next() -> None:
    """Run the `sitecustomize` that Python would have found without this folder."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    own = sys.modules.pop(__name__, None)
    spec = importlib.util.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        if own is not None:
            sys.modules[__name__] = own
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("HOROVOD_ELASTIC") == "1":
    sys.meta_path.insert(0, Finder())
_run_next()
