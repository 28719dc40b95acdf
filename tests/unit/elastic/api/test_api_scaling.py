"""Check the errors and warnings for the author of a scaling policy or a source of progress."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_jobs import job

from elastic.api import SpecError, parse
from elastic.api.scaling import Day, Window
from elastic.api.windows import minutes, without_effect
from elastic_training.autoscale.deciding.policies.schedule import current

AT = "spec.elasticPolicy."
METRIC = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}
MONDAY = datetime(2027, 1, 4, tzinfo=UTC)


def elastic(**policy: Any) -> dict[str, Any]:
    return job("pytorch-elastic", {"spec": {"elasticPolicy": {"metrics": None, "maxReplicas": 4} | policy}})


def warned(*, metadata: dict[str, Any] | None = None, **policy: Any) -> list[str]:
    made = elastic(**policy)
    made["metadata"] |= metadata or {}
    return [str(one) for one in parse(made)[1]]


def refused(**policy: Any) -> list[str]:
    with pytest.raises(SpecError) as raised:
        parse(elastic(**policy))
    return [str(one) for one in raised.value.problems]


def schedule(*windows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"policy": "schedule", "windows": [{"start": "08:00", "end": "20:00", "replicas": 2} | one for one in windows]} | more


def deadline(**more: Any) -> dict[str, Any]:
    return {"policy": "deadline", "finishBy": "2100-01-01T00:00:00Z"} | more


TIME = 'write a time from 00:00 to 23:59 as HH:MM in quotes, such as "08:30"'
NAME = "write a metric's name without labels, such as train_step_total, of at most 256 characters"
PATH = "write what follows the port in the page's address, such as /metrics, of at most 256 characters without spaces"


@pytest.mark.parametrize(
    ("start", "shown"), [("8:00", '"8:00"'), ("24:00", '"24:00"'), (1200, "1200"), ("", '""'), ("08:00:00", '"08:00:00"'), ([], "a list")]
)
def test_an_invalid_time_of_day_is_told_with_how_to_write_one(start: Any, shown: str):
    """The remedy was a regular expression, or advice to put the number 1200 into quotes. YAML 1.1 reads 20:00 as 1200."""
    assert refused(scalingPolicy=schedule({"start": start})) == [f"{AT}scalingPolicy.windows[0].start: start is {shown}; {TIME}"]


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("path", "metrics", f'path is "metrics"; {PATH}'),
        ("path", "http://x/m", f'path is "http://x/m"; {PATH}'),
        ("step", "a b", f'step is "a b"; {NAME}'),
        ("step", 'a{rank="0"}', f'step is "a{{rank="0"}}"; {NAME}'),
        ("samples", "", f'samples is ""; {NAME}'),
        ("port", 0, "port is 0; the least is 1"),
    ],
)
def test_an_invalid_part_of_a_page_is_told_with_how_to_write_one(field: str, value: Any, says: str):
    page = {"port": 8000, "step": "steps"} | {field: value}
    assert refused(scalingPolicy={}, progress={"prometheus": page}) == [f"{AT}progress.prometheus.{field}: {says}"]


def test_an_unknown_field_of_a_window_is_told_by_the_name_of_the_list():
    assert refused(scalingPolicy=schedule({"replica": 2})) == [
        f"{AT}scalingPolicy.windows[0].replica: unknown field; each of windows takes only days, start, end or replicas"
    ]


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (
            {"scalingPolicy": {"policy": "cost", "priceLabel": "price=1"}},
            'scalingPolicy.priceLabel: priceLabel is "price=1", which is no name of a label; write the one that nodes have their price in',
        ),
        (
            {"scalingPolicy": schedule({}, {"start": "09:00", "end": "10:00", "days": ["Mon"]})},
            "scalingPolicy.windows[1]: the windows before this one hold all of its time, so it has no effect; "
            "put it before them or change its times",
        ),
        (
            {"scalingPolicy": schedule({}, cooldownSeconds=5)},
            "scalingPolicy.cooldownSeconds: cooldownSeconds has no effect with policy schedule; remove it or choose another policy",
        ),
        (
            {"scalingPolicy": {"policy": "hpa", "holdSeconds": 5}, "metrics": [METRIC]},
            "scalingPolicy.holdSeconds: holdSeconds has no effect with policy hpa; remove it or choose another policy",
        ),
        (
            {"scalingPolicy": {"policy": "hpa"}, "metrics": []},
            "metrics: metrics is empty, so its HorizontalPodAutoscaler scales by CPU, at 80 % of what pods request; "
            "name metrics or remove it",
        ),
        (
            {"scalingPolicy": {}, "minReplicas": 2, "maxReplicas": 2},
            "scalingPolicy: scalingPolicy has no effect, because minReplicas and maxReplicas allow no number of workers but 2; "
            "allow others or remove scalingPolicy",
        ),
        (
            {"scalingPolicy": schedule({"replicas": 9}), "minReplicas": 2, "maxReplicas": None},
            "scalingPolicy: scalingPolicy has no effect, because minReplicas and maxReplicas allow no number of workers but 2; "
            "set maxReplicas",
        ),
        (
            {"scalingPolicy": {}, "minReplicas": 2, "sizeStep": 2, "maxReplicas": 3},
            "scalingPolicy: scalingPolicy has no effect, because minReplicas, maxReplicas and sizeStep allow no number of workers but 2; "
            "allow others or remove scalingPolicy",
        ),
        (
            {"allowedSizes": [1, 2, 8, 9]},
            "allowedSizes[2]: allowedSizes has 8, above maxReplicas 4, so it is never used; remove it or change maxReplicas",
        ),
        (
            {"allowedSizes": [1, 2, 4], "minReplicas": 2},
            "allowedSizes[0]: allowedSizes has 1, below minReplicas 2, so it is never used; remove it or change minReplicas",
        ),
        (
            {"scalingPolicy": deadline(totalSamples=9), "progress": {"logPattern": "step {step} of"}},
            "progress.logPattern: logPattern has no {samples}, which policy deadline counts by totalSamples; add it, or write totalSteps",
        ),
        (
            {"scalingPolicy": deadline(totalSamples=9), "progress": {"prometheus": {"port": 8000, "step": "steps"}}},
            "progress.prometheus: samples is missing, which policy deadline counts by totalSamples; name their metric, or write totalSteps",
        ),
        (
            {"scalingPolicy": {}, "progress": {"prometheus": {"port": 8000, "step": "steps", "samples": "steps"}}},
            'progress.prometheus.samples: samples is "steps", which step is, too; name the metric that counts samples, or remove samples',
        ),
        (
            {"scalingPolicy": {}, "progress": {"prometheus": {"port": 8000, "step": "steps", "path": "/m#all"}}},
            'progress.prometheus.path: path is "/m#all"; no server is told what follows #, remove it',
        ),
        (
            {"scalingPolicy": {}, "progress": {"logPattern": "step {step} of\n"}},
            "progress.logPattern: logPattern has a line break, which no line has, so nothing matches; write the text of one line",
        ),
    ],
)
def test_a_field_without_effect_is_warned_of_once(policy: dict[str, Any], says: str):
    assert warned(**policy) == [AT + says]


@pytest.mark.parametrize(
    "policy",
    [
        {"scalingPolicy": schedule({}, {"end": "21:00"}, {"start": "22:00", "end": "06:00"})},
        {"scalingPolicy": {"policy": "cost", "priceLabel": "example.com/price_per-hour.v1"}},
        {"scalingPolicy": deadline(totalSteps=9), "progress": {"logPattern": "step {step} of"}},
        {"scalingPolicy": deadline(totalSamples=9), "progress": {"logPattern": '{"step": {step}, "samples": {samples}}'}},
        {"scalingPolicy": {"through": "hpa"}, "metrics": []},
        {"scalingPolicy": {}, "allowedSizes": [1, 2, 4]},
        {"allowedSizes": [1, 2, 8], "maxReplicas": None},
    ],
)
def test_a_field_that_may_be_intended_is_not_warned_of(policy: dict[str, Any]):
    assert warned(**policy) == []


@pytest.mark.parametrize("stored", [True, False])
def test_a_job_that_was_made_after_its_finish_is_told_so(stored: bool):
    policy = deadline(totalSteps=9, finishBy="2027-01-31T12:00:00Z")
    made = elastic(scalingPolicy=policy)
    made["metadata"]["creationTimestamp"] = "2027-01-31T12:00:01Z"
    (warning,) = parse(made, stored=stored)[1]
    assert str(warning) == (
        f"{AT}scalingPolicy.finishBy: finishBy is 2027-01-31T12:00:00Z, before 2027-01-31T12:00:01Z, when the job is made; "
        "write a later time"
    )
    assert warned(scalingPolicy=policy, metadata={"creationTimestamp": "2027-01-31T12:00:00Z"}) == []
    assert warned(scalingPolicy=policy) == []


times = st.tuples(st.integers(0, 23), st.sampled_from([0, 1, 30, 59])).map(lambda time: f"{time[0]:02}:{time[1]:02}")
windows = st.builds(Window, days=st.lists(st.sampled_from(list(Day)), max_size=3).map(tuple), start=times, end=times, replicas=st.just(1))


@given(windows, st.integers(0, 7 * 24 * 60 - 1))
def test_a_window_holds_at_the_minutes_at_which_the_policy_goes_by_it(window: Window, minute: int):
    held = current([window], (MONDAY + timedelta(minutes=minute)).timestamp()) is window
    assert (minutes(window) >> minute & 1 == 1) == held


@given(st.lists(windows, max_size=4), st.integers(0, 7 * 24 * 60 - 1))
def test_a_window_without_effect_never_decides(several: list[Window], minute: int):
    window = current(several, (MONDAY + timedelta(minutes=minute)).timestamp())
    assert window is None or next(place for place, one in enumerate(several) if one is window) not in set(without_effect(several))
