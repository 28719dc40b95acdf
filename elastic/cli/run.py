"""`elastic run`: a job file or a script from start to end, with what happens in plain lines and the job's outcome as exit code.
Takes the cluster that runs, or starts one for the time of the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import click

from elastic.api.kinds import KINDS
from elastic.cli import INTERRUPTED
from elastic.cli.cluster_choice import DATA_DIR, KUBECONFIG
from elastic.cli.failures import said
from elastic.cli.images import image_option
from elastic.cli.interrupts import Left, asking, cancelled_by_sigterm, end_by_sigterm
from elastic.cli.jobs.following import followed
from elastic.cli.local_paths import placed, without_command
from elastic.cli.near_files import hint
from elastic.cli.options import SANDBOXES, command
from elastic.cli.run_printer import Printer
from elastic.cli.validate import STDIN, Report, as_lines, examine, examine_object
from elastic.client.script_job import Workers, is_script, job_of
from elastic.kube import connect
from elastic.kube.access import AccessError
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.following import JobKey, Outcome
from elastic.kube.resources import Object
from elastic.kube.submission import Refused, Submission
from elastic.local.cluster import ClusterError, LocalCluster, default_data_dir
from elastic.local.dashboard import link
from elastic.local.files import MOST_GPUS, Layout, layout_of
from elastic.local.sandbox import Mode

SUCCEEDED, FAILED, NOT_RUN = 0, 1, 2
NO_WAY_OUT = ": pods reach no network outside this machine (with --sandbox loopback they do)"


class CannotRun(click.ClickException):
    """Nothing was run."""

    exit_code = NOT_RUN


def _workers(context: click.Context, parameter: click.Parameter, value: str) -> Workers:
    try:
        return Workers.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="FILE|DIR|-... | SCRIPT [ARG]...", type=click.Path(allow_dash=True))
@DATA_DIR
@KUBECONFIG
@click.option("--namespace", "-n", help="For what names none itself.  [default: that of the kubeconfig]")
@click.option("--create-namespace", is_flag=True, help="Make the namespace if it is not there.")
@click.option("--replace", is_flag=True, help="Delete a job of the same name first.")
@click.option(
    "--workers",
    callback=_workers,
    metavar="N|MIN:MAX",
    default="1",
    show_default=True,
    help="Of a SCRIPT: how many workers, or from how many to how many.",
)
@click.option(
    "--gpus", type=click.IntRange(0, MOST_GPUS), default=0, help="GPUs of each worker of a SCRIPT, and of a cluster started for this run."
)
@click.option("--name", help="Of the job of a SCRIPT.  [default: the script's]")
@click.option(
    "--save", type=click.Path(dir_okay=False, allow_dash=True), help="Write the job of a SCRIPT as YAML (- prints it); run nothing."
)
@click.option("--all-output", is_flag=True, help="Also what torchrun prints about itself when a worker fails.")
@click.option("--sandbox", type=click.Choice(SANDBOXES), help="As for `elastic up`, for a cluster that is started for this run.")
@image_option("As for `elastic up`, for a cluster that is started for this run. Repeatable.")
def run(
    sources: tuple[str, ...],
    data_dir: Path | None,
    kubeconfig: Path | None,
    namespace: str | None,
    create_namespace: bool,
    replace: bool,
    workers: Workers,
    gpus: int,
    name: str | None,
    save: str | None,
    all_output: bool,
    sandbox: str | None,
    images: dict[str, Path] | None,
) -> None:
    """Run job files, or a script on the laptop cluster, to their end and show what happens.

    A SCRIPT (.py under torchrun, .sh) needs no YAML: elastic run train.py --workers 1:4 -- --epochs 3. Uses the cluster of --kubeconfig,
    --data-dir or $KUBECONFIG, in this order; without them the laptop cluster if it runs, and one that is started for the time of the run if
    not. Everything in the files is applied; several jobs run side by side. On the laptop, programs start in the present folder. Ctrl-C
    deletes what was made, on a terminal once you have said so. Exit code: 0 all jobs succeeded, 1 a job failed, 2 a file could not be read,
    is invalid or was refused.
    """
    if kubeconfig and data_dir:
        raise click.UsageError("--kubeconfig and --data-dir name two clusters; give one of them")
    has_script = is_script(sources)
    if not has_script and (name or save):
        raise click.UsageError("--name and --save are for a SCRIPT, whose job this command makes; a job file has its own")
    report = _script_report(sources, workers=workers, gpus=gpus, name=name) if has_script else examine(sources)
    if save is not None:
        _save(report.verdicts[0].document.value, save)
        return
    if report.exit_code or not report.verdicts:
        click.echo("\n".join(as_lines(report)), err=True)
        if report.is_without_jobs:
            click.echo("a script needs no job file: `elastic run train.py`", err=True)
        sys.exit(NOT_RUN)
    end_by_sigterm()
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(message)s")
    printer = Printer(folds=not all_output)
    shape = _Shape(gpus=gpus * workers.most if has_script else gpus, is_asked=not has_script, sandbox=sandbox, images=images)
    try:
        with _cluster(printer, kubeconfig=kubeconfig, data_dir=data_dir, shape=shape) as cluster:
            jobs = _placed(report, printer) if cluster.is_laptop else _elsewhere(report, cluster, has_script=has_script)
            wish = _Wish(jobs=jobs, namespace=namespace, replace=replace, replace_over=has_script, create_namespace=create_namespace)
            code = asyncio.run(_run(cluster, report, wish, printer=printer))
    except (ClusterError, AccessError, Refused) as error:
        raise CannotRun(str(error)) from error
    except KubeError as error:
        raise CannotRun(said(error) or error.message) from error
    except (KeyboardInterrupt, asyncio.CancelledError):
        code = INTERRUPTED
    sys.exit(code)


@dataclass(frozen=True, slots=True)
class _Cluster:
    """Where it runs. is_laptop: containers see this machine's files; is_own: it ends with the run."""

    kubeconfig: Path
    is_laptop: bool = False
    is_own: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """Of a cluster that is started for this run."""

    gpus: int
    is_asked: bool
    """Whether the GPUs are the user's wish, and not only what a script's workers need."""
    sandbox: str | None
    images: dict[str, Path] | None

    def options(self, *, running: str | None = None, has: Mapping[str, str] = MappingProxyType({})) -> list[str]:
        """What a cluster that is there already would not heed. running: its sandbox; has: its folders for images."""
        words = [f"--image {name}={folder}" for name, folder in (self.images or {}).items() if has.get(name) != str(folder)]
        words += [f"--gpus {self.gpus}"] if self.gpus and self.is_asked else []
        return [*words, *([f"--sandbox {self.sandbox}"] if self.sandbox not in (None, "auto", running) else [])]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """What is to be created, and how."""

    jobs: list[Object]
    namespace: str | None
    replace: bool
    replace_over: bool
    create_namespace: bool


