"""Install the control plane as the options say: look at the cluster first, refuse what would go wrong, show the changes, and make them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import click

from elastic.api.kinds import KINDS
from elastic.api.trainer.modes import Mode
from elastic.cli.installing import changing, differences, looking, looking_trainer, manifests, obstacles, rights, shared_secret, trainer
from elastic.cli.installing.components import NAMESPACED, STANDALONE, TRAIN_JOBS, chosen_by, groups_needed, misplaced, problems
from elastic.cli.installing.options import IMAGE, Options
from elastic.cli.installing.values.given import BadValues, Values, complete, without
from elastic.cli.jobs.found import check_namespace
from elastic.cli.printing import plain
from elastic.kube.client import Kube
from elastic.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, DEPLOYMENTS, SECRETS, Object

BUILD = "build and push it with deploy/Dockerfile (docs/deploy.md), then give --image REGISTRY/elastic-training:TAG"
GRANTING = ("ClusterRole", "Role")


def release() -> str:
    return metadata.version("elastic-training")


def serving(mode: Mode, namespace: str) -> Options:
    """Return the options that change only the mode of an installed control plane."""
    return Options(namespace=namespace, train_jobs=mode, is_agreed=True, waits=False)


def check(options: Options, given: Mapping[str, Any]) -> None:
    """Refuse values that do not go together, or that the overlay has no place for."""
    wrong = [*misplaced(options.overlay, given), *problems(options.overlay, chosen_by(complete(given)))]
    if wrong:
        raise click.UsageError("; ".join(wrong))


def objects(options: Options, given: Mapping[str, Any], values: Mapping[str, Any]) -> list[Object]:
    """Return the objects of the control plane, with the labels and annotations that a later run needs."""
    made = manifests.objects(options.overlay, values, namespace=options.namespace)
    kept = without(given, IMAGE)
    return [obstacles.marked(item, release(), kept) for item in made]


def outside_objects(options: Options, values: Mapping[str, Any]) -> list[Object]:
    """Return the objects of TrainJobs that are not in the control plane's namespace."""
    found = trainer.outside(Mode(values["trainjobs"]), home=options.namespace)
    return [obstacles.marked(item, release(), {}) for item in found]


async def carry_out(kube: Kube, options: Options) -> None:
    """Install the control plane as the options say."""
    before = await looking.controller(kube, options.namespace)
    was = trainer.mode_of(before)
    given = _given(options, before, was)
    values = complete(given)
    mode = Mode(values["trainjobs"])
    check(options, given)
    await _check_rights(kube, options, values)
    groups = tuple(groups_needed(values))
    found = await looking.seen(kube, options.overlay, options.namespace, groups=groups, has_mpi=values["mpi"])
    if words := obstacles.obstacle(found, options.wanted(groups, release())):
        raise click.ClickException(plain(words))
    if mode is not Mode.OFF or was is not mode:
        sight = await looking_trainer.seen(kube)
        if wrong := next(trainer.obstacles(sight, before=was, wanted=mode), None):
            raise click.ClickException(plain(wrong))
    values["image"] = values["image"] or _installed_image(before)
    if words := obstacles.of_another_release(values["image"], release()):
        click.echo(plain(words), err=True)
    outside = await _without_foreign(kube, outside_objects(options, values))
    items = await _without_foreign_namespace(kube, objects(options, given, values))
    surplus = await _surplus(kube, options, items, mode) if before else []
    if not values["installation"]["create"]:
        await _check_secret(kube, options)
    await _try_grants(kube, items, options)
    if options.is_trial:
        await _say_plan(kube, options, [*outside, *items], surplus)
        return
    if not await _is_agreed(kube, options, [*outside, *items], surplus, is_there=before is not None):
        return
    _say_choice(values)
    await _make(kube, options, outside, items, surplus)
    click.echo(f"elastic-training {release()} is {'ready' if options.waits else 'made'} in namespace {options.namespace}; {_next(options)}")


def _given(options: Options, controller: Object | None, was: Mode) -> Values:
    try:
        remembered = obstacles.given_of(controller) if controller is not None and options.files is None else {}
        return options.given(remembered, was)
    except BadValues as error:
        raise click.ClickException(f"{error}; give all values again with --values FILE") from error


def _say_choice(values: Mapping[str, Any]) -> None:
    if named := [name for name in chosen_by(values) if name != TRAIN_JOBS]:
        click.echo(f"components: {', '.join(named)}")
    if values["trainjobs"] != Mode.OFF:
        click.echo(f"TrainJobs: {values['trainjobs']}")


async def _is_agreed(kube: Kube, options: Options, items: list[Object], surplus: list[Object], *, is_there: bool) -> bool:
    """Show the changes, and return whether to make them. Only a person at a terminal is asked, about an existing installation."""
    asks = is_there and not options.is_agreed and sys.stdin.isatty() and sys.stdout.isatty()
    if not (asks or options.shows_changes):
        return True
    found = await differences.of(kube, items, force=options.takes_over, has_kinds=options.overlay == STANDALONE)
    lines = [*differences.in_words(found), *(f"- {manifests.name(item)} is deleted" for item in surplus)]
    for line in lines:
        click.echo(differences.coloured(plain(line)))
    if options.shows_changes:
        click.echo("Nothing was changed." if lines else "Nothing differs.")
        return False
    if not lines or click.confirm("Make these changes?"):
        return True
    click.echo("Nothing was changed.")
    return False


def _next(options: Options) -> str:
    return (
        "see it with `elastic doctor`, and run a job with `elastic run FILE`" if options.waits else "`elastic doctor` says whether it runs"
    )


