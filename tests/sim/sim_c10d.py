"""Simulate agents of stock torchrun at a c10d store.

Torch's own code decides about rounds, on the clock of the simulated world. An agent restarts its workers when others wait. It counts each
failure of its workers against its own maxRestarts, also a failure that follows from a peer's. When it gives up or has finished, it closes
the rendezvous for good.
"""

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import partial

import sim_time
from sim_api import Api
from torch.distributed.elastic.rendezvous import dynamic_rendezvous as torch_rendezvous
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousError, RendezvousTimeoutError

from elastic.kube.resources import PODS, Object
from elastic_training.rendezvous.c10d import COMPONENT, COMPONENT_VALUE

TURN_S = 0.5
BEGINS_S = 1.0, 4.0
"""Shortest and longest time until the workers of a round have started and use collectives."""
FALLS_S = 0.1, 1.0
"""Shortest and longest time until gloo shows the end of a peer."""
STORE_GONE_S = 3.0
"""Seconds until an agent ends after its store is gone."""
BARRIER_S = 300.0
"""Seconds that a finished agent waits for its peers."""
Action = torch_rendezvous._Action


class Store:
    """One run of a store pod, with the state of each rendezvous by its id, and the agents that connected to it."""

    def __init__(self, pod: str) -> None:
        self.pod = pod
        self.agents: dict[str, TorchAgent] = {}
        self._states: dict[str, torch_rendezvous._RendezvousState] = {}

    def state(self, rendezvous: str) -> torch_rendezvous._RendezvousState:
        return self._states.setdefault(rendezvous, torch_rendezvous._RendezvousState())


class Stores:
    """All runs of store pods so far."""

    def __init__(self, api: Api) -> None:
        self.silent: set[str] = set()
        """The uids of pods on lost machines. Nothing comes from them, not even the end of a connection."""
        self.pids = itertools.count(1)
        self._api = api
        self._stores: dict[tuple[str, int], Store] = {}

    def find(self, name: str) -> Store | None:
        """Return the store that answers under this name now, or None."""
        pod = self._api.find(PODS, name)
        if pod is None or pod["metadata"]["labels"].get(COMPONENT) != COMPONENT_VALUE or pod["status"]["phase"] != "Running":
            return None
        uid = pod["metadata"]["uid"]
        if uid in self.silent:
            return None
        restarts = max((container["restartCount"] for container in pod["status"].get("containerStatuses") or ()), default=0)
        return self._stores.setdefault((uid, restarts), Store(uid))

    def agent(self, pod: Object, env: dict[str, str], *, draw: random.Random, ended: Callable[[int], None]) -> "TorchAgent":
        """Return the agent in this pod, as its environment asks for."""
        return TorchAgent(pod["metadata"]["name"], env, self, draw, ended, has_pod=partial(self._is_there, pod))

    def _is_there(self, pod: Object) -> bool:
        there = self._api.find(PODS, pod["metadata"]["name"])
        return there is not None and there["metadata"]["uid"] == pod["metadata"]["uid"]

    def agents(self) -> Iterator["TorchAgent"]:
        for store in self._stores.values():
            yield from (agent for agent in store.agents.values() if not agent.is_over)

    def is_waiting(self) -> bool:
        return any(agent.stage is Stage.FINISHING for agent in self.agents())

    def wrongs(self, workers: set[str]) -> Iterator[str]:
        """Yield the reason if these pods do not train together."""
        worlds = {(agent.store.pod, agent.round, agent.world) for agent in self.agents() if agent.is_working and agent.store is not None}
        names = {name.partition("/")[0] for _, _, world in worlds for name in world}
        if len(worlds) != 1 or names != workers:
            states = {agent.name: agent.stage.value for agent in self.agents()}
            yield f"the workers {sorted(workers)} do not train together at c10d: {sorted(map(str, worlds))}, {states}"


class Stage(Enum):
    CONNECTING = "connecting"
    JOINING = "joining"
    WORKING = "working"
    FINISHING = "finishing"


