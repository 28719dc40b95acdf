"""Read the image that the controller's own pod runs, so that an installation names its image in one place."""

from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import PODS


class NoPod(RuntimeError):
    """The API server knows no pod in which this process runs."""


async def own_image(kube: Kube, *, pod: str) -> str:
    """`pod` is the name of this host, which a pod's name is unless its template says otherwise."""
    namespace = kube.access.namespace
    try:
        there = await kube.get(PODS, pod, namespace=namespace)
    except KubeError as error:
        raise NoPod(f"--worker-image is own, but pod {namespace}/{pod} could not be read ({error.message}); name the image") from error
    return str(there["spec"]["containers"][0]["image"])
