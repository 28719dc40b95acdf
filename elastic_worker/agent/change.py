"""Decide what an agent tells the server about its local workers during a change in process, and what each worker hears.

The server's View.change is the whole state of a change, and a worker hears the whole state too. A round is a number that only rises;
answers to an older round are ignored. Pure: the caller has sockets, threads and the clock.
"""

import re
import typing

from elastic_worker.agent.view import Change, View
from elastic_worker.agent.worker_messages import BrokenRule, Message, number_of, parts_of, step_of, words_of

MOST_KEY = 256
MOST_VALUE = 16 * 1024
"""Characters of a value in base64 (rendezvous.engine.messages.in_place)."""
MOST_PUTS = 16
"""Number of values that one worker may put into the exchange of a round."""
PLAIN = re.compile(r"[!#-\[\]-~]+\Z")
BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}\Z")
MOST_EXCHANGE = 64 * 1024 * 1024
"""Bytes of the exchange of one round that an agent keeps."""
PROGRESS_S = 0.5
NEWCOMER_S = 30.0
"""Seconds that the other workers of an agent wait for a process that takes the place of a lost one."""
LOSS_S = 1.0
"""Seconds after which a lost connection is reported by itself. By then the end of its process has been reported, which says more."""
LOST = "the connection of local rank {} to its agent has ended"
MOVING = ("hold", "stop", "abort", "form")
PHASES = (*MOVING, "run", "plain")

Secret = typing.Callable[[int, int], str]


class LocalWorker:
    """One worker of this agent that has said hello."""

    def __init__(self, local_rank: int, step: typing.Optional[int], *, is_unit: bool) -> None:
        self.local_rank = local_rank
        self.step = step
        """The step of its clean state when it last said it; None if it has none."""
        self.is_unit = is_unit
        """Whether its state is only a part of the one that all workers of this agent hold together."""
        self.pid = self.child = 0
        """Its process, and the agent's child through which it was started: the same one, or its stub."""
        self.is_done = False
        self.holds = (-1, 0)
        self.at = -1
        self.formed = -1
        self.stepped = (-1, 0)
        self.puts = {}  # type: typing.Dict[str, Message]
        self.heard = None  # type: typing.Optional[Message]
        self.keys = set()  # type: typing.Set[str]


