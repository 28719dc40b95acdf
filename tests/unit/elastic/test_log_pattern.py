"""The pattern by which steps are found in a training program's log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.api.log_pattern import mistake, numbers, parts_of, remark


def found(pattern: str, line: str) -> dict[str, int] | None:
    assert mistake(pattern) == ""
    return numbers(parts_of(pattern), line)


@pytest.mark.parametrize(
    ("pattern", "line", "expected"),
    [
        ("step {step}", "step 17 world 2 loss 0.5", {"step": 17}),
        ("step {step} * loss", "[rank0] step 17 of 400, loss 0.5", {"step": 17}),
        ("step {step} * loss", "step 17 of 400", None),
        ("step {step}/", "a step of step 3/400", {"step": 3}),
        ("Iter * [{step}/", "Iter (epoch 2) [120/500]", {"step": 120}),
        ("global_step={step}, * samples={samples}", "global_step=5, lr=0.1 samples=640", {"step": 5, "samples": 640}),
        ("{'step': {step},", "{'step': 5, 'loss': 1}", {"step": 5}),
        ("step {step}", "step many", None),
        ("step {step}", "step 9999999999999999999999999", None),
        ("step {step}", "", None),
    ],
)
def test_a_line_is_found_and_its_numbers_are_read(pattern: str, line: str, expected: dict[str, int] | None) -> None:
    assert numbers(parts_of(pattern), line) == expected


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("loss", "has 0 times {step}"),
        ("a {step} b {step}", "has 2 times {step}"),
        ("a {stepp}", "names {stepp}"),
        ("a {step}{samples}", "nothing between"),
        ("a {step}*", "nothing between"),
        ("{step} steps", "begins with a number"),
        ("* {step}", "begins with a number or *"),
    ],
)
def test_a_pattern_that_cannot_be_meant_so_is_told(pattern: str, words: str) -> None:
    assert words in mistake(pattern)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("step {step}\n", "has a line break"),
        ("loss *{step} of", "has * directly before a number"),
        ("step {step} {samples", 'has "{samples", which is read as text'),
        ("step {step} { samples }", 'has "{ samples }"'),
        ("step {step} {samples:d} in", 'has "{samples:d}"'),
        ("step {{step}} of", 'has "{{step}}"'),
        ("step {step} samples}", 'has "samples}"'),
    ],
)
def test_a_pattern_that_will_not_match_is_told(pattern: str, words: str) -> None:
    assert (mistake(pattern), words in remark(pattern)) == ("", True)


@pytest.mark.parametrize("pattern", ['{"step": {step}, "loss": *', "{'step': {step}}", "{step: {step}, loss", "a {step} * }", "[{step}/"])
def test_braces_of_a_log_are_no_slip(pattern: str) -> None:
    assert remark(pattern) == ""


@given(st.text(max_size=60), st.text(max_size=200))
def test_no_pattern_and_no_line_is_an_error(pattern: str, line: str) -> None:
    if not mistake(pattern):
        read = numbers(parts_of(pattern), line)
        assert read is None or "step" in read


def test_a_hostile_pattern_costs_no_more_than_the_line_is_long() -> None:
    """A matcher that tries every division of the line among the stars would never end."""
    pattern = "a" + "*a" * 120 + " {step}"
    assert mistake(pattern) == ""
    assert numbers(parts_of(pattern), "a" * 4096) is None
