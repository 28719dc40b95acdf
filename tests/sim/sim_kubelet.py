"""Play the kubelets of the simulation.

Containers begin, end, start again, linger and go. Each container that asks for an agent has one.
"""

import asyncio
import random
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sim_agent import Agent
from sim_api import Api
from sim_ends import WrongCommand
from sim_etcd import EtcdAgent, agent_of
from sim_living import LivingAgent
from sim_pods import are_gates_met, ends, is_deleting, is_ready
from sim_rendezvous import SimServer
from sim_time import now, stamp

from elastic.kube.resources import PODS, Object
from elastic_training.controller.facts.snapshot import GROUP
from elastic_training.rendezvous.delivery import ETCD_BACKEND, UNMET_PREFIX, USAGE

if TYPE_CHECKING:
    from sim_c10d import Stores, TorchAgent

QUICK_END_S = 2.0
STORE_GONE = "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed.\n"
FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S = 10.0, 300.0


@dataclass(slots=True)
class Run:
    """Knowledge of the kubelet about one pod: the agent in its container, and the time at which a deleted pod is gone."""

    agent: "Agent | EtcdAgent | TorchAgent | WrongCommand | None" = None
    runs: int = 0
    placed_at: float | None = None
    back_off_s: float = 0.0
    again_at: float | None = None
    """Time at which a container that keeps ending is started again."""
    gone_at: float | None = None
    is_stuck: bool = False
    is_gone: bool = False


