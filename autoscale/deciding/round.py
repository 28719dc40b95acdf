"""Decide about all jobs in one round: the size that each job wants, the room that each gets, and the resulting size."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from elastic.api.scaling import PolicyName
from elastic_training.autoscale.deciding.cluster import NodeSeen, PodSeen, Room, Shape
from elastic_training.autoscale.deciding.curve import Curve, speedup
from elastic_training.autoscale.deciding.decide import decide
from elastic_training.autoscale.deciding.giving import Surplus, Waiting, given_back
from elastic_training.autoscale.deciding.guard import is_held
from elastic_training.autoscale.deciding.jobs import JobState, Outcome, ScaledJob, Unscaled
from elastic_training.autoscale.deciding.sharing import Claim, granted
from elastic_training.autoscale.deciding.signals import Signals, SizeDecision, Work
from elastic_training.autoscale.deciding.training import SAMPLES, Spent
from elastic_training.autoscale.figures import JobFigures, JobName

GIVEN_BACK_AFTER_S = 2.0
"""Seconds without room after which jobs with too many workers give room to a pod."""
STUCK_S, STUCK_IN_GROWING_CLUSTER_S = 30.0, 600.0
Gain = Callable[[int], float]
"""Function that returns the throughput gain of the n-th worker, relative to the job's throughput at its minimum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Settings that are the same for all jobs."""

    grows: bool = False
    """Whether the cluster adds nodes for pending pods. Free room then limits only `capacity` and sizes that are all or nothing."""
    sees_nodes: bool = True
    """False for an autoscaler of one namespace, which knows neither free room nor prices."""

    @property
    def is_limited(self) -> bool:
        """Return whether free room limits every job."""
        return self.sees_nodes and not self.grows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pods:
    """A job's workers, in the order in which they go."""

    workers: tuple[PodSeen, ...] = ()
    placed: tuple[PodSeen, ...] = ()
    """Workers on nodes, without those that go."""
    going: tuple[PodSeen, ...] = ()
    """Workers that were scaled in but are still on nodes."""
    stuck: int = 0
    """Number of workers that have waited too long for room."""
    unmade: int = 0
    """Number of workers that the API server refuses."""
    priority: int = 0
    """Lowest priority of the workers, so that one pod with a higher priority does not raise the whole job."""


def decide_all(
    states: Sequence[JobState],
    nodes: Sequence[NodeSeen],
    pods: Sequence[PodSeen],
    *,
    unscaled: Iterable[Unscaled] = (),
    setting: Setting,
    now: float,
    monotonic: float,
) -> dict[JobName, Outcome]:
    """Return the decision and the figures of each active job. `now` is in seconds since 1970, `monotonic` as in the jobs' training."""
    active = [state for state in states if state.seen.is_active]
    workers = _workers(active, pods, setting=setting, now=now)
    curves = {state.seen.key: _curve(state, now) for state in active}
    gains = {state.seen.key: _gain(curves[state.seen.key], state.seen.bounds.least) for state in active}
    room = Room(nodes, pods)
    _reserve(room, active, workers)
    soon = _room_soon(room, pods, workers)
    surplus = _surplus(active, workers, gains, now=now)
    backs = given_back(soon, _waiting(pods, active, unscaled, now=now), surplus, free=room)
    found: dict[JobName, Outcome] = {}
    wants: dict[JobName, tuple[Signals, SizeDecision]] = {}
    for state in active:
        key = state.seen.key
        count, to = backs.get(key, (0, ""))
        # Decide as if room were unlimited: grants limit what a job gets.
        most = max(0, state.seen.bounds.most - state.seen.replicas) if setting.sees_nodes else None
        known = signals(state, curves[key], workers[key], room=most, monotonic=monotonic)
        known = replace(
            known, sees_nodes=setting.sees_nodes, give_back=_going_with(count, workers[key], state.seen.replicas), give_back_to=to
        )
        known = _priced(known, state.seen, workers[key], room)
        wants[key] = known, _decide(state, known, now)
    # Include jobs for which the cluster adds nodes, because their new workers use the free room first.
    grants = _grants(room, soon, active, workers, gains, wants)
    # A job that must wait gets only room that is still free, and its reason does not mention the room of others.
    waiting = [state for state in active if wants[state.seen.key][1].is_held]
    grants |= _free(room, soon, waiting)
    for state in active:
        key = state.seen.key
        known, decision = wants[key]
        if key in grants and (setting.is_limited or _needs_room(state, decision)):
            known = replace(known, room=grants[key])
            decision = _decide(state, known, now)
        found[key] = Outcome(decision, figures(state, known, decision, monotonic=monotonic))
    return found


