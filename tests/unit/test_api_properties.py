"""Laws of parse: it fails with nothing but SpecError, defaults are idempotent, the quick way and the thorough way agree."""

from __future__ import annotations

from typing import Any

import pytest
from arbitrary_json import anything, places, planted
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from written_jobs import job, job_names

from elastic.api import KINDS, SpecError, parse
from elastic.api.job import Job, to_object


def parsed(obj: Any, *, stored: bool = False) -> Job | None:
    """The job, or None for what is refused as it should be."""
    try:
        return parse(obj, stored=stored)[0]
    except SpecError as refused:
        error = refused
    assert error.problems
    assert str(error)
    return None


@given(anything, st.booleans())
def test_whatever_it_is_given_parse_fails_with_nothing_but_a_spec_error(obj, stored):
    parsed(obj, stored=stored)


@given(st.sampled_from(sorted(KINDS)), anything, anything, anything)
def test_any_spec_and_status_under_a_good_head_fails_with_nothing_but_a_spec_error(kind, metadata, spec, status):
    parsed({"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": metadata, "spec": spec, "status": status})


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_anything_at_any_place_of_a_good_job_fails_with_nothing_but_a_spec_error(data):
    good = job(data.draw(st.sampled_from(job_names())))
    at = data.draw(st.sampled_from(places(good)))
    parsed(planted(good, at, data.draw(anything)), stored=data.draw(st.booleans()))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_an_unknown_field_never_changes_what_is_read(data):
    good = job(data.draw(st.sampled_from(job_names())))
    before = parse(good)[0]
    spec = good["spec"] | {"notAField": data.draw(anything)}
    if "runPolicy" in spec:
        spec["runPolicy"] = spec["runPolicy"] | {"notAField": data.draw(anything)}
    assert parse(good | {"spec": spec})[0] == before


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = {"spec": [value]}
    return value


class Odd:
    """Neither JSON nor anything near it."""


@pytest.mark.parametrize(
    "value", [10**5000, -(10**5000), nested(50_000), Odd(), b"bytes", {1, 2}, float("nan"), {"": {None: 1}}], ids=lambda v: type(v).__name__
)
def test_monstrous_values_at_every_place_fail_with_nothing_but_a_spec_error(value):
    parsed(value)
    for name in ("pytorch-static", "pytorch-elastic-ours", "mpi-static"):
        good = job(name) | {"status": {"conditions": [{"type": "Created", "status": "True"}], "startTime": "2026-01-31T12:00:00Z"}}
        for at in places(good):
            parsed(planted(good, at, value))


@pytest.mark.parametrize("name", job_names())
def test_a_valid_job_is_written_and_read_as_the_same_job(name):
    once = parse(job(name))[0]
    again = parse(to_object(once))[0]
    assert again == once
    assert to_object(again) == to_object(once)


counts = st.integers(1, 30)


@given(
    least=st.none() | counts, most=st.none() | counts, replicas=st.integers(0, 40), kind=st.sampled_from(["PyTorchJob", "JAXJob", "TFJob"])
)
def test_a_stored_job_is_never_refused_for_its_count_and_stays_within_what_was_written(least, most, replicas, kind):
    facts = KINDS[kind]
    template = {"spec": {"containers": [{"name": facts.container, "image": "x"}]}}
    policy = {key: value for key, value in (("minReplicas", least), ("maxReplicas", most)) if value is not None}
    obj = {
        "apiVersion": "kubeflow.org/v1",
        "kind": kind,
        "metadata": {"name": "a"},
        "spec": {"elasticPolicy": policy, facts.replica_key: {"Worker": {"replicas": replicas, "template": template}}},
    }
    found = parsed(obj, stored=True)
    if least is not None and most is not None and least > most:
        assert found is None
        return
    assert found is not None
    assert least is None or found.workers >= least
    assert most is None or found.workers <= most
    assert found.least_workers <= found.most_workers
    fresh = parsed(obj)
    assert fresh is None or fresh == found
    again = parsed(to_object(found), stored=True)
    assert again == found
