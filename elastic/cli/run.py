"""`elastic run`: a job file or a script from start to end, with what happens in plain lines and the job's outcome as exit code.

Takes the cluster that runs, or starts one for the time of the run.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from elastic.api.counting import counted
from elastic.api.kinds import KINDS
from elastic.api.rendezvous_choice import needs_own_etcd
from elastic.cli import INTERRUPTED, run_environment
from elastic.cli.cluster_choice import DATA_DIR, KUBECONFIG
from elastic.cli.images import Images, image_option
from elastic.cli.interrupts import Left, cancelled_by_sigterm, end_by_sigterm, until_interrupted
from elastic.cli.jobs.following import followed
from elastic.cli.jobs.found import how_to_define
from elastic.cli.jobs.milestone import Milestone
from elastic.cli.local_paths import placed, without_command
from elastic.cli.options import SANDBOXES, command
from elastic.cli.printing import plain
from elastic.cli.run_place import Place, Shape, chosen
from elastic.cli.run_printer import Printer
from elastic.cli.run_script import NOT_RUN, CannotRun, ScriptCommand, report_of, save
from elastic.cli.script_options import AskedForScript, script_options
from elastic.cli.silence import Silence
from elastic.cli.validate import STDIN, Report, as_lines, examine
from elastic.client.script_job import ScriptOptions, is_script
from elastic.kube import connect
from elastic.kube.access import AccessError
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.following import FollowedJob, Happening, Outcome
from elastic.kube.resources import Object
from elastic.kube.submission import Submission, SubmissionRefused
from elastic.local.cluster import ClusterError

SUCCEEDED, FAILED = 0, 1


@click.command(cls=ScriptCommand)
@click.argument("sources", nargs=-1, required=True, metavar="FILE|DIR|-... | SCRIPT [ARG]...", type=click.Path(allow_dash=True))
@DATA_DIR
@KUBECONFIG
@click.option("--namespace", "-n", help="For what names none itself.  [default: that of the kubeconfig]")
@click.option("--create-namespace", is_flag=True, help="Make the namespaces that are not there.")
@click.option("--strict", is_flag=True, help="Run nothing where there are warnings.")
@click.option("--replace", is_flag=True, help="Delete a job of the same name first.")
@script_options
@click.option("--detach", "-d", is_flag=True, help="Return once the jobs are created; they go on in the cluster.")
@click.option(
    "--all-output",
    is_flag=True,
    help="Also what torchrun prints about itself when a worker fails, and tracebacks of those that lost a peer.",
)
@click.option("--sandbox", type=click.Choice(SANDBOXES), help="As for `elastic up`, for a cluster that is started for this run.")
@image_option(
    "IMAGE=FOLDER as for `elastic up`, for a cluster that is started for this run; IMAGE alone is that of a SCRIPT's job. Repeatable.",
    of_script=True,
)
def run(
    sources: tuple[str, ...],
    data_dir: Path | None,
    kubeconfig: Path | None,
    namespace: str | None,
    create_namespace: bool,
    strict: bool,
    replace: bool,
    asked: AskedForScript,
    file: str | None,
    detach: bool,
    all_output: bool,
    sandbox: str | None,
    images: Images,
) -> None:
    """Run job files, or a script on the laptop cluster, to their end and show what happens.

    A SCRIPT (.py under torchrun, .sh) needs no YAML: elastic run train.py --workers 1:4 -- --epochs 3. Uses the cluster of --kubeconfig,
    --data-dir or $KUBECONFIG, in this order; without them the laptop cluster, which is started for the time of the run if it does not run.
    Applies everything in the files; several jobs run side by side. On the laptop, programs start in the present folder. On a terminal,
    Ctrl-C leaves the jobs running and says how to come back; if the cluster was started for this run, it asks. Elsewhere it deletes what
    the command created. Exit code: 0 all jobs succeeded (with --detach: were created), 1 a job failed, 2 a file could not be read, is
    invalid or was refused, 130 interrupted.
    """
    if kubeconfig and data_dir:
        raise click.UsageError("--kubeconfig and --data-dir name two clusters; give one of them")
    has_script = is_script(sources)
    if not has_script and asked.given:
        raise click.UsageError(f"{asked.given} is for a SCRIPT, whose job this command makes; a job file says that itself")
    options = asked.options
    report = report_of(sources, options) if has_script else examine(sources)
    if file is not None and not report.exit_code:
        save(report.verdicts[0].document.value, file, script=Path(sources[0]))
        return
    if strict:
        report.verdicts = [verdict.strict() for verdict in report.verdicts]
    if report.exit_code or not report.verdicts:
        click.echo("\n".join(as_lines(report)), err=True)
        if report.is_without_jobs:
            click.echo("a script needs no job file: `elastic run train.py`", err=True)
        sys.exit(NOT_RUN)
    for line in _warnings(report):
        click.echo(line, err=True)
    end_by_sigterm()
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(message)s")
    printer = Printer(folds=not all_output)
    shape = Shape(
        gpus=options.gpus * options.workers.most if has_script else options.gpus,
        is_asked=not has_script,
        sandbox=sandbox,
        images=images.folders,
        etcd_for=_etcd_for(report),
    )
    try:
        with chosen(printer, kubeconfig=kubeconfig, data_dir=data_dir, shape=shape, can_start=not detach) as place:
            jobs = _placed(report, printer) if place.is_laptop else _elsewhere(report, place, has_script=has_script)
            if words := _environment(jobs, place, options if has_script else None):
                printer.say(words)
            wish = _Wish(
                jobs=jobs,
                namespace=namespace,
                replace=replace,
                is_script=has_script,
                is_named=not has_script or options.name is not None,
                create_namespace=create_namespace,
                detach=detach,
            )
            code = asyncio.run(_run(place, report, wish, printer=printer))
    except (ClusterError, AccessError, SubmissionRefused) as error:
        raise CannotRun(str(error)) from error
    except KubeError as error:
        raise CannotRun(error.words) from error
    except (KeyboardInterrupt, asyncio.CancelledError):
        code = INTERRUPTED
    sys.exit(code)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """Jobs and other objects to create, and the way to do it."""

    jobs: list[Object]
    namespace: str | None
    replace: bool
    is_script: bool
    is_named: bool
    """Whether the user chose the job's name. Otherwise it gets a number if another job has it."""
    create_namespace: bool
    detach: bool


