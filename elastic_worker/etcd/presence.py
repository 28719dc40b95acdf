"""One agent's side of a rendezvous in etcd.

A thread keeps a lease and this member's record, watches the prefix, and carries out what is decided (elastic_worker.etcd.decide). So a
member whose lease holds can act. A member that loses its lease, stopped or cut off, comes to the barrier as another incarnation.
"""

import dataclasses
import logging
import time
import typing

from elastic_worker.agent.presence_thread import PresenceThread, process_id
from elastic_worker.agent.view import View
from elastic_worker.agent.wake import wait_readable
from elastic_worker.etcd.change_messages import MOVING, as_message, failed
from elastic_worker.etcd.client import Client, Etcd
from elastic_worker.etcd.decide import Decision, Write, decide
from elastic_worker.etcd.gateway import Answer, Body, Refused, Unreachable, number
from elastic_worker.etcd.leases import Leases
from elastic_worker.etcd.liveness import AlivePort, Asking
from elastic_worker.etcd.mirror import Behind, Mirror
from elastic_worker.etcd.notice import OwnNotice
from elastic_worker.etcd.records import Failed, Member, Records, Seal, clipped
from elastic_worker.etcd.reports import Reports
from elastic_worker.etcd.settings import Settings, remedy
from elastic_worker.etcd.sight import Me, Sight
from elastic_worker.etcd.steps import Steps
from elastic_worker.etcd.transaction import put_member, put_progress, remove_member, transaction

log = logging.getLogger(__name__)

CHECK_S = 3.0
FIRST_BACK_OFF_S = 0.05
LONGEST_BACK_OFF_S = 1.0
LEASE_OVER = "the lease of this member ended while etcd did not hear from it"
LEAVE_CALL_S = 0.8
ACT_S = 1.0
"""How long a write may take to come by the watch, before another one is tried."""


