"""Check which hosts elastic Horovod may discover: the meaning of each fact, and the laws of every sequence of changes."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from elastic.membership.hosts import Host, HostFacts, LauncherReport, Observed
from elastic_training.rendezvous.hosts.listing import (
    APART_S,
    REPORT_KEPT_S,
    SETTLED_S,
    HostJob,
    answer,
    decided,
    state,
    unproven,
    with_facts,
    with_proof,
    with_report,
)


def host(name: str, *, is_ready: bool = True, leaving: bool = False, uid: str = "", is_local: bool = False) -> Host:
    return Host(name=name, uid=uid or f"uid-{name}", is_ready=is_ready, leaving=leaving, is_local=is_local)


def facts(*hosts: Host, least: int = 1) -> HostFacts:
    return HostFacts(hosts=hosts, least=least)


def report(*assigned: str, working: tuple[str, ...] | None = None, proven: tuple[str, ...] = ()) -> LauncherReport:
    return LauncherReport(launcher="l1", assigned=assigned, working=assigned if working is None else working, proven=proven)


def names(job: HostJob) -> list[str]:
    return [entry.name for entry in job.listed]


def reason(job: HostJob, name: str) -> str:
    return next(verdict.reason for verdict in answer(job, "").hosts if verdict.name == name)


def proven(job: HostJob, *uids: str, now: float = 0.0) -> HostJob:
    for uid in uids:
        job = with_proof(job, uid, now)
    return job


def training(*hosts: Host, least: int = 1, now: float = 0.0) -> HostJob:
    """Return a job whose driver has assigned ranks to all these hosts."""
    well = [Host(name=one.name, uid=one.uid, is_ready=True) for one in hosts]
    job = proven(with_facts(HostJob(), facts(*well, least=least), now), *(one.uid for one in well), now=now)
    return with_facts(with_report(job, report(*(one.name for one in hosts)), now), facts(*hosts, least=least), now)


def test_a_host_is_listed_once_it_is_ready_and_the_launcher_has_run_a_command_there() -> None:
    job = with_facts(HostJob(), facts(host("w0", is_ready=False)), 0)
    assert names(job) == []
    assert reason(job, "w0") == "its containers are not ready"
    job = with_facts(job, facts(host("w0")), 1)
    assert names(job) == []
    assert unproven(job) == [("w0", "uid-w0")]
    assert reason(job, "w0") == "the launcher has not run a command there yet"
    job = with_proof(job, "uid-w0", 2)
    assert names(job) == ["w0"]
    assert unproven(job) == []


def test_the_launchers_own_pod_needs_no_proof() -> None:
    assert names(with_facts(HostJob(), facts(host("job-launcher", is_local=True)), 0)) == ["job-launcher"]


def test_another_pod_of_a_proven_hosts_name_must_be_proven_again() -> None:
    job = training(host("w0"), host("w1"))
    job = with_facts(job, facts(host("w0"), host("w1", uid="other")), 1)
    assert names(job) == ["w0"]
    assert names(with_proof(job, "other", 2)) == ["w0", "w1"]


def test_without_a_list_the_answer_says_why_and_is_never_an_empty_list() -> None:
    job = with_facts(HostJob(), facts(host("w0", is_ready=False)), 0)
    assert answer(job, "").error == "no host can be listed yet (w0: its containers are not ready)"
    assert answer(with_facts(job, facts(), 1), "").error == "no host can be listed yet: no pod of a worker runs"


def test_a_planned_removal_leaves_the_list_at_once_if_enough_stay() -> None:
    job = training(host("w0"), host("w1"), host("w2", leaving=True))
    assert names(job) == ["w0", "w1"]
    assert state(job).working == ("uid-w0", "uid-w1", "uid-w2")
    job = with_report(job, report("w0", "w1"), 1)
    assert state(job).working == ("uid-w0", "uid-w1")
    assert state(job).leaving == ("uid-w2",)


def test_a_removal_below_the_minimum_waits_and_comes_with_its_proven_replacement() -> None:
    job = training(host("w0"), host("w1", leaving=True), least=2)
    assert names(job) == ["w0", "w1"]
    assert reason(job, "w1") == "it leaves, but the list would have 1 of at least 2 hosts"
    job = with_facts(job, facts(host("w0"), host("w1", leaving=True), host("w2"), least=2), 1)
    assert names(job) == ["w0", "w1"]
    assert names(with_proof(job, "uid-w2", 2)) == ["w0", "w2"]


def test_a_host_that_may_have_to_leave_is_exchanged_in_one_change_once_another_is_proven() -> None:
    w0, w1 = host("w0"), replace(host("w1", leaving=True), when_replaced=True)
    job = with_facts(training(w0, host("w1")), replace(facts(w0, w1), wanted=2), 1)
    assert names(job) == ["w0", "w1"]
    assert reason(job, "w1") == "it may have to leave, and stays until another host can take its place"
    assert not any(verdict.leaving for verdict in answer(job, "").hosts), "no checkpoint at each step until then"
    job = with_facts(job, replace(facts(w0, w1, host("w2")), wanted=2), 2)
    assert names(job) == ["w0", "w1"]
    assert names(with_proof(job, "uid-w2", 3)) == ["w0", "w2"]
    now_it_must = with_facts(job, replace(facts(w0, host("w1", leaving=True), host("w2")), wanted=2), 3)
    assert names(now_it_must) == ["w0"]
    assert names(with_facts(job, replace(facts(w0, w1), wanted=1), 3)) == ["w0"], "the job has become smaller"


def test_the_only_host_with_the_state_is_exchanged_once_its_replacement_has_it() -> None:
    w0 = replace(host("w0", leaving=True), when_replaced=True)
    job = with_facts(training(host("w0")), replace(facts(w0, host("w1")), wanted=1), 1)
    job = with_proof(job, "uid-w1", 2)
    assert names(job) == ["w0", "w1"]
    assert names(with_report(job, report("w0", "w1"), 3)) == ["w1"]


def test_a_host_whose_pod_has_ended_leaves_at_once_even_below_the_minimum() -> None:
    job = with_facts(training(host("w0"), host("w1"), least=2), facts(host("w0"), least=2), 1)
    assert names(job) == ["w0"]


def test_one_host_with_the_state_stays_until_the_driver_has_assigned_ranks_to_another() -> None:
    job = training(host("w0", leaving=True))
    job = with_proof(with_facts(job, facts(host("w0", leaving=True), host("w1")), 1), "uid-w1", 1)
    assert names(job) == ["w0", "w1"]
    assert reason(job, "w0") == "it leaves, but no other host has the training state yet"
    assert names(with_report(job, report("w0", "w1"), 2)) == ["w1"]


def test_a_new_server_keeps_the_last_host_with_the_state_by_the_drivers_report_although_it_leaves() -> None:
    known = with_facts(HostJob(), facts(host("w0", leaving=True), host("w1")), 0)
    assert names(known) == []
    job = with_report(known, report("w0", proven=("uid-w0", "uid-w1")), 1)
    assert names(job) == ["w0", "w1"]
    assert names(with_report(job, report("w0", "w1"), 2)) == ["w1"]


def test_hosts_that_were_exchanged_before_the_driver_reported_come_back_until_another_has_the_state() -> None:
    """A launcher was preempted as its job began.

    Its driver read the list with its own pod only. This pod left the list as soon as three workers were proven, and the driver reported
    that it had begun there. Then no listed host had the training state.
    """
    own, others = host("job-launcher", is_local=True, leaving=True), [host(f"w{index}") for index in range(3)]
    job = with_facts(HostJob(), facts(replace(own, leaving=False), *others, least=3), 0)
    assert names(job) == ["job-launcher"], "the list that the driver read"
    job = proven(with_facts(job, facts(own, *others, least=3), 0), *(one.uid for one in others), now=1)
    assert names(job) == ["w0", "w1", "w2"]
    job = with_report(job, report("job-launcher"), 2)
    assert sorted(names(job)) == ["job-launcher", "w0", "w1", "w2"]
    assert reason(job, "job-launcher") == "it leaves, but no other host has the training state yet"
    job = with_report(job, report("job-launcher", "w0", "w1", "w2"), 3)
    assert names(job) == ["w0", "w1", "w2"]


def test_before_the_driver_has_assigned_ranks_every_host_may_be_exchanged() -> None:
    job = with_report(proven(with_facts(HostJob(), facts(host("w0")), 0), "uid-w0"), report(), 0)
    job = with_facts(job, facts(host("w0", leaving=True), host("w1")), 1)
    assert names(with_proof(job, "uid-w1", 1)) == ["w1"]


def test_without_reports_of_the_driver_an_addition_keeps_its_distance_from_a_removal() -> None:
    job = proven(with_facts(HostJob(), facts(host("w0"), host("w1")), 0), "uid-w0", "uid-w1")
    job = with_facts(job, facts(host("w0"), host("w1", leaving=True)), 100)
    assert names(job) == ["w0"]
    job = proven(with_facts(job, facts(host("w0"), host("w2")), 101), "uid-w2", now=101)
    assert names(job) == ["w0"]
    assert job.look_again_at == 100 + APART_S
    assert names(decided(job, 100 + APART_S)) == ["w0", "w2"]


def test_a_driver_that_reports_gets_an_addition_at_once() -> None:
    job = training(host("w0"), host("w1"), now=0)
    job = with_facts(job, facts(host("w0"), host("w1", leaving=True)), 1)
    job = proven(with_facts(job, facts(host("w0"), host("w2")), 1.1), "uid-w2", now=1.1)
    assert names(job) == ["w0", "w2"]


def test_without_reports_of_the_driver_workers_may_run_in_every_pod_that_was_listed() -> None:
    job = proven(with_facts(HostJob(), facts(host("w0"), host("w1"), host("w2", is_ready=False)), 0), "uid-w0", "uid-w1")
    job = with_facts(job, facts(host("w0"), host("w1", leaving=True), host("w2", is_ready=False)), SETTLED_S)
    assert names(job) == ["w0"]
    assert state(job).observed == Observed.PODS
    assert state(job).working == ("uid-w0", "uid-w1")


def test_without_reports_of_the_driver_workers_of_a_host_that_left_the_list_may_run_for_the_jobs_grace_period() -> None:
    """The end of the grace period is the only moment at which the pod of a host that may have to leave can go."""
    w0, w1, w2 = host("w0"), replace(host("w1", leaving=True), when_replaced=True), host("w2")
    job = proven(with_facts(HostJob(), facts(w0, host("w1")), 0, grace_s=7), "uid-w0", "uid-w1")
    job = with_facts(job, replace(facts(w0, w1, w2), wanted=2), SETTLED_S, grace_s=7)
    job = with_proof(job, "uid-w2", 100)
    assert names(job) == ["w0", "w2"]
    assert "uid-w1" in state(job).working
    assert job.look_again_at == 107
    job = decided(job, 107)
    assert state(job).working == ("uid-w0", "uid-w2")
    assert state(job).leaving == ("uid-w1",)


def test_a_new_server_believes_that_a_leaving_host_works_until_the_driver_reports_or_its_grace_period_ends() -> None:
    """A scale-in had just taken a worker off the former server's list. The controller deleted its pod while its processes ran."""
    job = with_facts(HostJob(), facts(host("w0"), host("w1", leaving=True)), 50, grace_s=7)
    assert state(job).working == ("uid-w1",)
    assert state(with_report(job, report("w0", working=("w0", "w1")), 51)).working == ("uid-w0", "uid-w1")
    assert state(with_report(job, report("w0"), 51)).working == ("uid-w0",)
    assert job.look_again_at == 57
    assert state(decided(job, 57)).working == ()


