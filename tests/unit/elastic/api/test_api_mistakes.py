"""Compare the messages for the author of a bad job with the table in tests/fixtures/mistakes.yaml."""

from __future__ import annotations

import pytest
from written_jobs import Mistake, mistakes

from elastic.api import SpecError, parse


@pytest.mark.parametrize("mistake", mistakes(), ids=lambda mistake: mistake.name)
def test_a_mistake_is_told_with_its_place_and_what_to_do(mistake: Mistake):
    with pytest.raises(SpecError) as raised:
        parse(mistake.job)
    assert [str(problem) for problem in raised.value.problems] == list(mistake.says)
