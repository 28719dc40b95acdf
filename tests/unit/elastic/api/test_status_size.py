"""The status of the largest job stays an object that etcd stores and the parser reads, and counts every restart once."""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from job_builders import NOW, OURS, Cluster, elastic_job, job, pod, replica, restarts

from elastic.api import parse
from elastic.api.book import Announced, Leaving
from elastic.api.extent import MOST_STATUS_BYTES
from elastic.api.job import ElasticStatus, Job, Object, to_object
from elastic.api.names import REPLICA_INDEX, REPLICA_TYPE, pod_name
from elastic.membership.bounds import MAX_MEMBERS
from elastic.membership.wire import Restart
from elastic_training.controller.deciding import active
from elastic_training.controller.deciding.actions import SetExpectation
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle import restart_accounting
from elastic_training.controller.deciding.lifecycle.stored_restarts import GROUPED_FROM, log_of, stored
from elastic_training.controller.deciding.replicas import pod_revision
from elastic_training.controller.deciding.status_room import COUNTED_BYTES, LEAVING_BYTES, OPEN_BYTES, with_leaving
from elastic_training.controller.facts.snapshot import GROUP, Container, Pod, PodPhase, WorldSeen
from elastic_training.rendezvous.engine import restart_budget
from elastic_training.rendezvous.engine.restart_log import RestartLog, unknown_to
from elastic_training.rendezvous.engine.step import begin

pytestmark = pytest.mark.slow
LONGEST_NAME = "j" * (63 - len("-worker-8191"))


@pytest.fixture(autouse=True)
def small_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the looks of thousands of pods: they cost most of the time and matter nothing here."""

    def pod_for(view: JobView, type: str, index: int) -> Object:
        labels = {REPLICA_TYPE: type.lower(), REPLICA_INDEX: str(index), GROUP: pod_revision.group_of(view) or ""}
        return {"kind": "Pod", "metadata": {"name": pod_name(view.job.kind, view.job.metadata.name, type, index), "labels": labels}}

    monkeypatch.setattr(active, "pod_for", pod_for)


class Large(Cluster):
    """A cluster whose pods have real uids; only what matters here is carried out one by one."""

    def _make_pod(self, item: Mapping[str, Any]) -> None:
        super()._make_pod(item)
        name = item["metadata"]["name"]
        self.pods[name] = replace(self.pods[name], uid=str(uuid.uuid4()), phase=PodPhase.RUNNING, is_ready=True)

    def size(self) -> int:
        return len(msgspec.json.encode(to_object(self.job)))

    def controller_restarts(self) -> None:
        """Read what the API server stored, as the next controller does."""
        read, warnings = parse(msgspec.json.decode(msgspec.json.encode(to_object(self.job))), stored=True)
        assert (read.status, warnings) == (self.job.status, [])
        self.job = read

    def expectation(self) -> SetExpectation:
        return next(word for word in reversed(self.told) if isinstance(word, SetExpectation))

    @property
    def elastic(self) -> ElasticStatus:
        assert self.job.status.elastic is not None
        return self.job.status.elastic


class Server:
    """The rendezvous server's half of the restart log."""

    def __init__(self) -> None:
        self.job = begin("job", instance="abcdef", up_since=0.0, now=0.0)

    def hears(self, word: SetExpectation) -> None:
        self.job = restart_budget.with_recorded(self.job, RestartLog(dict(word.restarts), word.unsettled, word.settled_to))

    def books(self, entries: Iterable[Restart]) -> None:
        self.job = restart_budget.with_restarts(self.job, entries)

    def world(self, generation: int, *, members: Iterable[str] = (), explained: Iterable[str] = ()) -> WorldSeen:
        phase = "running" if members else "forming"
        unacknowledged = self.job.accounting.unrecorded
        return WorldSeen(generation, frozenset(members), phase=phase, unacknowledged_restarts=unacknowledged, explained=tuple(explained))


def largest(**more: Any) -> Job:
    one = elastic_job(MAX_MEMBERS, most=MAX_MEMBERS, elastic={"maxRestarts": 1_000_000}, **more)
    return named(one)


def named(one: Job) -> Job:
    return msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, name=LONGEST_NAME))


def lost(pods: Iterable[Pod], *, generation: int, cause: str = "disruption", is_known: bool = False) -> list[Restart]:
    return [
        Restart(
            id=f"{generation}-abcdef/{pod.uid}", generation=generation, cause=cause, pod=pod.uid, lost=not is_known, unsure=not is_known
        )
        for pod in pods
    ]


