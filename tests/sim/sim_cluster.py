"""Nodes and scheduler of the simulation: nodes come, are drained and lost, pods are bound, crash and are evicted.

It writes to the API as these components do and decides nothing about jobs.
"""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from sim_agent import Agent
from sim_api import Api
from sim_kubelet import Kubelets
from sim_pods import avoided, is_deleting, is_ready, is_running, selected
from sim_rendezvous import SimServer
from sim_time import now, stamp

from elastic.kube.errors import KubeError
from elastic.kube.resources import NODES, POD_DISRUPTION_BUDGETS, PODS, VOLCANO_POD_GROUPS, Object
from elastic.local.reclaim import PLAYABLE, Played, as_seen
from elastic.signals.signal import DisruptionSignal, Meaning

SLOTS = 4
UNREACHABLE_S, EVICTED_S = 40.0, 70.0
UNREACHABLE = "node.kubernetes.io/unreachable"
LEAVES = [row for row in PLAYABLE.values() if row.meaning is Meaning.LEAVE]
WARNINGS = [row for row in PLAYABLE.values() if row.meaning in (Meaning.PREPARE, Meaning.INFORM)]
EVICTION_RETRY_S = 5.0


@dataclass(slots=True)
class Eviction:
    """A drain under way: the names that are yet to be evicted, and the uids of those that are on their way."""

    names: list[str] = field(default_factory=list)
    evicted: set[str] = field(default_factory=set)
    next_try: float = 0.0


