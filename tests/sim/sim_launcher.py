"""The launchers of elastic MPIJobs in the simulation.

Each proves new hosts, follows the server's list as Horovod's driver does, and reports; some have no library and only ask. `wrongs` says
where Horovod could not have gone on.
"""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from sim_api import Api
from sim_rendezvous import SimServer

from elastic.api.job import Object
from elastic.api.names import REPLICA_TYPE
from elastic.api.owners import controller_uid
from elastic.kube.resources import PODS
from elastic.membership.hosts import LauncherReport
from elastic_training.rendezvous.server.host_lists import HostLists

COMMIT_S = 5.0
"""Until workers come to a commit, where they notice that the list has changed."""
END_S = 2.0
"""Seconds until the process of a removed host has ended."""


@dataclass(slots=True)
class Launcher:
    """One horovodrun. Hosts are pod uids here."""

    uid: str
    reports: bool
    assigned: frozenset[str] = frozenset()
    assignment: int = 0
    server: HostLists | None = None
    """To which it has reported: a new one decides by its report."""
    ending: dict[str, float] = field(default_factory=dict)
    """Hosts that lost their rank, and when their processes end."""
    changed_at: float | None = None
    """Time at which the list that it sees began to differ from the assignment."""


class Launchers:
    def __init__(self, api: Api, server: SimServer, draw: random.Random) -> None:
        self._api, self._server, self._draw = api, server, draw
        self._launchers: dict[str, Launcher] = {}
        self.wrongs: list[str] = []

    def tick(self) -> None:
        running = {pod["metadata"]["uid"]: pod for pod in self._api.all(PODS) if _is_running(pod)}
        here = {uid: pod for uid, pod in running.items() if pod["metadata"]["labels"].get(REPLICA_TYPE) == "launcher"}
        for uid in [uid for uid in self._launchers if uid not in here]:
            del self._launchers[uid]
        for uid, pod in here.items():
            launcher = self._launchers.get(uid)
            if launcher is None:
                launcher = self._launchers[uid] = Launcher(uid, reports=self._draw.random() < 0.7)
            self._step(launcher, controller_uid(pod["metadata"]), running)

    def at_work(self, pod_uid: str) -> bool:
        """Return whether worker processes with a rank run in this pod."""
        return any(pod_uid in launcher.assigned for launcher in self._launchers.values())

    def assigned(self, job_uid: str) -> Iterator[frozenset[str]]:
        """Yield the hosts that the driver of each of the job's launchers has given ranks to."""
        pods = {pod["metadata"]["uid"]: pod for pod in self._api.all(PODS)}
        for uid, launcher in self._launchers.items():
            if uid in pods and controller_uid(pods[uid]["metadata"]) == job_uid:
                yield launcher.assigned

    def _step(self, launcher: Launcher, job_uid: str, running: dict[str, Object]) -> None:
        now = asyncio.get_running_loop().time()
        launcher.ending = {uid: until for uid, until in launcher.ending.items() if until > now and uid in running}
        if self._server.is_out_of_reach or not self._server.hub.runs.is_set():
            return
        lists = self._server.hub.hosts
        found = lists.read(job_uid)
        if found is not None and launcher.reports and launcher.server is not lists:
            lists.report(job_uid, self._report(launcher, {host.uid: host.name for host in found.hosts}))
            launcher.server, found = lists, lists.read(job_uid)
        if found is None:
            return
        for _, uid in lists.unproven(job_uid):
            if uid in running and self._draw.random() < 0.7:
                lists.prove(job_uid, uid)
        if not found.error:
            self._follow(launcher, frozenset(host.uid for host in found.hosts if host.listed), running, now)
        if launcher.reports:
            lists.report(job_uid, self._report(launcher, {host.uid: host.name for host in found.hosts}))

    def _follow(self, launcher: Launcher, listed: frozenset[str], running: dict[str, Object], now: float) -> None:
        if listed == launcher.assigned:
            launcher.changed_at = None
            return
        launcher.changed_at = now if launcher.changed_at is None else launcher.changed_at
        alive = launcher.assigned & frozenset(running)
        has_lost = alive != launcher.assigned
        if launcher.assigned and not has_lost and now < launcher.changed_at + COMMIT_S:
            return
        # A new server cannot know where the workers of a mere script are, nor any server of a loss that it has not heard of.
        if launcher.reports and not has_lost and alive and not alive & listed:
            self.wrongs.append(f"[{now:.1f} s] none of the hosts with the training state stay: {sorted(alive)} became {sorted(listed)}")
        launcher.ending.update(dict.fromkeys(alive - listed, now + END_S))
        launcher.assigned, launcher.changed_at = listed, None
        launcher.assignment += 1

    def _report(self, launcher: Launcher, names: dict[str, str]) -> LauncherReport:
        working = (launcher.assigned | launcher.ending.keys()) & names.keys()
        return LauncherReport(
            launcher=launcher.uid,
            assigned=tuple(sorted(names[uid] for uid in launcher.assigned & names.keys())),
            working=tuple(sorted(names[uid] for uid in working)),
            assignment=launcher.assignment,
            size=len(launcher.assigned),
        )


def _is_running(pod: Object) -> bool:
    return pod["status"]["phase"] == "Running"
