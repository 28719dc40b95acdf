"""Check that the API server's warnings stay within the limits of clients."""

from __future__ import annotations

import pytest

from elastic.local.apiserver.answers import MOST_OF_ONE_WARNING, MOST_WARNED, warning_headers
from elastic.local.apiserver.store import is_version


def test_many_warnings_are_cut_as_a_real_server_cuts_them():
    """The answer to an object with each key twice had 40,000 headers, more than any client takes."""
    headers = list(warning_headers(f'duplicate field "data.{"k" * 300}{n}"' for n in range(40_000)))
    assert 0 < len(headers) <= MOST_WARNED / MOST_OF_ONE_WARNING
    assert sum(map(len, headers)) < 2 * MOST_WARNED


def test_few_warnings_are_said_whole_and_once():
    long = "unknown field " + "x" * 1000
    assert list(warning_headers(["a", long, "a"])) == ['299 - "a"', f'299 - "{long}"']


def test_text_that_no_header_may_hold_is_left_out_and_all_else_is_said():
    assert list(warning_headers(['unknown field "a\nSet-Cookie: b"', 'unknown "c"'])) == ['299 - "unknown \\"c\\""']


@pytest.mark.parametrize(
    ("text", "is_one"), [("17", True), ("9" * 20, True), ("9" * 21, False), ("\u00b2", False), ("-1", False), ("", False)]
)
def test_a_version_is_a_number_of_a_bearable_length(text: str, is_one: bool):
    assert is_version(text) is is_one