class EtcdPresence(PresenceThread):
    """The presence of one agent. It lives as long as the agent."""

    def __init__(
        self,
        settings: Settings,
        *,
        on_signal: typing.Callable[[int], None],
        clock: typing.Callable[[], float] = time.monotonic,
        etcd: typing.Optional[Etcd] = None,
        reports: typing.Optional[Reports] = None,
        alive: typing.Optional[AlivePort] = None,
    ) -> None:
        """Take part in the job. `reports`: takes the steps of the workers. `alive`: tells peers whether this process lives."""
        super().__init__(on_signal=on_signal, clock=clock)
        self._settings = settings
        self.peer = "etcd at {}".format(",".join(str(endpoint) for endpoint in settings.endpoints))
        self._process = process_id(settings.pod_uid or settings.member)
        self._etcd = etcd or Client(settings, wake=self._wake.up)
        self._seal = Seal(settings.token, settings.job)
        self._mirror = Mirror(self._etcd, prefix=settings.prefix, seal=self._seal, open_watch=self._etcd.watch)
        self._leases = Leases(self._etcd, prefix=settings.prefix, token=settings.token, own_s=settings.lease_s, job_s=settings.linger_s)
        self._reports = reports
        self._alive = alive
        self._asking = Asking(self._wake.up)
        self._steps = Steps()

        self._is_away_logged = self._is_ready = False  # guarded by `changed` from here
        self._renewed_at = float("-inf")
        self._generation = self._finished = 0
        self._stray = self._left = ""
        self._ready = None  # type: typing.Optional[Member]
        self._failed: typing.Optional[Failed] = None
        self._notice = OwnNotice()

        self._incarnations = 1  # the thread's own from here
        self._check_at = 0.0
        self._written = None  # type: typing.Optional[Member]
        self._written_at = 0
        self._is_confirmed = self._is_returning = False
        self._acted_on = None  # type: typing.Optional[typing.Tuple[int, float]]
        self._unseen = frozenset()  # type: typing.FrozenSet[str]
        self._decided: typing.Optional[Decision] = None
        self._look_again_at = None  # type: typing.Optional[float]

    # --- for the agent's thread ---

    def start(self) -> None:
        if not self._settings.token:
            log.warning(
                "ELASTIC_TOKEN is not set: everybody who may write to %s in etcd can forge this job's records", self._settings.prefix
            )
        if self._reports is not None:
            self._reports.begin(self.note_step, self.answer)
        super().start()

    def close(self) -> None:
        super().close()
        for opened in (self._reports, self._alive):
            if opened is not None:
                opened.close()

    @property
    def view(self) -> View:
        with self.changed:
            silent_s = self._clock() - self._renewed_at
            if self._is_ready and self._view.generation and silent_s > self._settings.lease_s:
                return View({"waiting": "the lease of this member was not renewed for {:.0f} s".format(silent_s)})
            return self._view

    def announce_ready(self, *, after: int, store: str, trouble: str = "", killed: int = 0) -> None:
        with self.changed:
            self._is_ready, self._stray, self._finished = True, "", 0
            alive_at = self._alive.address if self._alive is not None else ""
            self._ready = Member(self._settings.member, "", store, entered=after, after=after, trouble=clipped(trouble), alive_at=alive_at)
            self._view = View({"grace_s": self._view.grace_s, "closed": self._view.closed})
        self._wake.up()

    def enter(self, view: View) -> None:
        with self.changed:
            self._is_ready, self._generation = False, view.generation
        self._wake.up()

    def report_state(self, kind: str, **fields: typing.Any) -> None:
        """Note a state. That workers have started is not written: it would cost each member a write, and all others its event."""
        with self.changed:
            generation = int(fields.get("generation", 0))
            if generation != self._generation or self._is_ready:
                return
            if kind == "failed" and (self._failed is None or self._failed.replaced or self._failed.generation != generation):
                self._failed = failed(generation, fields)
            elif kind == "finished":
                self._finished = generation
        self._wake.up()

    def _note_leave(self, reason: str, by_signal: bool) -> None:
        self._left = clipped(reason)

    def note_step(self, generation: int, step: int) -> None:
        """Note that a worker has made this step."""
        if self._steps.note(generation, step, self._clock()):
            self._wake.up()

    def answer(self) -> typing.Dict[str, typing.Any]:
        """Return the fields of elastic_worker.report.Answer for the workers."""
        with self.changed:
            why = self._view.reform or self._view.closed
            return {"stop": bool(why), "reason": why, "checkpoint_s": self._notice.left_s(self._clock())}

    # --- the thread ---

    def _run(self) -> None:
        back_off_s = FIRST_BACK_OFF_S
        while True:
            self._read_signals()
            with self.changed:
                is_over = self._is_ending or bool(self._refused)
            if is_over:
                break
            is_well = self._try()
            back_off_s = FIRST_BACK_OFF_S if is_well else min(2 * back_off_s, LONGEST_BACK_OFF_S)
            wait_readable(self._next_in_s() if is_well else back_off_s, self._wake.fileno())
        self._say_goodbye()
        self._mirror.end()
        self._etcd.close()

    def _try(self) -> bool:
        """One pass; whether all of it went well."""
        try:
            self._pass()
        except Behind as error:
            log.info("reading %s anew: %s", self._settings.prefix, error)
            self._mirror.end()
        except Unreachable as error:
            self._note_away("{} does not answer: {}".format(self.peer, error), denied="")
        except Refused as error:
            words = "{} refuses: {}{}".format(self.peer, error, remedy(error, self._settings))
            self._note_away(words, denied=words)
        except Exception:
            log.exception("the rendezvous in etcd met what it does not know")
            self._note_away("{} answers what this agent does not understand".format(self.peer), denied="")
        else:
            with self.changed:
                self._away_since, self._denied, self._is_away_logged = None, "", False
            return True
        return False

    def _pass(self) -> None:
        self._keep_lease()
        if not self._mirror.is_current:
            self._mirror.begin()
            self._decided = None  # nobody knows how long a fact held that nobody watched
            self._is_confirmed, self._check_at = self._written is not None, self._clock() + CHECK_S
            records = self._mirror.records()
            is_known = self._is_returning or records.has_seat(self._settings.member, self._incarnation)
            self._unseen = records.absent() if is_known else frozenset()
        self._mirror.catch_up()
        if self._clock() >= self._check_at:
            self._mirror.check()
            self._check_at = self._clock() + CHECK_S
        records = self._mirror.records()
        self._unseen -= records.members.keys()
        self._look_for_own_key(records)
        if self.refused:
            return
        self._publish(records)
        if self._is_returning:
            self._is_returning = False
            raise Behind("this member is back at its seat")
        self._decide(records)

    def _next_in_s(self) -> float:
        moments = [self._leases.renew_at, self._check_at]
        if self._look_again_at is not None:
            moments.append(self._look_again_at)
        return max(0.0, min(moments) - self._clock())

    def _note_away(self, words: str, *, denied: str) -> None:
        self._mirror.end()  # what it holds may be old by the time etcd answers
        with self.changed:
            if self._away_since is None:
                self._away_since = self._clock()
            if not self._is_away_logged:
                log.warning("%s", words)
            self._is_away_logged = True
            self._denied = denied
            if self._is_ready:
                self._view = View({"grace_s": self._view.grace_s, "waiting": clipped(words)})
            self.changed.notify_all()

    def _lose(self, reason: str) -> None:
        """Give up this incarnation and its seat. The record of a finished member stays, because it lies on the job's lease."""
        if self._finished:
            return
        log.warning("%s; it presents itself anew", reason)
        self._incarnations += 1
        self._written, self._is_confirmed = None, False
        with self.changed:
            if not self._is_ready:
                self._stray = reason
            self._show(Sight())

    def _lose_lease(self) -> None:
        """Note that this member's record went with its lease. Its seat stays unless the world has gone on."""
        if not self._finished:
            self._written, self._is_confirmed, self._is_returning = None, False, True
            self._mirror.end()

    # --- this member's record

    def _keep_lease(self) -> None:
        now = self._clock()
        if not self._leases.keep(now):
            self._lose_lease()
            self._leases.keep(now)
        with self.changed:
            self._renewed_at = self._leases.renewed_at

    @property
    def _incarnation(self) -> str:
        return "{}.{}".format(self._process, self._incarnations)

    def _look_for_own_key(self, records: Records) -> None:
        """Whether this member's key still holds what it wrote: it may be deleted, or taken over by a newer incarnation."""
        present = records.members.get(self._settings.member)
        if self._is_returning and not records.has_seat(self._settings.member, self._incarnation, generation=self._generation):
            self._is_returning = False
            self._lose(LEASE_OVER)
        if self._written is not None and self._mirror.written(self._settings.member) >= self._written_at:
            self._is_confirmed = True
        is_others = present is not None and not present.record.incarnation.startswith(self._process + ".")
        if is_others and present is not None and (self._is_confirmed or self._incarnations > 1) and not present.record.left:
            with self.changed:
                self._refused = "another agent has come as {}".format(self._settings.member)
                self.changed.notify_all()
        elif self._is_confirmed and (present is None or is_others):
            self._lose("the record of this member was removed from etcd")

    def _publish(self, records: Records) -> None:
        """Write this member's record where it differs from what was written."""
        with self.changed:
            wanted = self._record() if not self._stray else None
        if wanted is None or wanted == self._written:
            return
        answer = self._put(wanted, lease=self._leases.job if wanted.finished else self._leases.own)
        header = answer.get("header")
        self._written, self._is_confirmed = wanted, False
        self._written_at = number(header, "revision") if isinstance(header, dict) else 0
        with self.changed:
            if self._failed is not None and not self._failed.at and self._failed is wanted.failed:
                self._failed = dataclasses.replace(self._failed, at=self._written_at)
                self._written = dataclasses.replace(wanted, failed=self._failed)  # for this alone nothing is written again

    def _record(self, left: str = "") -> typing.Optional[Member]:
        """Return this member's record as it should be. The caller holds the lock."""
        if self._ready is None:
            return None
        record = dataclasses.replace(self._ready, incarnation=self._incarnation, entered=max(self._generation, self._ready.after))
        return dataclasses.replace(record, failed=self._failed, finished=self._finished, left=left)

    def _put(self, member: Member, *, lease: int) -> Answer:
        return self._on_lease(lease, "kv/put", put_member(member, prefix=self._settings.prefix, seal=self._seal, lease=lease))

    def _on_lease(self, lease: int, path: str, body: Body) -> Answer:
        """Write something that lies on one of the leases; without it, the next pass begins with another one."""
        try:
            return self._etcd.call(path, body)
        except Refused as error:
            if not error.is_missing_lease:
                raise
        self._leases.forget(lease)
        if lease != self._leases.job:
            self._lose_lease()
        raise Behind("a lease has ended")

    # --- what follows from the records

    def _decide(self, records: Records) -> None:
        me, now = Me(self._settings.member, self._incarnation, self._unseen), self._clock()
        self._decided = decision = decide(records, me, self._settings.rules, before=self._decided, now=now)
        self._look_again_at = decision.look_again_at
        with self.changed:
            self._show(decision.sight, self._settings.rules.under(records.expected).grace_s)
            may_act = self._is_confirmed and not self._stray
            self._notice.read(records, self._settings.member, now)
        self._look_after(records, decision.suspects)
        if decision.write is not None and may_act:
            self._act(records, decision.write, now)
        elif may_act and decision.sight.generation:
            self._write_progress(records, decision.sight, now)

    def _look_after(self, records: Records, suspects: typing.Sequence[str]) -> None:
        """Remove the record of a peer whose process has ended; its lease would say so only later. It is missed by all from then on."""
        if not suspects:
            self._asking.forget()
            return
        doubted = [records.members[name] for name in suspects if records.members[name].record.alive_at]
        self._asking.ask(present.record.alive_at for present in doubted)
        for present in doubted:
            if self._asking.has_ended(present.record.alive_at):
                log.info("the agent of %s has ended without a word", present.record.name)
                self._etcd.call("kv/txn", remove_member(present.record.name, present.written, prefix=self._settings.prefix))

    def _write_progress(self, records: Records, sight: Sight, now: float) -> None:
        """Write how far training has come, unless somebody else just did. That etcd takes no more writes disturbs nobody who trains."""
        rules = self._settings.rules.under(records.expected)
        due, lease = self._steps.due(records, rank=sight.rank, generation=sight.generation, rules=rules, now=now), self._leases.job
        self._look_again_at = min((at for at in (self._look_again_at, due.look_again_at) if at is not None), default=None)
        try:
            if due.progress is not None:
                self._on_lease(
                    lease, "kv/txn", put_progress(records, due.progress, prefix=self._mirror.prefix, seal=self._seal, lease=lease)
                )
        except (Refused, Unreachable) as error:
            log.warning("how far training has come could not be written: %s", error)
            self._steps.put_off(now)

    def _show(self, sight: Sight, grace_s: typing.Optional[float] = None) -> None:
        """Only with the lock."""
        fields = {name: getattr(sight, name) for name in sight.__dataclass_fields__}
        fields["grace_s"] = self._view.grace_s if grace_s is None else grace_s
        fields["change"] = as_message(sight.change)
        is_here = sight.generation == self._generation or (sight.change is not None and sight.change.stage in MOVING)
        if not self._is_ready and not sight.closed and not is_here and not self._finished:
            fields = {"grace_s": fields["grace_s"], "reform": self._stray or "the world went on without this member"}
        view = View(fields)
        if vars(view) != vars(self._view):
            self._view = view
            self.changed.notify_all()

    def _act(self, records: Records, write: Write, now: float) -> None:
        """Write the next world, unless anything that it rests on has changed."""
        if self._acted_on is not None and self._acted_on[0] == records.world_written and now < self._acted_on[1] + ACT_S:
            self._look_again_at = self._acted_on[1] + ACT_S
            return
        if self._acted_on is not None and self._acted_on[0] == records.world_written:
            self._acted_on = None
            raise Behind("a write did not come back by the watch")
        lease = self._leases.job
        body = transaction(records, write, prefix=self._settings.prefix, seal=self._seal, lease=lease)
        answer = self._on_lease(lease, "kv/txn", body)
        if answer.get("succeeded") is not True:
            raise Behind("another member was quicker")
        self._acted_on = (records.world_written, now)
        log.info("wrote generation %s: %s", write.world.generation, write.world.round or write.world.closed or write.world.reason)

    # --- the end

    def _say_goodbye(self) -> None:
        """Say why this member is gone, where a world must know; its lease goes at once."""
        with self.changed:
            record = self._record(self._left) if self._generation and not self._finished and not self._refused and not self._stray else None
        self._etcd.hurry(LEAVE_CALL_S)
        try:
            if record is not None and self._written is not None:
                self._put(record, lease=self._leases.job)
            self._leases.revoke()
        except (Unreachable, Refused) as error:
            log.info("left without a word to etcd: %s", error)
