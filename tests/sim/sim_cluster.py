"""Nodes, scheduler and kubelets of the simulation: pods are bound, run, crash, are evicted, linger and go.
It writes to the API as these components do and decides nothing about jobs.
"""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from sim_api import Api
from sim_rendezvous import Agent, SimServer
from sim_time import now, stamp

from controller.deciding.objects.elsewhere import PREFERRED
from controller.watching.snapshot import GROUP
from elastic.kube.errors import KubeError
from elastic.kube.resources import NODES, POD_DISRUPTION_BUDGETS, PODS, VOLCANO_POD_GROUPS, Object
from elastic.local.reclaim import PLAYABLE, Played, as_seen
from elastic.signals.signal import Meaning, Signal

ENDLESS = {("mpijob-controller", "worker"), ("tfjob-controller", "ps"), ("mxjob-controller", "server")}
SLOTS = 4
UNREACHABLE_S, EVICTED_S = 40.0, 70.0
LEAVES = [row for row in PLAYABLE.values() if row.meaning is Meaning.LEAVE]
WARNINGS = [row for row in PLAYABLE.values() if row.meaning in (Meaning.PREPARE, Meaning.INFORM)]
QUICK_END_S = 2.0
EVICTION_RETRY_S = 5.0


@dataclass(slots=True)
class Run:
    """What the kubelet knows of one pod: the agent in its container, and when it will be gone once it is told to go."""

    agent: Agent | None = None
    runs: int = 0
    gone_at: float | None = None
    is_stuck: bool = False
    is_gone: bool = False


@dataclass(slots=True)
class Eviction:
    """A drain under way: the names that are yet to be evicted, and the uids of those that are on their way."""

    names: list[str] = field(default_factory=list)
    evicted: set[str] = field(default_factory=set)
    next_try: float = 0.0