class TorchAgent:
    """`torchrun` in one run of a container. `ended` gets the exit code if it ends by itself."""

    def __init__(
        self,
        name: str,
        env: dict[str, str],
        stores: Stores,
        draw: random.Random,
        ended: Callable[[int], None],
        *,
        has_pod: Callable[[], bool],
    ) -> None:
        self.name = f"{name}/{next(stores.pids)}"
        self.stage = Stage.CONNECTING
        self.is_over = self.has_ended = False
        """Whether the agent is gone, and whether its peers can notice that. They cannot if it is gone with its machine."""
        self.entered: list[int] = []
        self.world: frozenset[str] = frozenset()
        self.store: Store | None = None
        self._stores, self._draw, self._ended, self._has_pod = stores, draw, ended, has_pod
        self._node = torch_rendezvous._NodeDesc(self.name, 1, 1)
        self._host = env["PET_RDZV_ENDPOINT"].partition(":")[0]
        self._settings, self._read_timeout_s = _settings(env)
        self._restarts_left = int(env.get("PET_MAX_RESTARTS", 0))
        self._fails_at: float | None = None
        self._since = 0.0

    @property
    def is_working(self) -> bool:
        return self.stage in (Stage.WORKING, Stage.FINISHING) and not self.is_over

    @property
    def round(self) -> int:
        return self.entered[-1] if self.entered else -1

    def start(self) -> None:
        self._since = _time()
        asyncio.get_running_loop().call_later(self._draw.uniform(0.5, 2.0), self._turn)

    def stop(self, *, says_so: bool) -> None:
        """End the process from outside. Even after a SIGTERM it leaves the rendezvous open, and does not say that it leaves."""
        self.is_over = self.has_ended = True

    def fail(self, *, generation: int | None = None) -> bool:
        """Let a worker process fail. Return False if none is working, or not in that generation."""
        if self.stage is not Stage.WORKING or self.is_over or self._fails_at is not None or generation not in (None, self.round):
            return False
        self._fails_at = _time()
        return True

    def finish(self) -> None:
        """Let the training program finish its work."""
        if self.stage is Stage.WORKING and not self.is_over and self._fails_at is None and _time() >= self._since:
            self.stage, self._since = Stage.FINISHING, _time()

    def _turn(self) -> None:
        if not self.is_over and not self._has_pod():
            self.stop(says_so=False)
        if self.is_over:
            return
        try:
            with _virtual_time():
                self._act()
        except RendezvousError:
            self._exit(1, closes=True)
        if not self.is_over:
            asyncio.get_running_loop().call_later(TURN_S, self._turn)

    def _act(self) -> None:
        store = self._stores.find(self._host)
        if self.store is None or store is not self.store:
            self._connect(store)
            return
        match self.stage:
            case Stage.JOINING:
                self._join()
            case Stage.WORKING:
                self._monitor(self.store)
            case Stage.FINISHING:
                self._finish(self.store)

    def _connect(self, store: Store | None) -> None:
        """Connect to the first store. If it is gone or replaced, end the agent after a while, because the group's state is lost with it."""
        if self.store is None and store is not None:
            self.store = store
            store.agents[self.name] = self
            self._state = store.state(self._settings.run_id)
            self._holder = _Holder(self._state, self._settings)
            self._executor = _Executor(self._node, self._holder, self._settings)
            self._context = torch_rendezvous._RendezvousContext(self._node, self._state, self._settings)
            self._come()
            return
        if self.store is not None and self.stage is not Stage.CONNECTING:
            self.stage, self._since = Stage.CONNECTING, _time()
        is_refused = self.store is not None and self.store.pod not in self._stores.silent
        if _time() > self._since + (STORE_GONE_S if is_refused else self._read_timeout_s):
            self._exit(1, closes=False)

    def _come(self) -> None:
        self.stage, self._since, self._fails_at = Stage.JOINING, _time(), None

    def _join(self) -> None:
        deadline = self._since + self._settings.timeout.join.total_seconds()
        if self.entered and self.world:
            self._run(torch_rendezvous._RendezvousExitOp(), deadline)
            self.world = frozenset()
        if self._run(torch_rendezvous._RendezvousJoinOp(), deadline) is Action.FINISH:
            self.entered.append(self._state.round)
            self.world = frozenset(node.addr for node in self._state.participants)
            self.stage, self._since = Stage.WORKING, _time() + self._draw.uniform(*BEGINS_S)

    def _monitor(self, store: Store) -> None:
        self._run(torch_rendezvous._RendezvousKeepAliveOp(), _time() + 5.0)
        if self._fails_at is not None and _time() >= self._fails_at:
            self._failed()
        elif self._state.wait_list:
            self._come()
        elif self._fails_at is None and any(self._has_left(store.agents[name]) for name in self.world):
            self._fails_at = _time() + self._draw.uniform(*FALLS_S)

    def _has_left(self, peer: "TorchAgent") -> bool:
        """Return whether the peer's process has ended, or does not work in this round any more. A lost machine says nothing."""
        return peer.has_ended or (not peer.is_over and (peer.round != self.round or not peer.is_working))

    def _failed(self) -> None:
        if not self._restarts_left:
            self._exit(1, closes=True)
            return
        self._restarts_left -= 1
        self._come()

    def _finish(self, store: Store) -> None:
        peers = [store.agents[name] for name in self.world]
        if all(peer.stage is Stage.FINISHING for peer in peers) or _time() > self._since + BARRIER_S:
            self._exit(0, closes=True)

    def _run(self, op: Callable[[object, float], object], deadline: float) -> object:
        """Run torch's loop until there is nothing more to do now. All agents share one state."""
        self._executor._state = self._state
        while True:
            self._holder.sync()
            action = op(self._context, deadline)
            if action in (Action.FINISH, Action.SYNC):
                return action
            if action is Action.ERROR_CLOSED:
                raise RendezvousClosedError
            if action is Action.ERROR_TIMEOUT:
                raise RendezvousTimeoutError
            assert isinstance(action, Action)
            getattr(self._executor, f"_{action.name.lower()}")()

    def _exit(self, code: int, *, closes: bool) -> None:
        if closes and self.store is not None:
            self._state.closed = True
        self.stop(says_so=False)
        self._ended(code)


