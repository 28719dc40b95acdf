"""The commands `elastic scale`, `suspend`, `evict` and `delete`: changes of a job that the control plane carries out.

A job that belongs to a TrainJob is changed by its TrainJob.
"""

from __future__ import annotations

import asyncio

import click

from elastic.api.counting import counted
from elastic.api.kinds import WORKER
from elastic.api.names import NODES, REPLICA_INDEX, REPLICA_TYPE
from elastic.cli import completion
from elastic.cli.agreement import YES, agreed
from elastic.cli.arguments import JOB, JOBS, cluster_options
from elastic.cli.cluster_choice import Cluster
from elastic.cli.jobs import found
from elastic.cli.jobs.bare_train_jobs import state_of
from elastic.cli.jobs.found import Found, NotFound
from elastic.cli.jobs.in_files import Named, named_in
from elastic.cli.options import Seconds
from elastic.cli.outcomes import OUTPUT
from elastic.cli.outcomes import told as outcomes_of
from elastic.cli.printing import plain
from elastic.cli.silence import Silence
from elastic.client.summary import rank_of, summary
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.following import resource_of
from elastic.kube.nodes import NodeProblem, evict_pod
from elastic.kube.resources import TRAIN_JOBS, Object

LOOK_EVERY_S = 0.5
NAMED = 3
TIMEOUT = click.option(
    "--timeout", "timeout_s", type=Seconds(), metavar="TIME", default=120, show_default=True, help="Until it gives up: 120, 90s, 2m."
)


@click.command()
@JOB
@click.option("--workers", "--replicas", "workers", type=click.IntRange(min=0), required=True, help="How many workers there should be.")
@OUTPUT
@cluster_options
def scale(words: tuple[str, ...], workers: int, output: str, cluster: Cluster) -> None:
    """Change how many workers a job has. Its spec says within which bounds."""

    async def write(kube: Kube, namespace: str) -> None:
        job = await found.one(kube, namespace, words)
        told = summary(job.kind, job.object)
        if told.is_over:
            raise click.ClickException(f"{job.title} is over ({told.state.lower()}); what is over is not scaled")
        if workers == told.wanted:
            outcomes.tell(job.key, "nothing", f"{job.title} has {counted(workers, 'worker')} already", workers=workers)
            return
        try:
            if job.kind.role:
                _check_nodes(job, workers)
                await _patch_train_job(kube, job, {"metadata": {"annotations": {NODES: str(workers)}}})
            else:
                await _patch(kube, job, {"spec": {"replicas": workers}}, subresource="scale")
        except KubeError as error:
            if error.code == 404 and not job.kind.role:
                raise click.ClickException(f"{job.title} has no replica type {WORKER}, and so cannot be scaled") from error
            raise
        said = f"{job.title} scaled from {told.wanted} to {counted(workers, 'worker')}; `elastic explain {told.name}` says what follows"
        outcomes.tell(job.key, "scaled", said, workers=workers, before=told.wanted)

    with outcomes_of(output) as outcomes:
        cluster.ask(write)


@click.command()
@JOBS
@OUTPUT
@cluster_options
def suspend(words: tuple[str, ...], output: str, cluster: Cluster) -> None:
    """Stop jobs and free what they use; `elastic resume` starts them again."""

    async def write(kube: Kube, namespace: str) -> None:
        for job in await found.some(kube, namespace, words):
            told = summary(job.kind, job.object)
            if told.is_over:
                raise click.ClickException(f"{job.title} is over ({told.state.lower()})")
            if (job.object["spec"].get("runPolicy") or {}).get("suspend") is True:
                outcomes.tell(job.key, "nothing", f"{job.title} is suspended already; resume it with `elastic resume {told.name}`")
                continue
            await set_suspended(kube, job, is_suspended=True)
            outcomes.tell(job.key, "suspended", f"{job.title} suspended; resume it with `elastic resume {told.name}`")

    with outcomes_of(output) as outcomes:
        cluster.ask(write)


def _check_nodes(job: Found, workers: int) -> None:
    """Raise an error if a TrainJob may not have so many nodes."""
    if job.bare is not None:
        state, words = state_of(job.bare)
        raise click.ClickException(plain(f"{job.title} has no nodes yet; it is {state.lower()}" + (f": {words}" if words else "")))
    policy = job.object["spec"].get("elasticPolicy") or {}
    least, most = policy.get("minReplicas"), policy.get("maxReplicas")
    if least is None or most is None:
        raise click.ClickException(f"{job.title} has a fixed number of nodes; only nodes with the policy torch can come and go")
    if not least <= workers <= most:
        allowed = f"{least} to {most} nodes" if least < most else f"only {least} nodes"
        hint = "its annotations elastic-training/min-nodes and elastic-training/max-nodes set the bounds"
        raise click.ClickException(f"--workers is {workers}, but {job.title} may have {allowed}; {hint}")


