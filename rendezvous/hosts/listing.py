"""Decide which hosts are on the list that elastic Horovod discovers.

A host comes on the list when its containers are ready and the launcher has run a command there, because Horovod ends the whole job if one
listed host does not start. A host leaves the list before its pod goes, and at once if its pod has ended. Horovod cannot go on without any
host that has the training state, and may wait for ever if the list gets shorter and grows later. So some hosts that leave, and hosts that
only may have to leave, stay listed until their replacement can be listed in the same change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from elastic.membership.hosts import Host, HostFacts, HostList, HostState, HostVerdict, LauncherReport, Observed

REPORT_KEPT_S = 20.0
"""Seconds without a report after which a launcher counts as one that never reports."""
APART_S = 10.0
"""Seconds between a change that only removes hosts and a change that adds some, if the driver does not report. Horovod workers that learn
only of a removal do not synchronise. If a new host joins before they have met again, it waits for them and they do not wait for it."""
GRACE_S = 30.0
"""Seconds that processes of a host may run after it has left the list, if no launcher reports them and the job sets no limit."""
NAMED = 5
SETTLED_S = 60.0
"""If the driver does not report, a host that has been listed for so many seconds counts as having the training state."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A host on the list, and since when."""

    uid: str
    name: str
    slots: int
    since: float


