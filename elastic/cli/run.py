"""`elastic run`: a job file from start to end, with what happens in plain lines and the job's outcome as exit code.

Takes the cluster that runs, or starts one for the time of the run. What a line says is decided here, what happens elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import click

from elastic.cli.cluster_choice import DATA_DIR, KUBECONFIG
from elastic.cli.images import image_option
from elastic.cli.validate import Report, as_lines, examine
from elastic.kube import connect
from elastic.kube.access import AccessError
from elastic.kube.errors import KubeError
from elastic.kube.following import Condition, Event, Happening, JobKey, Line, Outcome, follow
from elastic.kube.submission import Refused, Submission
from elastic.local.cluster import ClusterError, LocalCluster, default_data_dir
from elastic.local.files import Layout
from elastic.local.sandbox import Mode

SUCCEEDED, FAILED, NOT_RUN, INTERRUPTED = 0, 1, 2, 130


class CannotRun(click.ClickException):
    """Nothing was run."""

    exit_code = NOT_RUN


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="FILE|DIR|-...", type=click.Path(allow_dash=True))
@DATA_DIR
@KUBECONFIG
@click.option("--namespace", "-n", help="For what names none itself.  [default: that of the kubeconfig]")
@click.option("--replace", is_flag=True, help="Delete a job of the same name first.")
@click.option("--gpus", type=click.IntRange(0, 64), default=0, help="GPUs of a cluster that is started for this run.")
@image_option("As for `elastic up`, for a cluster that is started for this run. Repeatable.")
def run(
    sources: tuple[str, ...],
    data_dir: Path | None,
    kubeconfig: Path | None,
    namespace: str | None,
    replace: bool,
    gpus: int,
    images: dict[str, Path],
) -> None:
    """Run job files to their end and show what happens.

    Uses the cluster of --kubeconfig, --data-dir or $KUBECONFIG, in this order; without them the laptop cluster if it runs, and one that is
    started for the time of the run if not. Everything in the files is applied; several jobs run side by side. Ctrl-C deletes the jobs and
    whatever else was made for them. Exit code: 0 all jobs succeeded, 1 a job failed, 2 a file could not be read, is invalid or was refused.
    """
    report = examine(sources)
    if report.exit_code or not report.verdicts:
        click.echo("\n".join(as_lines(report)), err=True)
        sys.exit(NOT_RUN)
    if kubeconfig and data_dir:
        raise click.UsageError("--kubeconfig and --data-dir name two clusters; give one of them")
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(message)s")
    printer = Printer()
    try:
        with _cluster(printer, kubeconfig=kubeconfig, data_dir=data_dir, gpus=gpus, images=images) as access:
            code = asyncio.run(_run(access, report, printer=printer, namespace=namespace, replace=replace))
    except (ClusterError, AccessError, Refused) as error:
        raise CannotRun(str(error)) from error
    except KubeError as error:
        raise CannotRun(error.message) from error
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


@dataclass(slots=True)
class Printer:
    """Writes what happens, one line each, with the seconds since the start."""

    start: float = field(default_factory=time.monotonic)
    told: set[tuple[str, str]] = field(default_factory=set)

    def say(self, text: str) -> None:
        try:
            print(f"{time.monotonic() - self.start:7.1f} s  {text}", flush=True)
        except BrokenPipeError:
            # The reader of the output has left; the job goes on, and so does the wait for its outcome.
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115

    def tell(self, job: JobKey, happening: Happening) -> None:
        match happening:
            case Line(pod, text):
                self.say(f"{pod} | {text}")
            case Condition(type, _, message):
                self.told.add((job.uid, message))
                self.say(f"{job.name} {type}: {message}")
            case Event() as event if (job.uid, event.message) not in self.told:  # a condition's Event repeats its words
                mark = "warning" if event.is_warning else "event"
                self.say(f"{event.about} {mark} {event.reason}: {event.message}")
            case Event():
                pass


@contextlib.contextmanager
def _cluster(printer: Printer, *, kubeconfig: Path | None, data_dir: Path | None, gpus: int, images: dict[str, Path]) -> Iterator[Path]:
    """The kubeconfig of the cluster to run on."""
    shape = [*(f"--image {name}={folder}" for name, folder in images.items()), *([f"--gpus {gpus}"] if gpus else [])]
    if kubeconfig is not None:
        _refuse_shape(shape, f"the one of {kubeconfig}")
        yield kubeconfig
        return
    layout = Layout((data_dir or default_data_dir()).resolve())
    state = layout.read_state()
    if state is not None and layout.is_running():
        if not state.control_plane:
            raise ClusterError(f"the cluster in {layout.root} has no control plane; stop it and start it without --cluster-only")
        _refuse_shape(shape, f"the one in {layout.root}, which runs already,")
        yield layout.kubeconfig
        return
    if data_dir is not None:
        start = f"`elastic up --detach --data-dir {data_dir}`"
        raise ClusterError(f"no cluster runs in {data_dir}; start it with {start}, or leave --data-dir out for a temporary one")
    printer.say("no cluster runs: starting one for this run")
    with LocalCluster(gpus=gpus, images=images) as cluster:
        closed = ", whose pods reach no network outside this machine" if cluster.sandbox == Mode.NETNS.value else ""
        printer.say(f"cluster ready, sandbox {cluster.sandbox}{closed}")
        yield cluster.kubeconfig
        printer.say("stopping the cluster")


def _refuse_shape(options: list[str], cluster: str) -> None:
    """Left unheard, they would end in a program that does not find its packages."""
    if options:
        said = " ".join(options)
        raise ClusterError(
            f"{said} is for a cluster that is started for this run, but {cluster} is used; leave it out, "
            f"or restart the laptop cluster with it: elastic down; elastic up --detach {said}"
        )


async def _run(kubeconfig: Path, report: Report, *, printer: Printer, namespace: str | None, replace: bool) -> int:
    async with connect(kubeconfig) as kube:
        submission = Submission(kube, namespace=namespace or kube.access.namespace, replace=replace)
        try:
            for document in report.others:
                await submission.apply(document.value)
            jobs = [await submission.create(verdict.document.value) for verdict in report.verdicts]
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(follow(kube, job, partial(printer.tell, job))) for job in jobs]
        except Refused:
            await _undo(submission, printer)
            raise
        except asyncio.CancelledError:
            printer.say("interrupted: deleting what this run created (press again to leave it)")
            await _undo(submission, printer)
            raise
        outcomes = [task.result() for task in running]
        for job, outcome in zip(jobs, outcomes, strict=True):
            printer.say(f"{job.kind.name} {job.name}: {outcome.lower()}")
        return SUCCEEDED if all(outcome is Outcome.SUCCEEDED for outcome in outcomes) else FAILED


async def _undo(submission: Submission, printer: Printer) -> None:
    for problem in await submission.undo():
        printer.say(f"left behind: {problem}")