class Cluster:
    def __init__(self, api: Api, server: SimServer, draw: random.Random, *, nodes: int = 4) -> None:
        self._user_failures = 0
        self.lost: set[str] = set()
        """The uids of pods that the cluster took or means to take: one loss each, whatever more befalls them."""
        self.mishaps: list[str] = []
        self.evicted_astray: list[str] = []
        """Pods that a drain evicted on another node, because they had the name of one that it had seen."""
        self._api, self._server, self._draw = api, server, draw
        self.kubelets = Kubelets(api, server, draw)
        self._dead: dict[str, float] = {}
        self._reclaimed: dict[str, float] = {}
        self._announced: set[str] = set()
        """Nodes of which a cloud says that they go, or may go: pods that are bound there meanwhile must leave again."""
        self._drains: dict[str, Eviction] = {}
        self._made = 0
        for _ in range(nodes):
            self.add_node()

    # --- nodes ---

    def add_node(self) -> None:
        self._made += 1
        status = {"allocatable": {"pods": str(SLOTS)}}
        self._api.create(NODES, {"metadata": {"name": f"node-{self._made}"}, "spec": {}, "status": status}, actor="cluster")

    def nodes(self) -> list[str]:
        return [item["metadata"]["name"] for item in self._api.all(NODES)]

    def lose_node(self, name: str) -> None:
        """Lose the machine without telling anybody."""
        self._dead.setdefault(name, _time())
        for pod in self.pods(node=name):
            self._loses(pod)
            self.kubelets.lose(pod)

    def cut_node(self, name: str, seconds: float) -> None:
        """Silence a node that comes back before its pods are deleted."""
        for pod in self.pods(node=name):
            self._loses(pod)
            if isinstance(agent := self.kubelets.agent(pod), Agent):
                agent.cut_node(seconds)
        loop = asyncio.get_running_loop()
        loop.call_later(UNREACHABLE_S, self._taint, name, UNREACHABLE)
        loop.call_later(seconds, self.take_back, name)

    def reclaim_node(self, name: str, signal: DisruptionSignal | None = None, *, after_s: float | None = None) -> None:
        """Give a cloud's notice; the machine goes when its time is up."""
        signal = signal or self._draw.choice(LEAVES)
        left_s = signal.lead_s if after_s is None else after_s
        self._reclaimed.setdefault(name, _time() + left_s)
        self._announced.add(name)
        for pod in self.pods(node=name):
            self._loses(pod)
        self._show(name, as_seen(signal, now=now(), left_s=left_s))

    def warn_node(self, name: str, signal: DisruptionSignal | None = None) -> None:
        """Let a cloud say that a machine may go; it stays."""
        signal = signal or self._draw.choice(WARNINGS)
        if signal.meaning is Meaning.PREPARE:
            self._announced.add(name)
            for pod in self.pods(node=name):
                self._loses(pod)
        self._show(name, as_seen(signal, now=now(), left_s=None))

    def take_back(self, name: str) -> None:
        """Take back all that a cloud has said about a machine that still exists."""
        if name in self._dead:
            return
        self._reclaimed.pop(name, None)
        self._announced.discard(name)

        def change(node: Object) -> None:
            node["spec"]["taints"] = []
            node["metadata"]["annotations"] = {}
            node["status"]["conditions"] = []

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
        """Make the kubelet refuse pods for a reason that the scheduler does not know, such as a broken device."""
        self.kubelets.refusing[name] = _time() + for_s

    def cordon(self, name: str, *, is_cordoned: bool = True, drain: bool = False) -> None:
        self._api.change(NODES, name, lambda node: node["spec"].update({"unschedulable": is_cordoned}))
        if drain:
            self._drains.setdefault(name, Eviction())
        if not is_cordoned:
            self._drains.pop(name, None)

    def heal(self, *, leave_dead: bool = False) -> None:
        """Replace broken machines, lift cordons, and let stuck pods go. The API may never hear of dead machines."""
        for name in [*self._dead, *self._reclaimed]:
            if leave_dead and name in self._dead:
                self.add_node()
            else:
                self._delete_node(name)
        for name in self.nodes():
            self.cordon(name, is_cordoned=False)
            self.take_back(name)
        self.kubelets.release()

    def undrained(self) -> Iterator[str]:
        """Yield the pods for which a drain has waited in vain."""
        for name in sorted(self._drains):
            for pod in self.pods(node=name):
                yield f"{pod['metadata']['name']} is on {name}, which is drained"

    def has_forsaken(self) -> bool:
        """Return whether there are pods that no kubelet will ever report."""
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
        self._announced.discard(name)
        self._drains.pop(name, None)
        if self._api.find(NODES, name) is not None:
            for pod in self.pods(node=name):
                self.disrupt(pod, "DeletionByPodGC", phase="Failed")
                self.vanish(pod)
            self._api.remove(NODES, name)
            self.add_node()

    # --- mishaps ---

    @property
    def user_failures(self) -> int:
        """Return how often a user's program failed or could not start."""
        living = self._server.living
        return self._user_failures + self.kubelets.usage_errors + (living.failures if living is not None else 0)

    def pods(self, *, node: str | None = None) -> list[Object]:
        return [pod for pod in self._api.all(PODS) if node is None or pod["spec"].get("nodeName") == node]

    def running(self) -> list[Object]:
        return [p for p in self.pods() if is_running(p) and p["spec"].get("nodeName") not in self._dead]

    def disrupt(self, pod: Object, reason: str, *, phase: str | None = None) -> None:
        """Write into the pod's status that the cluster ends it."""
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
        """Evict a pod as a kubelet that needs room does: the pod fails and stays."""
        self.kubelets.stop(pod, says_so=True)
        self.disrupt(pod, "TerminationByKubelet", phase="Failed")
        self._api.change(PODS, pod["metadata"]["name"], lambda item: item["status"].update({"reason": "Evicted"}))

    def vanish(self, pod: Object) -> None:
        self._loses(pod)
        self.kubelets.stop(pod, says_so=False)
        self._api.remove(PODS, pod["metadata"]["name"])

    def _loses(self, pod: Object) -> None:
        self.lost.add(pod["metadata"]["uid"])

    def crash(self, pod: Object, *, code: int, reason: str = "Error", by_user: bool = True) -> None:
        self._user_failures += by_user
        self.kubelets.end(pod, code=code, reason=reason)

    def fail_worker(self, pod: Object) -> None:
        """Fail a training process; under our handler its agent lives on, and peers may fail with it."""
        agent = self.kubelets.agent(pod)
        if agent is None:
            self.crash(pod, code=1)
        elif agent.fail():
            self._user_failures += 1
            for other in self.running():
                peer = self.kubelets.agent(other)
                if peer is not None and peer is not agent and self._draw.random() < 0.5:
                    falls = partial(peer.fail, generation=agent.entered[-1] if agent.entered else 0)
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

    def _step(self, pod: Object) -> None:
        node = pod["spec"].get("nodeName")
        if node is None:
            if self.kubelets.is_quick or self._draw.random() < 0.6:
                self._schedule(pod)
        elif node not in self._dead:
            self.kubelets.step(pod)

    def _age(self, node: str, silent_s: float) -> None:
        """Update the control plane's view of a machine that is silent."""
        if silent_s < UNREACHABLE_S:
            return
        self._taint(node, UNREACHABLE)
        for pod in self.pods(node=node):
            if silent_s >= EVICTED_S and not is_deleting(pod):
                self.disrupt(pod, "DeletionByTaintManager")
                self._delete(pod)

    def _drain(self, node: str) -> None:
        """Drain a node as kubectl does.

        kubectl evicts the pods that it finds first, by name, and repeats that until the eviction is allowed or the name is gone. Then it
        waits for those very pods to go. Pods that came to the node meanwhile are left to the next drain.
        """
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

    def _schedule(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        free = [node for node in self.nodes() if self._has_room(node)]
        free = [node for node in free if node not in avoided(pod)] or free
        if free:
            node = self._draw.choice(free)
            self._api.change(PODS, name, lambda item: item["spec"].update({"nodeName": node}))
            if node in self._announced:
                self._loses(pod)
        elif not pod["status"].get("conditions"):
            told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node has room"}
            told["lastTransitionTime"] = stamp(now())
            self._api.change(PODS, name, lambda item: item["status"].update({"conditions": [told]}))

    def _has_room(self, name: str) -> bool:
        node = self._api.find(NODES, name)
        assert node is not None
        taints = [taint for taint in node["spec"].get("taints") or () if taint["effect"] != "PreferNoSchedule"]
        is_open = not node["spec"].get("unschedulable") and not taints and name not in self._dead
        return is_open and len(self.pods(node=name)) < SLOTS

    def _delete(self, pod: Object) -> None:
        try:
            self._api.delete(PODS, pod["metadata"]["name"], uid=pod["metadata"]["uid"], actor="cluster")
        except KubeError:
            return  # somebody was quicker


def _time() -> float:
    return asyncio.get_running_loop().time()
