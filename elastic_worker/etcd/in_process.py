"""The presence of an agent whose workers can change worlds in process, in an etcd.

The agent's InProcess says the same as to a server. The record of this member says it to the others, and its key under `exchange/` has the
addresses of its workers.
"""

import dataclasses
import logging
import secrets
import typing

from elastic_worker.agent.in_process import transfer_secret
from elastic_worker.agent.presence import SAVING_MINOR
from elastic_worker.agent.view import View
from elastic_worker.etcd import changes
from elastic_worker.etcd.change_messages import Message, answered, at_barrier, moved
from elastic_worker.etcd.change_records import Part, Values
from elastic_worker.etcd.decide import Write
from elastic_worker.etcd.fields import Unusable
from elastic_worker.etcd.gateway import Refused, Unreachable
from elastic_worker.etcd.local_news import KINDS, LocalNews
from elastic_worker.etcd.presence import EtcdPresence
from elastic_worker.etcd.records import LONGEST_RECORD, Member, Records
from elastic_worker.etcd.sight import Sight
from elastic_worker.etcd.transaction import put_findings, put_news, put_values

log = logging.getLogger(__name__)

RECEIVES_S = 2.0
"""Least seconds between two records that a state is being received."""
FINDINGS_S, REFUSED_S = 2.0, 30.0
"""Least seconds between two records of findings, and seconds until the next attempt after etcd refused one."""


