"""Shut Horovod's connections in a worker once the launcher says that the worker's world has lost one of its workers.

Only the neighbours of a lost worker in gloo's ring notice the loss. The others would wait until gloo's timeout. The launcher knows of every
end of a process at once, and answers a request of each worker that waits for such news.

`install` is called in each process of a worker that imports Horovod: see bootstrap/sitecustomize.py.
"""

import http.client
import os
import sys
import threading
import time
import typing

from elastic_worker.horovod import connections
from elastic_worker.horovod.joining import Launcher

SCOPE = "elastic-losses"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0


class Watch:
    """Knows the connections of this process's present world, and shuts them when that world is lost."""

    def __init__(self, ask: typing.Callable[[], typing.Optional[str]], log: typing.Callable[[str], None]) -> None:
        """`ask` waits and returns why the world is lost; empty if it is not (yet), None if the launcher tells no losses."""
        self._ask = ask
        self._log = log
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Begin with nothing, as also a forked child does: the connections and their world are its parent's."""
        self._changed = threading.Condition()
        self._connections: connections.Connections = {}
        self._world = 0
        self._thread: typing.Optional[threading.Thread] = None

    def another_world(self) -> None:
        """Note that Horovod will be initialised. The connections of the former world are nobody's concern any more."""
        with self._changed:
            self._world += 1
            self._connections = {}

    def opened(self, found: connections.Connections) -> None:
        """Note connections of the present world."""
        with self._changed:
            self._connections.update(found)
            if self._connections and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._run, name="elastic-losses", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._connections))
                world = self._world
            try:
                why = self._ask()
            except (OSError, ValueError, http.client.HTTPException):
                time.sleep(pause_s)
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
                continue
            if why is None:
                return
            pause_s = FIRST_PAUSE_S
            if why:
                self._shut(world, why)

    def _shut(self, world: int, why: str) -> None:
        """Shut the connections unless Horovod was initialised again since the question: then the answer may be about the former world."""
        with self._changed:
            if world != self._world:
                return
            found, self._connections = self._connections, {}
            count = connections.shut(found)
        self._log("{}; shut {} connections, so that no rank waits for it".format(why, count))


def asking(launcher: Launcher) -> typing.Callable[[], typing.Optional[str]]:
    """Return the question of this worker to its launcher."""

    def ask() -> typing.Optional[str]:
        found = launcher.ask(SCOPE)
        return None if found is None else str(found.get("lost") or "")

    return ask


def watched(basics: typing.Any, watch: Watch) -> None:
    """Have the watch learn the connections that this class of Horovod's opens."""
    init, add_process_set = basics.init, getattr(basics, "_add_process_set_impl", None)

    def noted(call: typing.Callable[..., typing.Any], *arguments: typing.Any, **options: typing.Any) -> typing.Any:
        before = connections.connected()
        result = call(*arguments, **options)
        watch.opened(connections.since(before))
        return result

    def init_noted(self: typing.Any, *arguments: typing.Any, **options: typing.Any) -> typing.Any:
        if self.is_initialized():
            return init(self, *arguments, **options)
        watch.another_world()
        return noted(init, self, *arguments, **options)

    basics.init = _like(init, init_noted)
    if add_process_set is not None:
        added = add_process_set
        basics._add_process_set_impl = _like(added, lambda self, *arguments, **options: noted(added, self, *arguments, **options))


def _like(original: typing.Any, wrapper: typing.Any) -> typing.Any:
    wrapper.__name__, wrapper.__doc__, wrapper.__wrapped__ = original.__name__, original.__doc__, original
    return wrapper


def install(module: typing.Any, environ: typing.Mapping[str, str]) -> None:
    """Watch the class in Horovod's module `horovod.common.basics`, if an elastic horovodrun has started this process."""
    launcher = Launcher.of(environ)
    if launcher is not None:
        watched(module.HorovodBasics, Watch(asking(launcher), log))


def log(text: str) -> None:
    print("elastic-training: " + text, file=sys.stderr, flush=True)
