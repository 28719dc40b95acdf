"""Generate JSON of any shape, and plant it anywhere in a good job."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.just(10**60),
    st.floats(),
    st.text(max_size=8),
    st.text(st.characters(categories=["Cs", "Lu"]), max_size=3),
    st.sampled_from([2**53 + 1, 2**63, -(2**63) - 1, 1e300, float("nan")]),
    st.sampled_from(["", "None", "Worker", "1", "-1", "elastic"]),
)
keys = st.one_of(
    st.sampled_from(["Worker", "worker", "replicas", "template", "spec", "containers", "name", "image", "ports"]), st.text(max_size=5)
)
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.one_of(keys, st.integers(), st.booleans()), inner, max_size=4)),
    max_leaves=12,
)


def places(value: Any, at: tuple = ()) -> list[tuple]:
    """Return the path of every part of a job."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, child in children for place in places(child, (*at, key)))]


def planted(obj: Any, at: tuple, value: Any) -> Any:
    if not at:
        return value
    made = copy.copy(obj)
    made[at[0]] = planted(obj[at[0]], at[1:], value)
    return made
