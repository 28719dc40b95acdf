"""How elastic_worker gets into the launcher of an elastic MPIJob: pure changes to its pod. There it comes before horovodrun on PATH, and
leaves every other program alone. A launcher that cannot have it works too: its discover_hosts.sh asks for the hosts.
"""

from collections.abc import Sequence
from typing import Any

from rendezvous.delivery import INIT_CONTAINER, VOLUME, init_container

WRAPPER = """\
PATH="$ELASTIC_LIBRARY/bin:$PATH"
export PATH
case $1 in
  */horovodrun) export ELASTIC_HOROVODRUN="$1"; shift; set -- horovodrun "$@" ;;
esac
exec "$@"
"""


def deliver(spec: dict[str, Any], *, job_uid: str, image: str, hosts_url: str) -> None:
    """Changes the launcher's pod spec, unless only the image knows the command."""
    first = spec["containers"][0]
    command: Sequence[str] = first.get("command") or ()
    if not command:
        return
    folder = f"/tmp/elastic-{job_uid}-launcher"
    mount = {"name": VOLUME, "mountPath": folder}
    init = init_container(INIT_CONTAINER, image=image, command=["python3", "-m", "elastic_worker.startup.deliver", folder], spec=spec)
    spec["volumes"] = [*(spec.get("volumes") or ()), {"name": VOLUME, "emptyDir": {"sizeLimit": "16Mi"}}]
    spec["initContainers"] = [*(spec.get("initContainers") or ()), init | {"volumeMounts": [mount]}]
    first["volumeMounts"] = [*(first.get("volumeMounts") or ()), mount | {"readOnly": True}]
    first["command"] = ["/bin/sh", "-c", WRAPPER, "elastic", *command]
    ours = [{"name": "ELASTIC_LIBRARY", "value": folder}, {"name": "ELASTIC_HOSTS_URL", "value": hosts_url}]
    names = {entry["name"] for entry in ours}
    first["env"] = [*(entry for entry in first.get("env") or () if entry.get("name") not in names), *ours]
