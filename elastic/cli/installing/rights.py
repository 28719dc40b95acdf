"""Ask the API server whether the caller has all rights that installing or removing takes, before anything is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elastic.cli.installing import manifests
from elastic.kube.client import Kube
from elastic.kube.resources import SELF_SUBJECT_ACCESS_REVIEWS, Object, Resource

AT_ONCE = 8
MOST_NAMED = 5
INSTALLING = ("get", "create", "patch")
REMOVING = ("get", "delete")


@dataclass(frozen=True, slots=True)
class Right:
    verb: str
    resource: Resource
    namespace: str | None = None
    """None for a resource of the whole cluster, or for all namespaces."""

    @property
    def words(self) -> str:
        group = f".{self.resource.group}" if self.resource.group else ""
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource.plural}{group}{where}"


def over(items: Iterable[Object], verbs: Sequence[str]) -> list[Right]:
    """Return the rights that these verbs need on these objects, each once."""
    found = {
        Right(verb, manifests.resource(item), item["metadata"].get("namespace") if manifests.resource(item).namespaced else None): None
        for item in items
        for verb in verbs
    }
    return list(found)


async def missing(kube: Kube, rights: Sequence[Right]) -> list[Right]:
    """Return the rights that the caller does not have."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def is_allowed(right: Right) -> bool:
        asked = {"verb": right.verb, "group": right.resource.group, "resource": right.resource.plural}
        asked |= {"namespace": right.namespace} if right.namespace else {}
        async with gate:
            review = await kube.create(SELF_SUBJECT_ACCESS_REVIEWS, {"spec": {"resourceAttributes": asked}})
        return bool((review.get("status") or {}).get("allowed"))

    allowed = await asyncio.gather(*(is_allowed(right) for right in rights))
    return [right for right, has in zip(rights, allowed, strict=True) if not has]


def in_words(lacking: Sequence[Right], asked: int) -> str:
    named = ", ".join(right.words for right in lacking[:MOST_NAMED])
    more = f" and {len(lacking) - MOST_NAMED} more" if len(lacking) > MOST_NAMED else ""
    return f"you may not {named}{more} ({len(lacking)} of {asked} rights are missing)"