def _curve(state: JobState, now: float) -> Curve:
    """Return the job's curve.

    Measurements age only for the throughput policy, which repeats its trials. Other policies would overestimate unmeasured sizes.
    """
    fades = state.seen.policy.policy is PolicyName.THROUGHPUT
    return Curve(state.memory.sizes, least=state.seen.bounds.least, now=now if fades else None)


def _needs_room(state: JobState, decision: SizeDecision) -> bool:
    """Return whether free room limits the job although the cluster adds nodes. A trial causes no new nodes."""
    return state.seen.policy.policy is PolicyName.CAPACITY or decision.is_whole


def _decide(state: JobState, known: Signals, now: float) -> SizeDecision:
    seen = state.seen
    if seen.fixed:
        return SizeDecision(count=seen.replicas, wanted=seen.replicas, reason=seen.fixed, memory=state.memory)
    return decide(known, seen.replicas, now)


def signals(state: JobState, curve: Curve, held: _Pods, *, room: int | None, monotonic: float) -> Signals:
    seen, training = state.seen, state.training
    return Signals(
        policy=seen.policy,
        bounds=seen.bounds,
        curve=curve,
        memory=state.memory,
        working=training.size,
        reports=training.reports(monotonic),
        trouble=state.trouble,
        rescale_s=training.rescale_s,
        room=room,
        lacks=max(0, seen.replicas - len(held.placed)),
        stuck=held.stuck,
        unmade=held.unmade,
        refused=seen.refused,
        work=_work(state),
    )


def figures(state: JobState, known: Signals, decision: SizeDecision, *, monotonic: float) -> JobFigures:
    seen, training, curve = state.seen, state.training, known.curve
    seconds = training.spent_until(monotonic)
    total = sum(seconds.values())
    rate = curve.rate(training.size).mid if curve.is_known and curve.knows(training.size) else None
    # With only one measured size the curve is a guess, so report no efficiency. At minReplicas the efficiency is 1 by definition.
    is_compared = rate is not None and len(curve.measured) > 1
    is_unit = rate is not None and training.size == seen.bounds.least
    smaller = seen.bounds.below(training.size) if is_compared else None
    gain = curve.gain(smaller, training.size) if smaller is not None else None
    left = known.work.left
    return JobFigures(
        key=seen.key,
        uid=seen.uid,
        replicas=seen.replicas,
        bounds=seen.bounds,
        labels=seen.labels,
        working=training.size,
        wanted=decision.wanted,
        reason=decision.reason,
        throughput=rate,
        measured_at=curve.measured_at(training.size) if rate is not None else None,
        is_silent=training.last is not None and not training.reports(monotonic),
        efficiency=curve.efficiency(training.size) if is_compared or is_unit else None,
        marginal_efficiency=gain.mid if gain is not None else None,
        goodput=seconds.get(Spent.TRAINING, 0.0) / total if total > 0 else None,
        seconds={spent.value: amount for spent, amount in seconds.items()},
        rescale_s=training.rescale_s,
        step=training.last.step if training.last is not None else None,
        left_s=left / rate if left is not None and rate else None,
    )