def _installed_image(controller: Object | None) -> str:
    """Return the installed image if it is of this release. Another one would not fit the objects that are made."""
    if controller is not None and obstacles.version_of(controller) == release() and (image := obstacles.image_of(controller)):
        return image
    raise click.UsageError(f"--image is missing; {BUILD}")


async def _check_rights(kube: Kube, options: Options, values: Mapping[str, Any]) -> None:
    """Check rights before obstacles are looked for. An object that cannot be read would look as if it did not exist."""
    items = manifests.objects(options.overlay, values, namespace=options.namespace)
    items += trainer.outside(Mode(values["trainjobs"]), home=options.namespace)
    asked = rights.over(items, rights.INSTALLING)
    secret = {"kind": "Secret", "metadata": {"name": shared_secret.NAME, "namespace": options.namespace}}
    asked += [right for right in rights.over([secret], ("get", "create")) if right not in asked]
    if options.overlay == STANDALONE:
        defining = [rights.Right(verb, CUSTOM_RESOURCE_DEFINITIONS) for verb in rights.INSTALLING]
        asked += [right for right in defining if right not in asked]
        asked.append(rights.Right("list", DEPLOYMENTS))
    if lacking := await rights.missing(kube, asked):
        advice = f", or install for one namespace with --overlay {NAMESPACED}" if options.overlay == STANDALONE else ""
        raise click.ClickException(f"{rights.in_words(lacking, len(asked))}; ask an administrator of the cluster{advice}")


async def _check_secret(kube: Kube, options: Options) -> None:
    if await looking.read(kube, SECRETS, shared_secret.NAME, namespace=options.namespace) is None:
        raise click.ClickException(
            f"installation.create is false, and the Secret {options.namespace}/{shared_secret.NAME} does not exist; "
            "create it with deploy/installation.sh, or leave the value out"
        )


async def _without_foreign_namespace(kube: Kube, items: list[Object]) -> list[Object]:
    """Leave out a namespace that others made. It stays as it is, because our labels would refuse their pods."""
    kept = []
    for item in items:
        if item["kind"] == "Namespace" and (there := await looking.there(kube, item)) is not None and not obstacles.is_managed(there):
            click.echo(f"namespace {item['metadata']['name']} is there already and stays as it is", err=True)
            continue
        kept.append(item)
    return kept


async def _without_foreign(kube: Kube, items: list[Object]) -> list[Object]:
    """Leave out the objects of TrainJobs that somebody else has made or changed."""
    kept = []
    for item in items:
        if (there := await looking.there(kube, item)) is not None and not trainer.is_only_ours(there):
            click.echo(f"{manifests.name(item)} is there already and stays as it is", err=True)
            continue
        kept.append(item)
    return kept


async def _surplus(kube: Kube, options: Options, items: list[Object], mode: Mode) -> list[Object]:
    """Return the objects that an earlier choice of components and mode made, and this one does not have."""
    kept = {manifests.name(item) for item in items}
    gone = []
    others = trainer.lease_objects(options.namespace) if mode is not Mode.INSTEAD else []
    for item in (*others, *manifests.every_object(options.overlay, namespace=options.namespace)):
        if item["kind"] == "Namespace" or manifests.name(item) in kept:
            continue
        there = await looking.there(kube, item)
        if there is not None and obstacles.is_managed(there):
            gone.append(item)
    return gone


async def _try_grants(kube: Kube, items: list[Object], options: Options) -> None:
    """Try to apply roles before anything changes, because nobody may grant more than they have. Roles wait for their namespace."""
    if options.overlay == NAMESPACED:
        await check_namespace(kube, options.namespace)
    for item in items:
        if item["kind"] in GRANTING and (options.overlay == NAMESPACED or "namespace" not in item["metadata"]):
            await changing.apply(kube, item, force=options.takes_over, dry_run=True)


async def _say_plan(kube: Kube, options: Options, items: list[Object], surplus: list[Object]) -> None:
    if options.overlay == STANDALONE:
        known = len(await looking.definitions(kube))
        click.echo(f"would apply {len(KINDS)} definitions of kinds, {known} of them there already")
    for item in items:
        verb = "create" if await looking.there(kube, item) is None else "apply"
        click.echo(plain(f"would {verb} {manifests.name(item)}"))
    if await looking.read(kube, SECRETS, shared_secret.NAME, namespace=options.namespace) is None:
        click.echo(f"would create Secret {options.namespace}/{shared_secret.NAME}, with a new key")
    for item in surplus:
        click.echo(plain(f"would delete {manifests.name(item)}"))
    click.echo("Nothing was changed.")


async def _make(kube: Kube, options: Options, outside: list[Object], items: list[Object], surplus: list[Object]) -> None:
    if options.overlay == STANDALONE:
        await changing.define(kube)
        await changing.until_defined(kube, options.timeout_s)
        click.echo(f"{len(KINDS)} definitions of kinds are established")
    await changing.bring_train_jobs(kube, outside, force=options.takes_over, timeout_s=options.timeout_s)
    for item in (item for item in items if item["kind"] == "Namespace"):
        await changing.apply(kube, item, force=options.takes_over)
    await changing.ensure_secret(kube, options.namespace)
    for item in (item for item in items if item["kind"] != "Namespace"):
        await changing.apply(kube, item, force=options.takes_over)
    click.echo(f"{len(outside) + len(items)} objects are applied")
    if surplus:
        await changing.remove(kube, surplus, options.timeout_s)
    if options.waits:
        await changing.until_ready(kube, items, options.timeout_s)