@dataclass(frozen=True, slots=True)
class HostJob:
    """All that is known of one job's hosts."""

    facts: HostFacts | None = None
    """None until the controller has said."""
    grace_s: float = GRACE_S
    proven: frozenset[str] = frozenset()
    """Pods, by uid, in which the launcher has run a command."""
    report: LauncherReport | None = None
    reported_at: float = 0.0
    listed: tuple[Listed, ...] = ()
    left_at: Mapping[str, float] = field(default_factory=dict)
    """When each pod that still exists left the list, by uid. A pod is forgotten after `grace_s`."""
    removed_at: float | None = None
    """Time at which a change last removed hosts and added none."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """By uid, why a host is on the list or not."""
    look_again_at: float | None = None
    """Time at which time alone may change the list."""


def with_facts(job: HostJob, facts: HostFacts, now: float, *, grace_s: float = GRACE_S) -> HostJob:
    """Return the job after the controller has named its hosts."""
    here = {host.uid for host in facts.hosts}
    # A new server does not know which hosts were listed, so workers may run in each pod that leaves.
    left_at = job.left_at if job.facts is not None else {host.uid: now for host in facts.hosts if host.leaving}
    return decided(replace(job, facts=facts, grace_s=grace_s, proven=job.proven & here, left_at=left_at), now)


def with_report(job: HostJob, report: LauncherReport, now: float) -> HostJob:
    """Return the job after a report of its launcher. Proofs stay for its next process: it has the same pod, or the same rights."""
    return decided(replace(_with_proven(job, report.proven), report=report, reported_at=now), now)


def with_proof(job: HostJob, uid: str, now: float) -> HostJob:
    """Return the job after its launcher has run a command in this pod."""
    return decided(_with_proven(job, (uid,)), now)


def decided(job: HostJob, now: float) -> HostJob:
    """Return the job with the list that follows from all that is known now."""
    if job.facts is None:
        return job
    if job.report is not None and not _is_fresh(job, now):
        job = replace(job, report=None)
    hosts = job.facts.hosts if job.facts is not None else ()
    here = {host.uid: host for host in hosts}
    stay = [replace(entry, slots=here[entry.uid].slots) for entry in (*job.listed, *_assigned_unlisted(job, now)) if entry.uid in here]
    apart_until = _apart_until(job, now)
    come, reasons = _who_comes(job, known={entry.uid for entry in stay}, apart_until=apart_until, now=now)
    listed, kept_why = _without_leaving(job, here, [*stay, *come], now)
    for host in hosts:
        if host.uid not in reasons:
            why = kept_why.get(host.uid, "")
            reasons[host.uid] = why or ("it leaves" if host.leaving else "it is ready, and the launcher reaches it")
    uids = {entry.uid for entry in listed}
    gone = {entry.uid for entry in job.listed} - uids
    only_removed = bool(gone) and not come
    left_at = {**job.left_at, **dict.fromkeys(gone, now)}
    job = replace(
        job,
        listed=tuple(listed),
        left_at={uid: at for uid, at in left_at.items() if uid in here and uid not in uids and now < at + job.grace_s},
        removed_at=now if only_removed else job.removed_at,
        reasons=reasons,
    )
    return replace(job, look_again_at=_next_look(job, apart_until, now))


def _assigned_unlisted(job: HostJob, now: float) -> list[Listed]:
    """Return the hosts to which the driver has assigned ranks, if none of them is listed. One must stay, although it may leave.

    A new server has no list; and a driver may have begun with a list that was exchanged before it reported.
    """
    if job.report is None or job.facts is None:
        return []
    names = set(job.report.assigned)
    assigned = [host for host in job.facts.hosts if host.name in names]
    listed = {entry.uid for entry in job.listed}
    return [] if any(host.uid in listed for host in assigned) else [Listed(host.uid, host.name, host.slots, now) for host in assigned]


def _who_comes(job: HostJob, *, known: set[str], apart_until: float | None, now: float) -> tuple[list[Listed], dict[str, str]]:
    """Return the hosts to add, and why others are not added."""
    assert job.facts is not None
    come, reasons = [], {}
    for host in sorted(job.facts.hosts, key=lambda host: host.name):
        if host.uid in known:
            continue
        if host.leaving:
            reasons[host.uid] = "it leaves"
        elif not host.is_ready:
            reasons[host.uid] = "its containers are not ready"
        elif not is_proven(job, host):
            reasons[host.uid] = "the launcher has not run a command there yet"
        elif apart_until is not None:
            reasons[host.uid] = "hosts were removed a moment ago, and workers must have met without them before another comes"
        else:
            come.append(Listed(host.uid, host.name, host.slots, now))
    return come, reasons


def _without_leaving(job: HostJob, here: Mapping[str, Host], listed: Sequence[Listed], now: float) -> tuple[list[Listed], dict[str, str]]:
    """Return the list without the hosts that leave, and why some of them stay for now."""
    assert job.facts is not None
    holders, left, why = _holders(job, now), list(listed), {}
    for entry in sorted(listed, key=lambda entry: entry.name, reverse=True):
        if not here[entry.uid].leaving:
            continue
        rest = [other for other in left if other != entry]
        if len(rest) < job.facts.least:
            why[entry.uid] = f"it leaves, but the list would have {len(rest)} of at least {job.facts.least} hosts"
        elif entry.uid in holders and not any(other.uid in holders for other in rest):
            why[entry.uid] = "it leaves, but no other host has the training state yet"
        elif here[entry.uid].when_replaced and len(rest) < job.facts.wanted:
            why[entry.uid] = "it may have to leave, and stays until another host can take its place"
        else:
            left = rest
    return left, why


def _holders(job: HostJob, now: float) -> set[str]:
    """Return the listed hosts that have the training state; empty while no training has begun."""
    if job.report is not None:
        names = set(job.report.assigned)
        return {host.uid for host in (job.facts.hosts if job.facts is not None else ()) if host.name in names}
    return {entry.uid for entry in job.listed if now >= entry.since + SETTLED_S} or {entry.uid for entry in job.listed}


def _apart_until(job: HostJob, now: float) -> float | None:
    """Return until when no host may be added. A driver that reports lets its workers synchronise after every change."""
    if job.report is not None or job.removed_at is None or not job.listed or now >= job.removed_at + APART_S:
        return None
    return job.removed_at + APART_S


def _next_look(job: HostJob, apart_until: float | None, now: float) -> float | None:
    moments = [apart_until]
    if job.report is not None:
        moments.append(job.reported_at + REPORT_KEPT_S)
    elif job.facts is not None and any(host.leaving for host in job.facts.hosts):
        moments += [entry.since + SETTLED_S for entry in job.listed]
        moments += [at + job.grace_s for at in job.left_at.values()]
    return min((moment for moment in moments if moment is not None and moment > now), default=None)


def _with_proven(job: HostJob, uids: Sequence[str]) -> HostJob:
    """Add the hosts that the launcher has proven. Only existing pods count, so that a launcher cannot make the set grow."""
    here = {host.uid for host in job.facts.hosts} if job.facts is not None else set()
    return replace(job, proven=job.proven | (here & set(uids)))


def _is_fresh(job: HostJob, now: float) -> bool:
    return now < job.reported_at + REPORT_KEPT_S


def is_proven(job: HostJob, host: Host) -> bool:
    return host.is_local or host.uid in job.proven


def state(job: HostJob) -> HostState:
    """Return the state for the controller: above all, the pods in which worker processes may still run."""
    hosts = job.facts.hosts if job.facts is not None else ()
    report = job.report
    names = set(report.working) if report is not None else set()
    may_work = {entry.uid for entry in job.listed} | set(job.left_at)
    at_work = {host.uid for host in hosts if (host.uid in may_work if report is None else host.name in names)}
    return HostState(
        listed=tuple(entry.uid for entry in job.listed),
        leaving=tuple(host.uid for host in hosts if host.leaving),
        working=tuple(host.uid for host in hosts if host.uid in at_work),
        observed=(Observed.PODS if report is None else Observed.DRIVER).value,
        assignment=report.assignment if report is not None else 0,
        size=report.size if report is not None else 0,
    )


def answer(job: HostJob, version: str) -> HostList:
    """Return the JSON answer to a launcher or a person."""
    listed, to_prove = {entry.uid for entry in job.listed}, {uid for _, uid in unproven(job)}
    hosts = tuple(
        HostVerdict(
            name=host.name,
            uid=host.uid,
            slots=host.slots,
            listed=host.uid in listed,
            unproven=host.uid in to_prove,
            reason=job.reasons.get(host.uid, ""),
            leaving=host.leaving and not host.when_replaced,
        )
        for host in (job.facts.hosts if job.facts is not None else ())
    )
    observed = (Observed.PODS if job.report is None else Observed.DRIVER).value
    return HostList(version=version, observed=observed, error=_why_unusable(job), hosts=hosts)


def unproven(job: HostJob) -> list[tuple[str, str]]:
    """Name and pod uid of the hosts in which the launcher should run a command."""
    hosts = job.facts.hosts if job.facts is not None else ()
    return [(host.name, host.uid) for host in hosts if host.is_ready and not host.leaving and not is_proven(job, host)]


def _why_unusable(job: HostJob) -> str:
    """Say why there is no list; return "" if there is one. An empty list would tell Horovod that all its hosts are gone."""
    if job.listed:
        return ""
    hosts = job.facts.hosts if job.facts is not None else ()
    reasons = [f"{host.name}: {job.reasons.get(host.uid, '')}" for host in hosts[:NAMED]]
    return "no host can be listed yet" + (f" ({'; '.join(reasons)})" if reasons else ": no pod of a worker runs")