def _script_report(sources: tuple[str, ...], *, workers: Workers, gpus: int, name: str | None) -> Report:
    script = Path(sources[0]).resolve()
    if not script.is_file():
        raise CannotRun(f"there is no file {sources[0]}{hint(Path(sources[0]))}")
    job = job_of(script, sources[1:], workers=workers, gpus=gpus, working_dir=Path.cwd(), name=name)
    return examine_object(job, file=sources[0])


def _save(job: Object, save: str) -> None:
    import yaml

    text = yaml.safe_dump(job, sort_keys=False, allow_unicode=True)
    if save == "-":
        click.echo(text, nl=False)
        return
    try:
        Path(save).write_text(text)
    except OSError as error:
        raise CannotRun(f"{save} cannot be written: {error.strerror}") from error
    click.echo(f"the job is in {save}; run it with `elastic run {save}`")


def _placed(report: Report, printer: Printer) -> list[Object]:
    """The jobs as the laptop runs them: where their programs start, and which files they mean, is said."""
    jobs = []
    for verdict in report.verdicts:
        kind, job = KINDS[verdict.kind or ""], verdict.document.value
        if types := without_command(job, kind):
            raise Refused(
                f"{kind.name} {verdict.name}: {', '.join(types)} names no command; the laptop cluster runs no images, so name the program "
                "in the container's command"
            )
        made, words = placed(job, kind, file=None if verdict.file == STDIN else Path(verdict.file), working_dir=Path.cwd())
        jobs.append(made)
        size = job["spec"].get("elasticPolicy") or {}
        if words:
            printer.say(f"{kind.name} {verdict.name}: {'; '.join(words)}")
        if size.get("minReplicas"):
            printer.say(f"{kind.name} {verdict.name}: {size['minReplicas']} to {size.get('maxReplicas', size['minReplicas'])} workers")
    return jobs