def test_a_launcher_that_stops_reporting_counts_as_one_that_never_reports() -> None:
    job = training(host("w0"), now=0)
    assert state(job).observed == Observed.DRIVER
    assert job.look_again_at == REPORT_KEPT_S
    assert state(decided(job, REPORT_KEPT_S)).observed == Observed.PODS


def test_a_launchers_proofs_of_missing_pods_are_not_kept() -> None:
    job = with_facts(HostJob(), facts(host("w0")), 0)
    assert with_report(job, report(proven=tuple(f"stranger-{n}" for n in range(1000))), 1).proven == frozenset()


@dataclass
class Life:
    """A job whose hosts come and leave, as the controller, a launcher and time make them."""

    least: int
    job: HostJob = field(default_factory=HostJob)
    hosts: dict[str, Host] = field(default_factory=dict)
    now: float = 0.0
    made: int = 0

    def tell(self) -> None:
        staying = sum(1 for one in self.hosts.values() if not one.leaving)
        self.job = with_facts(self.job, replace(facts(*self.hosts.values(), least=self.least), wanted=max(1, staying)), self.now)


CHANGES = st.lists(
    st.tuples(st.sampled_from(["come", "ready", "prove", "leave", "warn", "end", "assign", "silent", "wait"]), st.integers(0, 5))
)


