"""Say for `elastic doctor` which controller serves TrainJobs, and what is wrong: two do, none does, or another one holds the Lease."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elastic.api.trainer.modes import SELECTOR, TRAINER_LEASE, Mode, is_ours
from elastic.cli.installing import looking_trainer, trainer
from elastic.cli.installing.obstacles import OUR_LABEL, replicas, where
from elastic.kube import readable
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import DEPLOYMENTS, TRAIN_JOBS, Object

OK, NOTE, BAD = "ok", "note", "bad"


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that tell who serves TrainJobs."""

    is_defined: bool
    mode: Mode = Mode.OFF
    live: Sequence[tuple[str, str]] = ()
    """Namespace and holder of the Leases that are renewed."""
    deployment: str = ""
    """Kubeflow Trainer's running controller, as NAMESPACE/NAME."""
    version: str = ""
    """Kubeflow Trainer's release; empty if nobody knows."""


def verdict(facts: Facts) -> tuple[str, str]:
    """Return the state, and the words that say who serves TrainJobs."""
    if not facts.is_defined:
        remedy = f"`elastic install --trainjobs {Mode.INSTEAD}` brings them"
        return (OK if facts.mode is Mode.OFF else BAD), f"the cluster does not know them; {remedy}"
    others = [f"{holder} (Lease {TRAINER_LEASE} in namespace {namespace})" for namespace, holder in facts.live if not is_ours(holder)]
    holds = any(is_ours(holder) for _, holder in facts.live)
    stop = f"stop it with `elastic adopt --trainer`, or leave it its TrainJobs with `elastic install --trainjobs {Mode.BESIDE}`"
    match facts.mode:
        case _ if holds and others:
            return BAD, f"two controllers serve all of them: ours, and {others[0]}; {stop}"
        case _ if holds and facts.deployment:
            return NOTE, f"all by our controller, which holds the Lease; deployment {facts.deployment} of Kubeflow Trainer waits for it"
        case _ if holds:
            return OK, "all by our controller, which holds the Lease of Kubeflow Trainer's"
        case Mode.INSTEAD if others:
            return BAD, f"all by {others[0]}; ours waits for this Lease. To use ours, {stop}"
        case Mode.INSTEAD:
            return BAD, f"nobody serves them: our controller does not hold the Lease {TRAINER_LEASE}; its log says why"
        case Mode.BESIDE if (reason := trainer.runs_all(facts.version)) and others:
            return BAD, f"two controllers serve those with the label {SELECTOR}: ours, and {others[0]}; {reason}"
        case Mode.BESIDE if others:
            return OK, f"those with the label {SELECTOR} by our controller; the others by {others[0]}"
        case Mode.BESIDE:
            words = f"those with the label {SELECTOR} by our controller; nobody serves the others"
            return (
                BAD,
                f"{words}: no process renews the Lease {TRAINER_LEASE}. Start Kubeflow Trainer, or `elastic install --trainjobs instead`",
            )
        case _ if others:
            return OK, f"all by {others[0]}"
        case _:
            return NOTE, f"nobody serves them; `elastic install --trainjobs {Mode.INSTEAD}` lets our controller do it"


async def facts(kube: Kube, live: Sequence[Object]) -> Facts:
    """Read the facts. `live` are the Leases that are renewed."""
    try:
        await kube.request("GET", TRAIN_JOBS.path(), params={"limit": "1"})
    except KubeError as error:
        if error.code == 404:
            return Facts(False, await _mode(kube))
        if error.code != 403:
            raise
    held = [lease for lease in live if lease["metadata"]["name"] == TRAINER_LEASE and looking_trainer.holder_of(lease)]
    running = [where(one) for one in await looking_trainer.controllers(kube) if replicas(one)]
    return Facts(
        True,
        await _mode(kube),
        [(lease["metadata"]["namespace"], looking_trainer.holder_of(lease)) for lease in held],
        running[0] if running else "",
        await looking_trainer.version(kube),
    )


async def _mode(kube: Kube) -> Mode:
    modes = [trainer.mode_of(one) for one in await readable.listed(kube, DEPLOYMENTS, labels=OUR_LABEL)]
    return next((mode for mode in modes if mode is not Mode.OFF), Mode.OFF)
