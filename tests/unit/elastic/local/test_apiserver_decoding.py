"""Bodies that nobody should send to the laptop's API server: each is refused in words, at a cost in proportion to its size."""

from __future__ import annotations

import json
import sys
from types import FrameType
from typing import Any

import pytest

from elastic.api.extent import MOST_DEPTH
from elastic.local.apiserver import decoding
from elastic.local.apiserver.errors import StatusError

YAML, JSON = "application/yaml", "application/json"


def refusal(body: bytes, media: str) -> str:
    with pytest.raises(StatusError) as refused:
        decoding.parse(body, media)
    assert refused.value.code == 400
    return refused.value.message


@pytest.mark.parametrize(
    ("body", "media"),
    [
        (b"a: " + b"[" * 40_000, YAML),
        (b"a: " + b"[" * 40_000 + b"]" * 40_000, YAML),
        (b"".join(b" " * i + b"a:\n" for i in range(300)), YAML),
        (b"a: &a [*a]", YAML),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, JSON),
        (b"[" * 100_000, JSON),
        (b"[" * 900 + b"]" * 900, JSON),
    ],
    ids=["open", "closed", "blocks", "itself", "objects", "unfinished", "within orjson's bound"],
)
def test_a_document_that_is_nested_too_deep_is_refused_in_words(body: bytes, media: str):
    assert f"this is nested more than {MOST_DEPTH} deep" in refusal(body, media)


@pytest.mark.parametrize("media", [YAML, JSON])
def test_a_body_may_be_as_deep_as_is_said_and_no_deeper(media: str):
    decoding.parse(b"[" * MOST_DEPTH + b"]" * MOST_DEPTH, media)
    refusal(b"[" * (MOST_DEPTH + 1) + b"]" * (MOST_DEPTH + 1), media)


def test_aliases_of_aliases_are_refused_if_they_would_fill_any_memory_written_out():
    lines = ["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 60))]
    assert "its aliases stand for more than" in refusal("\n".join(lines).encode(), YAML)


@pytest.mark.parametrize("body", [b"a: 2024-13-41", b"a: " + b"1" * 5000, b"{1: 2", b"? [a]\n: b", b"a: \xff"])
def test_documents_that_break_pyyaml_are_refused_in_words(body: bytes):
    media = YAML if not body.startswith(b"{") else JSON
    assert refusal(body, media)


def repeating(count: int) -> bytes:
    keys = [f'"k{i}": 1' for i in range(count)]
    return ("{" + ", ".join(keys + keys) + "}").encode()


def test_repeated_keys_are_told_as_far_as_a_real_server_tells_them():
    assert decoding.repeated_keys(b'{"a": 1, "b": {"c": 1, "c": 2}, "a": 3}') == ["c", "a"]
    assert len(decoding.repeated_keys(repeating(1000))) == decoding.MOST_TOLD
    policy = decoding.FieldPolicy("Warn")
    policy.note([f"u{i}" for i in range(1000)], ["r"])
    assert len(policy.settle("")) == decoding.MOST_TOLD


def work(body: bytes, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the number of lines that are run and of keys that are compared."""
    count = 0

    class Key(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal count
            count += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    def each(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += 1
        return each

    def loads(text: bytes, object_pairs_hook: Any) -> Any:
        return plain(text, object_pairs_hook=lambda pairs: object_pairs_hook([(Key(key), value) for key, value in pairs]))

    plain, traced = json.loads, sys.gettrace()
    with monkeypatch.context() as patched:
        patched.setattr(json, "loads", loads)
        sys.settrace(each)
        try:
            decoding.repeated_keys(body)
        finally:
            sys.settrace(traced)
    return count


def test_twice_as_many_repeated_keys_take_at_most_twice_the_work(monkeypatch: pytest.MonkeyPatch):
    assert work(repeating(800), monkeypatch) <= 2 * work(repeating(400), monkeypatch) + 1000


MERGED_IN_TURN = "a0: &a0 {x: 1, y: 2}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 20)}]}}\n" for n in range(1, 9))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (MERGED_IN_TURN, "its aliases stand for more than"),
        ("a: &a " + "x" * 100_000 + "\nb: [" + ", ".join(["*a"] * 100) + "]", "its aliases stand for more than"),
        ("a: 1" + ":59" * 500_000, "a number has more than"),
        ("a: 1" + ":59" * 400 + ".5", "a number has more than"),
        ('a: !!int "1' + ":59" * 400 + '"', "a number has more than"),
    ],
    ids=["merged in turn", "a long text", "base 60", "base 60 with a fraction", "by its tag"],
)
def test_yaml_that_costs_more_than_its_length_is_refused_with_its_line(body: str, why: str):
    """Each of these would take minutes, or more memory than the machine has."""
    assert why in (told := refusal(body.encode(), YAML))
    assert "line " in told


def test_aliases_and_merges_of_ordinary_size_are_read():
    text = b"a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]\nd: 1:30\n"
    assert decoding.parse(text, YAML) == {"a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": [{"x": 1}] * 2, "d": 90}


@pytest.mark.parametrize("value", ["!!timestamp x", "!!bool x", '!!int ""', '!!float ""', "1" + ":59" * 180 + ".5"])
def test_a_value_that_is_not_what_its_tag_says_is_refused(value: str):
    assert "error parsing YAML" in refusal(b"a: " + value.encode(), YAML)
