"""The HorizontalPodAutoscaler controller of the simulation.

The real decision every 15 s, which carries the autoscaler's wish out where a job's policy says so. Its own requests do not fail.
"""

import asyncio
from collections.abc import Sequence

from sim_api import Api, set_workers
from sim_autoscaler import Autoscaler
from sim_time import now

from elastic.api.job import Object
from elastic.api.kinds import KINDS, WORKER
from elastic.api.names import REPLICA_TYPE
from elastic.api.owners import controller_uid
from elastic.api.scaling import DESIRED
from elastic.kube.resources import HORIZONTAL_POD_AUTOSCALERS, PODS
from elastic.local.controllers.autoscaling.decision import Scale, Seen, decide, needs_metrics
from elastic.local.controllers.autoscaling.limits import History
from elastic.local.controllers.autoscaling.pods import Problem
from elastic.local.controllers.autoscaling.sources import Answer
from elastic_training.autoscale.figures import JobName
from elastic_training.autoscale.jobs import JOBS

HPA = "horizontal-pod-autoscaler"
PERIOD_S = 15.0
NO_METRIC = Problem("no metrics returned")


class HpaController:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._histories: dict[str, History] = {}
        self._look_at = 0.0

    def tick(self, autoscaler: Autoscaler) -> None:
        if asyncio.get_running_loop().time() >= self._look_at:
            self._look_at = asyncio.get_running_loop().time() + PERIOD_S
            for hpa in self._api.all(HORIZONTAL_POD_AUTOSCALERS):
                self._look(hpa, autoscaler)

    def _look(self, hpa: Object, autoscaler: Autoscaler) -> None:
        target = hpa["spec"]["scaleTargetRef"]
        resource = JOBS[target["kind"]]
        job = self._api.find(resource, target["name"])
        if job is None:
            return
        uid, current = hpa["metadata"]["uid"], job["spec"][KINDS[job["kind"]].replica_key][WORKER]["replicas"]
        pods = [pod for pod in self._api.all(PODS) if _is_worker(pod, of=job["metadata"]["uid"])]
        scale = Scale(current, len(pods), selector="of the job")
        answers: Sequence[Answer] = ()
        if needs_metrics(hpa, scale):
            answers = [_answer(metric, job, autoscaler) for metric in hpa["spec"]["metrics"]]
        decision = decide(hpa, Seen(scale, pods, answers), self._histories.get(uid, History()), now=now().timestamp())
        self._histories[uid] = decision.history
        if (count := decision.replicas) is not None:
            self._api.change(resource, target["name"], lambda item: set_workers(item, count, manager=HPA), actor=HPA)
        self._api.change(HORIZONTAL_POD_AUTOSCALERS, hpa["metadata"]["name"], lambda item: item.update(status=decision.status))


def _answer(metric: Object, job: Object, autoscaler: Autoscaler) -> Answer:
    if (metric.get("external") or {}).get("metric", {}).get("name") != DESIRED:
        return NO_METRIC
    figures = autoscaler.book.of(JobName(job["kind"], job["metadata"]["namespace"], job["metadata"]["name"]))
    return [1000 * figures.wanted] if figures is not None else NO_METRIC


def _is_worker(pod: Object, *, of: str) -> bool:
    return controller_uid(pod["metadata"]) == of and pod["metadata"]["labels"].get(REPLICA_TYPE) == WORKER.lower()