def test_every_worker_of_the_largest_job_is_lost_several_times() -> None:
    cluster, server = Large(largest(), settings=OURS), Server()
    cluster.round()
    cluster.round()
    for generation in (1, 2):
        members = cluster.names()
        assert len(members) == MAX_MEMBERS
        cluster.world = server.world(generation, members=members)
        cluster.round()
        server.hears(cluster.expectation())

        pods = list(cluster.pods.values())
        server.books(lost(pods, generation=generation))
        cluster.world = server.world(generation)
        cluster.round()
        assert cluster.size() < MOST_STATUS_BYTES
        assert cluster.elastic.restarts.get("disruption") == MAX_MEMBERS, "a guess, until the kubelets report how containers ended"
        cluster.controller_restarts()
        server = Server()
        cluster.round()
        server.hears(cluster.expectation())
        server.books(lost(pods, generation=generation))
        assert server.job.accounting.unrecorded == (), "the next server learns from members what the status says already"

        for name in members:
            cluster.set(name, PodPhase.FAILED, code=1)
        cluster.round()
        explained = [end.id for end in cluster.expectation().ended]
        assert len(explained) == MAX_MEMBERS
        server.books(lost(pods, generation=generation, cause="user", is_known=True))
        cluster.world = server.world(generation, explained=explained)
        for _ in range(20):
            cluster.round()
            assert cluster.size() < MOST_STATUS_BYTES
            server.hears(cluster.expectation())
            cluster.world = server.world(generation, explained=explained)
            if not any(pod.phase is PodPhase.FAILED for pod in cluster.pods.values()) and len(cluster.pods) == MAX_MEMBERS:
                break
        assert {pod.uid for pod in cluster.pods.values()}.isdisjoint(pod.uid for pod in pods), "all are replaced"
        assert cluster.elastic.restarts == {"user": generation * MAX_MEMBERS}
        assert dict(server.job.accounting.restarts) == cluster.elastic.restarts


def test_many_workers_leave_a_thousand_at_a_time() -> None:
    cluster = Large(named(elastic_job(4000, most=MAX_MEMBERS)), settings=OURS)
    cluster.round()
    cluster.job = msgspec.structs.replace(cluster.job, replicas=elastic_job(1, most=MAX_MEMBERS).replicas)
    seen: set[str] = set()
    for generation in range(1, 30):
        cluster.world = WorldSeen(
            generation, frozenset(set(cluster.names()) - {entry.member for entry in leaving(cluster)}), phase="running"
        )
        cluster.round()
        assert len(msgspec.json.encode(leaving(cluster))) <= LEAVING_BYTES
        word = cluster.expectation()
        assert set(cluster.names()) <= {*word.members, *(leave.member for leave in word.leaving)}, "nobody is cut off unasked"
        assert len(word.members) <= word.most
        seen |= {entry.member for entry in leaving(cluster)}
        if len(cluster.pods) == 1:
            break
    assert (len(cluster.pods), len(seen)) == (1, 3999), "all were notified before they went"


def test_further_facts_about_leaving_workers_take_no_room_from_them() -> None:
    other = Announced(signal="s" * 300, by=NOW)
    known = [
        Leaving(member=f"{LONGEST_NAME}-worker-{n}", cause="disruption", signal="aws-spot", by=NOW, others=(other,) * 4) for n in range(900)
    ]
    out = with_leaving(known, [])
    assert [entry.member for entry in out] == [entry.member for entry in known]
    assert len(msgspec.json.encode(out)) <= LEAVING_BYTES
    assert with_leaving(known[:9], []) == tuple(known[:9])


def leaving(cluster: Cluster) -> Any:
    return cluster.job.status.elastic.leaving if cluster.job.status.elastic is not None else ()


def test_restarts_without_room_stay_with_the_server_until_a_world_stands() -> None:
    """Containers of ever new pods crash before they join, so no later world makes room."""
    entries = tuple(Restart(id=f"{uid}/0", generation=4, cause="user", pod=uid) for uid in (str(uuid.uuid4()) for _ in range(12_000)))
    known = ElasticStatus(generation=4, restarts={"user": 2})
    status = recorded(known, WorldSeen(4, frozenset(), unacknowledged_restarts=entries))
    assert len(msgspec.json.encode(status.open)) <= OPEN_BYTES
    taken = len(log_of(status).unsettled)
    assert 8192 < taken < 12_000
    assert status.restarts == {"user": 2 + taken}
    rest = unknown_to(log_of(status), entries)
    assert len(rest) == 12_000 - taken, "the server repeats these"
    assert recorded(status, WorldSeen(4, frozenset(), unacknowledged_restarts=rest)) == status
    status = recorded(status, WorldSeen(5, frozenset(), unacknowledged_restarts=rest), generation=5)
    assert status.restarts == {"user": 12_002}
    assert status.open == ()
    assert unknown_to(log_of(status), entries) == ()


