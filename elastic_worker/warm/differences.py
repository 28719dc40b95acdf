"""Finds differences between a worker forked from the warm interpreter and a plainly started one.

Functions named of_... answer in words; an empty answer means no difference. They change nothing. Variables that differ between workers
anyway are not compared.
"""

import os
import re
import typing

from elastic_worker.settings import GENERATION, LIGHTNING_NODES, REPORTS, WORLD

PER_WORKER = frozenset(
    (
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "ROLE_NAME",
        "LOCAL_WORLD_SIZE",
        "WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        GENERATION,
        REPORTS,
        WORLD,
        LIGHTNING_NODES,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "USE_LIBUV",
        "CUDA_VISIBLE_DEVICES",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
    )
)
"""Variables that torchrun, our handler and shells set for each worker. The import of torch reads none of them."""
PER_WORKER_PREFIX = "TORCHELASTIC_"
STATUS_LINES = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
PLACEMENT_LINES = ("Cpus_allowed_list", "Mems_allowed_list")
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
NICE = 18
OURS = "elastic_worker"
DEVICES = re.compile(r"^/dev/(nvidia|kfd|dri/|accel|neuron|davinci|habanalabs|hl\d)")

Environment = typing.Mapping[str, str]


def is_per_worker(name: str) -> bool:
    return name in PER_WORKER or name.startswith(PER_WORKER_PREFIX)


def of_environment(before: Environment, after: Environment, asked: Environment) -> str:
    """Name the first variable whose requested value is neither that before the imports nor that after them."""
    for name in sorted(set(before) | set(asked)):
        if not is_per_worker(name) and asked.get(name) not in (before.get(name), after.get(name)):
            return "{} differs from what it was when torch was imported".format(name)
    return ""


def environment_for(before: Environment, asked: Environment) -> typing.Dict[str, str]:
    """Return the environment in which to import again, so that workers like the requested one can start warm."""
    kept = {name: value for name, value in before.items() if is_per_worker(name)}
    kept.update({name: value for name, value in asked.items() if not is_per_worker(name)})
    return kept


def inherited_state(pid: int) -> typing.Dict[str, str]:
    """Return the kernel's state of a process that children inherit, except the parts that the stub passes explicitly."""
    folder = "/proc/{}".format(pid)
    with open(folder + "/status") as file:
        lines = dict(line.rstrip("\n").split(":", 1) for line in file)
    found = {name: lines[name].strip() for name in STATUS_LINES + PLACEMENT_LINES if name in lines}
    for name in ("limits", "cgroup", "oom_score_adj"):
        with open("{}/{}".format(folder, name)) as file:
            found[name] = file.read()
    with open(folder + "/stat") as file:
        found["nice"] = file.read().rpartition(")")[2].split()[NICE - 2]
    for name in NAMESPACES:
        found["namespace " + name] = os.readlink("{}/ns/{}".format(folder, name))
    found["root"] = os.readlink(folder + "/root")
    return found


def of_inherited_state(own: Environment, theirs: Environment) -> str:
    for name in sorted(set(own) | set(theirs)):
        if own.get(name) != theirs.get(name):
            return "its {} differs from the fork server's".format(name)
    return ""


def package_folders(modules: typing.Mapping[str, typing.Any], path: typing.Sequence[str]) -> typing.Dict[str, int]:
    """Return the folders of imported packages other than ours, with their mtimes, which change if a package is installed."""
    folders = set()
    for name, module in list(modules.items()):
        file = getattr(module, "__file__", None)
        if "." not in name and name != OURS and isinstance(file, str) and os.path.basename(file).startswith("__init__."):
            folders.add(os.path.dirname(os.path.dirname(file)))
    return changed_at(folders.intersection(path))


def changed_at(folders: typing.Iterable[str]) -> typing.Dict[str, int]:
    found = {}
    for folder in folders:
        try:
            found[folder] = os.stat(folder).st_mtime_ns
        except OSError:
            found[folder] = 0
    return found


def of_packages(then: typing.Mapping[str, int]) -> str:
    for folder, at in sorted(changed_at(then).items()):
        if at != then[folder]:
            return "{} has changed since torch was imported".format(folder)
    return ""


def of_process() -> str:
    """Return why this process must not fork: neither threads nor accelerator drivers survive it."""
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        return "the imports started {} more threads".format(threads - 1)
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + descriptor)
        except OSError:
            continue
        if DEVICES.match(target):
            return "the imports opened {}".format(target)
    return ""