class LocalChange:
    """Stand between the workers of one agent and the rendezvous server.

    The caller sends the messages in `up` to the server, and to each worker those that `lines` returns. Two messages in `up` are the
    caller's own: `ready` puts the agent to the barrier with living workers, and `started` reports the workers of the new world.
    """

    def __init__(self, *, address: str, secret: Secret) -> None:
        self._address = address
        self._secret = secret
        self.up = []  # type: typing.List[Message]
        self.round = 0
        """The newest round that the server has named. It rises over all worlds of this agent."""
        self._exchange = {}  # type: typing.Dict[str, str]
        self._exchange_bytes = 0
        self.begin(0)

    def begin(self, generation: int, local_size: typing.Callable[[], int] = lambda: 0) -> None:
        """Forget the workers: torchrun starts new ones in this world; 0 is a provisional world."""
        self.generation = generation
        self._local_size = local_size
        self.workers = {}  # type: typing.Dict[int, LocalWorker]
        self.is_used = False
        """Whether a worker has said hello, so that the job's workers use the library."""
        self._is_unable = False
        self._change: typing.Optional[Change] = None
        self._rank = self._size = 0
        self._formed = (-1, -1)
        """The generation and round of the last world that this agent entered in process."""
        self._said = {}  # type: typing.Dict[str, Message]
        self._progress_at = float("-inf")
        self._lost = None  # type: typing.Optional[typing.Tuple[float, str]]
        self._newcomer = None  # type: typing.Optional[typing.Tuple[int, float]]
        """Local rank of a lost worker whose new process has not said hello, and the end of the wait for it."""
        self._has_replaced = False
        """Whether a new process has taken the place of a lost one since this world was formed."""
        self.up = []

    def stop(self) -> None:
        """Report no more of these workers, because torchrun stops them."""
        self._is_unable = True
        self._said, self._lost, self.up = {}, None, []

    def take_up(self) -> typing.List[Message]:
        """Return the messages for the server that have gathered."""
        up, self.up = self.up, []
        return up

    @property
    def local_size(self) -> int:
        """Return how many workers torchrun starts here, 0 if that is not known yet."""
        return self._local_size()

    @property
    def is_under_way(self) -> bool:
        """Return whether a change is under way."""
        return self._change is not None and self._change.phase in MOVING

    # --- the server

    @property
    def able(self) -> int:
        """Return how many workers can change worlds, 0 unless all of them can."""
        count = len(self.workers) + (self._newcomer is not None)
        return count if not self._is_unable and self._lost is None and 0 < count == self.local_size else 0

    @property
    def world_round(self) -> int:
        """Return the round in which the present world is formed, -1 if it was not formed in process."""
        return self._formed[1]

    def introduction(self) -> typing.Tuple[Message, typing.List[Message]]:
        """Return the fields that a new connection adds to Join, and the messages that it repeats after Join."""
        fields = {"workers": self.able} if self.able else {}  # type: Message
        if self.is_used and not self.generation:
            fields["provisional"] = True
        puts = [put for worker in self.workers.values() for put in worker.puts.values()]
        return fields, [message for kind, message in self._said.items() if kind != "ready"] + puts

    def follow(self, view: View) -> bool:
        """Take the server's newest view. Return whether it puts this agent into another world in process."""
        change = view.change
        if change is None or change.phase not in PHASES or (change.round < self.round and change.phase != "plain"):
            return False
        if change.round > self.round:
            self._begin_round(change.round)
        self._change = change
        if change.phase == "plain" and self.generation:
            # These workers form their world from the environment and stay in it. A new server must not take them for able.
            self._is_unable = True
            self._said.pop("able", None)
        if change.phase == "run" and change.round != self.world_round and "ready" in self._said:
            del self._said["ready"]
            self.up.append({"t": "resume"})  # the change is called off, and the workers train on in their world
        self._update()
        is_new = change.phase == "form" and bool(view.generation) and (view.generation, change.round) != self._formed
        if is_new:
            self.generation, self._rank, self._size = view.generation, view.rank, view.size
            self._formed = (view.generation, change.round)
            self._has_replaced = False
            self._begin_exchange()
            for kind in ("ready", "formed", "complains", "stepped"):
                self._said.pop(kind, None)
            if "able" in self._said:
                self._said["able"] = {"t": "able", "generation": view.generation, "workers": len(self.workers)}
        return is_new

    def add_keys(self, round: int, items: typing.Mapping[str, str]) -> None:
        """Take values of the exchange that the server passes on."""
        if round != self.world_round:
            return
        for key, value in items.items():
            size = len(key) + len(value)
            if key not in self._exchange and self._exchange_bytes + size <= MOST_EXCHANGE:
                self._exchange[str(key)] = str(value)
                self._exchange_bytes += size

    def _begin_round(self, round: int) -> None:
        self.round = round
        for kind in ("holds", "unformed"):
            self._said.pop(kind, None)

    def _begin_exchange(self) -> None:
        """Begin the exchange of a world, which goes on until the next one is formed: a program forms groups of its own in between."""
        self._exchange, self._exchange_bytes = {}, 0
        for worker in self.workers.values():
            worker.puts, worker.keys = {}, set()

    # --- the workers

    def hello(self, message: Message) -> LocalWorker:
        """Return the worker that says hello with this message."""
        local_rank, step = number_of(message, "local_rank"), step_of(message, "step")
        size = self.local_size
        if message.get("t") != "hello" or local_rank >= size:
            raise BrokenRule("it did not begin with the hello of one of {} local ranks".format(size))
        if local_rank in self.workers:
            raise BrokenRule("local rank {} has said hello already".format(local_rank))
        worker = self.workers[local_rank] = LocalWorker(local_rank, step, is_unit=message.get("unit") is True)
        self.is_used, self._newcomer = True, None
        self._update()
        return worker

    def can_replace(self, local_rank: int) -> bool:
        """Return whether a new process may take the place of this worker, which has ended.

        Its siblings wait for the new process with the state in memory. With other agents in the world nobody should wait: those go on
        without this agent, and its workers come back together. A second loss before the next world makes all workers start again.
        """
        is_sole = self._size == 1 and len(self.workers) == self.local_size > 1 and not self._is_unable
        is_first = not self._has_replaced and self._newcomer is None and all(not one.is_unit for one in self.workers.values())
        is_training = self._change is not None and self._change.phase == "run" and self._change.round >= self.world_round >= 0
        has_siblings = all(not one.is_done and one.formed == self.world_round for one in self.workers.values())
        is_only_loss = self._lost is None or self._lost[1] == LOST.format(local_rank)
        return local_rank in self.workers and is_sole and is_first and is_training and has_siblings and is_only_loss

    def replace(self, local_rank: int, *, now: float) -> None:
        """Expect the hello of a new process in this worker's place."""
        del self.workers[local_rank]
        self._lost, self._has_replaced = None, True
        self._newcomer = (local_rank, now + NEWCOMER_S)

    def heard(self, worker: LocalWorker, message: Message, *, now: float) -> None:
        """Take a message of a worker after its hello."""
        kind = message.get("t")
        if kind == "done":
            worker.is_done = True
            if message.get("early") is True:
                self._left_early(worker, words_of(message))
            else:
                self._unable("the training loop of local rank {} has ended".format(worker.local_rank))
            return
        if worker.is_done or kind not in ("holds", "at", "put", "formed", "receives", "unformed", "complains", "stepped"):
            raise BrokenRule("it sent {!r}".format(str(kind)[:32]))
        round = number_of(message, "round")
        if round > self.round:
            raise BrokenRule("it named round {}, and the newest is {}".format(round, self.round))
        if kind in ("complains", "stepped", "put"):
            self._heard_of_world(worker, message, kind=str(kind), round=round)
        elif round == self.round:
            self._heard_of_round(worker, message, kind=str(kind), round=round, now=now)
        self._update()

    def lost(self, worker: LocalWorker, *, now: float) -> None:
        """Note that a worker's connection has ended. Without a new process in its place, this agent's workers cannot change worlds."""
        if self.workers.get(worker.local_rank) is worker and not worker.is_done:
            self._lost = self._lost or (now + LOSS_S, LOST.format(worker.local_rank))

    def pass_time(self, now: float) -> None:
        """Report a lost connection if nothing else explains it by now."""
        if self._lost is not None and now >= self._lost[0]:
            self._unable(self._lost[1])
            self._lost = None
        if self._newcomer is not None and now >= self._newcomer[1]:
            self._unable("the new process of local rank {} has not come within {:g} s".format(self._newcomer[0], NEWCOMER_S))
            self._newcomer = None

    def lines(self, worker: LocalWorker) -> typing.List[Message]:
        """Return what this worker lacks of the present change."""
        if worker.is_done:
            return []
        found = []
        present = self._present_for(worker)
        if present is not None and present != worker.heard:
            worker.heard = present
            found.append(present)
        lacking = {key: value for key, value in self._exchange.items() if key not in worker.keys}
        worker.keys.update(lacking)
        return found + [{"t": "keys", "round": self.world_round, "items": items} for items in parts_of(lacking)]

    def _heard_of_world(self, worker: LocalWorker, message: Message, *, kind: str, round: int) -> None:
        if round != self.world_round:
            return
        if kind == "put":
            self._put(worker, message)
        elif kind == "stepped":
            worker.stepped = (round, number_of(message, "step"))
        elif "complains" not in self._said:
            self._say("complains", round=round, words=words_of(message))

    def _heard_of_round(self, worker: LocalWorker, message: Message, *, kind: str, round: int, now: float) -> None:
        if kind == "holds":
            worker.holds = (round, number_of(message, "step"))
        elif kind == "at":
            worker.at, worker.step = round, step_of(message, "step")
        elif kind == "formed":
            worker.formed = round
        elif kind == "unformed":
            if "unformed" not in self._said:
                self._say("unformed", round=round, words=words_of(message))
        elif now - self._progress_at >= PROGRESS_S:
            number_of(message, "bytes")
            self._progress_at = now
            self.up.append({"t": "receives", "round": round})

    def _put(self, worker: LocalWorker, message: Message) -> None:
        key, value = message.get("key"), message.get("value")
        if not isinstance(key, str) or len(key) > MOST_KEY or not PLAIN.match(key):
            raise BrokenRule("a key is not 1 to {} printable characters".format(MOST_KEY))
        if not isinstance(value, str) or len(value) > MOST_VALUE or not BASE64.match(value):
            raise BrokenRule("a value is not in base64, or has more than {} characters".format(MOST_VALUE))
        if key not in worker.puts and len(worker.puts) >= MOST_PUTS:
            raise BrokenRule("it put more than {} values".format(MOST_PUTS))
        put = {"t": "put", "round": self.world_round, "key": key, "value": value}
        if worker.puts.get(key) != put:
            worker.puts[key] = put
            self.up.append(put)

    def _left_early(self, worker: LocalWorker, error: str) -> None:
        """Tell the server, whose change then waits for the end of this worker's process: only that says how it ended."""
        rank = self._rank * self.local_size + worker.local_rank
        what = "raised {}".format(error) if error else "left its training loop early"
        self._unable("the program of rank {} {}".format(rank, what), early=True, rank=rank, error=error)

    def _unable(self, words: str, **early: typing.Any) -> None:
        self._is_unable = True
        self._said.pop("able", None)
        if "unable" not in self._said:
            self._say("unable", words=words, **early)

    def _update(self) -> None:
        """Tell the server what has become true of all local workers."""
        if not self.able or self._newcomer is not None:
            return
        workers, round = list(self.workers.values()), self.round
        if "able" not in self._said:
            self._say("able", generation=self.generation, workers=len(workers), **_newest(workers))
            if not self.generation:
                self._say("ready", round=round, **_newest(workers))
        is_asked = self._change is not None and self._change.phase in ("hold", "stop", "abort")
        if is_asked and all(worker.holds[0] == round for worker in workers):
            self._say("holds", round=round, step=max(worker.holds[1] for worker in workers))
        if is_asked and all(worker.at == round for worker in workers):
            self._say("ready", round=round, **_newest(workers))
        if round == self.world_round and all(worker.formed == round for worker in workers) and "formed" not in self._said:
            self._say("formed", round=round)
            self.up.append({"t": "started"})
        if self.world_round >= 0 and all(worker.stepped[0] == self.world_round for worker in workers):
            self._say("stepped", generation=self.generation, step=min(worker.stepped[1] for worker in workers))

    def _gives(self, rank: int, local: int) -> bool:
        """Return whether this worker of a donor may have the state. A new worker must not give random weights to its siblings."""
        has_state = [worker.local_rank for worker in self.workers.values() if worker.step is not None]
        return rank != self._rank or not has_state or local in has_state

    def _say(self, kind: str, **fields: typing.Any) -> None:
        message = dict(fields, t=kind)
        if self._said.get(kind) != message:
            self._said[kind] = message
            self.up.append(message)

    def _present_for(self, worker: LocalWorker) -> typing.Optional[Message]:
        """Return the present change as this worker must hear it; None if it concerns no worker."""
        change = self._change
        if change is None:
            return None
        if change.phase == "plain":
            # A worker in a provisional world would train alone, as rank 0 of a world of one.
            return {"t": "change", "round": 0, "phase": "plain", "why": change.why} if self.generation else None
        message = {"t": "change", "round": change.round, "phase": change.phase}  # type: Message
        is_formed = self._formed[1] == change.round
        if change.phase == "stop":
            message["step"] = change.step
        if change.phase == "form" and is_formed:
            local_size = self.local_size
            message.update(
                generation=self.generation,
                rank=self._rank * local_size + worker.local_rank,
                size=self._size * local_size,
                local_rank=worker.local_rank,
                local_size=local_size,
                node=self._rank,
                nodes=self._size,
                step=change.step,
                donors=[rank * local_size + local for rank in change.donors for local in range(local_size) if self._gives(rank, local)],
                secret=self._secret(self.generation, change.round),
                address=self._address,
            )
        if change.phase == "form":
            return message if is_formed else None
        if change.phase == "run":
            # A new worker has no part in a change that ended before its hello.
            return message if worker.heard is not None else None
        return message


def _newest(workers: typing.Iterable[LocalWorker]) -> Message:
    """Return the field `step` of the newest clean state; empty without one. A worker that lacks the state gets it from a sibling.

    The workers of a unit hold different parts of one state, so they have the state of a step only if all of them have it.
    """
    known = list(workers)
    clean = [worker.step for worker in known if worker.step is not None]
    if any(worker.is_unit for worker in known):
        return {"step": min(clean)} if len(clean) == len(known) else {}
    return {"step": max(clean)} if clean else {}
