"""The collections of the API that hold jobs, by kind."""

from elastic.api.kinds import GROUP, KINDS, VERSION
from elastic.kube.resources import Resource

JOBS = {kind.name: Resource(GROUP, VERSION, kind.plural, kind=kind.name) for kind in KINDS.values()}
