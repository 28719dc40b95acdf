"""The command `elastic validate`: it reads job files, says on which line what is wrong and what to do, and needs no cluster."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from elastic.api.counting import counted
from elastic.api.errors import Path as At
from elastic.api.errors import Problem, SpecError, Warning, shortened
from elastic.api.job import Job
from elastic.api.kinds import API_VERSION, GROUP, KINDS
from elastic.api.parser import parse
from elastic.api.reader import did_you_mean
from elastic.api.rendezvous_choice import needs_own_etcd
from elastic.api.scaling_rules import too_late
from elastic.api.template import default_container, default_container_index
from elastic.cli.documents import Document, Unreadable, as_json, documents
from elastic.cli.near_files import hint
from elastic.cli.printing import as_data
from elastic.local import etcd

SUFFIXES = (".yaml", ".yml", ".json")
STDIN = "-"
MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Verdict:
    """Findings about one job."""

    file: str
    document: Document
    problems: tuple[Problem, ...]
    warnings: tuple[Warning, ...]
    job: Job | None = None
    """The job if it parses."""
    has_lines: bool = True
    """Whether the job is in the file. The job of a script is made for it, so the user cannot see its lines."""

    def place(self, at: At = ()) -> str:
        return f"{self.file}:{self.document.line(at)}" if self.has_lines else f"the job of {self.file}"

    @property
    def kind(self) -> str | None:
        return _text_at(self.document.value, "kind")

    @property
    def name(self) -> str | None:
        metadata = self.document.value.get("metadata") if isinstance(self.document.value, dict) else None
        return _text_at(metadata, "name") or _text_at(metadata, "generateName")

    def strict(self) -> Verdict:
        return replace(self, problems=(*self.problems, *(Problem(one.at, one.message) for one in self.warnings)), warnings=())

    @property
    def found(self) -> tuple[Problem, ...]:
        return (*self.problems, *self.warnings)

    def in_order(self, found: Iterable[Problem]) -> list[Problem]:
        """Sort by the order of the file's lines."""
        return sorted(found, key=lambda one: self.document.line(one.at))


def _text_at(value: Any, key: str) -> str | None:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, str) else None


@dataclass(slots=True)
class Report:
    verdicts: list[Verdict] = field(default_factory=list)
    unreadable: list[tuple[str, Unreadable]] = field(default_factory=list)
    others: list[Document] = field(default_factory=list)
    """Objects that are no jobs."""

    @property
    def is_without_jobs(self) -> bool:
        """Whether all that was found is something else."""
        return bool(self.others) and not self.verdicts

    @property
    def exit_code(self) -> int:
        if self.unreadable:
            return 2
        return 1 if any(verdict.problems for verdict in self.verdicts) else 0


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="FILE|DIR|-...", type=click.Path(allow_dash=True))
@click.option(
    "--output", "-o", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True, help="How to print what was found."
)
@click.option("--strict", is_flag=True, help="Warnings are errors.")
def validate(sources: tuple[str, ...], output: str, strict: bool) -> None:
    """Check job files; name each problem and its place.

    FILE is YAML or JSON with any number of documents; a DIR is searched for such files; - is standard input. Objects that are no jobs are
    passed over. Exit code: 0 all jobs are valid, 1 a job is invalid (with --strict also for a warning), 2 a file could not be read.
    """
    report = examine(sources)
    if strict:
        report.verdicts = [verdict.strict() for verdict in report.verdicts]
    click.echo(as_data(_as_data(report), output) if output != "text" else "\n".join(as_lines(report)))
    sys.exit(report.exit_code)


def examine(sources: tuple[str, ...]) -> Report:
    """Read every file, once, and judge every job in it."""
    report = Report()
    for source in sources:
        files = list(_files(source))
        for file in files:
            _look_at(file, report)
        if not files:
            report.unreadable.append((source, Unreadable(f"there is no {', '.join(SUFFIXES)} file in this folder")))
    report.verdicts = list(_named_once(report.verdicts))
    return report


def _named_once(verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    """Refuse a second job of one kind, namespace and name: it could not be created next to the first."""
    first: dict[tuple[str | None, str | None, str], Verdict] = {}
    for verdict in verdicts:
        metadata = verdict.document.value.get("metadata") if isinstance(verdict.document.value, dict) else None
        name = _text_at(metadata, "name")
        key = (verdict.kind, _text_at(metadata, "namespace"), name or "")
        if name is None or key not in first:
            first.setdefault(key, verdict)
            yield verdict
            continue
        other = first[key]
        problem = Problem(
            ("metadata", "name"), f"{name} is the name of the {verdict.kind} at {other.place()} too; give one of them another"
        )
        yield replace(verdict, problems=(*verdict.problems, problem))


def examine_object(job: Any, *, file: str) -> Report:
    """Report on a job that was made for this file, and not read from it."""
    document = next(documents(as_json(job)))
    return Report(verdicts=[replace(_judge(file, document), has_lines=False)])


def _files(source: str) -> Iterator[str]:
    """Yield the files of a folder in order, without hidden ones."""
    path = Path(source)
    if source == STDIN or not path.is_dir():
        yield source
        return
    for file in sorted(path.rglob("*")):
        if file.suffix in SUFFIXES and file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts):
            yield str(file)


def _look_at(file: str, report: Report) -> None:
    before = len(report.verdicts) + len(report.others)
    try:
        for document in documents(_text(file)):
            if _is_meant_as_job(document.value):
                report.verdicts.append(_judge(file, document))
            else:
                report.others.append(document)
        if len(report.verdicts) + len(report.others) == before:
            raise Unreadable("there is no object in it")
    except Unreadable as error:
        report.unreadable.append((file, error))