class Cluster:
    def __init__(self, api: Api, server: SimServer, draw: random.Random, *, nodes: int = 4) -> None:
        self.user_failures = 0
        self.lost: set[str] = set()
        """The uids of pods that the cluster took or means to take: one loss each, whatever more befalls them."""
        self.mishaps: list[str] = []
        self.may_stick = False
        self.is_finishing = False
        self.evicted_astray: list[str] = []
        """Pods that a drain evicted on another node, for they had the name of one that it had seen."""
        self.is_quick = False
        """Pods are placed and begin at the next tick, and have gone soon after they are told to."""
        self.refusing: dict[str, float] = {}
        """Nodes whose kubelet takes no pod in, and until when."""
        self._api, self._server, self._draw = api, server, draw
        self._runs: dict[str, Run] = {}
        self._dead: dict[str, float] = {}
        self._reclaimed: dict[str, float] = {}
        self._drains: dict[str, Eviction] = {}
        self._made = 0
        for _ in range(nodes):
            self.add_node()

    # --- nodes ---

    def add_node(self) -> None:
        self._made += 1
        self._api.create(NODES, {"metadata": {"name": f"node-{self._made}"}, "spec": {}}, actor="cluster")

    def nodes(self) -> list[str]:
        return [item["metadata"]["name"] for item in self._api.all(NODES)]

    def lose_node(self, name: str) -> None:
        """The machine is gone, and nobody has been told."""
        self._dead.setdefault(name, _time())
        for pod in self.pods(node=name):
            self._loses(pod)
            agent = self._run(pod).agent
            if agent is not None:
                agent.is_over = True

    def reclaim_node(self, name: str, signal: Signal | None = None, *, after_s: float | None = None) -> None:
        """A cloud's notice; the machine goes when its time is up."""
        signal = signal or self._draw.choice(LEAVES)
        left_s = signal.lead_s if after_s is None else after_s
        self._reclaimed.setdefault(name, _time() + left_s)
        for pod in self.pods(node=name):
            self._loses(pod)
        self._show(name, as_seen(signal, now=now(), left_s=left_s))

    def warn_node(self, name: str, signal: Signal | None = None) -> None:
        """A cloud says that a machine may go; it stays."""
        signal = signal or self._draw.choice(WARNINGS)
        if signal.meaning is Meaning.PREPARE:
            for pod in self.pods(node=name):
                self._loses(pod)
        self._show(name, as_seen(signal, now=now(), left_s=None))

    def take_back(self, name: str) -> None:
        """Whatever a cloud has said about a machine that is still there, it says no more."""
        if name in self._dead:
            return
        self._reclaimed.pop(name, None)

        def change(node: Object) -> None:
            node["spec"]["taints"] = []
            node["metadata"]["annotations"] = {}
            node["status"] = {"conditions": []}

        self._api.change(NODES, name, change)

    def _show(self, name: str, played: Played) -> None:
        def change(node: Object) -> None:
            metadata, taint = node["metadata"], played.taint
            metadata.setdefault("labels", {}).update(played.labels)
            metadata.setdefault("annotations", {}).update(played.annotations)
            taints = node["spec"].setdefault("taints", [])
            if taint is not None and all(there["key"] != taint.key for there in taints):
                taints.append({"key": taint.key, "value": taint.value, "effect": str(taint.effect)})
            if played.condition is not None:
                node.setdefault("status", {}).setdefault("conditions", []).append(dict(played.condition))

        self._api.change(NODES, name, change)

    def refuse(self, name: str, *, for_s: float) -> None:
        """The scheduler does not know what the kubelet knows: a device is broken, or somebody has bound pods past the scheduler."""
        self.refusing[name] = _time() + for_s

    def cordon(self, name: str, *, is_cordoned: bool = True, drain: bool = False) -> None:
        self._api.change(NODES, name, lambda node: node["spec"].update({"unschedulable": is_cordoned}))
        if drain:
            self._drains.setdefault(name, Eviction())
        if not is_cordoned:
            self._drains.pop(name, None)

    def heal(self, *, leave_dead: bool = False) -> None:
        """Every broken machine is replaced, every cordon lifted, every stuck pod let go. Of dead ones nobody may ever tell the API."""
        for name in [*self._dead, *self._reclaimed]:
            if leave_dead and name in self._dead:
                self.add_node()
            else:
                self._delete_node(name)
        for name in self.nodes():
            self.cordon(name, is_cordoned=False)
            self.take_back(name)
        self.refusing.clear()
        self.may_stick = False
        for run in self._runs.values():
            run.is_stuck = False

    def undrained(self) -> Iterator[str]:
        """Whom a drain has waited for in vain."""
        for name in sorted(self._drains):
            for pod in self.pods(node=name):
                yield f"{pod['metadata']['name']} is on {name}, which is drained"

    def has_forsaken(self) -> bool:
        """Are there pods of which no kubelet will ever tell anything?"""
        return any(pod["spec"].get("nodeName") in self._dead for pod in self.pods())

    def _taint(self, name: str, key: str) -> None:
        def change(node: Object) -> None:
            taints = node["spec"].setdefault("taints", [])
            if all(taint["key"] != key for taint in taints):
                taints.append({"key": key, "effect": "NoSchedule"})

        self._api.change(NODES, name, change)

    def _delete_node(self, name: str) -> None:
        self._dead.pop(name, None)
        self._reclaimed.pop(name, None)
        self._drains.pop(name, None)
        if self._api.find(NODES, name) is not None:
            for pod in self.pods(node=name):
                self.disrupt(pod, "DeletionByPodGC", phase="Failed")
                self.vanish(pod)
            self._api.remove(NODES, name)
            self.add_node()

    # --- mishaps ---

    def pods(self, *, node: str | None = None) -> list[Object]:
        return [pod for pod in self._api.all(PODS) if node is None or pod["spec"].get("nodeName") == node]

    def running(self) -> list[Object]:
        return [p for p in self.pods() if is_running(p) and p["spec"].get("nodeName") not in self._dead]

    def disrupt(self, pod: Object, reason: str, *, phase: str | None = None) -> None:
        """Says in the pod's status that the cluster ends it."""
        condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
        self._loses(pod)

        def change(item: Object) -> None:
            others = [c for c in item["status"].get("conditions") or () if c["type"] not in ("DisruptionTarget", "Ready")]
            item["status"]["conditions"] = [*others, condition]
            if phase is not None and item["status"]["phase"] not in ("Succeeded", "Failed"):
                item["status"]["phase"] = phase

        self._api.change(PODS, pod["metadata"]["name"], change)

    def preempt(self, pod: Object) -> None:
        self.disrupt(pod, "PreemptionByScheduler")
        self._delete(pod)

    def evict(self, pod: Object) -> None:
        """The kubelet needs the room: the pod fails and stays."""
        self._stop(pod, says_so=True)
        self.disrupt(pod, "TerminationByKubelet", phase="Failed")
        self._api.change(PODS, pod["metadata"]["name"], lambda item: item["status"].update({"reason": "Evicted"}))

    def vanish(self, pod: Object) -> None:
        self._loses(pod)
        self._stop(pod, says_so=False)
        self._api.remove(PODS, pod["metadata"]["name"])

    def _loses(self, pod: Object) -> None:
        self.lost.add(pod["metadata"]["uid"])

    def crash(self, pod: Object, *, code: int, reason: str = "Error", by_user: bool = True) -> None:
        self.user_failures += by_user
        self._end(pod, code=code, reason=reason)

    def fail_worker(self, pod: Object) -> None:
        """A training process fails; under our handler its agent lives on, and peers may go down with it."""
        agent = self._run(pod).agent
        if agent is None:
            self.crash(pod, code=1)
        elif agent.fail():
            self.user_failures += 1
            for other in self.running():
                peer = self._run(other).agent
                if peer is not None and peer is not agent and self._draw.random() < 0.5:
                    falls = partial(peer.fail, generation=agent.entered[-1])
                    asyncio.get_running_loop().call_later(self._draw.uniform(0, 1.0), falls)

    # --- time ---

    def tick(self) -> None:
        for name, until in list(self._reclaimed.items()):
            if _time() >= until:
                self._delete_node(name)
        for name, since in list(self._dead.items()):
            self._age(name, _time() - since)
        for name in sorted(self._drains):
            self._drain(name)
        for group in self._api.all(VOLCANO_POD_GROUPS):
            if not group.get("status") and self._draw.random() < 0.2:
                self._api.change(VOLCANO_POD_GROUPS, group["metadata"]["name"], lambda item: item.update({"status": {"phase": "Inqueue"}}))
        for pod in self.pods():
            if self._api.find(PODS, pod["metadata"]["name"]) is pod:
                self._step(pod)

    def _age(self, node: str, silent_s: float) -> None:
        """The control plane's view of a machine that is silent."""
        if silent_s < UNREACHABLE_S:
            return
        self._taint(node, "node.kubernetes.io/unreachable")
        for pod in self.pods(node=node):
            if silent_s >= EVICTED_S and not is_deleting(pod):
                self.disrupt(pod, "DeletionByTaintManager")
                self._delete(pod)

    def _drain(self, node: str) -> None:
        """As kubectl does it: what is there at first is evicted by its name, again and again until that is let through or nobody has the
        name; then it waits for that very pod to go. Whatever is on the node by then is the next drain's."""
        eviction = self._drains[node]
        if not eviction.names and not eviction.evicted:
            eviction.names = [pod["metadata"]["name"] for pod in self.pods(node=node)]
        there = {pod["metadata"]["uid"] for pod in self.pods()}
        eviction.evicted &= there
        if _time() < eviction.next_try:
            return
        eviction.next_try = _time() + EVICTION_RETRY_S
        for name in list(eviction.names):
            pod = self._api.find(PODS, name)
            if pod is None:
                eviction.names.remove(name)
            elif is_deleting(pod) or self._may_be_evicted(pod):
                eviction.names.remove(name)
                eviction.evicted.add(pod["metadata"]["uid"])
                if pod["spec"].get("nodeName") != node:
                    self.evicted_astray.append(name)
                self.disrupt(pod, "EvictionByEvictionAPI")
                self._delete(pod)

    def _may_be_evicted(self, pod: Object) -> bool:
        for budget in self._api.all(POD_DISRUPTION_BUDGETS):
            selector = budget["spec"]["selector"]["matchLabels"]
            if selected(pod, selector) and is_ready(pod):
                healthy = sum(selected(other, selector) and is_ready(other) for other in self.pods())
                if healthy <= budget["spec"]["minAvailable"]:
                    return False
        return True

    def _step(self, pod: Object) -> None:
        run, status, node = self._run(pod), pod["status"], pod["spec"].get("nodeName")
        if node is None:
            if self.is_quick or self._draw.random() < 0.6:
                self._schedule(pod)
        elif node in self._dead:
            return
        elif is_deleting(pod):
            self._let_go(pod, run)
        elif status["phase"] == "Pending" and _time() < self.refusing.get(node, 0.0):
            refused = {"phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected: Node didn't have enough resource: cpu"}
            self._api.change(PODS, pod["metadata"]["name"], lambda item: item["status"].update(refused))
        elif status["phase"] == "Pending":
            if self.is_quick or self._draw.random() < 0.4:
                self._begin(pod, run)
        elif status["phase"] == "Running" and pod["spec"].get("activeDeadlineSeconds"):
            self._exceed_deadline(pod)
        elif status["phase"] == "Running" and self._is_shut_out(pod):
            self._end(pod, code=1, reason="Error")
        elif status["phase"] == "Running" and is_ready(pod) != are_gates_met(pod):
            self._show_readiness(pod)
        elif status["phase"] == "Running" and self.is_finishing and _ends(pod) and self._draw.random() < 0.3:
            if run.agent is not None:
                run.agent.finish()
            else:
                self._end(pod, code=0, reason="Completed")

    def _is_shut_out(self, pod: Object) -> bool:
        """At c10d's store: torch's rendezvous is closed for good once an agent of the group has ended with 0."""
        group = pod["metadata"]["labels"].get(GROUP, "")
        if not group.startswith("c10d-") or self._draw.random() < 0.6:
            return False
        peers = [p for p in self.pods() if p["metadata"]["labels"].get(GROUP) == group and p["status"]["phase"] == "Succeeded"]
        ends = [p["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] for p in peers]
        began = pod["status"]["containerStatuses"][0]["state"]["running"].get("startedAt", "")
        return bool(ends) and began > min(ends)

    def _exceed_deadline(self, pod: Object) -> None:
        """The kubelet ends a pod that has been active for too long, whatever its restart policy."""
        self._stop(pod, says_so=True)
        over = {"phase": "Failed", "reason": "DeadlineExceeded", "conditions": [{"type": "Ready", "status": "False"}]}
        self._api.change(PODS, pod["metadata"]["name"], lambda item: item["status"].update(over))

    def _schedule(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        free = [node for node in self.nodes() if self._has_room(node)]
        free = [node for node in free if node not in avoided(pod)] or free
        if free:
            self._api.change(PODS, name, lambda item: item["spec"].update({"nodeName": self._draw.choice(free)}))
        elif not pod["status"].get("conditions"):
            told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node has room"}
            self._api.change(PODS, name, lambda item: item["status"].update({"conditions": [told]}))

    def _has_room(self, name: str) -> bool:
        node = self._api.find(NODES, name)
        assert node is not None
        taints = [taint for taint in node["spec"].get("taints") or () if taint["effect"] != "PreferNoSchedule"]
        is_open = not node["spec"].get("unschedulable") and not taints and name not in self._dead
        return is_open and len(self.pods(node=name)) < SLOTS

    def _begin(self, pod: Object, run: Run) -> None:
        started = {"running": {"startedAt": stamp(now())}}
        containers = [{"name": c["name"], "restartCount": run.runs, "state": started} for c in pod["spec"]["containers"]]
        ready = [{"type": "Ready", "status": "True" if are_gates_met(pod) else "False"}]
        running = {"phase": "Running", "conditions": ready, "containerStatuses": containers}
        self._api.change(PODS, pod["metadata"]["name"], lambda item: item["status"].update(running))
        self._start_agent(pod, run)

    def _show_readiness(self, pod: Object) -> None:
        def change(item: Object) -> None:
            others = [c for c in item["status"].get("conditions") or () if c["type"] != "Ready"]
            item["status"]["conditions"] = [*others, {"type": "Ready", "status": "True" if are_gates_met(item) else "False"}]

        self._api.change(PODS, pod["metadata"]["name"], change)

    def _start_agent(self, pod: Object, run: Run) -> None:
        job_uid = next((e.get("value") for c in pod["spec"]["containers"] for e in c.get("env") or () if e["name"] == "PET_RDZV_ID"), None)
        if job_uid is None or not any(e["name"] == "ELASTIC_TOKEN" for c in pod["spec"]["containers"] for e in c.get("env") or ()):
            return
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        run.runs += 1

        def ended(code: int) -> None:
            there = self._api.find(PODS, name)
            if there is not None and there["metadata"]["uid"] == uid and not is_deleting(there):
                self._end(there, code=code, reason="Completed" if code == 0 else "Error")

        run.agent = Agent(name, f"{uid}/{run.runs}", job_uid, self._server, self._draw, ended)
        run.agent.start()

    def _end(self, pod: Object, *, code: int, reason: str) -> None:
        """The container ends; the kubelet starts it again where the policy says so."""
        self._stop(pod, says_so=False)
        run, policy, name = self._run(pod), pod["spec"]["restartPolicy"], pod["metadata"]["name"]
        ended: Object = {"terminated": {"exitCode": code, "reason": reason}}
        if code == 0:
            ended["terminated"]["finishedAt"] = stamp(now())
        main = pod["spec"]["containers"][0]["name"]
        if policy == "Always" or (policy == "OnFailure" and code != 0):
            count = 1 + max((c["restartCount"] for c in pod["status"].get("containerStatuses") or ()), default=0)
            again = {"name": main, "restartCount": count, "state": {"running": {"startedAt": stamp(now())}}, "lastState": ended}
            self._api.change(PODS, name, lambda item: item["status"].update({"containerStatuses": [again]}))
            there = self._api.find(PODS, name)
            assert there is not None
            self._start_agent(there, run)
            return
        count = max((c["restartCount"] for c in pod["status"].get("containerStatuses") or ()), default=0)
        over = {"phase": "Succeeded" if code == 0 else "Failed", "conditions": [{"type": "Ready", "status": "False"}]}
        over["containerStatuses"] = [{"name": main, "restartCount": count, "state": ended}]
        self._api.change(PODS, name, lambda item: item["status"].update(over))

    def _let_go(self, pod: Object, run: Run) -> None:
        """Told to stop: the container ends in its own time, at the latest at the end of its grace, and then the pod goes."""
        if run.gone_at is None:
            self._stop(pod, says_so=True)
            left_s = (datetime.fromisoformat(pod["metadata"]["deletionTimestamp"]) - now()).total_seconds()
            run.gone_at = _time() + self._draw.uniform(0, min(max(0.0, left_s), QUICK_END_S if self.is_quick else left_s))
            run.is_stuck = self.may_stick and self._draw.random() < 0.1
        elif run.is_stuck or _time() < run.gone_at:
            return
        elif run.is_gone or self._draw.random() < 0.5:
            self._api.remove(PODS, pod["metadata"]["name"])
        else:
            run.is_gone = True
            if pod["status"]["phase"] == "Running":
                self._show_end(pod, code=self._draw.choice([0, 1, 143]))

    def _show_end(self, pod: Object, *, code: int) -> None:
        """For a moment a pod that goes shows how its container ended."""
        phase = "Succeeded" if code == 0 else "Failed"
        ended = [
            {
                "name": pod["spec"]["containers"][0]["name"],
                "restartCount": 0,
                "state": {"terminated": {"exitCode": code, "finishedAt": stamp(now())}},
            }
        ]
        self._api.change(PODS, pod["metadata"]["name"], lambda item: item["status"].update({"phase": phase, "containerStatuses": ended}))

    def _stop(self, pod: Object, *, says_so: bool) -> None:
        run = self._run(pod)
        if run.agent is not None:
            run.agent.stop(says_so=says_so)
            run.agent = None

    def _delete(self, pod: Object) -> None:
        try:
            self._api.delete(PODS, pod["metadata"]["name"], uid=pod["metadata"]["uid"], actor="cluster")
        except KubeError:
            return  # somebody was quicker

    def _run(self, pod: Object) -> Run:
        return self._runs.setdefault(pod["metadata"]["uid"], Run())


def avoided(pod: Object) -> set[str]:
    """The nodes that this pod would rather not be on."""
    wishes = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(PREFERRED) or ()
    return {field["values"][0] for wish in wishes for field in wish["preference"].get("matchFields") or ()}


def is_deleting(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def is_running(pod: Object) -> bool:
    return pod["status"]["phase"] == "Running" and not is_deleting(pod)


def is_ready(pod: Object) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions") or ())


def are_gates_met(pod: Object) -> bool:
    met = {c["type"] for c in pod["status"].get("conditions") or () if c["status"] == "True"}
    return all(gate["conditionType"] in met for gate in pod["spec"].get("readinessGates") or ())


def selected(pod: Object, labels: Object) -> bool:
    there = pod["metadata"].get("labels") or {}
    return all(there.get(key) == value for key, value in labels.items())


def _ends(pod: Object) -> bool:
    """Servers and MPI's workers wait for ever; everything else ends when the training does."""
    labels = pod["metadata"]["labels"]
    kind, type = labels.get("training.kubeflow.org/operator-name"), labels.get("training.kubeflow.org/replica-type")
    return type is not None and (kind, type) not in ENDLESS


def _time() -> float:
    return asyncio.get_running_loop().time()


def waiting(pods: list[Object]) -> Iterator[str]:
    return (pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Pending")
