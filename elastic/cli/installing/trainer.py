"""Decide how `elastic install` serves TrainJobs: in place of Kubeflow Trainer's own controller, next to it, or not at all. Pure.

Objects with upstream's names are ours only if nobody else has written them. All others stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from elastic.api import webhook
from elastic.api.counting import counted
from elastic.api.kinds import KINDS, as_owned
from elastic.api.rights import as_objects, trainer_lease_roles
from elastic.api.trainer import shipped
from elastic.api.trainer.crd import definitions
from elastic.api.trainer.modes import TRAINER_LEASE, Mode, is_of_another
from elastic.cli.installing.obstacles import MANAGER, is_managed, replicas, where
from elastic.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, Object

FLAG = "--trainjobs="
DEFINITIONS = tuple(definition["metadata"]["name"] for definition in definitions())
PROGRAM = "trainer-controller-manager"
"""Part of the name and of the image of Kubeflow Trainer's controller."""
LEAVES_OTHERS_ALONE = (2, 3, 0)
"""First release of Kubeflow Trainer whose controller reads managedBy."""
MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class TrainerSeen:
    """The state of TrainJobs and of Kubeflow Trainer in the cluster."""

    deployments: Sequence[Object] = ()
    """Kubeflow Trainer's controllers."""
    holders: Sequence[str] = ()
    """Processes of others that hold and renew the Lease, as NAMESPACE: HOLDER."""
    webhooks: Sequence[Object] = ()
    """Kubeflow Trainer's webhook configurations."""
    version: str = ""
    """Release of Kubeflow Trainer; empty if nobody knows."""
    is_defined: bool = False
    theirs: Sequence[str] = ()
    """TrainJobs that train in a JobSet, as NAMESPACE/NAME."""
    ours: Sequence[str] = ()
    """TrainJobs that train in a job of ours, and that Kubeflow Trainer would start again."""
    idle_job_sets: Sequence[Object] = ()
    """JobSets of suspended TrainJobs."""
    idle_jobs: Sequence[Object] = ()
    """Jobs of ours of suspended TrainJobs."""

    @property
    def running(self) -> str:
        """Kubeflow Trainer's controller in words, if it runs."""
        found = next((f"deployment {where(one)}" for one in self.deployments if replicas(one)), "")
        return found or next((f"the process that holds its Lease in {holder}" for holder in self.holders), "")


def obstacles(seen: TrainerSeen, *, before: Mode, wanted: Mode) -> Iterator[str]:
    """Yield why this mode cannot be had now, with what to do."""
    if wanted is Mode.INSTEAD:
        if running := seen.running:
            yield (
                f"Kubeflow Trainer runs here ({running}), and two controllers would run each TrainJob twice; "
                "take its TrainJobs over with `elastic adopt --trainer`, or leave them to it with --trainjobs beside"
            )
        yield from of_theirs(seen)
    elif wanted is Mode.BESIDE:
        if not seen.is_defined:
            yield f"--trainjobs {wanted} needs Kubeflow Trainer, which is not here; install it first, or give --trainjobs {Mode.INSTEAD}"
        elif reason := runs_all(seen.version):
            yield f"{reason}, or give --trainjobs {Mode.INSTEAD}"
    if before is Mode.INSTEAD and wanted is not Mode.INSTEAD:
        yield from of_ours(seen)


def runs_all(version: str) -> str:
    """Return why a release of Kubeflow Trainer runs the TrainJobs of other controllers, too; empty if it does not, or nobody knows."""
    release, wanted = _version(version), ".".join(map(str, LEAVES_OTHERS_ALONE))
    if not release or release >= LEAVES_OTHERS_ALONE:
        return ""
    return (
        f"Kubeflow Trainer is {version}, which runs every TrainJob; upgrade it to {wanted}, which leaves alone those of other controllers"
    )


def of_theirs(seen: TrainerSeen) -> Iterator[str]:
    """Yield why our controller cannot have the TrainJobs now."""
    if seen.theirs:
        yield (
            f"{_named(seen.theirs)} in a JobSet of Kubeflow Trainer, and our controller would start it a second time; "
            "wait for its end, or suspend it (spec.suspend: true)"
        )