def _text(file: str) -> str:
    try:
        raw: bytes = sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise Unreadable(f"{error.strerror or error}{hint(Path(file)) if isinstance(error, FileNotFoundError) else ''}") from None
    except UnicodeDecodeError:
        raise Unreadable("this is not UTF-8 text") from None


def _is_meant_as_job(value: Any) -> bool:
    """Return whether the document is meant as a job, also with a slip in kind or apiVersion. A config map next to the job is not."""
    if not isinstance(value, dict):
        return True
    version, kind = value.get("apiVersion"), value.get("kind")
    if isinstance(version, str) and version.partition("/")[0] != GROUP:
        return isinstance(kind, str) and kind in KINDS
    if isinstance(kind, str):
        return kind in KINDS or bool(did_you_mean(kind, KINDS)) or kind.endswith("Job")
    return "spec" in value or version is not None


def _judge(file: str, document: Document) -> Verdict:
    doubled = [Problem(at, f"{key} appears twice; keep one") for at, key in document.doubled]
    try:
        job, warnings = parse(document.value)
        found = (*warnings, *_too_late(job, datetime.now(UTC)), *_without_command(job), *_without_etcd(job))
        return Verdict(file, document, tuple(doubled), found, job)
    except SpecError as error:
        return Verdict(file, document, (*doubled, *error.problems), error.warnings)


def _too_late(job: Job, now: datetime) -> Iterator[Warning]:
    """Warn of times that have passed for a job that does not exist yet. parse has no clock and judges existing jobs."""
    policy = job.elastic.scaling_policy if job.elastic is not None else None
    if policy is not None and job.metadata.creation_timestamp is None:
        late = too_late(policy, now, at=("spec", "elasticPolicy", "scalingPolicy"))
        yield from [late] if late is not None else []


def _without_command(job: Job) -> Iterator[Warning]:
    for type, spec in job.replicas.items():
        container = default_container(spec.template, job.kind)
        if type not in job.kind.idle and not container.get("command") and not container.get("args"):
            index = default_container_index(spec.template, job.kind)
            at = ("spec", job.kind.replica_key, type, "template", "spec", "containers", index)
            yield Warning(at, "has no command, so the image's own runs; the laptop cluster runs no images and needs one")


def _without_etcd(job: Job) -> Iterator[Warning]:
    """Warn of a job that would wait for an etcd on this machine's laptop cluster."""
    if needs_own_etcd(job) and etcd.program() is None:
        words = "asks for an etcd and rdzvHost names none, so the installation must have one; the laptop cluster has none here: "
        yield Warning(("spec", "elasticPolicy", "rdzvBackend"), f"{words}{etcd.remedy()}, or set rdzvHost")


def as_lines(report: Report) -> Iterator[str]:
    for verdict in report.verdicts:
        for found in verdict.in_order(verdict.found):
            yield f"{verdict.place(found.at)}: {'warning' if isinstance(found, Warning) else 'error'}: {found}"
        title = f"{verdict.kind or 'object'} {verdict.name or 'without a name'}"
        yield f"{verdict.place()}: {title} is {'invalid' if verdict.problems else 'valid'}"
    for file, error in report.unreadable:
        place = file if error.line is None else f"{file}:{error.line}"
        yield f"{place}: error: cannot be read: {error}"
    invalid = sum(1 for verdict in report.verdicts if verdict.problems)
    parts = [f"{len(report.verdicts) - invalid} valid", f"{invalid} invalid"]
    if report.unreadable:
        parts.append(f"{len(report.unreadable)} unreadable")
    if report.others:
        parts.append(f"{counted(len(report.others), 'other object')} skipped")
    yield f"{counted(len(report.verdicts), 'job')}: {', '.join(parts)}"
    if report.is_without_jobs:
        yield f"found {_kinds(report.others)}; jobs are {', '.join(KINDS)}, of {API_VERSION}"


def _kinds(others: list[Document]) -> str:
    """Name the kinds of the objects that are no jobs, the most frequent first."""
    counted = Counter(shortened(_text_at(one.value, "kind") or f"an object without kind ({_keys(one.value)})") for one in others)
    named = [f"{kind} ({count})" if count > 1 else kind for kind, count in counted.most_common(MOST_NAMED)]
    more = len(counted) - len(named)
    return ", ".join([*named, *([f"{more} more kinds"] if more > 0 else [])])


def _keys(value: dict[str, Any]) -> str:
    return ", ".join(map(str, list(value)[:3])) if value else "empty"


def _as_data(report: Report) -> dict[str, Any]:
    return {
        "valid": report.exit_code == 0,
        "jobs": [_verdict_data(verdict) for verdict in report.verdicts],
        "unreadable": [{"file": file, "line": error.line, "message": str(error)} for file, error in report.unreadable],
        "others": len(report.others),
    }


def _verdict_data(verdict: Verdict) -> dict[str, Any]:
    def listed(found: tuple[Problem, ...]) -> list[dict[str, Any]]:
        return [{"path": item.path, "line": verdict.document.line(item.at), "message": item.message} for item in found]

    return {
        "file": verdict.file,
        "line": verdict.document.line(()),
        "kind": verdict.kind,
        "name": verdict.name,
        "valid": not verdict.problems,
        "problems": listed(verdict.problems),
        "warnings": listed(verdict.warnings),
    }