def _warnings(report: Report) -> Iterator[str]:
    """Say what `elastic validate` says of jobs that may run."""
    for verdict in report.verdicts:
        for found in verdict.in_order(verdict.warnings):
            yield plain(f"{verdict.place(found.at)}: warning: {found}")


def _etcd_for(report: Report) -> str:
    """Name the first job that needs the installation's etcd."""
    needy = (verdict for verdict in report.verdicts if verdict.job is not None and needs_own_etcd(verdict.job))
    return next((f"{verdict.kind} {verdict.name}" for verdict in needy), "")


def _placed(report: Report, printer: Printer) -> list[Object]:
    """Return the jobs as the laptop runs them, and say where their programs start and which files they mean."""
    jobs = []
    for verdict in report.verdicts:
        kind, job = KINDS[verdict.kind or ""], verdict.document.value
        if types := without_command(job, kind):
            raise SubmissionRefused(
                f"{kind.name} {verdict.name}: {', '.join(types)} names no command; the laptop cluster runs no images, so name the program "
                "in the container's command"
            )
        made, words = placed(job, kind, file=None if verdict.file == STDIN else Path(verdict.file), working_dir=Path.cwd())
        jobs.append(made)
        size = job["spec"].get("elasticPolicy") or {}
        if words:
            printer.say(f"{kind.name} {verdict.name}: {'; '.join(words)}")
        if size.get("minReplicas"):
            least, most = size["minReplicas"], size.get("maxReplicas", size["minReplicas"])
            many = counted(least, "worker") if least == most else f"{least} to {most} workers"
            printer.say(f"{kind.name} {verdict.name}: {many}")
    return jobs


def _environment(jobs: list[Object], place: Place, script: ScriptOptions | None) -> str | None:
    """Let a script run in the user's Python environment; return the sentence about it if another one started the cluster."""
    if place.data_dir is None:
        return None
    if script is None:
        return run_environment.other(place.data_dir)
    return run_environment.use(jobs[0], place.data_dir, says_path="PATH" in script.env or script.image is not None)