class Kubelets:
    def __init__(self, api: Api, server: SimServer, draw: random.Random) -> None:
        self.may_stick = False
        self.is_finishing = False
        self.is_quick = False
        """Pods begin at the next tick, and have gone soon after they are told to."""
        self.stores: Stores | None = None
        """Meeting places of agents of c10d jobs, in lives that have such agents. Containers that keep ending are backed off there."""
        self.is_command_wrong = False
        """Whether torchrun ends before it comes to the rendezvous, in every pod that starts it now."""
        self.usage_errors = self.turned_away = 0
        """Numbers of agents that ended because of that, and of agents that were refused or found no server."""
        self.start_s = 0.0
        """Least seconds from a pod's binding to its start, as if an image were pulled."""
        self.refusing: dict[str, float] = {}
        """Nodes whose kubelet takes in no pod, with the time until which that lasts."""
        self._api, self._server, self._draw = api, server, draw
        self._runs: dict[str, Run] = {}

    def release(self) -> None:
        """Let every kubelet take pods in, and let stuck pods go."""
        self.refusing.clear()
        self.may_stick = False
        for run in self._runs.values():
            run.is_stuck = False

    def agent(self, pod: Object) -> "Agent | EtcdAgent | TorchAgent | WrongCommand | None":
        return self._run(pod).agent

    def lose(self, pod: Object) -> None:
        """Lose the pod's machine, so that nobody hears of the pod."""
        if (agent := self._run(pod).agent) is not None:
            agent.is_over = True
        if self.stores is not None:
            self.stores.silent.add(pod["metadata"]["uid"])

    def step(self, pod: Object) -> None:
        run, status, node = self._run(pod), pod["status"], pod["spec"].get("nodeName")
        if is_deleting(pod):
            self._let_go(pod, run)
        elif status["phase"] == "Pending" and asyncio.get_running_loop().time() < self.refusing.get(node, 0.0):
            refused = {"phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected: Node didn't have enough resource: cpu"}
            self._api.change(PODS, pod["metadata"]["name"], lambda item: item["status"].update(refused))
        elif status["phase"] == "Pending":
            run.placed_at = run.placed_at if run.placed_at is not None else asyncio.get_running_loop().time()
            if asyncio.get_running_loop().time() >= run.placed_at + self.start_s and (self.is_quick or self._draw.random() < 0.4):
                self._begin(pod, run)
        elif status["phase"] == "Running" and pod["spec"].get("activeDeadlineSeconds"):
            self._exceed_deadline(pod)
        elif status["phase"] == "Running" and run.again_at is not None:
            if asyncio.get_running_loop().time() >= run.again_at:
                run.again_at = None
                self._start_again(
                    pod, run, count=status["containerStatuses"][0]["restartCount"] + 1, last=status["containerStatuses"][0]["lastState"]
                )
        elif status["phase"] == "Running" and self._is_shut_out(pod):
            self.end(pod, code=1, reason="Error")
        elif status["phase"] == "Running" and is_ready(pod) != are_gates_met(pod):
            self._show_readiness(pod)
        elif status["phase"] == "Running" and self.is_finishing and ends(pod) and self._draw.random() < 0.3:
            if run.agent is not None:
                run.agent.finish()
            else:
                self.end(pod, code=0, reason="Completed")

    def _is_shut_out(self, pod: Object) -> bool:
        """Return whether torch's rendezvous at a c10d store is closed for good, because an agent of the group ended with 0."""
        group = pod["metadata"]["labels"].get(GROUP, "")
        if not group.startswith("c10d-") or self.stores is not None or self._draw.random() < 0.6:
            return False
        peers = [p for p in self._api.all(PODS) if p["metadata"]["labels"].get(GROUP) == group and p["status"]["phase"] == "Succeeded"]
        ends = [p["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] for p in peers]
        began = pod["status"]["containerStatuses"][0]["state"]["running"].get("startedAt", "")
        return bool(ends) and began > min(ends)

    def _exceed_deadline(self, pod: Object) -> None:
        """End a pod that has been active for too long, regardless of its restart policy."""
        self.stop(pod, says_so=True)
        over = {"phase": "Failed", "reason": "DeadlineExceeded", "conditions": [{"type": "Ready", "status": "False"}]}
        self._api.change(PODS, pod["metadata"]["name"], lambda item: item["status"].update(over))

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
        env = {e["name"]: e.get("value", "") for c in pod["spec"]["containers"] for e in c.get("env") or ()}
        is_at_store = self.stores is not None and env.get("PET_RDZV_BACKEND") == "c10d"
        if "PET_RDZV_ID" not in env or not ("ELASTIC_TOKEN" in env or is_at_store):
            return
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        run.runs += 1
        process = f"{uid}/{int(now().timestamp() * 1000)}-{run.runs}"

        def ended(code: int, *, unmet: str = "") -> None:
            there = self._api.find(PODS, name)
            if there is not None and there["metadata"]["uid"] == uid and not is_deleting(there):
                message = f"{UNMET_PREFIX} {env['PET_RDZV_ID']}: {unmet}" if unmet else ""
                if is_at_store and code:  # without the library it is the end of the log
                    message = f"usage: torchrun\n{unmet.removeprefix(f'{USAGE}: ')}\n" if unmet else STORE_GONE
                self.usage_errors += unmet.startswith(USAGE)
                self.turned_away += bool(unmet) and not unmet.startswith(USAGE)
                self.end(there, code=code, reason="Completed" if code == 0 else "Error", message=message)

        if self.is_command_wrong:
            run.agent = WrongCommand(self._draw, ended)
        elif is_at_store and self.stores is not None:
            run.agent = self.stores.agent(pod, env, draw=self._draw, ended=ended)
        elif env["PET_RDZV_BACKEND"] == ETCD_BACKEND:
            run.agent = agent_of(pod, env, process=process, etcds=self._server.etcds, draw=self._draw, ended=ended)
        elif self._server.living is not None:
            agent = LivingAgent(name, process, env["PET_RDZV_ID"], self._server, self._draw, ended)
            self._server.living.agents.append(agent)
            run.agent = agent
        else:
            run.agent = Agent(name, process, env["PET_RDZV_ID"], self._server, self._draw, ended)
        run.agent.start()

    def end(self, pod: Object, *, code: int, reason: str, message: str = "") -> None:
        """End the container, and start it again if the restart policy says so."""
        run, policy, name = self._run(pod), pod["spec"]["restartPolicy"], pod["metadata"]["name"]
        if run.again_at is not None:
            return
        self.stop(pod, says_so=False)
        ended: Object = {"terminated": {"exitCode": code, "reason": reason} | ({"message": message} if message else {})}
        ended["terminated"]["finishedAt"] = stamp(now())
        before: Object = (pod["status"].get("containerStatuses") or [{}])[0].get("state") or {}
        if "running" in before:
            ended["terminated"]["startedAt"] = before["running"]["startedAt"]
        main = pod["spec"]["containers"][0]["name"]
        if policy == "Always" or (policy == "OnFailure" and code != 0):
            count = max((c["restartCount"] for c in pod["status"].get("containerStatuses") or ()), default=0)
            if self.stores is not None and run.back_off_s:
                self._back_off(pod, run, count=count, last=ended)
            else:
                run.back_off_s = FIRST_BACK_OFF_S
                self._start_again(pod, run, count=count + 1, last=ended)
            return
        count = max((c["restartCount"] for c in pod["status"].get("containerStatuses") or ()), default=0)
        over = {"phase": "Succeeded" if code == 0 else "Failed", "conditions": [{"type": "Ready", "status": "False"}]}
        over["containerStatuses"] = [{"name": main, "restartCount": count, "state": ended}]
        self._api.change(PODS, name, lambda item: item["status"].update(over))

    def _start_again(self, pod: Object, run: Run, *, count: int, last: Object) -> None:
        name = pod["metadata"]["name"]
        main, started = pod["spec"]["containers"][0]["name"], {"running": {"startedAt": stamp(now())}}
        again = {"name": main, "restartCount": count, "state": started, "lastState": last}
        self._api.change(PODS, name, lambda item: item["status"].update({"containerStatuses": [again]}))
        there = self._api.find(PODS, name)
        assert there is not None
        self._start_agent(there, run)

    def _back_off(self, pod: Object, run: Run, *, count: int, last: Object) -> None:
        run.again_at = asyncio.get_running_loop().time() + run.back_off_s
        run.back_off_s = min(2 * run.back_off_s, LONGEST_BACK_OFF_S)
        main, waits = pod["spec"]["containers"][0]["name"], {"waiting": {"reason": "CrashLoopBackOff"}}
        state = {"name": main, "restartCount": count, "state": waits, "lastState": last}
        self._api.change(PODS, pod["metadata"]["name"], lambda item: item["status"].update({"containerStatuses": [state]}))

    def _let_go(self, pod: Object, run: Run) -> None:
        """Stop a deleted pod: its container ends in its own time, at the latest at the end of its grace, and then the pod goes."""
        if run.gone_at is None:
            self.stop(pod, says_so=True)
            left_s = (datetime.fromisoformat(pod["metadata"]["deletionTimestamp"]) - now()).total_seconds()
            longest_s = min(max(0.0, left_s), QUICK_END_S) if self.is_quick else max(0.0, left_s)
            run.gone_at = asyncio.get_running_loop().time() + self._draw.uniform(0, longest_s)
            run.is_stuck = self.may_stick and self._draw.random() < 0.1
        elif run.is_stuck or asyncio.get_running_loop().time() < run.gone_at:
            return
        elif run.is_gone or self._draw.random() < 0.5:
            self._api.remove(PODS, pod["metadata"]["name"])
        else:
            run.is_gone = True
            if pod["status"]["phase"] == "Running":
                self._show_end(pod, code=self._draw.choice([0, 1, 143]))

    def _show_end(self, pod: Object, *, code: int) -> None:
        """Show for a moment how the container of a deleted pod ended."""
        phase = "Succeeded" if code == 0 else "Failed"
        ended = [
            {
                "name": pod["spec"]["containers"][0]["name"],
                "restartCount": 0,
                "state": {"terminated": {"exitCode": code, "finishedAt": stamp(now())}},
            }
        ]
        self._api.change(PODS, pod["metadata"]["name"], lambda item: item["status"].update({"phase": phase, "containerStatuses": ended}))

    def stop(self, pod: Object, *, says_so: bool) -> None:
        run = self._run(pod)
        if run.agent is not None:
            run.agent.stop(says_so=says_so)
            run.agent = None

    def _run(self, pod: Object) -> Run:
        return self._runs.setdefault(pod["metadata"]["uid"], Run())