class ChangingPresence(EtcdPresence):
    """The presence of one agent that changes worlds in process."""

    minor = SAVING_MINOR

    def __init__(self, *args: typing.Any, **fields: typing.Any) -> None:
        super().__init__(*args, **fields)
        self.introduce = lambda: ({}, [])  # type: typing.Callable[[], typing.Tuple[Message, typing.List[Message]]]
        self.on_news = lambda: None  # type: typing.Callable[[], None]
        self._part = Part()  # type: typing.Optional[Part]
        self._news = LocalNews(self._settings.member)
        self._findings_at = float("-inf")
        self._round = self._world_round = 0
        self._received_at = float("-inf")
        self._left_in_process = set()  # type: typing.Set[int]
        self._given = Values(self._settings.member)
        self._exchange = {}  # type: typing.Mapping[str, Values]
        self._taken = set()  # type: typing.Set[str]
        self._nonce = ""
        self._written_values = None  # type: typing.Optional[Values]

    # --- for the agent's threads

    def secret(self, generation: int, round: int) -> str:
        """Return the key of the state transfers of one round, which all agents of the job derive alike."""
        return transfer_secret(self._settings.token + self._nonce, job=self._settings.job, generation=generation, round=round)

    def announce_ready(self, *, after: int, store: str, trouble: str = "", killed: int = 0) -> None:
        with self.changed:
            if self._part is not None:
                self._part = Part()
            self._news.begin()
            self._world_round = 0
            super().announce_ready(after=after, store=store, trouble=trouble, killed=killed)

    def start_outside(self) -> None:
        """Write that the workers of this agent start in a world of their own."""
        self._change_part(lambda part: dataclasses.replace(part, is_outside=True))

    def stand_by(self, *, round: int, step: typing.Optional[int] = None) -> None:
        """Write that the living workers of this agent wait at the barrier. Workers in a world of their own have said so by being able."""
        self._change_part(lambda part: part if part.is_outside else at_barrier(part, round=round, step=step))

    def resume(self) -> None:
        """Write that the workers have left the barrier for the same world."""
        self._change_part(lambda part: dataclasses.replace(part, answer=Part().answer))

    def note_round(self, round: int) -> None:
        """Write with the next record that this agent has heard of this change."""
        with self.changed:
            self._round = max(self._round, round)

    def enter(self, view: View) -> None:
        with self.changed:
            self._left_in_process.clear()
            super().enter(view)

    def move(self, view: View) -> None:
        """Enter this world in process. A failure in the world before counts in this one, because nobody knew of it."""
        with self.changed:
            former, left, is_newcomer = self._generation, set(self._left_in_process), self._is_ready
            self.enter(view)
            self._world_round, self._taken = view.change.round if view.change is not None else 0, set()
            if view.generation != former:
                self._left_in_process = left | {0, former}
                if not is_newcomer:
                    self._take_over_failure(former)
        self._change_part(lambda part: moved(part, generation=view.generation))

    def report_state(self, kind: str, **fields: typing.Any) -> None:
        with self.changed:
            if fields.get("generation") in self._left_in_process and not self._is_ready:
                fields["generation"] = self._generation
            super().report_state(kind, **fields)

    def send(self, message: Message) -> None:
        """Write what the agent says about its workers into this member's record, into its news, or into its values of the exchange."""
        if message["t"] in KINDS:
            self._note_news(message)
        elif message["t"] == "stepped":
            self.note_step(message["generation"], message["step"])
        elif message["t"] == "put":
            self._give(message["round"], message["key"], message["value"])
        elif message["t"] == "unable" and self._is_ready:
            # Without a door, workers start like those of an older release.
            self._change_part(lambda part: answered(part, message) if part.is_outside else None)
        elif message["t"] != "receives" or self._is_due():
            self._change_part(lambda part: answered(part, message))

    def take_keys(self) -> typing.List[typing.Tuple[int, typing.Dict[str, str]]]:
        """Return the values of the present world that were not returned before."""
        with self.changed:
            found = {}
            for values in self._exchange.values():
                if self._world_round and values.round == self._world_round:
                    found.update({key: value for key, value in values.items.items() if key not in self._taken})
            self._taken.update(found)
            return [(self._world_round, found)] if found else []

    def _note_news(self, message: Message) -> None:
        with self.changed:
            try:
                self._news.take(message)
            except Unusable as error:
                log.warning("the %s of this agent's workers cannot be told: %s", message["t"], error)
        self._wake.up()

    def _change_part(self, change: typing.Callable[[Part], typing.Optional[Part]]) -> None:
        with self.changed:
            if self._part is not None:
                self._part = change(self._part)
        self._wake.up()

    def _is_due(self) -> bool:
        now = self._clock()
        if now < self._received_at + RECEIVES_S:
            return False
        self._received_at = now
        return True

    def _give(self, round: int, key: str, value: str) -> None:
        with self.changed:
            items = self._given.items if round == self._given.round else {}
            self._given = Values(self._given.name, round, {**items, key: value})
        self._wake.up()

    def _take_over_failure(self, former: int) -> None:
        if self._failed is None or self._failed.generation != former:
            return
        # The next world was formed because of a worker that was replaced.
        self._failed = None if self._failed.replaced else dataclasses.replace(self._failed, generation=self._generation, at=0)

    # --- the thread

    def _record(self, left: str = "") -> typing.Optional[Member]:
        record = super()._record(left)
        if record is None or self._part is None:
            return record
        # A newer round alone is nothing to write.
        written = self._written.in_process if self._written is not None else None
        same = written is not None and dataclasses.replace(written, round=0) == self._part
        return dataclasses.replace(record, in_process=written if same else dataclasses.replace(self._part, round=self._round))

    def _publish(self, records: Records) -> None:
        super()._publish(records)
        with self.changed:
            wanted = self._given
        if not wanted.round or wanted == self._written_values or self._written is None:
            return
        body = put_values(wanted, prefix=self._settings.prefix, seal=self._seal, lease=self._leases.own)
        if len(body["value"]) * 3 // 4 > LONGEST_RECORD:
            log.warning("the addresses of this agent's workers are more than %s bytes, too much for a record in etcd", LONGEST_RECORD)
        else:
            self._on_lease(self._leases.own, "kv/put", body)
        self._written_values = wanted

    def _lose(self, reason: str) -> None:
        self._written_values = None
        self._news.forget_written()
        super()._lose(reason)

    def _lose_lease(self) -> None:
        self._written_values = None
        self._news.forget_written()
        super()._lose_lease()

    def _decide(self, records: Records) -> None:
        with self.changed:
            self._exchange = records.exchange
        super()._decide(records)
        self.on_news()
        if self._is_confirmed and not self._finished:
            self._write_news(records)
        self._write_findings(records)

    def _write_news(self, records: Records) -> None:
        """Write what this agent tells about its workers, if it is due. An etcd that takes no more writes disturbs nobody who trains."""
        now, lease = self._clock(), self._leases.own
        with self.changed:
            self._news.in_world(self._view.generation, is_watched=bool(self._view.watch))
            members = len(records.world.seats) if records.world is not None else 0
            due = self._news.due(now, incarnation=self._incarnation, members=members)
        self._look_again_by(due.look_again_at)
        if due.news is None:
            return
        try:
            self._on_lease(lease, "kv/put", put_news(due.news, prefix=self._settings.prefix, seal=self._seal, lease=lease))
        except (Refused, Unreachable) as error:
            log.warning("the news of this agent's workers could not be written: %s", error)
            self._news.put_off(now)
        else:
            self._news.note_written(due.news, now)

    def _write_findings(self, records: Records) -> None:
        """Write what the engine has found about the workers of the job, if this is the member that does."""
        decided, now, lease = self._decided, self._clock(), self._leases.job
        if decided is None or decided.findings is None:
            return
        if now < self._findings_at + FINDINGS_S:
            self._look_again_by(self._findings_at + FINDINGS_S)
            return
        self._findings_at = now
        body = put_findings(records, decided.findings, prefix=self._settings.prefix, seal=self._seal, lease=lease)
        try:
            self._on_lease(lease, "kv/txn", body)
        except (Refused, Unreachable) as error:
            log.warning("the findings about the job's workers could not be written: %s", error)
            self._findings_at = now + REFUSED_S - FINDINGS_S
        else:
            for words in decided.words:
                log.warning("%s", words)

    def _look_again_by(self, at: typing.Optional[float]) -> None:
        self._look_again_at = min((one for one in (self._look_again_at, at) if one is not None), default=None)

    def _show(self, sight: Sight, grace_s: typing.Optional[float] = None) -> None:
        self._nonce = sight.nonce or self._nonce
        super()._show(sight, grace_s)

    def _act(self, records: Records, write: Write, now: float) -> None:
        if write.world.change is not None:
            change = changes.marked(write.world.change, secrets.token_hex(16))
            write = dataclasses.replace(write, world=dataclasses.replace(write.world, change=change))
        super()._act(records, write, now)
