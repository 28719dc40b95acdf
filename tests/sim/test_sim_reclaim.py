"""A cloud takes machines back under a training job: each signal of each cloud, for some of the workers or for all.

Training's state stays in one of them where there is time to pass it on; the others go on at once; nothing is charged.
"""

import asyncio
from functools import partial

import pytest
import sim_time
from sim_cluster import LEAVES
from sim_jobs import job_of
from sim_pods import is_ready
from test_sim_drain import ENDS_WITHIN_S, JUST_2, KEEP, RUNS_BY_S, Drained

from elastic.api.job import Object
from elastic.api.kinds import KINDS
from elastic.kube.resources import EVENTS
from elastic.local.reclaim import PLAYABLE
from elastic.signals.signal import DisruptionSignal, Meaning

LONGEST_START_S = 115.0
NEVER_S = 100_000.0
PATIENT = [row for row in LEAVES if row.lead_s >= 60]
QUICK = [PLAYABLE["gke-termination"], PLAYABLE["aks-preempt"]]
WARNS = [row for row in PLAYABLE.values() if row.meaning is Meaning.PREPARE]
STATEFUL = {
    "one of one": (1, {"minReplicas": 1, "maxReplicas": 1}),
    "two of two": (2, JUST_2),
    "three, at least one": (3, {"minReplicas": 1, "maxReplicas": 4, "scaleInGraceSeconds": 5}),
    "two, only two": (2, {**JUST_2, "allowedSizes": [2]}),
}


SLOW = {
    "two of two, end in 15 s": (2, {"minReplicas": 2, "maxReplicas": 2}),
    "one of one, end in 15 s": (1, {"minReplicas": 1, "maxReplicas": 1}),
}
"""Jobs with the default scaleInGraceSeconds of 30 s and a terminationGracePeriodSeconds of 15 s."""


class Reclaimed(Drained):
    """All workers stand on one node, or on several; the cloud gives a signal for one node, and then nothing else happens."""

    def __init__(
        self,
        workers: int,
        policy: Object,
        signal: DisruptionSignal,
        *,
        seed: int,
        is_together: bool = True,
        hears_steps: bool = True,
        start_s: float = 0.0,
    ) -> None:
        job = job_of(KINDS["PyTorchJob"], {"Worker": workers}, policy=policy, run_policy=KEEP)
        if "scaleInGraceSeconds" not in policy:
            job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["terminationGracePeriodSeconds"] = 15
        super().__init__(job, seed=seed, is_quick=True, is_together=is_together)
        self._count, self._signal = workers, signal
        self.server.hears_steps = hears_steps
        self._start_s = start_s
        self.reformed_after_s = 0.0
        self.rescales = 0
        self.asked_to_save: list[str] = []

    async def _storm(self) -> None:
        first, *others = self.cluster.nodes()
        for node in others if self.is_together else ():
            self.cluster.cordon(node)
        self.keep_controllers()
        self.api.create(self.resource, self.manifest, actor="user")
        await self._until(lambda: self._are_ready() and self._step > 5, within_s=RUNS_BY_S)
        for node in others:
            self.cluster.cordon(node, is_cordoned=False)
        node = first if self.is_together else self._workers()[-1]["spec"]["nodeName"]
        reached, before = self._step, self._generation
        self.note(f"{node}: {self._signal.name} at step {reached}")
        self.cluster.kubelets.start_s = self._start_s
        if self._signal.meaning is Meaning.LEAVE:
            self.cluster.reclaim_node(node, self._signal)
        else:
            self.cluster.warn_node(node, self._signal)
        if not self.is_together:
            began = asyncio.get_running_loop().time()
            for _ in range(600):
                if self._generation > before:
                    break
                await asyncio.sleep(0.1)
            self.reformed_after_s = asyncio.get_running_loop().time() - began
        await self._until(partial(self._is_empty, node), within_s=ENDS_WITHIN_S)
        self.asked_to_save = [event["message"] for event in self.api.all(EVENTS) if event["reason"] == "AskedToSave"]
        self.cluster.kubelets.start_s = min(self._start_s, LONGEST_START_S)
        await self._until(lambda: self._are_ready() and self._step > reached, within_s=ENDS_WITHIN_S)
        self.cluster.kubelets.start_s = 0.0
        self.rescales = self._generation - before
        restarts = ((self.job or {}).get("status") or {}).get("elastic", {}).get("restarts", {})
        assert not set(restarts) - {"plan", "disruption"}, f"nothing is charged: {restarts}"

    @property
    def _generation(self) -> int:
        world = next((world for world in self.server.hub.since(0) if not world.forgotten), None)
        return world.generation if world is not None else 0

    @property
    def _step(self) -> int:
        return max(self.server.steps.values(), default=0)

    def _are_ready(self) -> bool:
        return len(self._workers()) == self._count and all(map(is_ready, self._workers()))


