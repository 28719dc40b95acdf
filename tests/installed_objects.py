"""The objects that `elastic install` makes of components, as tests name them."""

from __future__ import annotations

from collections.abc import Sequence

from elastic.cli.installing import manifests
from elastic.cli.installing.components import TRAIN_JOBS, with_components
from elastic.cli.installing.values.given import complete, joined
from elastic.kube.resources import Object


def installed_objects(overlay: str, components: Sequence[str], *, namespace: str, image: str) -> list[Object]:
    """Return the objects, apart from the kinds and the Secret with the key."""
    given = joined(with_components({}, components), {"image": image, "trainjobs": "instead" if TRAIN_JOBS in components else "off"})
    return manifests.objects(overlay, complete(given), namespace=namespace)
