"""Decide which TrainJobs our controller serves: all, those that ask for it next to Kubeflow Trainer's own controller, or none."""

from __future__ import annotations

from enum import StrEnum

from elastic.api.names import OWN_PREFIX
from elastic.api.trainer.shapes import Object
from elastic.api.trainer.train_job import MULTI_KUEUE

LABEL, VALUE = f"{OWN_PREFIX}controller", "elastic"
"""Label by which a TrainJob asks for our controller. Kubeflow Trainer leaves it alone if managedBy is MULTI_KUEUE, too."""
SELECTOR = f"{LABEL}={VALUE}"

TRAINER_LEASE = "trainer.kubeflow.org"
"""Lease of Kubeflow Trainer's own controller. In the mode INSTEAD, ours holds it."""
HOLDER = "elastic-controller_"


class Mode(StrEnum):
    """The TrainJobs that our controller serves."""

    OFF = "off"
    INSTEAD = "instead"
    """All of them, in place of Kubeflow Trainer's own controller."""
    BESIDE = "beside"
    """Only those that ask for it, next to Kubeflow Trainer's own controller."""


def asks_for_us(train_job: Object) -> bool:
    """Return whether Kubeflow Trainer leaves this TrainJob to our controller."""
    labels = (train_job.get("metadata") or {}).get("labels") or {}
    return labels.get(LABEL) == VALUE and is_of_another(train_job)


def is_of_another(train_job: Object) -> bool:
    """Return whether Kubeflow Trainer's own controller leaves this TrainJob alone."""
    return bool((train_job.get("spec") or {}).get("managedBy") == MULTI_KUEUE)


def serves(mode: Mode, train_job: Object) -> bool:
    """Return whether our controller serves this TrainJob."""
    if mode is Mode.INSTEAD:
        return asks_for_us(train_job) or not is_of_another(train_job)
    return mode is Mode.BESIDE and asks_for_us(train_job)


def holder_of_trainer(namespace: str) -> str:
    """Return the identity by which the control plane of this namespace holds TRAINER_LEASE."""
    return f"{HOLDER}{namespace}"


def is_ours(holder: str) -> bool:
    """Return whether the holder of TRAINER_LEASE is a control plane of ours."""
    return holder.startswith(HOLDER)
