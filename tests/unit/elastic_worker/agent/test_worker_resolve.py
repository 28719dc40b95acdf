"""The wait of a worker for the name of its master."""

import pytest

from elastic_worker.startup import resolve


class Clock:
    def __init__(self, *, there_at: float) -> None:
        self.now = 0.0
        self.there_at = there_at

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def is_there(self, name: str) -> bool:
        assert name == "train-master-0"
        return self.now >= self.there_at


@pytest.mark.parametrize(("there_at", "lines"), [(0.0, 0), (5.0, 1), (86_400.0, 1440)])
def test_a_name_is_waited_for_however_long_it_takes_and_a_line_a_minute_says_so(
    there_at: float, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(there_at=there_at)
    resolve.wait_for("train-master-0", is_there=clock.is_there, pause=clock.pause, clock=clock)
    assert clock.now == there_at
    assert capsys.readouterr().out.splitlines() == ["waiting for the name train-master-0"] * lines


def test_a_name_that_is_there_ends_the_wait_at_once() -> None:
    assert resolve.main(["localhost"]) == 0


def test_without_a_name_it_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert resolve.main([]) == 2
    assert "NAME" in capsys.readouterr().err