class _Executor(torch_rendezvous._DistributedRendezvousOpExecutor):
    """Torch's executor without its record of events, which walks the stack for each event."""

    def _record(self, message: str, node_state: object = None) -> None:
        return


class _NoBackend(torch_rendezvous.RendezvousBackend):
    name = "none"

    def get_state(self) -> None:
        raise NotImplementedError

    def set_state(self, state: bytes, token: object = None) -> None:
        raise NotImplementedError


class _Holder(torch_rendezvous._BackendRendezvousStateHolder):
    """A holder with one state for all agents, without copies."""

    def __init__(self, state: torch_rendezvous._RendezvousState, settings: torch_rendezvous.RendezvousSettings) -> None:
        super().__init__(_NoBackend(), settings)
        self._state = state

    def sync(self) -> bool | None:
        self._sanitize()
        return None


class _VirtualDatetime:
    @staticmethod
    def now(zone: timezone) -> datetime:
        return sim_time.now()


class _VirtualClock:
    @staticmethod
    def monotonic() -> float:
        return _time()


@contextmanager
def _virtual_time() -> Iterator[None]:
    real = torch_rendezvous.datetime, torch_rendezvous.time
    torch_rendezvous.datetime, torch_rendezvous.time = _VirtualDatetime, _VirtualClock
    try:
        yield
    finally:
        torch_rendezvous.datetime, torch_rendezvous.time = real


def _settings(env: dict[str, str]) -> tuple[torch_rendezvous.RendezvousSettings, float]:
    """Return torch's settings from a worker's environment, and the seconds that torch waits for its store."""
    conf = dict(pair.split("=", 1) for pair in env.get("PET_RDZV_CONF", "").split(",") if pair)
    least, _, most = env["PET_NNODES"].partition(":")
    timeout = torch_rendezvous.RendezvousTimeout(
        join=timedelta(seconds=int(conf.get("join_timeout", 600))), last_call=timedelta(seconds=int(conf.get("last_call_timeout", 30)))
    )
    settings = torch_rendezvous.RendezvousSettings(
        env["PET_RDZV_ID"],
        int(least),
        int(most or least),
        timeout,
        keep_alive_interval=timedelta(seconds=int(conf.get("keep_alive_interval", 5))),
        keep_alive_max_attempt=int(conf.get("keep_alive_max_attempt", 3)),
    )
    return settings, float(conf.get("read_timeout", 60))


def _time() -> float:
    return asyncio.get_running_loop().time()