async def set_suspended(kube: Kube, job: Found, *, is_suspended: bool) -> None:
    """Suspend a job, or let it go on."""
    if job.kind.role:
        await _patch_train_job(kube, job, {"spec": {"suspend": is_suspended}})
    else:
        await _patch(kube, job, {"spec": {"runPolicy": {"suspend": is_suspended}}})


async def _patch_train_job(kube: Kube, job: Found, body: Object) -> None:
    """Patch the TrainJob to which a job belongs."""
    own = {**body, "metadata": {**body.get("metadata", {}), "uid": _train_job_uid(job)}}
    try:
        await kube.patch(TRAIN_JOBS, job.key.name, own, namespace=job.key.namespace)
    except KubeError as error:
        if error.code in (404, 409, 422):
            raise click.ClickException(f"{job.title} was deleted meanwhile; look at it first") from error
        raise


def _train_job_uid(job: Found) -> str:
    if job.bare is not None:
        return str(job.bare["metadata"]["uid"])
    owners = job.object["metadata"]["ownerReferences"]
    return next(str(owner["uid"]) for owner in owners if owner.get("controller"))


async def _patch(kube: Kube, job: Found, body: Object, *, subresource: str | None = None) -> None:
    """Patch the job that was found. The server refuses the uid of another job, which may have got the name a moment ago."""
    own, key = {"metadata": {"uid": job.key.uid}, **body}, job.key
    try:
        await kube.patch(resource_of(job.kind), key.name, own, namespace=key.namespace, subresource=subresource)
    except KubeError as error:
        if error.code in (409, 422) and not await _is_there(kube, job):
            raise click.ClickException(f"{job.title} was deleted meanwhile, and another job may have its name; look at it first") from error
        raise


@click.command()
@click.argument("words", nargs=-1, metavar="[KIND] JOB...", shell_complete=completion.jobs)
@click.option(
    "--filename",
    "-f",
    "files",
    multiple=True,
    type=click.Path(),
    metavar="FILE",
    help="The jobs that this file or folder names. Repeatable.",
)
@click.option("--all", "all_jobs", is_flag=True, help="All jobs of the namespace, or of KIND in it; it asks first.")
@YES
@click.option("--ignore-not-found", is_flag=True, help="A job that is not there is no error.")
@click.option("--wait/--no-wait", "waits", default=True, help="Until the job and its pods are gone.")
@TIMEOUT
@OUTPUT
@cluster_options
def delete(
    words: tuple[str, ...],
    files: tuple[str, ...],
    all_jobs: bool,
    yes: bool,
    ignore_not_found: bool,
    waits: bool,
    timeout_s: float,
    output: str,
    cluster: Cluster,
) -> None:
    """Delete jobs with their pods."""
    if all_jobs and not yes and output != "table":
        raise click.UsageError("--all asks first, which no program reads; add --yes")
    kind, names = found.split(words)
    if [bool(names), all_jobs, bool(files)].count(True) != 1 or (files and words):
        raise click.UsageError("name jobs, or give --all or --filename; one of them")
    find = found.those_there if ignore_not_found else found.named

    async def write(kube: Kube, namespace: str) -> None:
        if files:
            jobs = [job for one in _in_files(files, cluster) for job in await find(kube, one.namespace or namespace, one.kind, [one.name])]
        elif not all_jobs:
            jobs = await find(kube, namespace, kind, names)
        elif not (jobs := await found.listed(kube, namespace, kind)):
            await found.check_namespace(kube, namespace)
            click.echo(f"there are no jobs in namespace {namespace}", err=True)
        elif not agreed((f"delete {job.title} with its pods" for job in jobs), yes=yes, is_shown=output == "table"):
            return
        for job in jobs:
            await _delete(kube, job)
            outcomes.tell(job.key, "deleted", f"{job.title} deleted")
        try:
            async with asyncio.timeout(timeout_s):
                for job in jobs if waits else ():
                    await until_gone(kube, job, and_pods=True)
        except TimeoutError:
            raise click.ClickException(
                f"not gone after {timeout_s:.0f} s; `elastic describe` and `kubectl get pods` show what is left"
            ) from None

    with outcomes_of(output) as outcomes:
        cluster.ask(write)


