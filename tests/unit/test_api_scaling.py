"""What the author of a scaling policy or a source of progress reads about what cannot be meant so."""

from __future__ import annotations

from typing import Any

import pytest
from written_jobs import job

from elastic.api import SpecError, parse

AT = "spec.elasticPolicy."


def elastic(**policy: Any) -> dict[str, Any]:
    return job("pytorch-elastic", {"spec": {"elasticPolicy": {"metrics": None, "maxReplicas": 4} | policy}})


def refused(**policy: Any) -> list[str]:
    with pytest.raises(SpecError) as raised:
        parse(elastic(**policy))
    return [str(one) for one in raised.value.problems]


def schedule(*windows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"policy": "schedule", "windows": [{"start": "08:00", "end": "20:00", "replicas": 2} | one for one in windows]} | more


TIME = 'write a time from 00:00 to 23:59 as HH:MM in quotes, such as "08:30"'
NAME = "write a metric's name without labels, such as train_step_total, of at most 256 characters"
PATH = "write what follows the port in the page's address, such as /metrics, of at most 256 characters without spaces"


@pytest.mark.parametrize(
    ("start", "shown"), [("8:00", '"8:00"'), ("24:00", '"24:00"'), (1200, "1200"), ("", '""'), ("08:00:00", '"08:00:00"'), ([], "a list")]
)
def test_a_time_of_day_that_is_none_is_told_with_how_to_write_one(start: Any, shown: str):
    """The remedy was a regular expression, or to put the number 1200, as YAML of old reads 20:00, into quotes."""
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
def test_a_part_of_a_page_that_is_none_is_told_with_how_to_write_one(field: str, value: Any, says: str):
    page = {"port": 8000, "step": "steps"} | {field: value}
    assert refused(scalingPolicy={}, progress={"prometheus": page}) == [f"{AT}progress.prometheus.{field}: {says}"]


def test_an_unknown_field_of_a_window_is_told_by_the_name_of_the_list():
    assert refused(scalingPolicy=schedule({"replica": 2})) == [
        f"{AT}scalingPolicy.windows[0].replica: unknown field; each of windows takes only days, start, end or replicas"
    ]