def _elsewhere(report: Report, cluster: _Cluster, *, has_script: bool) -> list[Object]:
    if has_script:
        raise Refused(
            f"a script runs on the laptop cluster, whose containers see your files; for the cluster of {cluster.kubeconfig} put it into an "
            "image and write the job with --save job.yaml"
        )
    return [verdict.document.value for verdict in report.verdicts]


@contextlib.contextmanager
def _cluster(printer: Printer, *, kubeconfig: Path | None, data_dir: Path | None, shape: _Shape) -> Iterator[_Cluster]:
    """The cluster to run on."""
    layout = layout_of(kubeconfig) if kubeconfig is not None else Layout((data_dir or default_data_dir()).resolve())
    if layout is None:
        assert kubeconfig is not None
        _refuse_shape(shape.options(), f"the one of {kubeconfig}")
        yield _Cluster(kubeconfig)
        return
    state = layout.read_state()
    if state is not None and layout.is_running():
        if not state.control_plane and kubeconfig is None:
            raise ClusterError(f"the cluster in {layout.root} has no control plane; stop it and start it without --cluster-only")
        _refuse_shape(
            shape.options(running=state.sandbox, has=layout.read_shape().images), f"the one in {layout.root}, which runs already,"
        )
        yield _Cluster(layout.kubeconfig, is_laptop=True)
        return
    if data_dir is not None:
        start = f"`elastic up --detach --data-dir {data_dir}`"
        raise ClusterError(f"no cluster runs in {data_dir}; start it with {start}, or leave --data-dir out for a temporary one")
    stopped = layout.root if kubeconfig is not None else None
    there_is = f"the laptop cluster in {stopped} is stopped: starting it" if stopped else "no cluster runs: starting one"
    printer.say(f"{there_is} for this run")
    cluster = LocalCluster(data_dir=stopped, gpus=shape.gpus or None, sandbox=shape.sandbox, images=shape.images)
    cluster.start(say=printer.say)
    try:
        closed = NO_WAY_OUT if cluster.sandbox == Mode.NETNS.value else ""
        printer.say(f"cluster ready, sandbox {cluster.sandbox}{closed}")
        printer.say(f"watch it: {command('top --watch', cluster.data_dir)} (or get, logs, explain)")
        if (url := link(Layout(cluster.data_dir))) is not None:
            printer.say(f"the dashboard: {url}")
        yield _Cluster(cluster.kubeconfig, is_laptop=True, is_own=True)
        printer.say("stopping the cluster")
    finally:
        cluster.stop()


def _refuse_shape(options: list[str], cluster: str) -> None:
    """Left unheard, they would end in a program that does not find its packages."""
    if options:
        said = " ".join(options)
        raise ClusterError(
            f"{said} is for a cluster that is started for this run, but {cluster} is used; leave it out, "
            f"or restart the laptop cluster with it: elastic down; elastic up --detach {said}"
        )


async def _run(cluster: _Cluster, report: Report, wish: _Wish, *, printer: Printer) -> int:
    with cancelled_by_sigterm():
        return await _run_to_its_end(cluster, report, wish, printer=printer)


async def _run_to_its_end(cluster: _Cluster, report: Report, wish: _Wish, *, printer: Printer) -> int:
    async with connect(cluster.kubeconfig) as kube:
        namespace = wish.namespace or kube.access.namespace
        submission = Submission(kube, namespace=namespace, replace=wish.replace, replace_over=wish.replace_over)
        try:
            if wish.create_namespace:
                await submission.make_namespace()
            for document in report.others:
                await submission.apply(document.value)
            jobs = [await submission.create(job) for job in wish.jobs]
            outcomes = await asking(_followed(kube, jobs, printer), can_leave=not cluster.is_own, say=printer.say)
        except Left:
            for job in jobs:
                printer.say(f"{job.kind.name} {job.name} goes on; see `elastic logs -f {job.name}`")
            return INTERRUPTED
        except Refused:
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


async def _followed(kube: Kube, jobs: list[JobKey], printer: Printer) -> list[Outcome]:
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(followed(kube, job, tell=partial(printer.tell, job), say=partial(_say_wait, printer, job))) for job in jobs
        ]
    return [task.result() for task in running]


def _say_wait(printer: Printer, job: JobKey, words: str) -> None:
    printer.say(f"{job.name} {words}")


async def _undo(submission: Submission, printer: Printer) -> None:
    for problem in await submission.undo():
        printer.say(f"left behind: {problem}")
