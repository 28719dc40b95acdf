"""To read a job takes work in proportion to its size, wherever it is large and whatever is wrong with it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from growing_jobs import ENTRIES, KIND, Entry, grown, holders, job_with, outside, schema_of_a_job, sound

import elastic.api
from elastic.api import SpecError, parse
from elastic.api.reader import MOST_PROBLEMS, MOST_WARNINGS

pytestmark = pytest.mark.slow
SIZE = 60
"""More than there are problems and warnings to be told of; from there on all must be in proportion."""
SLACK = 300
HOME = str(Path(elastic.api.__file__).parent)


def work(obj: Any) -> int:
    """Return the number of elastic.api's lines that are run, and of all Python functions that are called, to read the object."""
    count = 0

    def each(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += 1
        return each if frame.f_code.co_filename.startswith(HOME) else None

    traced = sys.gettrace()
    sys.settrace(each)
    try:
        parse(obj)
    except SpecError:
        pass
    finally:
        sys.settrace(traced)
    return count


def test_the_model_leads_to_all_that_may_grow():
    places = {at for at, _ in holders(schema_of_a_job())}
    worker = ("spec", KIND.replica_key, "Worker", "template", "spec")
    for at in [(), ("metadata", "labels"), ("spec", "elasticPolicy", "metrics"), (*worker, "containers", 0, "ports"), (*worker, "volumes")]:
        assert at in places
    assert ("status", "elastic", "open") in places
    assert len(places) > 400
    assert max(MOST_PROBLEMS, MOST_WARNINGS) < SIZE


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
def test_twice_the_entries_take_at_most_twice_the_work(entry: Entry):
    slow = []
    work(job_with((), {}))  # what is loaded and kept at the first look
    for at, schema in holders(schema_of_a_job()):
        if "properties" in schema and entry not in (sound, outside):
            continue  # fields that nobody knows, whatever is in them
        once, twice = (job_with(at, grown(schema, size, entry)) for size in (SIZE, 2 * SIZE))
        less, more = work(once), work(twice)
        if more > 2 * less + SLACK:
            slow.append(f"{at}: {less} for {SIZE}, {more} for {2 * SIZE}")
    assert not slow, slow
