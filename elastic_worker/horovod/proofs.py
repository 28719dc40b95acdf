"""Run a command in a host before horovodrun starts a worker there. One listed host that cannot be reached ends the whole job.

That is done in each new host, and again in a host whose worker has failed: its pod or node may have ended with the worker.
"""

import threading
import time
import typing

AT_ONCE = 8
AGAIN_S = 1.0


class Proofs:
    """The pods in which a command was run, by uid. `changed` is called, in another thread, after each new one."""

    def __init__(self, reach: typing.Callable[[str], bool], changed: typing.Callable[[], None]) -> None:
        self._reach = reach
        self._changed = changed
        self._lock = threading.Lock()
        self._proven: typing.Set[str] = set()
        self._doubted: typing.Set[str] = set()
        self._trying: typing.Set[str] = set()
        self._places = threading.Semaphore(AT_ONCE)

    @property
    def proven(self) -> typing.List[str]:
        with self._lock:
            return sorted(self._proven)

    def keep(self, uids: typing.Iterable[str]) -> None:
        """Forget the pods that are gone."""
        with self._lock:
            self._proven &= set(uids)
            self._doubted &= set(uids)

    def doubt(self, uid: str) -> None:
        """Note that a worker has failed in this pod."""
        with self._lock:
            self._doubted.add(uid)

    def is_doubted(self, name: str, uid: str) -> bool:
        """Return whether no command was run in this pod since a worker failed there. If so, try in the background."""
        with self._lock:
            is_doubted = uid in self._doubted
        if is_doubted:
            self.prove(name, uid)
        return is_doubted

    def prove(self, name: str, uid: str) -> None:
        """Try in the background, unless that is under way."""
        with self._lock:
            if uid in self._trying or uid in self._proven - self._doubted:
                return
            self._trying.add(uid)
        threading.Thread(target=self._try, args=(name, uid), daemon=True).start()

    def _try(self, name: str, uid: str) -> None:
        with self._places:
            is_proven = self._reach(name)
        if not is_proven:
            time.sleep(AGAIN_S)
        with self._lock:
            self._trying.discard(uid)
            if is_proven:
                self._proven.add(uid)
                self._doubted.discard(uid)
        if is_proven:
            self._changed()
