"""The laws of a simulation, which must hold at every moment.

Each write to the API passes here before anybody sees it; a breach names the law. The laws read only the API, the rendezvous server and what
the cluster knows it did; they do not ask the controller.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from sim_api import Api, Write
from sim_autoscaler import AUTOSCALER
from sim_client import TIMEOUT_S, Sky
from sim_cluster import Cluster
from sim_hpa import HPA
from sim_jobs import replicas
from sim_pods import is_deleting
from sim_process import Controller
from sim_rendezvous import SimServer
from sim_time import START

from elastic.api import parse
from elastic.api.job import Job, Object
from elastic.api.kinds import WORKER
from elastic.api.names import REPLICA_INDEX, REPLICA_TYPE
from elastic.api.scaling import ANNOTATION, from_text
from elastic.api.words import CHARGED, Cause
from elastic.kube.resources import EVENTS, LEASES, NODES, PODS
from elastic.signals.seen import on_node
from elastic.signals.signal import Meaning
from elastic.signals.table import BUILT_IN
from elastic_training.controller.facts.keys import JOBS
from elastic_training.controller.facts.snapshot import GROUP
from elastic_training.rendezvous.engine.broken_communication import FREE

BEHIND_S = 3 * TIMEOUT_S
"""So old may be what a controller acts on: its view lags, and a request may arrive late."""
UNSEEN_S = 10.0
"""Seconds for which a loss may go unseen if a watch stalls. A controller that deletes another pod meanwhile cannot know of it."""
SCALERS = (AUTOSCALER, HPA)
TOLD_AFTER = ("Succeeded", "Failed", "Suspended", "Resumed")
"""Events that tell of a condition, which must stand in the status first."""


@dataclass(slots=True)
class Life:
    """Facts about one incarnation of the job."""

    uid: str
    user_failures_before: int
    losses_before: int
    parted: int = 0
    """Workers that one of two leaders parted with: by the other's word nobody had told them to go, and then it was a loss."""
    specs: list[tuple[float, Job]] = field(default_factory=list)
    over_since: float | None = None
    completion: str = ""
    end: str = ""
    generation: int = 0
    closed: str = ""
    said: set[str] = field(default_factory=set)


