"""Keep the launcher's view of its hosts: one thread waits for the server's next list, another one reports what the driver does.

Horovod's own thread only reads the newest list. It waits for the network only until the first list.
"""

import math
import threading
import time
import typing
import uuid

from elastic_worker.horovod.proofs import Proofs
from elastic_worker.horovod.server import Answer, Host, Unavailable

FIRST_LIST_S = 60.0
REPORT_EVERY_S = 5.0  # a launcher that is silent for 20 s counts as one that does not report
AGAIN_S = 0.5
MOST_STEPS, MOST_VALUES, MOST_LETTERS = 2**53, 32, 64
RECENT_S = 120.0
NEWS_S = 5.0


class Asked(typing.Protocol):
    """The part of elastic_worker.horovod.server.Server that is needed here. Each thread has its own."""

    def read(self, after: str = "") -> Answer: ...

    def report(self, report: typing.Mapping[str, typing.Any]) -> Answer: ...


class Hosts:
    def __init__(
        self,
        server: typing.Callable[[], Asked],
        reach: typing.Callable[[str], bool],
        fall_back: typing.Callable[[], typing.Dict[str, int]],
        log: typing.Callable[[str], None],
        first_list_s: float = FIRST_LIST_S,
    ) -> None:
        """`reach` runs a command in a host; `fall_back` returns the hosts if the server never answers."""
        self._server = server
        self._fall_back = fall_back
        self._log = log
        self._first_list_s = first_list_s
        self._launcher = uuid.uuid4().hex
        self._has_news = threading.Event()
        self._proofs = Proofs(reach, self._has_news.set)
        self._lock = threading.Lock()
        self._listed: typing.Optional[typing.Dict[str, int]] = None
        self._has_list = threading.Event()
        self._assigned: typing.List[str] = []
        self._assignment, self._size = 0, 0
        self._workers: typing.Dict[str, int] = {}
        self._leaving: typing.Set[str] = set()
        self._here: typing.Dict[str, str] = {}
        """The uid of the pod of each host that exists."""
        self._lost: typing.Dict[str, float] = {}
        self._progress: typing.Dict[str, typing.Any] = {}
        self._trouble = ""

    def start(self) -> None:
        for target in (self._follow, self._send):
            threading.Thread(target=target, daemon=True).start()

    # Questions and news of Horovod's driver.

    def find_available_hosts_and_slots(self) -> typing.Dict[str, int]:
        """Return the newest list. Waits for the first one, and then falls back."""
        if not self._has_list.wait(self._first_list_s):
            self._first_list_s = 0.0
            return self._fall_back()
        with self._lock:
            assert self._listed is not None
            return dict(self._listed)

    def assigned(self, hosts: typing.Iterable[str], size: int) -> None:
        """Note that the driver has assigned ranks to these hosts."""
        with self._lock:
            self._assigned, self._size = sorted(hosts), size
            self._assignment += 1
        self._has_news.set()

    def started(self, host: str) -> None:
        """Note that a worker process is about to start on the host."""
        with self._lock:
            self._workers[host] = self._workers.get(host, 0) + 1
        self._has_news.set()

    def ended(self, host: str, is_failure: bool = False) -> None:
        """Note the end of a worker process."""
        with self._lock:
            self._workers[host] -= 1
            if not self._workers[host]:
                del self._workers[host]
            uid = self._here.get(host)
        if is_failure and uid is not None:
            self._proofs.doubt(uid)
        self._has_news.set()

    def is_doubted(self, host: str) -> bool:
        """Return whether a worker has failed on the host, and nothing shows that another one could start there. Looks for such a sign."""
        with self._lock:
            uid = self._here.get(host)
        return uid is not None and self._proofs.is_doubted(host, uid)

    def lost(self) -> typing.List[str]:
        """Return the hosts with ranks whose pods have ended a moment ago. Waits a moment, because horovodrun may hear of it first."""
        until = time.monotonic() + NEWS_S
        while time.monotonic() < until:
            with self._lock:
                found = sorted(name for name, at in self._lost.items() if time.monotonic() < at + RECENT_S)
            if found:
                return found
            time.sleep(0.2)
        return []

    # News and questions of the training program.

    def progress(self, report: typing.Any) -> None:
        """Keep the newest step and values for the next report, without those for which the server would refuse the whole report."""
        step, values = (report.get("step"), report.get("values")) if isinstance(report, dict) else (None, None)
        if not isinstance(step, int) or not 0 <= step < MOST_STEPS:
            return
        pairs = values.items() if isinstance(values, dict) else ()
        numbers = {name: float(value) for name, value in pairs if len(name) <= MOST_LETTERS and _is_finite(value)}
        self._progress = {"step": step, "values": dict(list(numbers.items())[:MOST_VALUES])}

    def is_checkpoint_asked(self) -> bool:
        """Return whether a host leaves on which workers train."""
        with self._lock:
            return any(host in self._leaving for host in self._assigned)

    # The two threads.

    def _follow(self) -> None:
        server, version = self._server(), ""
        while True:
            try:
                answer = server.read(version) if version else server.report(self._report())
                if version and _server_of(answer.version) != _server_of(version):
                    # A new server has only our reports, and its first list must not lack the host that has the training state.
                    answer = server.report(self._report())
            except Unavailable as error:
                self._say("the rendezvous server gives no list of hosts: {}".format(error))
                version = ""
                time.sleep(AGAIN_S)
                continue
            version = answer.version
            self.take(answer)

    def take(self, answer: Answer) -> None:
        """Take an answer of the server. Without a usable list keep the last one: to Horovod an empty list is the loss of all hosts."""
        self._proofs.keep([host.uid for host in answer.hosts])
        with self._lock:
            here = {host.name: host.uid for host in answer.hosts}
            self._lost.update({name: time.monotonic() for name in self._here if name not in here and name in self._assigned})
            self._here, self._leaving = here, {host.name for host in answer.hosts if host.leaving}
        for host in answer.hosts:
            if host.unproven:
                self._proofs.prove(host.name, host.uid)
        if answer.error:
            self._say(answer.error)
            return
        self._say("")
        self._use([host for host in answer.hosts if host.listed])

    def _use(self, hosts: typing.Sequence[Host]) -> None:
        listed = {host.name: host.slots for host in hosts}
        with self._lock:
            is_other, self._listed = listed != self._listed, listed
        if is_other:
            self._log("hosts: {}".format(", ".join("{}:{}".format(*item) for item in sorted(listed.items()))))
        self._has_list.set()

    def _send(self) -> None:
        server = self._server()
        while True:
            self._has_news.wait(REPORT_EVERY_S)
            self._has_news.clear()
            try:
                server.report(self._report())
            except Unavailable:
                time.sleep(AGAIN_S)  # the other thread says why
                self._has_news.set()

    def _report(self) -> typing.Dict[str, typing.Any]:
        with self._lock:
            known = {"assigned": list(self._assigned), "working": sorted(self._workers), "assignment": self._assignment, "size": self._size}
        return {"launcher": self._launcher, "proven": self._proofs.proven, **known, **self._progress}

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            self._log(trouble)
        self._trouble = trouble


def _server_of(version: str) -> str:
    return version.rpartition("-")[0]


def _is_finite(value: typing.Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
