"""Find the place of a field of a job's spec by its name, for a field that was written in another place.

Names in several places are left out, and so are names inside lists, maps and pod templates, because they have no single place.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from msgspec import inspect

from elastic.api.errors import Path
from elastic.api.job import ElasticPolicy, KindOptions, ReplicaSpec, RunPolicy
from elastic.api.kinds import WORKER, Kind


@functools.cache
def places_of(kind: Kind) -> Mapping[str, str]:
    """`{"suspend": "spec.runPolicy.suspend", ...}`."""
    found = [
        *_below(RunPolicy, ("spec", "runPolicy")),
        *_below(ElasticPolicy, ("spec", "elasticPolicy")),
        *(("spec", field.encode_name) for field in _struct(inspect.type_info(KindOptions)).fields if field.name in kind.options),
    ]
    if WORKER in kind.types:
        found += _below(ReplicaSpec, ("spec", kind.replica_key, WORKER))
    times = Counter(at[-1] for at in found)
    return MappingProxyType({str(at[-1]): ".".join(map(str, at)) for at in found if times[at[-1]] == 1})


def _below(cls: type, at: Path) -> Iterator[Path]:
    for field in _struct(inspect.type_info(cls)).fields:
        place = (*at, field.encode_name)
        yield place
        kinds = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
        for kind in kinds:
            if isinstance(kind, inspect.StructType):
                yield from _below(kind.cls, place)


def _struct(type: inspect.Type) -> inspect.StructType:
    assert isinstance(type, inspect.StructType)
    return type