class Laws:
    """Watches everything that is written. `can_overshoot` where two controllers work at once, each with a view of its own."""

    def __init__(
        self,
        api: Api,
        cluster: Cluster,
        server: SimServer,
        controllers: Sequence[Controller],
        sky: Sky,
        *,
        kind: str,
        can_overshoot: bool = False,
    ) -> None:
        self.breaches: list[str] = []
        self.lives: dict[str, Life] = {}
        self.last_write, self.writes, self.newest = 0.0, 0, ""
        self.has_finished = False
        self.scaler_wrote_at = 0.0
        self.scaled: list[tuple[float, int]] = []
        """When the autoscaler changed the number of workers, and by how many."""
        self._holder = ""
        self._bad_until: dict[str, float] = {}
        self._bad_since: dict[str, float] = {}
        self._suspected: list[tuple[float, Object, str]] = []
        self._lost: list[tuple[float, str]] = []
        self._api, self._cluster, self._server, self._controllers, self._sky = api, cluster, server, controllers, sky
        self._jobs = JOBS[kind]
        self._can_overshoot = can_overshoot
        api.observers.append(self._see)

    def _see(self, write: Write) -> None:
        is_ours = write.actor.startswith("controller")
        if write.resource == LEASES:
            self._see_lease(write)
        elif is_ours:
            if self._holder not in ("", write.actor):
                self._breach("never two leaders", f"{write.actor} {write.verb}s {write.name} while {self._holder} holds the lease")
            self.last_write, self.writes, self.newest = _time(), self.writes + 1, f"{write.resource.plural} {write.name}"
        if write.actor in SCALERS:
            self.last_write = self.scaler_wrote_at = _time()
            self.newest = f"{write.resource.plural} {write.name} by {write.actor}"
        if write.resource == self._jobs:
            self._see_job(write)
        elif write.resource == EVENTS and write.after is not None:
            self._see_event(write.after)
        elif write.resource == NODES:
            self._see_node(write)
        elif write.resource == PODS and is_ours:
            if write.before is None and write.after is not None:
                self._see_made(write.after)
            elif write.before is not None and write.verb == "delete":
                self._see_deleted(write.before, by=write.actor)
        elif write.resource == PODS and write.before is not None:
            if _is_lost(write.before, write.after):
                self._lost.append((_time(), _owner(write.before)))
            life = self._life_of(write.before)
            if life is not None and write.verb == "delete" and write.actor.startswith("late controller"):
                life.parted += self._can_overshoot  # a leader decided on it before the other one wanted the worker again

    def _see_node(self, write: Write) -> None:
        if write.before is not None and _is_bad(write.before):
            self._bad_until[write.name] = _time()
        if write.after is not None and _is_bad(write.after):
            self._bad_since.setdefault(write.name, _time())
        else:
            self._bad_since.pop(write.name, None)

    def _see_lease(self, write: Write) -> None:
        """Note the holder of the Lease. While it has no holder, messages of the last one may still arrive."""
        self._holder = write.after["spec"]["holderIdentity"] or self._holder if write.after is not None else ""

    def _breach(self, law: str, words: str) -> None:
        self.breaches.append(f"[{_time():.1f} s] {law}: {words}")

    def _suspect(self, pod: Object, law: str, words: str) -> None:
        """Note a breach, unless the pod's group ends now: pods may go just before its store says why."""
        self._suspected.append((_time(), pod, f"[{_time():.1f} s] {law}: {words}"))

    def judge(self) -> None:
        """Turn suspicions that have stood long enough into breaches."""
        for suspicion in list(self._suspected):
            at, pod, words = suspicion
            if self._is_another_group(pod):
                self._suspected.remove(suspicion)
            elif _time() - at > BEHIND_S:
                self._suspected.remove(suspicion)
                self.breaches.append(words)

    # --- the job and its status ---

    def _see_job(self, write: Write) -> None:
        job = write.after
        if job is None:
            return
        uid = job["metadata"]["uid"]
        life = self.lives.setdefault(uid, Life(uid, self._cluster.user_failures, self._losses))
        parsed, _ = parse(job, stored=True)
        if not life.specs or write.before is None or write.before["spec"] != job["spec"]:
            life.specs.append((_time(), parsed))
        if write.actor in SCALERS:
            self._see_scaled(write.before, parsed)
        status = job.get("status") or {}
        for condition in status.get("conditions") or ():
            life.said.add(condition["reason"])
        self._see_end(life, status)
        elastic = status.get("elastic") or {}
        if elastic.get("generation", 0) < life.generation:
            self._breach("the generation never falls", f"{life.generation} became {elastic.get('generation', 0)}")
        life.generation = elastic.get("generation", 0)
        if life.closed and elastic.get("closed", "") != life.closed:
            self._breach("a group that was let end stays ended", f"{life.closed} became {elastic.get('closed', '')}")
        life.closed = elastic.get("closed", "")
        self._see_charges(life, elastic.get("restarts", {}))

    def _see_scaled(self, before: Object | None, job: Job) -> None:
        """Judge a number of workers that the autoscaler wrote, or left as it was."""
        assert before is not None
        was, least, most = desired_of(before)[WORKER], *job.bounds
        if was == job.workers:
            return
        self.scaled.append((_time(), job.workers - was))
        record = from_text(job.metadata.annotations.get(ANNOTATION))
        if record is None or not record.decision.reason:
            self._breach("the autoscaler says why", f"{was} became {job.workers}")
        if not least <= job.workers <= most:
            self._breach("the autoscaler stays within minReplicas and maxReplicas", f"{was} became {job.workers}, not {least} to {most}")

    def turns_since(self, at: float) -> int:
        """Return how often the autoscaler has changed its direction since then."""
        signs = [change > 0 for when, change in self.scaled if when >= at]
        return sum(one != other for one, other in pairwise(signs))

    def _see_charges(self, life: Life, restarts: dict[str, int]) -> None:
        charged = sum(restarts.get(cause, 0) for cause in CHARGED)
        # All processes restart after two troubles in a row at the earliest.
        unexplained = self._server.living.troubles // 2 if self._server.living is not None else 0
        happened = self._cluster.user_failures - life.user_failures_before + max(0, unexplained - FREE)
        if charged > happened:
            self._breach("a failure is charged once", f"{charged} are charged, {happened} happened: {restarts}")
        ended = charged + restarts.get(Cause.DISRUPTION.value, 0)
        happened += self._losses - life.losses_before + life.parted + min(unexplained, FREE)
        if ended > happened:
            self._breach("an end has one cause", f"{ended} ends are counted, {happened} happened: {restarts}")

    @property
    def _losses(self) -> int:
        """Count the lost workers.

        They are pods that the cluster took, agents that gave up while their server was away, and members that were silent for so long that
        the rendezvous server dropped them.
        """
        return len(self._cluster.lost) + self._cluster.kubelets.turned_away + self._server.cut_off + self._server.etcds.cut_off

    def _see_end(self, life: Life, status: Object) -> None:
        ends = [c["type"] for c in status.get("conditions") or () if c["type"] in ("Succeeded", "Failed") and c["status"] == "True"]
        if life.end and ends != [life.end]:
            self._breach("a finished job stays finished", f"{life.end} became {ends}")
        if life.completion and status.get("completionTime") != life.completion:
            self._breach("a finished job stays finished", f"completionTime {life.completion} became {status.get('completionTime')}")
        if ends and not life.end:
            life.end, life.over_since = ends[0], _time()
            life.completion = status.get("completionTime", "")
            if not life.completion:
                self._breach("a finished job has a completionTime", ends[0])
            if life.end == "Succeeded" and not self.has_finished:
                self._breach("a job succeeds only when its program has ended", "no training program has ended with 0")

    def _see_event(self, event: Object) -> None:
        life = self.lives.get(event["involvedObject"]["uid"])
        kind = event["involvedObject"]["kind"]
        reason = event["reason"].removeprefix(kind)
        if life is not None and reason in TOLD_AFTER and reason != event["reason"] and event["reason"] not in life.said:
            self._breach("Events come after the status", f"{event['reason']} was told and never written")

    # --- pods ---

    def _see_made(self, pod: Object) -> None:
        life = self._life_of(pod)
        if life is None:
            return
        type = pod["metadata"]["labels"].get(REPLICA_TYPE)
        if type is None:
            return  # a store pod is no replica
        if life.over_since is not None and _time() - life.over_since > BEHIND_S:
            self._breach("a finished job makes no pods", pod["metadata"]["name"])
        lately = self._lately(life)
        desired = max(count for job in lately for name, count in counts(job).items() if name == type)
        live = [p for p in self._pods_of(life.uid, type) if self._stays(p) and not _goes_by_its_place(lately, p)]
        if len(live) > desired and not self._can_overshoot:
            names = [p["metadata"]["name"] for p in live]
            self._breach("never more pods than desired and leaving", f"{names} for {desired}")
        places = [place(p) for p in self._pods_of(life.uid, type) if p["status"]["phase"] in ("Pending", "Running")]
        if len(places) != len(set(places)):
            self._breach("never two pods for one index", str(places))

    def _see_deleted(self, pod: Object, *, by: str) -> None:
        life = self._life_of(pod)
        if life is None or pod["status"]["phase"] != "Running" or is_deleting(pod) or not _is_worker(pod):
            return
        life.parted += self._can_overshoot
        lately = self._lately(life)
        is_whole = all(_is_resized(j) and not j.run_policy.suspend for j in lately)
        if life.end or life.closed or not is_whole or self._is_another_group(pod):
            return
        name = pod["metadata"]["name"]
        others = [p for p in self._pods_of(life.uid, WORKER.lower()) if p["metadata"]["name"] != name and _is_at_work(p)]
        unseen = sum(owner == life.uid and self._is_unseen(at, by) for at, owner in self._lost)
        least = min(j.least_workers for j in lately)
        if len(others) + unseen < least and not self._is_soon_lost(pod):
            self._suspect(pod, "never below min by our own doing", f"{name} goes, {len(others)} stay, at least {least}")
        # At c10d's store nobody is told; and of two that lead at once each tells the server what it thinks itself.
        told = [expectation for who, expectation in self._server.expected.get(life.uid, ()) if who == by]
        if not told:
            return
        last = told[-1]
        if name in last.members and name not in {leaving.member for leaving in last.leaving}:
            self._suspect(pod, "nobody goes untold", f"{name} is deleted while it is expected")
        uid, hosts = pod["metadata"]["uid"], last.hosts.hosts if last.hosts is not None else ()
        if any(host.uid == uid and not host.leaving for host in hosts):
            self._suspect(pod, "nobody goes untold", f"{name} is deleted while it may be on the list of hosts")

    def _is_unseen(self, at: float, by: str) -> bool:
        """Return whether a controller may not have seen yet a loss of this time.

        If it stood still then, or the API server was down, it sees the loss later.
        """
        began, ended = next((c.stood_still for c in self._controllers if c.name == by), (math.inf, math.inf))
        return _time() - max(ended if began <= at < ended else at, self._sky.down_until) < UNSEEN_S

    def _is_soon_lost(self, pod: Object) -> bool:
        """Return whether the pod's node has announced its loss, and at most three quarters of that time are left."""
        node = self._api.find(NODES, pod["spec"].get("nodeName") or "")
        if node is None:
            return False
        since = self._bad_since.get(node["metadata"]["name"], _time())
        for sight in on_node(BUILT_IN, node):
            if sight.signal.meaning is Meaning.LEAVE:
                lost_at = (sight.by - START).total_seconds() if sight.by is not None else since + sight.signal.lead_s
                if _time() >= lost_at - 0.75 * max(0.0, lost_at - since):
                    return True
        return False

    def _is_another_group(self, pod: Object) -> bool:
        groups = {p["metadata"]["labels"].get(GROUP) for p in self._pods_of(_owner(pod), WORKER.lower())}
        mine = pod["metadata"]["labels"].get(GROUP, "")
        return len(groups) > 1 or mine.startswith("size-") or (mine.startswith("c10d-") and self._run_of_store(_owner(pod)) not in mine)

    def _run_of_store(self, uid: str) -> str:
        """Return the store that a group of c10d's can meet at now. A store that ended took its group with it."""
        for pod in self._api.all(PODS):
            if _owner(pod) == uid and REPLICA_TYPE not in pod["metadata"]["labels"] and _is_at_work(pod):
                restarts = sum(container.get("restartCount", 0) for container in pod["status"].get("containerStatuses") or ())
                return f"{pod['metadata']['uid'][:8]}-{restarts}"
        return "none"

    def _life_of(self, pod: Object) -> Life | None:
        return self.lives.get(_owner(pod))

    def _lately(self, life: Life) -> list[Job]:
        """Return the specs that a controller may be acting on, the newest last."""
        since = _time() - BEHIND_S
        kept = [spec for (_, spec), (until, _) in zip(life.specs, [*life.specs[1:], (_time(), None)], strict=True) if until >= since]
        return kept or [life.specs[-1][1]]

    def _pods_of(self, uid: str, type: str) -> list[Object]:
        return [p for p in self._api.all(PODS) if _owner(p) == uid and p["metadata"]["labels"].get(REPLICA_TYPE) == type]

    def _stays(self, pod: Object) -> bool:
        """Return whether the pod exists and nobody told it to go."""
        if is_deleting(pod) or pod["status"]["phase"] not in ("Pending", "Running"):
            return False
        if any(c["type"] == "DisruptionTarget" for c in pod["status"].get("conditions") or ()):
            return False
        node = self._api.find(NODES, pod["spec"].get("nodeName") or "")
        if node is not None and (_is_bad(node) or _time() - self._bad_until.get(node["metadata"]["name"], -BEHIND_S) < BEHIND_S):
            return False
        for job in self._api.all(self._jobs):
            leaving = ((job.get("status") or {}).get("elastic") or {}).get("leaving") or ()
            if any(entry["member"] == pod["metadata"]["name"] for entry in leaving):
                return False
        told = self._server.expected.get(_owner(pod))
        return not told or pod["metadata"]["name"] not in {leaving.member for leaving in told[-1][1].leaving}


