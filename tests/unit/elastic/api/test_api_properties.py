"""Laws of parse: it fails with nothing but SpecError, defaults are idempotent, the quick way and the thorough way agree."""

from __future__ import annotations

import json
from typing import Any

import pytest
from arbitrary_json import anything, places, planted
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from written_jobs import job, job_names

from elastic.api import KINDS, SpecError, parse
from elastic.api.extent import MOST_CHARACTERS, MOST_DEPTH, MOST_VALUES, excess, stored_bytes
from elastic.api.job import Job, to_object
from elastic.api.reader import MOST_PROBLEMS, MOST_WARNINGS


def parsed(obj: Any, *, stored: bool = False) -> Job | None:
    """Return the job, or None for an object that is rightly refused."""
    try:
        return parse(obj, stored=stored)[0]
    except SpecError as refused:
        error = refused
    assert error.problems
    assert str(error)
    return None


@given(anything, st.booleans())
def test_parse_fails_with_nothing_but_a_spec_error_for_any_input(obj, stored):
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
    of_text = anything.filter(lambda value: excess(value) is None)
    spec = good["spec"] | {"notAField": data.draw(of_text)}
    if "runPolicy" in spec:
        spec["runPolicy"] = spec["runPolicy"] | {"notAField": data.draw(of_text)}
    assert parse(good | {"spec": spec})[0] == before


def large_job(draw: Any) -> dict[str, Any]:
    """Draw a job of several templates, one of which has about as many problems as are reported."""
    kind = draw(st.sampled_from(["PyTorchJob", "TFJob", "MPIJob", "MXJob"]))
    types = KINDS[kind].types
    full = draw(st.sampled_from(types))
    made = {}
    for name in types:
        containers = [{"name": KINDS[kind].container, "image": "x", "ports": [{"containerPort": 1}]}]
        containers += [{"name": i, "image": "x"} for i in range(draw(st.sampled_from([0, 20, 48, 49, 50, 51, 120])) if name == full else 0)]
        spec = {"containers": containers, "initContainers": [{"name": "i", "image": "x"}], "volumes": [{"name": "v"}]}
        made[name] = {"replicas": 1, "template": {"metadata": {"labels": {"a": "b"}}, "spec": spec}}
    head = {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": {"name": "train"}}
    return head | {"spec": {"elasticPolicy": {"metrics": [{"type": "External"}]}, KINDS[kind].replica_key: made}}


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_more_problems_than_are_told_of_hide_nothing_that_stops_the_reader(data):
    odd = large_job(data.draw)
    for _ in range(data.draw(st.integers(1, 3))):
        odd = planted(odd, data.draw(st.sampled_from(places(odd))), data.draw(anything))
    parsed(odd, stored=data.draw(st.booleans()))


@pytest.mark.parametrize(
    "spec", [{"initContainers": [1]}, {"volumes": 1}, {"containers": [{"name": "pytorch", "image": "x", "ports": [{}]}]}], ids=str
)
def test_a_malformed_template_with_more_problems_than_are_told(spec):
    broken = {"spec": {"containers": [{"name": 1, "image": "x"}] * 100}}
    malformed = {"spec": {"containers": [{"name": "pytorch", "image": "x"}]} | spec}
    for templates in ({"Master": broken, "Worker": malformed}, {"Worker": malformed, "Master": broken}):
        replicas = {name: {"template": template} for name, template in templates.items()}
        job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "a"}, "spec": {"pytorchReplicaSpecs": replicas}}
        with pytest.raises(SpecError) as caught:
            parse(job)
        *told, last = caught.value.problems
        assert len(told) == MOST_PROBLEMS
        assert str(last) == "there are more than 50 problems, and the rest was not looked at; mend these first"
        assert not caught.value.is_whole


def with_value(value: Any) -> dict[str, Any]:
    return job("pytorch-smallest") | {"spec": job("pytorch-smallest")["spec"] | {"unknown": value}}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (["x"] * MOST_VALUES, "there are more than 100000 values; a job needs fewer"),
        ("x" * MOST_CHARACTERS, "there are more than 1572864 characters; no API server stores so large a job"),
        ({"y" * MOST_CHARACTERS: {}}, "there are more than 1572864 characters; no API server stores so large a job"),
        ({"a": ["b\ud800"]}, "spec.unknown.a[0]: this holds half a character (a lone surrogate); write text that UTF-8 can hold"),
    ],
    ids=["values", "characters", "key", "surrogate"],
)
def test_a_job_that_is_too_large_is_refused_before_it_is_read(value, says):
    with pytest.raises(SpecError) as caught:
        parse(with_value(value))
    assert str(caught.value) == says


def padded(kib: int, *, padding: str = "x") -> Any:
    obj = job("pytorch-elastic")
    obj["metadata"]["annotations"] = {"example.com/notes": padding * (kib * 1024 // len(padding))}
    return obj


def test_a_job_that_leaves_no_room_for_its_status_is_refused_unless_it_is_stored_already():
    with pytest.raises(SpecError) as caught:
        parse(padded(480))
    assert str(caught.value) == (
        "without its status the job is larger than 480 KiB, so that the API server could not store its status as well;"
        " shorten it, for example by moving long texts from the pod templates to a ConfigMap"
    )
    assert parsed(padded(480), stored=True) is not None
    assert parsed(padded(476)) is not None
    assert parsed(padded(476) | {"status": {"elastic": {"counted": ["x" * 36] * 10_000}}}) is not None, "its status has its own room"


def test_a_job_is_measured_as_the_api_server_writes_it():
    with pytest.raises(SpecError, match="larger than 480 KiB"):
        parse(padded(100, padding="<"))


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_no_object_takes_more_bytes_than_are_reckoned(obj):
    """Go writes <, > and & as six bytes each, and other characters as Python does without escapes for what is not ASCII."""
    as_go = json.dumps(obj, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        as_go = as_go.replace(character, f"\\u{ord(character):04x}")
    assert len(as_go.encode(errors="replace")) <= stored_bytes(obj)


def test_a_job_may_be_nested_as_deep_as_is_said_and_no_deeper():
    def lists(depth: int) -> Any:
        value: Any = "x"
        for _ in range(depth):
            value = [value]
        return value

    above = len(("spec", "unknown"))
    parse(with_value(lists(MOST_DEPTH - above)))
    with pytest.raises(SpecError, match="this is nested more than 100 deep"):
        parse(with_value(lists(MOST_DEPTH - above + 1)))


def test_warnings_that_are_not_told_of_are_counted():
    warnings = parse(job("pytorch-smallest") | {f"unknown{i}": 1 for i in range(200)})[1]
    assert len(warnings) == MOST_WARNINGS + 1
    assert str(warnings[-1]) == "150 more warnings are not shown"


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