def _work(state: JobState) -> Work:
    policy, last = state.seen.policy, state.training.last
    if policy.policy is not PolicyName.DEADLINE or last is None:
        return Work()
    if policy.total_steps is not None:
        return Work(left=max(0.0, float(policy.total_steps - last.step)), done=float(last.step))
    if policy.total_samples is not None and last.unit == SAMPLES:
        return Work(left=max(0.0, policy.total_samples - last.work), done=last.work)
    return Work()


def _workers(active: Sequence[JobState], pods: Iterable[PodSeen], *, setting: Setting, now: float) -> dict[JobName, _Pods]:
    found: dict[str, list[PodSeen]] = {state.seen.uid: [] for state in active}
    for pod in pods:
        if pod.is_worker and pod.owner in found:
            found[pod.owner].append(pod)
    after_s = STUCK_S if setting.is_limited else STUCK_IN_GROWING_CLUSTER_S
    return {state.seen.key: _pods(found[state.seen.uid], state.seen, after_s=after_s, now=now) for state in active}


def _pods(workers: list[PodSeen], seen: ScaledJob, *, after_s: float, now: float) -> _Pods:
    workers.sort(key=lambda pod: -pod.index)
    stuck = [pod for pod in workers if pod.unschedulable_since is not None and now - pod.unschedulable_since >= after_s]
    there = tuple(pod for pod in workers if pod.node and not pod.is_leaving)
    beyond = max(0, len(there) - seen.replicas)
    made = sum(not pod.is_leaving for pod in workers)
    return _Pods(
        workers=tuple(workers),
        placed=there[beyond:],
        going=there[:beyond],
        stuck=len(stuck),
        unmade=max(0, seen.replicas - made) if seen.refused else 0,
        priority=min((pod.priority for pod in workers), default=0),
    )


def _room_soon(room: Room, pods: Iterable[PodSeen], workers: Mapping[JobName, _Pods]) -> Room:
    """Return the room after the leaving pods have gone. No job releases workers for a pod that will fit then."""
    soon = room.copy()
    soon.release(pod for pod in pods if pod.is_leaving)
    soon.release(pod for held in workers.values() for pod in held.going)
    return soon


def _reserve(room: Room, active: Iterable[JobState], workers: Mapping[JobName, _Pods]) -> None:
    """Reserve room for workers that are wanted but not on a node yet. Workers that the API server refuses need no room."""
    for state in active:
        found = workers[state.seen.key]
        lost = sum(1 for pod in found.workers if pod.unschedulable_since is not None)
        for _ in range(max(0, state.seen.replicas - len(found.placed) - lost - found.unmade)):
            if room.take(state.seen.shape) is None:
                break


def _waiting(pods: Iterable[PodSeen], active: Iterable[JobState], unscaled: Iterable[Unscaled], *, now: float) -> Iterator[Waiting]:
    """Yield the pods without room. A scaled job's workers above its minimum have no claim to the room of others."""
    scaled = {state.seen.uid: state.seen.bounds.least for state in active}
    lacks = {one.uid: one.least for one in unscaled} | scaled
    waiting: dict[str, list[PodSeen]] = {}
    for pod in pods:
        if pod.is_leaving:
            continue
        if pod.node:
            if pod.is_worker and pod.owner in lacks:
                lacks[pod.owner] -= 1
        elif pod.unschedulable_since is not None and now - pod.unschedulable_since >= GIVEN_BACK_AFTER_S:
            waiting.setdefault(pod.owner, []).append(pod)
    for owner, found in waiting.items():
        workers = sorted((pod for pod in found if pod.is_worker), key=lambda pod: pod.index)
        lacking = max(0, lacks.get(owner, 0))
        yield from (Waiting(pod, is_needed=owner in lacks) for pod in found if not pod.is_worker)
        yield from (Waiting(pod, is_needed=True) for pod in workers[:lacking])
        if owner not in scaled:
            yield from (Waiting(pod) for pod in workers[lacking:])


def _gain(curve: Curve, least: int) -> Gain:
    """Return the gain function that decides which jobs get room and which release it."""
    return functools.cache(lambda count: speedup(curve, count, least))


