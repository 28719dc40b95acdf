"""Play the deeds of users in a simulated life, and the accidents of its pods, nodes and servers, each with its chance."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from sim_api import set_workers
from sim_jobs import NAME, replicas
from sim_scene import Scene

from elastic.api.job import Object
from elastic.api.kinds import WORKER
from elastic.kube.resources import PODS
from elastic.local.reclaim import PLAYABLE
from elastic.signals.signal import Meaning


class Deeds(Scene):
    def _something(self) -> None:
        deeds = [*self._users(), *self._mishaps(), *self._outages()]
        chances = [chance for chance, _, _ in deeds]
        _, name, deed = self.draw.choices(deeds, chances)[0]
        if name:
            self.note(name)
        deed()

    def _users(self) -> list[tuple[float, str, Callable[[], object]]]:
        return [
            (10, "", lambda: None),
            (6, "scale", self._scale),
            (2, "suspend or resume", self._suspend),
            (1, "another template", self._edit),
            (0.7, "delete", self._user_deletes),
            (3, "", self._create_again),
        ]

    def _mishaps(self) -> list[tuple[float, str, Callable[[], object]]]:
        cluster, draw, fails = self.cluster, self.draw, self.options.programs_fail
        return [
            (3 * fails, "a worker fails", lambda: self._befalls(cluster.fail_worker)),
            (2 * fails, "a container crashes", lambda: self._befalls(lambda pod: cluster.crash(pod, code=draw.choice([1, 137])))),
            (1 * fails, "out of memory", lambda: self._befalls(lambda pod: cluster.crash(pod, code=137, reason="OOMKilled"))),
            (2, "a pod is evicted", lambda: self._befalls(cluster.evict)),
            (2, "a pod is preempted", lambda: self._befalls(cluster.preempt)),
            (1, "a pod vanishes", lambda: self._befalls(cluster.vanish)),
            (0.7, "a node is lost", lambda: cluster.lose_node(draw.choice(cluster.nodes()))),
            (1, "a node is reclaimed", lambda: cluster.reclaim_node(draw.choice(cluster.nodes()))),
            (1, "a node may be reclaimed", lambda: cluster.warn_node(draw.choice(cluster.nodes()))),
            (0.7, "signals are taken back", lambda: cluster.take_back(draw.choice(cluster.nodes()))),
            (1, "a node is cordoned", lambda: cluster.cordon(draw.choice(cluster.nodes()))),
            (1, "a node is drained", lambda: cluster.cordon(draw.choice(cluster.nodes()), drain=True)),
            (1, "a node is uncordoned", lambda: cluster.cordon(draw.choice(cluster.nodes()), is_cordoned=False)),
            (0.7, "a node refuses pods", lambda: cluster.refuse(draw.choice(cluster.nodes()), for_s=draw.uniform(2, 40))),
            (0.3, "machines are repaired", cluster.heal),
        ]

    def _outages(self) -> list[tuple[float, str, Callable[[], object]]]:
        return [
            (1, "the API server restarts", self._restart_api),
            (1, "the history is compacted", self.api.compact),
            (1, "the rendezvous server restarts", self.server.restart),
            (1, "the rendezvous server is cut off", self.server.go_down),
            (2, "the rendezvous server is back", self.server.come_up),
            (1, "the rendezvous server is stopped and goes on", lambda: self.server.stand_still(self.draw.choice([3.0, 15.0, 40.0]))),
            (1, "the rendezvous server's node is cut off", self._isolate_server),
            (1, "a member falls silent", self._silence),
            (1, "a clock steps", self._step_clock),
            (1 if self.options.kills else 0, "a controller is killed", lambda: self.draw.choice(self.controllers).kill()),
            (0.5 if self.options.kills else 0, "a controller is stopped in good order", lambda: self.draw.choice(self.controllers).stop()),
            (1, "a controller stands still", lambda: self.draw.choice(self.controllers).stand_still(self.draw.choice([3, 15, 40]))),
        ]

    def _isolate_server(self) -> None:
        """Cut the server's node off with some of the agents, and perhaps with one of two controllers."""
        seconds, draw = self.draw.choice([8.0, 15.0, 18.0, 50.0]), self.cut_draw
        agents = sorted({link.agent.name for link in self.server.links})
        beside = draw.sample(agents, draw.randint(0, len(agents)) if draw.random() < 0.5 else 0)
        if self.options.elects and not self.server.is_isolated and draw.random() < 0.5:
            controller = draw.choice(self.controllers)
            controller.cut_off(seconds)
            beside.append(controller.name)
        self.server.isolate(seconds, beside=beside)

    def _signal(self) -> None:
        """Announce disruptions in some lives, as clouds do. Most are taken back, soon or at the last moment."""
        cluster, draw = self.cluster, self.signal_draw
        if not self.has_signals or draw.random() > 0.15:
            return
        node, signal = draw.choice(cluster.nodes()), draw.choice(list(PLAYABLE.values()))
        self.note(f"{node}: {signal.name}")
        if signal.meaning is Meaning.LEAVE:
            cluster.reclaim_node(node, signal)
        else:
            cluster.warn_node(node, signal)
        if draw.random() < 0.7:
            asyncio.get_running_loop().call_later(signal.lead_s * draw.choice([0.05, 0.5, 0.95]), self._take_back, node)

    def _take_back(self, node: str) -> None:
        if node in self.cluster.nodes():
            self.note(f"{node}: taken back")
            self.cluster.take_back(node)

    def _break_command(self) -> None:
        """Give torchrun a wrong argument for a while in some lives. The argument may come from a ConfigMap."""
        kubelets, draw = self.cluster.kubelets, self.usage_draw
        if not self.has_wrong_commands or kubelets.is_command_wrong or draw.random() > 0.05:
            return
        self.note("commands are wrong")
        kubelets.is_command_wrong = True
        asyncio.get_running_loop().call_later(draw.choice([2.0, 10.0, 40.0]), self._mend_command)

    def _mend_command(self) -> None:
        self.note("commands are right")
        self.cluster.kubelets.is_command_wrong = False

    def _trouble_autoscaler(self) -> None:
        if self.autoscaler is not None and self.autoscaler_draw.random() < 0.05:
            self.note("the autoscaler is killed, and starts anew")
            self.autoscaler.kill()
            self.start_autoscaler()

    def _trouble_etcd(self) -> None:
        """Trouble the etcd. The draws come from their own source, so that lives without an etcd stay unchanged."""
        etcds, draw = self.server.etcds, self.etcd_draw
        if not etcds.all() or draw.random() > 0.2:
            return
        deeds: list[tuple[str, Callable[[], object]]] = [
            ("the etcd is away", lambda: etcds.go_away(draw.choice([2.0, 10.0, 40.0, 90.0]))),
            ("the etcd is stopped", lambda: etcds.go_away(draw.choice([4.0, 10.0, 40.0]), ends_leases=True)),
            ("the etcd compacts its history", etcds.compact),
            ("an agent does not reach the etcd", lambda: self._cut_off_agent(draw.choice([2.0, 8.0, 30.0]))),
        ]
        name, deed = draw.choice(deeds)
        self.note(name)
        deed()

    def _cut_off_agent(self, seconds: float) -> None:
        if agents := self.server.etcds.agents():
            self.etcd_draw.choice(agents).cut_off(seconds)

    def _silence(self) -> None:
        if self.server.links:
            self.server.silence(self.draw.choice(self.server.links), self.draw.choice([5.0, 15.0, 40.0]))

    def _befalls(self, mishap: Callable[[Object], object]) -> None:
        running = self.cluster.running()
        if running:
            pod = self.draw.choice(running)
            self.note(f"  {pod['metadata']['name']}")
            mishap(pod)

    def _change(self, change: Callable[[Object], object]) -> None:
        self.api.change(self.resource, NAME, change, actor="user")

    def _scale(self) -> None:
        def change(job: Object) -> None:
            policy = job["spec"].get("elasticPolicy")
            if WORKER in replicas(job):
                bounds = (policy["minReplicas"], policy["maxReplicas"]) if policy else (1, 4)
                set_workers(job, self.draw.randint(*bounds), manager="kubectl")
                self.note(f"  to {replicas(job)[WORKER]['replicas']}")

        self._change(change)

    def _suspend(self) -> None:
        self._change(lambda job: job["spec"]["runPolicy"].update({"suspend": not job["spec"]["runPolicy"].get("suspend", False)}))

    def _edit(self) -> None:
        def change(job: Object) -> None:
            for spec in replicas(job).values():
                spec["template"]["spec"]["containers"][0]["image"] = f"example/train:{self.draw.randint(1, 9)}"

        self._change(change)

    def _user_deletes(self) -> None:
        if self.job is not None:
            self.api.remove(self.resource, NAME, actor="user")

    def _create_again(self) -> None:
        if self.job is None:
            self.note("create again")
            self.api.create(self.resource, self.manifest, actor="user")

    def _restart_api(self) -> None:
        self.sky.down_until = asyncio.get_running_loop().time() + self.draw.choice([1.0, 5.0, 20.0])
        self.api.compact()

    def _step_clock(self) -> None:
        self.draw.choice(self.controllers).skew = timedelta(seconds=self.draw.randint(-90, 90))

    async def _lose_some_at_the_end(self) -> None:
        """Lose workers while others of their world have finished. They come back when no work is left."""
        cluster, draw = self.cluster, self._after
        failures: list[tuple[str, Callable[[], object]]] = [
            ("a container is killed", lambda: self._befalls(lambda pod: cluster.crash(pod, code=137))),
            ("a container crashes", lambda: self._befalls(lambda pod: cluster.crash(pod, code=1))),
            ("a worker fails", lambda: self._befalls(cluster.fail_worker)),
        ]
        deeds: list[tuple[str, Callable[[], object]]] = [
            *(failures if self.options.programs_fail else ()),
            ("a pod is evicted", lambda: self._befalls(cluster.evict)),
            ("a pod vanishes", lambda: self._befalls(cluster.vanish)),
            ("the rendezvous server restarts", self.server.restart),
            ("scale", self._scale),
            ("a pod that has ended is removed", self._remove_ended),
        ]
        for _ in range(draw.choice([1, 2, 4])):
            await asyncio.sleep(draw.choice([0.1, 0.6, 1.2, 3.0]))
            name, deed = draw.choice(deeds)
            self.note(f"at the end: {name}")
            deed()
            self.keep_controllers()

    def _remove_ended(self) -> None:
        ended = [pod for pod in self.cluster.pods() if pod["status"]["phase"] == "Succeeded"]
        if ended:
            self.api.remove(PODS, self._after.choice(ended)["metadata"]["name"], actor="user")