def _is_at_work(pod: Object) -> bool:
    return pod["status"]["phase"] in ("Pending", "Running") and not is_deleting(pod)


def _is_resized(job: Job) -> bool:
    """Return whether the job goes on with fewer workers or more. A change of size starts the whole group of other kinds again."""
    return job.elastic is not None and job.kind.native_elastic


def _goes_by_its_place(jobs: list[Job], pod: Object) -> bool:
    """Return whether the pod has one of the highest places. These go first if workers meet at one of them, once the others are enough."""
    labels = pod["metadata"]["labels"]
    is_beyond = int(labels.get(REPLICA_INDEX, "0")) >= max(job.workers for job in jobs)
    return is_beyond and _is_worker(pod) and GROUP not in labels and all(map(_is_resized, jobs)) and jobs[-1].kind.name == "PyTorchJob"


def _is_lost(before: Object, after: Object | None) -> bool:
    return _is_at_work(before) and (after is None or not _is_at_work(after))


def _is_bad(node: Object) -> bool:
    """Return whether the node's pods must expect to go."""
    return bool(node["spec"].get("unschedulable")) or any(sight.signal.meaning is not Meaning.INFORM for sight in on_node(BUILT_IN, node))


def counts(job: Job) -> dict[str, int]:
    return {type.lower(): spec.replicas for type, spec in job.replicas.items()}


def place(pod: Object) -> str:
    labels = pod["metadata"]["labels"]
    return f"{labels[REPLICA_TYPE]}-{labels.get(REPLICA_INDEX, '')}"


def desired_of(job: Object) -> dict[str, int]:
    return {type: spec["replicas"] for type, spec in replicas(job).items()}


def _owner(pod: Object) -> str:
    return str(next((owner["uid"] for owner in pod["metadata"].get("ownerReferences") or ()), ""))


def _is_worker(pod: Object) -> bool:
    return bool(pod["metadata"]["labels"].get(REPLICA_TYPE) == WORKER.lower())


def _time() -> float:
    return asyncio.get_running_loop().time()