def recorded(known: ElasticStatus, world: WorldSeen, *, generation: int | None = None) -> ElasticStatus:
    new = restart_accounting.with_reported_restarts(known, world)
    new = msgspec.structs.replace(new, generation=generation or known.generation)
    return restart_accounting.settled(new, (), before=known)


def test_settled_restarts_of_former_worlds_give_room_first() -> None:
    pods = [pod(index=n, uid=str(uuid.uuid4())) for n in range(8192)]
    former = [pod(index=n, uid=str(uuid.uuid4())) for n in range(4000)]
    known = recorded(ElasticStatus(), WorldSeen(1, frozenset(), unacknowledged_restarts=tuple(lost(former, generation=1))))
    new = restart_accounting.with_reported_restarts(
        known, WorldSeen(2, frozenset(), unacknowledged_restarts=tuple(lost(pods, generation=2)))
    )
    status = restart_accounting.settled(msgspec.structs.replace(new, generation=2), [*pods, *former], before=known)
    assert status.restarts == {"disruption": 12_192}
    assert len(msgspec.json.encode(status.open)) <= OPEN_BYTES
    ids = {entry.id for entry in log_of(status).unsettled}
    assert ids.issuperset(entry.id for entry in lost(pods, generation=2)), "those of the newest world can be reported again"
    assert unknown_to(log_of(status), lost(former, generation=1)) == (), "what is folded counts as known"


@pytest.mark.parametrize("number", [1, 100, 300, 700])
def test_grouped_restarts_read_back_as_they_were(number: int) -> None:
    uids = [str(uuid.uuid4()) for _ in range(number)]
    entries = {
        *lost([pod(uid=uid) for uid in uids[::2]], generation=3),
        *lost([pod(uid=uid) for uid in uids[1::2]], generation=4, cause="user", is_known=True),
        *(Restart(id=f"{uid}/7", generation=4, cause="user", pod=uid) for uid in uids[::3]),
        Restart(id="4-abcdef", generation=4, cause="hang"),
        Restart(id="4-*/x", generation=4, cause="user", pod="x"),
        *restarts("user", "disruption"),
    }
    status = ElasticStatus(open=stored(tuple(entries)))
    assert set(log_of(status).unsettled) == entries
    assert len(status.open) == len(entries) if len(entries) < GROUPED_FROM else len(status.open) < 20


def test_many_reboots_of_many_nodes_are_counted_once_each_and_take_bounded_room() -> None:
    one = named(job(Worker=replica(9000), policy={"backoffLimit": 1}))
    cluster = Large(one)
    cluster.round()
    for reboots in (1, 2):
        for name, seen in cluster.pods.items():
            ended = Container(name="pytorch", restarts=reboots, is_running=True, last_exit_code=255, last_exit_reason="Unknown")
            cluster.pods[name] = replace(seen, containers=(ended,))
        cluster.round()
        cluster.controller_restarts()
        assert cluster.size() < MOST_STATUS_BYTES
        assert sum(len(entry) + 3 for entry in cluster.elastic.counted) <= COUNTED_BYTES + 9000 * 2
        cluster.round()
        assert cluster.state() == "Running", "no reboot counts against backoffLimit"
    assert cluster.elastic.restarts["disruption"] > 2 * 8000


def test_pods_without_room_in_the_status_wait_until_others_are_replaced() -> None:
    one = named(job(Worker=replica(10_000), Master=replica(1), policy={"backoffLimit": 30_000}))
    cluster = Large(one)
    cluster.round()
    ends = 0
    for name in [name for name in cluster.names() if "worker" in name]:
        cluster.set(name, PodPhase.FAILED, code=1)
        ends += 1
    cluster.settle()
    assert cluster.size() < MOST_STATUS_BYTES
    assert cluster.elastic.restarts == {"user": ends}, "each end is counted once"
    assert not any(pod.phase is PodPhase.FAILED for pod in cluster.pods.values())


def test_a_loss_of_many_names_a_few() -> None:
    cluster = Large(named(job(Worker=replica(1000), policy={"restartScope": "Group"})))
    cluster.round()
    cluster.round()
    assert cluster.elastic.world_size == 1000
    for name in cluster.names()[:900]:
        cluster.pods[name] = replace(cluster.pods[name], is_deleting=True)
    cluster.round()
    assert cluster.elastic.last_rescale is not None
    assert cluster.elastic.last_rescale.reason.endswith("and 895 more left; all replicas restart")