class Kept(Reclaimed):
    def check(self) -> None:
        super().check()
        assert not self.server.lost_steps, f"no steps are lost: {self.server.lost_steps}"


def reclaimed(kind: type[Reclaimed], job: str, signal: DisruptionSignal, **more: object) -> Reclaimed:
    made: list[Reclaimed] = []

    async def life() -> None:
        workers, policy = {**STATEFUL, **SLOW}[job]
        made.append(kind(workers, policy, signal, **more))  # type: ignore[arg-type]
        await made[0].play()

    try:
        sim_time.run(life())
    except AssertionError as error:
        raise AssertionError(f"{job}, {signal.name}, {more}: {error}\n" + "\n".join(made[0].history)) from error
    return made[0]


@pytest.mark.parametrize("signal", PATIENT, ids=lambda row: row.name)
def test_with_a_minute_or_more_the_state_of_the_last_workers_passes_on(signal: DisruptionSignal) -> None:
    reclaimed(Kept, "two of two", signal, seed=1)


@pytest.mark.parametrize("job", STATEFUL)
def test_the_state_passes_on_for_any_allowed_sizes(job: str) -> None:
    reclaimed(Kept, job, PLAYABLE["aws-spot"], seed=6)


@pytest.mark.parametrize("job", STATEFUL)
def test_it_passes_on_even_if_training_reports_no_steps(job: str) -> None:
    """30 s after the replacements have joined: 120 s of notice are enough."""
    reclaimed(Kept, job, PLAYABLE["aws-spot"], seed=2, hears_steps=False)


@pytest.mark.parametrize("job", STATEFUL)
@pytest.mark.parametrize("signal", WARNS, ids=lambda row: row.name)
def test_a_mere_warning_exchanges_the_workers_and_loses_nothing(job: str, signal: DisruptionSignal) -> None:
    reclaimed(Kept, job, signal, seed=3)


@pytest.mark.parametrize("signal", QUICK, ids=lambda row: row.name)
def test_with_seconds_the_others_are_called_at_once(signal: DisruptionSignal) -> None:
    """15 s at GKE: the others stop their work within a second; how long torchrun takes to stop is the agents' (up to 3 s here)."""
    storm = reclaimed(Kept, "three, at least one", signal, seed=4, is_together=False)
    assert storm.reformed_after_s < 1.0 + 3.0 + 0.5


@pytest.mark.parametrize("signal", QUICK, ids=lambda row: row.name)
def test_without_enough_time_the_job_goes_on_from_its_checkpoint_and_nothing_is_charged(signal: DisruptionSignal) -> None:
    reclaimed(Reclaimed, "two of two", signal, seed=5)


@pytest.mark.parametrize("start_s", [85, 90, 94])
@pytest.mark.parametrize("job", SLOW)
def test_a_replacement_that_starts_slowly_still_gets_the_state(job: str, start_s: float) -> None:
    """The last workers were deleted after 85 of 120 s, although nobody else had their state; the replacements came 12 s later."""
    assert reclaimed(Kept, job, PLAYABLE["aws-spot"], seed=7, start_s=start_s).asked_to_save == []


@pytest.mark.parametrize("start_s", [115, NEVER_S], ids=["too late", "never"])
@pytest.mark.parametrize("signal", ["aws-spot", "aks-preempt", "gke-termination"])
def test_if_no_replacement_can_come_in_time_the_workers_are_asked_to_save(signal: str, start_s: float) -> None:
    storm = reclaimed(Reclaimed, "two of two", PLAYABLE[signal], seed=8, start_s=start_s)
    assert len(storm.asked_to_save) == 1
    assert signal in storm.asked_to_save[0]
