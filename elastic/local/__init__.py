"""The laptop cluster: a Kubernetes API whose pods are local processes. Programs use it through `LocalCluster`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic.local.cluster import ClusterError, LocalCluster

__all__ = ["ClusterError", "LocalCluster"]


def __getattr__(name: str) -> object:
    """Load the cluster's modules only when a program asks for one, so that importing this package stays cheap for its processes."""
    if name in __all__:
        from elastic.local import cluster

        return getattr(cluster, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
