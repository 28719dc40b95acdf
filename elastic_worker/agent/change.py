"""Decide what an agent tells the server about its local workers during a change in process, and what each worker hears.

The server's View.change is the whole state of a change, and a worker hears the whole state too. A round is a number that only rises;
answers to an older round are ignored. Pure: the caller has sockets, threads and the clock.
"""

import json
import re
import typing

from elastic_worker.agent.view import Change, View

MOST_WORDS = 300
MOST_KEY = 256
MOST_VALUE = 16 * 1024
"""Characters of a value in base64 (elastic.membership.in_place)."""
MOST_PUTS = 16
"""Number of values that one worker may put into the exchange of a round."""
MOST_NUMBER = 2**53
PLAIN = re.compile(r"[!#-\[\]-~]+\Z")
BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}\Z")
MOST_KEYS_LINE = 48 * 1024
MOST_EXCHANGE = 64 * 1024 * 1024
"""Bytes of the exchange of one round that an agent keeps."""
PROGRESS_S = 0.5
LOSS_S = 1.0
"""Seconds after which a lost connection is reported by itself. By then the end of its process has been reported, which says more."""
MOVING = ("hold", "stop", "abort", "form")
PHASES = (*MOVING, "run", "plain")

Message = typing.Dict[str, typing.Any]
Secret = typing.Callable[[int, int], str]


class BrokenRule(ValueError):
    """A worker's message breaks a rule. It costs the worker its connection, and nothing else."""


