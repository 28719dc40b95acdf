"""One thin asynchronous client of the Kubernetes API, and a cache fed by list and watch.

`connect` is the way in; importing this package loads nothing heavy, its modules bring aiohttp when they are used.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic.kube.client import Kube


AGENT = "elastic-training"


def connect(
    kubeconfig: Path | str | None = None,
    *,
    context: str | None = None,
    host: str = "",
    port: str = "443",
    agent: str = AGENT,
    most_listed: int | None = None,
) -> "Kube":
    """Make a client from a kubeconfig file, or, without one, from the pod's service account at host and port (of the environment).

    `agent` is its name in an API server's audit log. most_listed: a limit for the bytes of one list.
    """
    from elastic.kube.access import from_kubeconfig, in_cluster
    from elastic.kube.client import Kube
    from elastic.kube.paging import MOST_LISTED

    access = from_kubeconfig(Path(kubeconfig), context=context) if kubeconfig is not None else in_cluster(host=host, port=port)
    return Kube(access, user_agent=agent, most_listed=most_listed or MOST_LISTED)