def _going_with(count: int, held: _Pods, replicas: int) -> int:
    """Return by how much the number of workers must fall so that `count` workers release their room.

    Workers with higher indexes go too, even without a node.
    """
    index = held.placed[count - 1].index if count else -1
    return max(count, replicas - index) if index >= 0 else count


def _surplus(active: Iterable[JobState], workers: Mapping[JobName, _Pods], gains: Mapping[JobName, Gain], *, now: float) -> list[Surplus]:
    """Return the jobs that can release workers. Jobs whose number a user or another controller has set release none."""
    found = []
    for state in active:
        seen, held = state.seen, workers[state.seen.key]
        extra = len(held.placed) - seen.bounds.least
        if extra > 0 and not (seen.fixed or seen.policy.policy is PolicyName.HPA or is_held(state.memory, now)):
            placed, gain = held.placed, gains[seen.key]
            found.append(Surplus(key=seen.key, uid=seen.uid, priority=held.priority, pods=placed[:extra], held=len(placed), gain=gain))
    return found


def _grants(
    room: Room,
    soon: Room,
    active: Iterable[JobState],
    workers: Mapping[JobName, _Pods],
    gains: Mapping[JobName, Gain],
    wants: Mapping[JobName, tuple[Signals, SizeDecision]],
) -> dict[JobName, int]:
    """Return how many workers each job may add.

    They must fit now, and also after the leaving pods are gone and waiting pods are placed.
    """
    claims = []
    for state in active:
        seen, placed = state.seen, len(workers[state.seen.key].placed)
        more, extra = max(0, wants[seen.key][1].count - seen.replicas), max(0, placed - seen.bounds.least)
        if more or extra:
            claims.append(
                Claim(
                    key=seen.key,
                    shape=seen.shape,
                    replicas=seen.replicas,
                    more=more,
                    least=seen.bounds.least,
                    gain=gains[seen.key],
                    priority=workers[seen.key].priority,
                    held=extra,
                    is_whole=wants[seen.key][1].is_whole,
                )
            )
    later = granted(soon, claims)
    now = granted(room, claims)
    return {claim.key: min(now[claim.key], later[claim.key]) for claim in claims if claim.more}


def _free(room: Room, soon: Room, waiting: Sequence[JobState]) -> dict[JobName, int]:
    """Return how many more workers of each job fit now, and also after the leaving pods are gone.

    Jobs of the same shape share one search.
    """
    most: dict[str, tuple[Shape, int]] = {}
    for seen in (state.seen for state in waiting):
        more = max(0, seen.bounds.most - seen.replicas, most.get(seen.shape.name, (seen.shape, 0))[1])
        most[seen.shape.name] = seen.shape, more
    found = {name: min(_fitting(where.copy(), shape, more) for where in (room, soon)) for name, (shape, more) in most.items()}
    return {state.seen.key: found[state.seen.shape.name] for state in waiting}


def _fitting(room: Room, shape: Shape, most: int) -> int:
    return next((count for count in range(most) if room.take(shape) is None), most)


def _priced(known: Signals, seen: ScaledJob, held: _Pods, room: Room) -> Signals:
    label = seen.policy.price_label
    if seen.policy.policy is not PolicyName.COST or label is None:
        return known
    paid = [_price(room.label(pod.node, label)) for pod in held.placed]
    if not paid or None in paid:
        return known
    larger = seen.bounds.above(seen.replicas + 1) or seen.replicas
    trial = room.copy()
    prices = []
    for _ in range(larger - seen.replicas):
        node = trial.take(seen.shape)
        price = _price(trial.label(node, label)) if node is not None else None
        if price is None:
            break
        prices.append(price)
    return replace(known, paid=sum(price for price in paid if price is not None), prices=tuple(prices))


def _price(text: str | None) -> float | None:
    """Return the price in a label, or None if it is not a decimal number from 0 to 1e9."""
    try:
        price = float(text) if text is not None and text[:1].isdigit() else None
    except ValueError:
        return None
    return price if price is not None and 0 <= price <= 1e9 else None
