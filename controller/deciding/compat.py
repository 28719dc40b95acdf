"""Decides whether a job gets the Training Operator's exact objects: as the controller was started, unless the job says otherwise.
docs/compat.md lists what then differs. It changes what is made, never how the controller behaves.
"""

from dataclasses import replace
from enum import StrEnum

from controller.deciding.settings import Settings
from controller.watching.snapshot import Snapshot
from elastic.api.job import Job

ANNOTATION = "elastic-training/compat"


class Compat(StrEnum):
    DEFAULT = "default"
    STRICT = "strict"


def as_chosen(job: Job, snapshot: Snapshot) -> Snapshot:
    """The same look, with the settings that hold for this job."""
    word = job.metadata.annotations.get(ANNOTATION)
    if word is None:
        return snapshot
    if word not in tuple(Compat):
        return replace(snapshot, remarks=(*snapshot.remarks, _unknown(word, snapshot.settings)))
    return replace(snapshot, settings=replace(snapshot.settings, strict=word == Compat.STRICT))


def _unknown(word: str, settings: Settings) -> str:
    rule = Compat.STRICT if settings.strict else Compat.DEFAULT
    choices = " or ".join(Compat)
    return f"metadata.annotations[{ANNOTATION}] is {word!r} but must be {choices}; {rule} holds, as the controller was started"