class LocalWorker:
    """One worker of this agent that has said hello."""

    def __init__(self, local_rank: int, step: typing.Optional[int]) -> None:
        self.local_rank = local_rank
        self.step = step
        self.is_done = False
        self.holds = (-1, 0)
        self.at = (-1, None)  # type: typing.Tuple[int, typing.Optional[int]]
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
        return len(self.workers) if not self._is_unable and 0 < len(self.workers) == self.local_size else 0

    @property
    def world_round(self) -> int:
        """Return the round in which the present world is formed, -1 if it was not formed in process."""
        return self._formed[1]

    def introduction(self) -> typing.Tuple[Message, typing.List[Message]]:
        """Return the fields that a new connection adds to Join, and the messages that it repeats after Join."""
        fields = {"workers": self.able} if self.able else {}
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
            for kind in ("ready", "formed", "complains", "stepped"):
                self._said.pop(kind, None)
            if "able" in self._said:
                self._said["able"] = {"t": "able", "generation": view.generation, "workers": len(self.workers)}
        return is_new

    def add_keys(self, round: int, items: typing.Mapping[str, str]) -> None:
        """Take values of the exchange that the server passes on."""
        if round != self.round:
            return
        for key, value in items.items():
            size = len(key) + len(value)
            if key not in self._exchange and self._exchange_bytes + size <= MOST_EXCHANGE:
                self._exchange[str(key)] = str(value)
                self._exchange_bytes += size

    def _begin_round(self, round: int) -> None:
        self.round = round
        self._exchange, self._exchange_bytes = {}, 0
        for kind in ("holds", "unformed"):
            self._said.pop(kind, None)
        for worker in self.workers.values():
            worker.puts, worker.keys = {}, set()

    # --- the workers

    def hello(self, message: Message) -> LocalWorker:
        """Return the worker that says hello with this message."""
        local_rank, step = _number(message, "local_rank"), _step(message, "step")
        size = self.local_size
        if message.get("t") != "hello" or local_rank >= size:
            raise BrokenRule("it did not begin with the hello of one of {} local ranks".format(size))
        if local_rank in self.workers:
            raise BrokenRule("local rank {} has said hello already".format(local_rank))
        worker = self.workers[local_rank] = LocalWorker(local_rank, step)
        self.is_used = True
        self._update()
        return worker

    def heard(self, worker: LocalWorker, message: Message, *, now: float) -> None:
        """Take a message of a worker after its hello."""
        kind = message.get("t")
        if kind == "done":
            worker.is_done = True
            self._unable("the training loop of local rank {} has ended".format(worker.local_rank))
            return
        if worker.is_done or kind not in ("holds", "at", "put", "formed", "receives", "unformed", "complains", "stepped"):
            raise BrokenRule("it sent {!r}".format(str(kind)[:32]))
        round = _number(message, "round")
        if round > self.round:
            raise BrokenRule("it named round {}, and the newest is {}".format(round, self.round))
        if kind in ("complains", "stepped"):
            self._heard_of_world(worker, message, kind=str(kind), round=round)
        elif round == self.round:
            self._heard_of_round(worker, message, kind=str(kind), round=round, now=now)
        self._update()

    def lost(self, worker: LocalWorker, *, now: float) -> None:
        """Note that a worker's connection has ended. From now on this agent's workers cannot change worlds."""
        if self.workers.get(worker.local_rank) is worker and not worker.is_done:
            self._is_unable = True
            self._lost = self._lost or (now + LOSS_S, "the connection of local rank {} to its agent has ended".format(worker.local_rank))

    def pass_time(self, now: float) -> None:
        """Report a lost connection if nothing else explains it by now."""
        if self._lost is not None and now >= self._lost[0]:
            self._unable(self._lost[1])
            self._lost = None

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
        return found + [{"t": "keys", "round": self.round, "items": items} for items in _parts(lacking)]

    def _heard_of_world(self, worker: LocalWorker, message: Message, *, kind: str, round: int) -> None:
        if round != self.world_round:
            return
        if kind == "stepped":
            worker.stepped = (round, _number(message, "step"))
        elif "complains" not in self._said:
            self._say("complains", round=round, words=_words(message))

    def _heard_of_round(self, worker: LocalWorker, message: Message, *, kind: str, round: int, now: float) -> None:
        if kind == "holds":
            worker.holds = (round, _number(message, "step"))
        elif kind == "at":
            worker.at = (round, _step(message, "step"))
        elif kind == "formed":
            worker.formed = round
        elif kind == "put":
            self._put(worker, message)
        elif kind == "unformed":
            if "unformed" not in self._said:
                self._say("unformed", round=round, words=_words(message))
        elif now - self._progress_at >= PROGRESS_S:
            _number(message, "bytes")
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
        put = {"t": "put", "round": self.round, "key": key, "value": value}
        if worker.puts.get(key) != put:
            worker.puts[key] = put
            self.up.append(put)

    def _unable(self, words: str) -> None:
        self._is_unable = True
        self._said.pop("able", None)
        if "unable" not in self._said:
            self._say("unable", words=words)

    def _update(self) -> None:
        """Tell the server what has become true of all local workers."""
        if not self.able:
            return
        workers, round = list(self.workers.values()), self.round
        if "able" not in self._said:
            self._say("able", generation=self.generation, workers=len(workers), **_lowest(worker.step for worker in workers))
            if not self.generation:
                self._say("ready", round=round, **_lowest(worker.step for worker in workers))
        is_asked = self._change is not None and self._change.phase in ("hold", "stop", "abort")
        if is_asked and all(worker.holds[0] == round for worker in workers):
            self._say("holds", round=round, step=max(worker.holds[1] for worker in workers))
        if is_asked and all(worker.at[0] == round for worker in workers):
            self._say("ready", round=round, **_lowest(worker.at[1] for worker in workers))
        if round == self.world_round and all(worker.formed == round for worker in workers) and "formed" not in self._said:
            self._say("formed", round=round)
            self.up.append({"t": "started"})
        if self.world_round >= 0 and all(worker.stepped[0] == self.world_round for worker in workers):
            self._say("stepped", generation=self.generation, step=min(worker.stepped[1] for worker in workers))

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
                donors=[rank * local_size + local for rank in change.donors for local in range(local_size)],
                secret=self._secret(self.generation, change.round),
                address=self._address,
            )
        if change.phase == "form":
            return message if is_formed else None
        if change.phase == "run":
            # A new worker has no part in a change that ended before its hello.
            return message if worker.heard is not None else None
        return message


def _lowest(steps: typing.Iterable[typing.Optional[int]]) -> Message:
    """Return the field `step` of workers that have these clean steps; empty if one of them has none."""
    known = list(steps)
    clean = [step for step in known if step is not None]
    return {"step": min(clean)} if len(clean) == len(known) else {}


def _parts(items: typing.Mapping[str, str]) -> typing.Iterator[Message]:
    """Divide these values, so that each part fits into a line."""
    part, size = {}, 0  # type: Message, int
    for key, value in items.items():
        more = len(json.dumps(key)) + len(value) + 4
        if part and size + more > MOST_KEYS_LINE:
            yield part
            part, size = {}, 0
        part[key] = value
        size += more
    if part:
        yield part


def _number(message: Message, name: str) -> int:
    number = message.get(name)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MOST_NUMBER:
        raise BrokenRule("its {} is no number from 0 to 2**53".format(name))
    return number


def _step(message: Message, name: str) -> typing.Optional[int]:
    return None if message.get(name) is None else _number(message, name)


def _words(message: Message) -> str:
    words = message.get("words", "")
    if not isinstance(words, str):
        raise BrokenRule("its words are no text")
    return words[:MOST_WORDS].encode("utf-8", "replace").decode()  # half a surrogate pair would break the connection to the server