@given(changes=CHANGES, least=st.integers(1, 3))
def test_every_sequence_of_changes_keeps_the_laws(changes: list[tuple[str, int]], least: int) -> None:
    life = Life(least)
    life.tell()
    for what, which in changes:
        before = life.job
        chosen = list(life.hosts)[which % len(life.hosts)] if life.hosts else ""
        life.now += 0.5
        match what:
            case "come":
                life.made += 1
                life.hosts[f"w{life.made}"] = host(f"w{life.made}", is_ready=False)
                life.tell()
            case "ready" if chosen:
                life.hosts[chosen] = replace(life.hosts[chosen], is_ready=True)
                life.tell()
            case "leave" if chosen:
                life.hosts[chosen] = host(chosen, is_ready=life.hosts[chosen].is_ready, leaving=True)
                life.tell()
            case "warn" if chosen and not life.hosts[chosen].leaving:
                life.hosts[chosen] = replace(life.hosts[chosen], leaving=True, when_replaced=True)
                life.tell()
            case "end" if chosen:
                del life.hosts[chosen]
                life.tell()
            case "prove" if chosen:
                life.job = with_proof(life.job, f"uid-{chosen}", life.now)
            case "assign":
                life.job = with_report(life.job, report(*names(life.job)), life.now)
            case "wait" | "silent":
                life.now += 5 if what == "wait" else SETTLED_S + REPORT_KEPT_S
                life.job = decided(life.job, life.now)
        _check(life, before)


