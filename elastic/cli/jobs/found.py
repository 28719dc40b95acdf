"""Find jobs in a cluster by the words that a user types: NAME, KIND/NAME, or KIND and NAME. One line says if a job does not exist.

A TrainJob is found as the job that belongs to it, and shown as a TrainJob. If it has none, it is found as the outline of one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import click

from elastic.api.kinds import INITIALIZERS, KINDS, OWNED, TORCH_NODES, TRAIN_JOBS, Kind, as_owned
from elastic.api.names import JOB_NAME
from elastic.api.owners import owners_of
from elastic.api.reader import did_you_mean
from elastic.client.bare_train_jobs import outline, without_job
from elastic.client.verbs import Found
from elastic.kube import readable
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.following import resource_of
from elastic.kube.resources import EVENTS, NAMESPACES, NODES, PODS, Object
from elastic.kube.resources import TRAIN_JOBS as TRAIN_JOB_RESOURCE
from elastic.local.agent.roster import PLAYED_BY

WORDS = {word.lower(): kind for kind in KINDS.values() for word in (kind.name, kind.plural, kind.singular, kind.crd_name)}
WORDS |= dict.fromkeys(("trainjob", "trainjobs", f"trainjobs.{TRAIN_JOBS}"), TORCH_NODES)
DEFINE = "install the control plane with `elastic install` (docs/deploy.md)"
DEFINE_ON_LAPTOP = "it was started with --cluster-only: `elastic down`, then `elastic up` without it"


class NotFound(click.ClickException):
    """The object that the user named does not exist in the cluster."""


class NoJob(NotFound):
    """The cluster knows the kind and the namespace, and has no such job."""


def split(words: Sequence[str]) -> tuple[Kind | None, list[str]]:
    """Return the kind that is named, and the names."""
    if not words:
        return None, []
    first, slash, _ = words[0].partition("/")
    if slash:
        kinds = {_kind(word.partition("/")[0]) for word in words}
        if len(kinds) > 1:
            raise click.UsageError("name jobs of one kind at a time")
        return kinds.pop(), [word.partition("/")[2] or word for word in words]
    if (kind := WORDS.get(first.lower())) is not None:
        return kind, list(words[1:])
    return None, list(words)


def _kind(word: str) -> Kind:
    if (kind := WORDS.get(word.lower())) is None:
        raise click.UsageError(f"there is no kind of job {word!r}{did_you_mean(word, WORDS) or '; kinds: ' + ', '.join(KINDS)}")
    return kind


async def jobs(
    kube: Kube, namespace: str | None, kinds: Iterable[Kind] | None = None, *, labels: str | None = None, with_bare: bool = False
) -> list[Found]:
    """Return the jobs of these kinds and labels, sorted by name; namespace None: of all namespaces.

    with_bare: also TrainJobs to which no job belongs.
    """
    wanted = list(kinds or KINDS.values())
    is_of_train_jobs = wanted == [TORCH_NODES]
    if is_of_train_jobs:
        wanted = list(OWNED)
    async with asyncio.TaskGroup() as tasks:
        listing = [tasks.create_task(_listed(kube, kind, namespace, labels)) for kind in wanted]
        asks_for_bare = with_bare and (kinds is None or is_of_train_jobs)
        train_jobs = (
            tasks.create_task(readable.listed(kube, TRAIN_JOB_RESOURCE, namespace=namespace, labels=labels)) if asks_for_bare else None
        )
        # The jobs of labelled TrainJobs need not have these labels.
        of_train_jobs = OWNED if asks_for_bare and labels is not None else ()
        owned = [tasks.create_task(_listed(kube, kind, namespace, None)) for kind in of_train_jobs]
    lists = [task.result() for task in listing]
    if all(found is None for found in lists):
        names = TORCH_NODES.title if is_of_train_jobs else wanted[0].title if len(wanted) == 1 else "any kind of job"
        raise NotFound(f"the cluster at {kube.access.server} does not know {names}; {await how_to_define(kube)}")
    found = [
        Found(as_owned(KINDS[kind.name], item["metadata"]), item) for kind, items in zip(wanted, lists, strict=True) for item in items or ()
    ]
    if is_of_train_jobs:
        found = [job for job in found if job.kind.role]
    if train_jobs is not None:
        unlabelled = [item for task in owned for item in task.result() or ()]
        behind = unlabelled if owned else [job.object for job in found]
        found += [Found(TORCH_NODES, outline(one), one) for one in without_job(train_jobs.result(), behind)]
    return sorted(found, key=lambda job: (job.object["metadata"]["namespace"], job.object["metadata"]["name"], job.kind.name))


async def listed(kube: Kube, namespace: str | None, kind: Kind | None, *, labels: str | None = None) -> list[Found]:
    """Return the jobs of a kind, TrainJobs without a job included. Without a kind, return all but the initializers of TrainJobs."""
    found = await jobs(kube, namespace, [kind] if kind is not None else None, labels=labels, with_bare=True)
    return [job for job in found if kind is not None or job.kind.container not in INITIALIZERS]


async def with_train_jobs(kube: Kube, namespace: str | None, there: Sequence[Found]) -> list[Found]:
    """Return the jobs with the TrainJobs that they belong to, as far as the user may see these. Programs read them."""
    if not any(job.kind.role and job.bare is None for job in there):
        return list(there)
    known = {one["metadata"]["uid"]: one for one in await readable.listed(kube, TRAIN_JOB_RESOURCE, namespace=namespace)}

    def owner(job: Found) -> Object | None:
        return next((known[one.uid] for one in owners_of(job.object["metadata"]) if one.uid in known), None)

    return [replace(job, train_job=owner(job)) if job.kind.role and job.bare is None else job for job in there]


async def how_to_define(kube: Kube) -> str:
    """Return the words that say how a cluster gets the kinds of jobs."""
    try:
        is_laptop = bool((await kube.list(NODES, labels=PLAYED_BY)).items)
    except KubeError:
        return DEFINE
    return DEFINE_ON_LAPTOP if is_laptop else DEFINE


async def _listed(kube: Kube, kind: Kind, namespace: str | None, labels: str | None) -> list[Object] | None:
    try:
        return (await kube.list(resource_of(kind), namespace=namespace, labels=labels)).items
    except KubeError as error:
        if error.code == 404:
            return None
        raise


async def one(kube: Kube, namespace: str, words: Sequence[str]) -> Found:
    kind, names = split(words)
    if len(names) != 1:
        raise click.UsageError("name one job: NAME, KIND/NAME or KIND NAME")
    return (await named(kube, namespace, kind, names))[0]


async def some(kube: Kube, namespace: str, words: Sequence[str]) -> list[Found]:
    kind, names = split(words)
    if not names:
        raise click.UsageError("name a job")
    return await named(kube, namespace, kind, names)


async def named(kube: Kube, namespace: str | None, kind: Kind | None, names: Sequence[str]) -> list[Found]:
    """Return the jobs of these names. Each must exist once; with namespace None, in any number of namespaces."""
    return await _picked(kube, namespace, names, await jobs(kube, namespace, [kind] if kind is not None else None, with_bare=True))


async def those_there(kube: Kube, namespace: str, kind: Kind | None, names: Sequence[str]) -> list[Found]:
    """Return the jobs of these names that exist."""
    there = await jobs(kube, namespace, [kind] if kind is not None else None, with_bare=True)
    known = {job.object["metadata"]["name"] for job in there}
    return await _picked(kube, namespace, [name for name in names if name in known], there)


async def _picked(kube: Kube, namespace: str | None, names: Sequence[str], there: Sequence[Found]) -> list[Found]:
    return [job for name in dict.fromkeys(names) for job in await _pick(kube, namespace, name, there)]


async def _pick(kube: Kube, namespace: str | None, name: str, there: Sequence[Found]) -> list[Found]:
    found = [job for job in there if job.object["metadata"]["name"] == name]
    if len(found) == 1 or (found and namespace is None):
        return found
    if found:
        ways = " or ".join(f"{job.word}/{name}" for job in found)
        raise click.UsageError(f"there are {len(found)} jobs {name} in namespace {namespace}; write {ways}")
    if namespace is None:
        raise NoJob(f"there is no job {name} in any namespace{did_you_mean(name, [job.object['metadata']['name'] for job in there])}")
    await check_namespace(kube, namespace)
    names = [job.object["metadata"]["name"] for job in there]
    hint = did_you_mean(name, names) or (f"; there are: {', '.join(names[:10])}" if names else ", nor any other; see `elastic get -A`")
    raise NoJob(f"there is no job {name} in namespace {namespace}{hint}")


async def check_namespace(kube: Kube, namespace: str) -> None:
    """Raise NotFound if the namespace does not exist: a list of its jobs is empty, and does not say so."""
    try:
        await kube.get(NAMESPACES, namespace)
    except KubeError as error:
        if error.code == 404:
            raise NotFound(no_namespace(namespace)) from None
        if error.code != 403:
            raise


def no_namespace(namespace: str) -> str:
    make = f"`kubectl create namespace {namespace}`, or let `elastic run --create-namespace` do it"
    return f"there is no namespace {namespace}; make it with {make}"


async def events_of(kube: Kube, job: Found, pods: Sequence[Object]) -> list[Object]:
    """Return the Events of the job and its pods, the oldest first. Events stay for an hour."""
    metadata = job.object["metadata"]
    owners = [owner.uid for owner in owners_of(metadata)] if job.kind.role else []
    uids = {metadata["uid"], *owners, *(pod["metadata"]["uid"] for pod in pods)}
    start = f"{metadata['name']}-"

    def is_of(about: Object) -> bool:
        return about.get("uid") in uids or (about.get("kind") == "Pod" and str(about.get("name", "")).startswith(start) and not pods)

    return await _events(kube, metadata["namespace"], is_of)


async def events_of_jobs(kube: Kube, namespace: str | None) -> list[Object]:
    """Return the Events of all jobs and their pods, also of those that are gone, the oldest first."""
    uids = {pod["metadata"]["uid"] for pod in (await kube.list(PODS, namespace=namespace, labels=JOB_NAME)).items}
    kinds = (*KINDS, TRAIN_JOB_RESOURCE.kind)
    return await _events(kube, namespace, lambda about: about.get("kind") in kinds or about.get("uid") in uids)


async def _events(kube: Kube, namespace: str | None, is_of: Callable[[Object], bool]) -> list[Object]:
    listed = (await kube.list(EVENTS, namespace=namespace)).items
    return sorted((event for event in listed if is_of(event.get("involvedObject") or {})), key=moment_of)


def moment_of(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")
