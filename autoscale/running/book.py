"""Keep a process's knowledge of each job between rounds: its training, and the memory of former decisions."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from msgspec.structs import replace as replace_progress

from elastic.api.scaling import MANAGER, DecisionRecord, PolicyName
from elastic.api.words import Through
from elastic.membership.phases import WorldPhase
from elastic.membership.training import TrainingProgress
from elastic_training.autoscale.deciding.jobs import JobState, Outcome, ScaledJob
from elastic_training.autoscale.deciding.measures import with_rate
from elastic_training.autoscale.deciding.remembering import memory_of, record_of, with_hand
from elastic_training.autoscale.deciding.signals import CARRIERS, Memory
from elastic_training.autoscale.deciding.training import SAMPLES, Training, heard
from elastic_training.autoscale.figures import JobFigures, JobName

MOST_UNKNOWN = 20_000
"""Limit for jobs that the stream named and that the API has not shown yet."""


@dataclass(slots=True)
class _Entry:
    memory: Memory
    record: DecisionRecord | None
    """The last annotation that was read or written."""
    outcome: Outcome | None = None
    was_ours: bool = False
    """The autoscaler has set the number of workers before."""


@dataclass(slots=True)
class Book:
    """Keep all jobs by uid; implements autoscale.figures.Figures."""

    is_ready: Callable[[], bool]
    _training: dict[str, Training] = field(default_factory=dict)
    _entries: dict[str, _Entry] = field(default_factory=dict)
    _by_key: dict[JobName, str] = field(default_factory=dict)
    _outside: set[str] = field(default_factory=set)
    """Uids of jobs that meet outside of our rendezvous: their worlds follow from their pods, because the stream tells of none."""

    # --- what comes in

    def heard(self, progress: TrainingProgress, *, seen: ScaledJob | None, now: float, monotonic: float) -> None:
        """Take in one message of the stream of the rendezvous server.

        A job without a phase has no members there. Only its program reports, and nothing says how many workers do that work.
        """
        if not progress.phase and (not progress.forgotten or progress.job in self._outside):
            return
        self._outside.discard(progress.job)
        if progress.forgotten:
            self._training.pop(progress.job, None)
            return
        self._take(progress, seen=seen, now=now, monotonic=monotonic)

    def _take(self, progress: TrainingProgress, *, seen: ScaledJob | None, now: float, monotonic: float) -> None:
        known = self._trained(progress.job)
        counts_steps = seen is not None and seen.policy.policy is PolicyName.DEADLINE and seen.policy.total_steps is not None
        new, rate = heard(known, progress, monotonic, counts_steps=counts_steps)
        self._training[progress.job] = new
        while len(self._training) > MOST_UNKNOWN:
            del self._training[next(iter(self._training))]
        entry = self._entries.get(progress.job)
        if entry is None:
            return
        sizes = entry.memory.sizes
        if known.unit and new.unit and known.unit != new.unit:
            sizes = ()
        if rate is not None:
            sizes = with_rate(sizes, size=new.size, rate=rate, now=now)
        if sizes is not entry.memory.sizes:
            entry.memory = replace(entry.memory, sizes=sizes)

    def read(self, seen: ScaledJob, *, step: int, samples: float | None, working: int, now: float, monotonic: float) -> None:
        """Take in what a log or page of the job says.

        The report belongs to the world that the stream knows. If the stream knows none, the pods that work are the world, and each change
        of their number makes a new one.
        """
        world = self._training.get(seen.uid, Training()).progress or TrainingProgress(job=seen.uid)
        if not world.phase:
            self._outside.add(seen.uid)
        if seen.uid in self._outside and (not world.phase or world.size != working):
            world = replace_progress(world, generation=world.generation + 1, size=working, phase=WorldPhase.RUNNING)
        values = {} if samples is None else {SAMPLES: samples}
        highest = max(step, world.highest or 0)
        new = replace_progress(world, step=step, age_s=0.0, highest=highest, values=values)
        self._take(new, seen=seen, now=now, monotonic=monotonic)

    def rank_zero(self, seen: ScaledJob) -> str:
        """Return the pod that has rank 0, or nothing if the rendezvous server does not know it."""
        known = self._training.get(seen.uid, Training()).progress
        return known.rank_zero if known is not None else ""

    def states(self, jobs: Iterable[ScaledJob], *, now: float, trouble: Callable[[JobName], str] = lambda _: "") -> list[JobState]:
        """Return the jobs as they are now, each with its memory, and forget the jobs that no longer exist."""
        states, there = [], set()
        for seen in jobs:
            there.add(seen.uid)
            entry = self._entry(seen, now)
            states.append(JobState(seen=seen, training=self._trained(seen.uid), memory=entry.memory, trouble=trouble(seen.key)))
        for uid in [uid for uid in self._entries if uid not in there]:
            del self._entries[uid]
            if uid in self._outside:
                # No message of the stream will say that this job is gone.
                self._outside.remove(uid)
                self._training.pop(uid, None)
        for key in [key for key, uid in self._by_key.items() if uid not in there]:
            del self._by_key[key]
        return states

    def _trained(self, uid: str) -> Training:
        """Return what was heard of a job.

        The costs of changes that a former process measured count until this process has measured more.
        """
        training, entry = self._training.get(uid, Training()), self._entries.get(uid)
        if training.rescale_s is None and entry is not None and entry.memory.rescale_s is not None:
            return replace(training, rescale_s=entry.memory.rescale_s)
        return training

    def saw(self, seen: ScaledJob, *, now: float) -> None:
        """Take in one version of a job.

        A number that somebody set counts at once: a HorizontalPodAutoscaler may ask for it, or overwrite it, before the next round.
        """
        entry = self._entry(seen, now)
        hand, outcome = entry.memory.hand, entry.outcome
        if hand is not None and now < hand.until and outcome is not None and outcome.figures.wanted != hand.count:
            entry.outcome = replace(outcome, figures=replace(outcome.figures, wanted=hand.count))

    def _entry(self, seen: ScaledJob, now: float) -> _Entry:
        entry = self._entries.get(seen.uid)
        if entry is None:
            was_ours = seen.record is not None and seen.record.was_ours
            entry = self._entries[seen.uid] = _Entry(memory_of(seen.record), seen.record, was_ours=was_ours)
        self._by_key[seen.key] = seen.uid
        is_ours = _is_ours(seen)
        entry.was_ours = entry.was_ours or is_ours
        is_other = bool(seen.owners) and not is_ours and (entry.was_ours or any(owner.is_scale for owner in seen.owners))
        entry.memory = with_hand(entry.memory, seen, is_other=is_other, now=now)
        return entry

    def decided(self, seen: ScaledJob, outcome: Outcome) -> None:
        entry = self._entries.get(seen.uid)
        if entry is not None:
            entry.outcome = outcome
            # The memory of a change holds once the change is written; until then the round decides again.
            decision = outcome.decision
            if decision.count == seen.replicas:
                entry.memory = decision.memory

    def rests(self, seen: ScaledJob) -> None:
        """Drop the figures of a job that is suspended or finished."""
        if (entry := self._entries.get(seen.uid)) is not None:
            entry.outcome = None

    def written(self, seen: ScaledJob, record: DecisionRecord, memory: Memory | None = None) -> None:
        entry = self._entries.get(seen.uid)
        if entry is not None:
            entry.record = record
            if memory is not None:
                entry.memory = replace(memory, sizes=entry.memory.sizes)

    def record_of(self, seen: ScaledJob, outcome: Outcome, now: float) -> DecisionRecord:
        entry = self._entries.get(seen.uid)
        return record_of(outcome, now, was_ours=entry is not None and entry.was_ours)

    def record(self, seen: ScaledJob) -> DecisionRecord | None:
        entry = self._entries.get(seen.uid)
        return entry.record if entry is not None else seen.record

    def outcome(self, key: JobName) -> Outcome | None:
        entry = self._entries.get(self._by_key.get(key, ""))
        return entry.outcome if entry is not None else None

    def follow(self, seen: ScaledJob) -> None:
        """Learn from the job's annotation what the leader decided."""
        entry = self._entries.get(seen.uid)
        if entry is not None and seen.record is not None and seen.record != entry.record:
            memory = memory_of(seen.record)
            entry.record = seen.record
            entry.memory = replace(memory, sizes=entry.memory.sizes or memory.sizes)

    # --- what is served

    @property
    def is_known(self) -> bool:
        return self.is_ready()

    def of(self, key: JobName) -> JobFigures | None:
        outcome = self.outcome(key)
        return outcome.figures if outcome is not None else None

    def jobs(self, namespace: str | None = None) -> Sequence[JobFigures]:
        found = (entry.outcome.figures for entry in self._entries.values() if entry.outcome is not None)
        return [one for one in found if namespace is None or one.key.namespace == namespace]


def _is_ours(seen: ScaledJob) -> bool:
    """Tell whether the autoscaler wrote the number of workers, or somebody wrote it in its name."""
    ours = (MANAGER, *(CARRIERS if seen.policy.through is Through.HPA else ()))
    return any(owner.manager in ours for owner in seen.owners)