def _in_files(files: tuple[str, ...], cluster: Cluster) -> list[Named]:
    named, others = named_in(files)
    for job in named:
        if cluster.namespace is not None and job.namespace not in (None, cluster.namespace):
            raise click.ClickException(
                f"{job.kind.name} {job.name} is of namespace {job.namespace} by its file, and --namespace is {cluster.namespace}"
            )
    if others:
        click.echo(f"{others} other object(s) of the file(s) stay; `kubectl delete -f` deletes those", err=True)
    return named


async def _delete(kube: Kube, job: Found) -> None:
    key = job.key
    resource, uid = (TRAIN_JOBS, _train_job_uid(job)) if job.kind.role else (resource_of(job.kind), key.uid)
    try:
        await kube.delete(resource, key.name, namespace=key.namespace, propagation="Background", uid=uid)
    except KubeError as error:
        if error.code not in (404, 409):  # gone, or another job has the name by now
            raise


async def until_gone(kube: Kube, job: Found, *, and_pods: bool = False) -> None:
    loop = asyncio.get_running_loop()
    silence = Silence(loop.time())
    while words := await _left(kube, job, and_pods=and_pods):  # the caller's time-out bounds it
        if silence.is_to_say(words, loop.time()):
            click.echo(plain(f"waits for {words} to be gone"), err=True)
        await asyncio.sleep(LOOK_EVERY_S)


async def _left(kube: Kube, job: Found, *, and_pods: bool) -> str:
    """Return what is left, or nothing."""
    if await _is_there(kube, job):
        return job.title
    pods = [pod["metadata"]["name"] for pod in (await found.pods_of(kube, job) if and_pods else ())]
    return ", ".join(pods[:NAMED]) + (f" and {len(pods) - NAMED} more" if len(pods) > NAMED else "")


async def _is_there(kube: Kube, job: Found) -> bool:
    resource = resource_of(job.kind) if job.bare is None else TRAIN_JOBS
    try:
        there = await kube.get(resource, job.key.name, namespace=job.key.namespace)
    except KubeError as error:
        if error.code == 404:
            return False
        raise
    return bool(there["metadata"]["uid"] == job.key.uid)


@click.command()
@JOB
@click.option("--worker", "index", type=click.IntRange(min=0), help="The worker with this index.")
@click.option("--rank", type=click.IntRange(min=0), help="The worker with this rank.")
@TIMEOUT
@OUTPUT
@cluster_options
def evict(words: tuple[str, ...], index: int | None, rank: int | None, timeout_s: float, output: str, cluster: Cluster) -> None:
    """Evict a worker, as a drain of its node does; an elastic job trains on and replaces it."""
    if (index is None) == (rank is None):
        raise click.UsageError("name the worker to evict with --worker INDEX or --rank RANK")

    async def write(kube: Kube, namespace: str) -> None:
        job = await found.one(kube, namespace, words)
        told = summary(job.kind, job.object)
        if told.is_over:
            raise click.ClickException(f"{job.title} is over ({told.state.lower()}); its pods stay for their logs until it is deleted")
        pod = worker(job, await found.pods_of(kube, job), index=index, rank=rank)
        try:
            async with asyncio.timeout(timeout_s):
                await evict_pod(kube, pod, outcomes.say)
            outcomes.tell(job.key, "evicted", "", pod=pod["metadata"]["name"])
        except TimeoutError:
            raise click.ClickException(f"pod {pod['metadata']['name']} is not gone after {timeout_s:.0f} s") from None
        except NodeProblem as error:
            raise click.ClickException(str(error)) from error

    with outcomes_of(output) as outcomes:
        cluster.ask(write)


def worker(job: Found, pods: list[Object], *, index: int | None, rank: int | None) -> Object:
    """Return the pod of that worker."""
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        if rank is not None and rank_of(pod, job.object) == rank:
            return pod
        if index is not None and labels.get(REPLICA_TYPE) == WORKER.lower() and labels.get(REPLICA_INDEX) == str(index):
            return pod
    which = f"worker {index}" if index is not None else f"rank {rank}"
    ranks = {pod["metadata"]["name"]: rank_of(pod, job.object) for pod in pods}
    if rank is not None and all(known is None for known in ranks.values()):
        hint = "its ranks are known to its rendezvous only; name the worker with --worker"
    else:
        hint = "pods: " + (", ".join(name if known is None else f"{name} (rank {known})" for name, known in ranks.items()) or "none")
    raise NotFound(f"{job.title} has no {which}; {hint}")
