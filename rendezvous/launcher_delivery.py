"""How elastic_worker gets into the launcher of an elastic MPIJob: pure changes to its pod.

There it comes before horovodrun on PATH, and leaves every other program alone. A launcher that cannot have it works too: its
discover_hosts.sh asks for the hosts. The workers have it too, for training programs that import it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from elastic_training.rendezvous.delivery import INIT_CONTAINER, VOLUME, init_container

COMMITS_VOLUME = "elastic-commits"
WRAPPER = """\
PATH="$ELASTIC_LIBRARY/bin:$PATH"
export PATH
case $1 in
  */horovodrun) export ELASTIC_HOROVODRUN="$1"; shift; set -- horovodrun "$@" ;;
esac
exec "$@"
"""


def library_folder(job_uid: str) -> str:
    """Return the library's folder, the same in launcher and workers: horovodrun passes its variables to the workers' processes."""
    return f"/tmp/elastic-{job_uid}-horovod"


def commits_folder(job_uid: str) -> str:
    return f"/tmp/elastic-{job_uid}-commits"


def runs_horovod(spec: Mapping[str, Any]) -> bool:
    """Return whether the launcher's command names horovodrun. A script in the image may start it too, which cannot be seen here."""
    first = spec["containers"][0]
    return any("horovodrun" in str(word) for word in [*(first.get("command") or ()), *(first.get("args") or ())])


def deliver(spec: dict[str, Any], *, job_uid: str, image: str, hosts_url: str) -> None:
    """Change the launcher's pod spec, unless only the image knows the command."""
    first = spec["containers"][0]
    command: Sequence[str] = first.get("command") or ()
    if not command:
        return
    folder = library_folder(job_uid)
    _add_library(spec, folder, image)
    first["command"] = ["/bin/sh", "-c", WRAPPER, "elastic", *command]
    values = {"ELASTIC_LIBRARY": folder, "ELASTIC_HOSTS_URL": hosts_url, "ELASTIC_COMMITS": commits_folder(job_uid)}
    ours = [{"name": name, "value": value} for name, value in values.items()]
    first["env"] = [*(entry for entry in first.get("env") or () if entry.get("name") not in values), *ours]


def deliver_to_worker(spec: dict[str, Any], *, job_uid: str, image: str) -> None:
    """Change a worker's pod spec: programs may import the library there, and keep their commits for the pod's life."""
    _add_library(spec, library_folder(job_uid), image)
    spec["volumes"].append({"name": COMMITS_VOLUME, "emptyDir": {}})
    spec["containers"][0]["volumeMounts"].append({"name": COMMITS_VOLUME, "mountPath": commits_folder(job_uid)})


def _add_library(spec: dict[str, Any], folder: str, image: str) -> None:
    first, mount = spec["containers"][0], {"name": VOLUME, "mountPath": folder}
    init = init_container(INIT_CONTAINER, image=image, command=["python3", "-m", "elastic_worker.startup.deliver", folder], spec=spec)
    spec["volumes"] = [*(spec.get("volumes") or ()), {"name": VOLUME, "emptyDir": {"sizeLimit": "16Mi"}}]
    spec["initContainers"] = [*(spec.get("initContainers") or ()), init | {"volumeMounts": [mount]}]
    first["volumeMounts"] = [*(first.get("volumeMounts") or ()), mount | {"readOnly": True}]