def _elsewhere(report: Report, place: Place, *, has_script: bool) -> list[Object]:
    if has_script:
        raise SubmissionRefused(
            f"a script runs on the laptop cluster, whose containers see your files; for the cluster of {place.kubeconfig} put it into an "
            "image and write the job with --save job.yaml"
        )
    return [verdict.document.value for verdict in report.verdicts]


async def _run(place: Place, report: Report, wish: _Wish, *, printer: Printer) -> int:
    with cancelled_by_sigterm():
        return await _run_to_its_end(place, report, wish, printer=printer)


async def _run_to_its_end(place: Place, report: Report, wish: _Wish, *, printer: Printer) -> int:
    async with connect(place.kubeconfig) as kube:
        namespace = wish.namespace or kube.access.namespace
        submission = Submission(
            kube,
            namespace=namespace,
            replace=wish.replace,
            replace_over=wish.is_script,
            numbers=not wish.is_named,
            how_to_define=how_to_define,
        )
        try:
            if wish.create_namespace:
                await submission.make_namespaces([*(document.value for document in report.others), *wish.jobs])
            for document in report.others:
                await submission.apply(document.value)
            jobs = [await submission.create(job, _waits(printer)) for job in wish.jobs]
            for job, asked in zip(jobs, wish.jobs, strict=True):
                if (name := asked["metadata"].get("name", job.name)) != job.name:
                    printer.say(f"{job.kind.name} {name} is not over yet, so this one is {job.name}; --replace deletes {name} first")
            if wish.detach:
                _leave(place, jobs, printer)
                return SUCCEEDED
            following = _followed(kube, jobs, printer, data_dir=place.data_dir)
            outcomes = await until_interrupted(following, asks=place.own is not None, say=printer.say, held=printer.held)
        except Left:
            if place.own is not None:
                place.own.leave()
            _leave(place, jobs, printer)
            return INTERRUPTED
        except SubmissionRefused:
            await _undo(submission, printer)
            raise
        except asyncio.CancelledError:
            printer.say("interrupted: deleting what this run created (interrupt again to leave it)")
            await _undo(submission, printer)
            if sys.stdin.isatty() and sys.stdout.isatty():
                return INTERRUPTED
            raise
        for job, outcome in zip(jobs, outcomes, strict=True):
            printer.end(job, outcome)
        return SUCCEEDED if all(outcome is Outcome.SUCCEEDED for outcome in outcomes) else FAILED


def _leave(place: Place, jobs: list[FollowedJob], printer: Printer) -> None:
    for job in jobs:
        words = f"{job.kind.plural}/{job.name} -n {job.namespace}"
        follow, wait, delete = (_command(place, f"{verb} {words}") for verb in ("logs -f", "wait", "delete"))
        printer.say(
            f"{job.kind.name} {job.name} goes on; `{follow}` shows what it prints, `{wait}` waits for its end, `{delete}` deletes it"
        )
    if place.own is not None:
        printer.say(f"the cluster goes on, too; `{_command(place, 'down')}` stops it")


def _command(place: Place, words: str) -> str:
    return command(words, place.data_dir) if place.data_dir else f"elastic {words} --kubeconfig {place.kubeconfig}"


async def _followed(kube: Kube, jobs: list[FollowedJob], printer: Printer, *, data_dir: Path | None) -> list[Outcome]:
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(_one_followed(kube, job, printer, milestone=Milestone(data_dir))) for job in jobs]
    return [task.result() for task in running]


async def _one_followed(kube: Kube, job: FollowedJob, printer: Printer, *, milestone: Milestone) -> Outcome:
    def tell(happening: Happening) -> bool:
        milestone.hear(happening)
        return printer.tell(job, happening)

    return await followed(kube, job, tell=tell, say=lambda words: printer.say(f"{job.name} {words}"), ahead=milestone.ahead)


def _waits(printer: Printer) -> Callable[[str], None]:
    """Return a function that prints what the command waits for if that takes long."""
    silence = Silence(time.monotonic())

    def hear(words: str) -> None:
        if silence.is_to_say(words, time.monotonic()):
            printer.say(f"waits for {words}")

    return hear


async def _undo(submission: Submission, printer: Printer) -> None:
    for problem in await submission.undo(_waits(printer)):
        printer.say(f"left behind: {problem}")
