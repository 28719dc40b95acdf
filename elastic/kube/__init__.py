"""One thin asynchronous client of the Kubernetes API, and a cache fed by list and watch.

`connect` is the way in; importing this package loads nothing heavy, its modules bring aiohttp when they are used.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic.kube.client import Kube


AGENT = "elastic-training"


def connect(
    kubeconfig: Path | str | None = None, *, context: str | None = None, host: str = "", port: str = "443", agent: str = AGENT
) -> "Kube":
    """A client from a kubeconfig file, or, without one, from the pod's service account at host and port (of the environment).

    `agent` is what an API server's audit log calls it.
    """
    from elastic.kube.access import from_kubeconfig, in_cluster
    from elastic.kube.client import Kube

    if kubeconfig is not None:
        return Kube(from_kubeconfig(Path(kubeconfig), context=context), user_agent=agent)
    return Kube(in_cluster(host=host, port=port), user_agent=agent)
