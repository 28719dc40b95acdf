"""Find out from a peer's host whether the peer's agent still lives.

An agent listens at a port and never answers there. When its process ends, for any reason, the kernel of its host refuses connections to
that port. A refused connection proves that the agent has ended. Silence proves nothing.
"""

import contextlib
import socket
import threading
import time
import typing

ASK_S = 1.0
PAUSE_S = 0.5
MOST_AT_ONCE = 16


class AlivePort:
    """The port of this agent, open for as long as the process lives. `address`: HOST:PORT."""

    def __init__(self, host: str) -> None:
        """Open the port. Raise OSError if this host does not have the address."""
        self._socket = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=64)
        self.address = "{}:{}".format(host, self._socket.getsockname()[1])

    def close(self) -> None:
        self._socket.close()


class Asking:
    """Ask ports in threads, and remember the addresses of ended agents.

    One thread uses it. `wake` is called in another thread for each ended agent.
    """

    def __init__(self, wake: typing.Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._asked = {}  # type: typing.Dict[str, float]
        self._asking = set()  # type: typing.Set[str]
        self._ended = set()  # type: typing.Set[str]

    def ask(self, addresses: typing.Iterable[str]) -> None:
        """Try to connect to each of these addresses, unless it was tried a moment ago."""
        now = time.monotonic()
        with self._lock:
            self._asked = {address: at for address, at in self._asked.items() if now < at + PAUSE_S}
            due = [address for address in addresses if address and address not in self._asked and address not in self._asking]
            for address in due[: MOST_AT_ONCE - len(self._asking)]:
                self._asked[address] = now
                self._asking.add(address)
                threading.Thread(target=self._try, args=(address,), name="elastic-asking", daemon=True).start()

    def has_ended(self, address: str) -> bool:
        """Return whether the process that listened at this address has ended."""
        with self._lock:
            return address in self._ended

    def forget(self) -> None:
        """Forget all results, because no peer is in doubt any more."""
        with self._lock:
            self._ended.clear()

    def _try(self, address: str) -> None:
        is_refused = False
        host, _, port = address.rpartition(":")
        with contextlib.suppress(OSError, ValueError, OverflowError):
            try:
                number = int(port)
                if 0 < number < 65536:
                    socket.create_connection((host.strip("[]"), number), ASK_S).close()
            except ConnectionRefusedError:
                is_refused = True
        with self._lock:
            self._asking.discard(address)
            if is_refused:
                self._ended.add(address)
        if is_refused:
            self._wake()
