"""Define the bounds of messages' fields that the engine does not know, and cut texts to them."""

from typing import Annotated

from elastic.membership.codec import meta_of
from elastic_training.rendezvous.engine.messages import bounds
from elastic_training.rendezvous.engine.messages.bounds import (
    MAX_ERROR,
    MAX_MEMBERS,
    MAX_WORDS,
    MOST_COUNTED,
    MOST_SECONDS,
    clipped,
    printable,
)

__all__ = [
    "MAX_ERROR",
    "MAX_MEMBERS",
    "MAX_WORDS",
    "MOST_COUNTED",
    "MOST_SECONDS",
    "Address",
    "CauseWord",
    "Count",
    "Generation",
    "KnownGeneration",
    "Name",
    "NameOrNone",
    "Names",
    "PodUid",
    "Rank",
    "Seconds",
    "Size",
    "Step",
    "Words",
    "clipped",
    "printable",
]

Name = Annotated[str, meta_of(bounds.Name)]
NameOrNone = Annotated[str, meta_of(bounds.NameOrNone)]
Words = Annotated[str, meta_of(bounds.Words)]
Seconds = Annotated[float, meta_of(bounds.Seconds)]
Count = Annotated[int, meta_of(bounds.Count)]
Generation = Annotated[int, meta_of(bounds.Generation)]
KnownGeneration = Annotated[int, meta_of(bounds.KnownGeneration)]
Step = Annotated[int, meta_of(bounds.Step)]
CauseWord = Annotated[str, meta_of(bounds.CauseWord)]
PodUid = Annotated[str, meta_of(bounds.PodUid)]
Address = Annotated[str, meta_of(bounds.Address)]
Names = Annotated[tuple[Name, ...], meta_of(bounds.Names)]
Size = Annotated[int, meta_of(bounds.Size)]
Rank = Annotated[int, meta_of(bounds.Rank)]