def _check(life: Life, before: HostJob) -> None:
    job = life.job
    listed, was = {entry.uid for entry in job.listed}, {entry.uid for entry in before.listed}
    here = {one.uid: one for one in life.hosts.values()}
    assert listed <= here.keys()
    assert all(here[uid].is_ready and uid in job.proven and not here[uid].leaving for uid in listed - was)
    could_stay = was & here.keys()
    assert len(listed) >= min(life.least, len(could_stay)), "a planned removal went below the minimum"
    assert not could_stay or listed & could_stay, "no host of the former list stayed"
    assert all(verdict.reason for verdict in answer(job, "").hosts)
    assert decided(job, life.now).listed == job.listed, "the same facts at the same time give another list"
    if was - listed and job.report is None and before.report is None and could_stay:
        assert not (listed - was) or job.removed_at == before.removed_at


@given(changes=CHANGES)
def test_at_rest_all_ready_hosts_that_stay_are_listed_and_no_others(changes: list[tuple[str, int]]) -> None:
    life = Life(1)
    for what, which in changes:
        chosen = list(life.hosts)[which % len(life.hosts)] if life.hosts else ""
        if what == "come" or not chosen:
            life.made += 1
            life.hosts[f"w{life.made}"] = host(f"w{life.made}")
        elif what == "leave":
            life.hosts[chosen] = host(chosen, leaving=True)
        life.tell()
    life.hosts["last"] = host("last")
    life.tell()
    for _ in range(4):
        life.job = proven(life.job, *(one.uid for one in life.hosts.values()), now=life.now)
        life.now += SETTLED_S
        life.job = decided(life.job, life.now)
    assert set(names(life.job)) == {name for name, one in life.hosts.items() if not one.leaving}