def of_ours(seen: TrainerSeen) -> Iterator[str]:
    """Yield why Kubeflow Trainer cannot have the TrainJobs now."""
    if seen.ours:
        yield (
            f"{_named(seen.ours)} under our controller, and Kubeflow Trainer would start it a second time; "
            "wait for its end, or suspend it with `elastic suspend`"
        )


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{counted(len(names), 'TrainJob')} ({', '.join(names[:MOST_NAMED])}{more}) trains" + ("" if len(names) == 1 else " each")


def mode_of(controller: Object | None) -> Mode:
    """Return the mode of an installed controller."""
    pod = (((controller or {}).get("spec") or {}).get("template") or {}).get("spec") or {}
    flags = [str(flag) for container in pod.get("containers") or () for flag in container.get("args") or ()]
    word = next((flag.removeprefix(FLAG) for flag in flags if flag.startswith(FLAG)), Mode.OFF.value)
    return Mode(word) if word in {mode.value for mode in Mode} else Mode.OFF


def outside(mode: Mode, *, home: str) -> list[Object]:
    """Return the objects of TrainJobs that are not in the control plane's namespace `home`: definitions, runtimes, rights at the Lease."""
    if mode is not Mode.INSTEAD:
        return []
    namespace, *others = shipped.objects()
    return [*definitions(), namespace, *lease_objects(home), *others]


def lease_objects(home: str) -> list[Object]:
    """Return the right to hold Kubeflow Trainer's Lease."""
    return [item for role in trainer_lease_roles() for item in as_objects(role, home=home)]


def is_only_ours(item: Object) -> bool:
    """Return whether `elastic install` made this object, and nobody else has written it since."""
    entries = item["metadata"].get("managedFields") or ()
    return is_managed(item) and all(one.get("manager") == MANAGER or one.get("subresource") for one in entries)


def is_theirs(configuration: Object) -> bool:
    """Return whether a webhook configuration is Kubeflow Trainer's."""
    groups = {
        group for hook in configuration.get("webhooks") or () for rule in hook.get("rules") or () for group in rule.get("apiGroups") or ()
    }
    return TRAINER_LEASE in groups and not configuration["metadata"]["name"].startswith(webhook.NAME)


def is_controller(deployment: Object) -> bool:
    """Return whether a deployment is Kubeflow Trainer's controller."""
    pod = (((deployment.get("spec") or {}).get("template") or {}).get("spec")) or {}
    images = [str(container.get("image")) for container in pod.get("containers") or ()]
    return any(PROGRAM in word for word in (deployment["metadata"]["name"], *images))


def runs(train_job: Object) -> bool:
    """Return whether a TrainJob is neither over nor suspended, and belongs to the controller of TrainJobs."""
    conditions = (train_job.get("status") or {}).get("conditions") or ()
    is_over = any(one.get("type") in ("Complete", "Failed") and one.get("status") == "True" for one in conditions)
    return not (is_over or is_of_another(train_job) or (train_job.get("spec") or {}).get("suspend"))


def going_and_idle(train_jobs: Sequence[Object], behind: Sequence[Object]) -> tuple[list[str], list[Object]]:
    """Return the TrainJobs that train in one of these objects behind them, and the objects behind suspended TrainJobs."""
    found = {where(one): one for one in behind}
    going = {where(one) for one in train_jobs if runs(one)}
    suspended = {where(one) for one in train_jobs if (one.get("spec") or {}).get("suspend") and not is_of_another(one)}
    return sorted(going & found.keys()), [found[name] for name in sorted(suspended & found.keys())]


def lowered(jobs: Sequence[Object]) -> list[Object]:
    """Return the jobs that belong to TrainJobs."""
    return [job for job in jobs if as_owned(KINDS[job["kind"]], job["metadata"]).role]


def removable(home: str, *, takes_jobs: bool) -> list[Object]:
    """Return the objects that an uninstallation may remove. Others may have put objects into the namespace of shipped.NAMESPACE."""
    found = outside(Mode.INSTEAD, home=home) if takes_jobs else lease_objects(home)
    return [item for item in found if item["kind"] not in (NAMESPACES.kind, CUSTOM_RESOURCE_DEFINITIONS.kind)]


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])
