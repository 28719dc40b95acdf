"""How the demo shows itself: a line that lives on a terminal, no long silence elsewhere, and a picture of what happened."""

from __future__ import annotations

import io
import threading
import xml.etree.ElementTree as ElementTree

import pytest
from picture import draw
from story import Step, Story, Training, curve_of
from view import CLEAR, View

from elastic.kube.following import Line

PATIENCE_S = 60.0
SVG = "{http://www.w3.org/2000/svg}"


class Screen(io.StringIO):
    """A terminal, or a file; it says when a text has come."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal, self._changed = is_terminal, threading.Condition()

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        with self._changed:
            self._changed.notify_all()
            return super().write(text)

    def wait_for(self, text: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: text in self.getvalue(), PATIENCE_S), self.getvalue()


def test_if_nobody_looks_a_silence_is_broken_by_a_line() -> None:
    screen = Screen(is_terminal=False)
    with View(lambda: "waiting for the cluster", screen, quiet_s=0.1) as view:
        view.line("begun")
        screen.wait_for("begun\nwaiting for the cluster\n")
    assert "\x1b" not in screen.getvalue()


def test_while_lines_come_nothing_stands_between_them() -> None:
    screen = Screen(is_terminal=False)
    with View(lambda: "waiting", screen, quiet_s=3600.0) as view:
        for number in range(3):
            view.line(str(number))
    assert screen.getvalue() == "0\n1\n2\n"


def test_on_a_terminal_one_line_lives_below_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    screen = Screen(is_terminal=True)
    with View(lambda: "step 241 and much more than fits", screen) as view:
        screen.wait_for(f"{CLEAR}step 241 and much m")
        view.line("scaled")
        screen.wait_for(f"{CLEAR}scaled\n{CLEAR}step 241 and much m")
    assert screen.getvalue().endswith(CLEAR)
    assert "more than" not in screen.getvalue()


def test_nothing_lives_below_the_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen, story = Screen(is_terminal=True), Story()
    story.waits_for = "the cluster to stop"
    with View(story.standing, screen) as view:
        screen.wait_for("waiting for the cluster to stop")
        story.is_over = True
        view.line("cluster stopped")
        said = screen.getvalue()
    assert said.endswith("cluster stopped\n")
    assert screen.getvalue() == said


def test_a_terminal_without_commands_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert not View(lambda: "", Screen(is_terminal=True)).lives


def test_how_it_stands_follows_the_training() -> None:
    story = Story()
    assert story.standing() == ""
    story.waits_for = "the laptop cluster"
    assert story.standing().endswith("ms  waiting for the laptop cluster")
    training = Training(story)
    training.hear(Line("elastic-demo-worker-0", "step 7 world 2 loss 0.250000"))
    story.waits_for = ""
    assert story.standing().endswith("ms  world 2  step 7  loss 0.250000")
    assert (story.steps[0].step, story.steps[0].world, story.steps[0].loss) == (7, 2, 0.25)


def test_a_falling_loss_is_a_falling_curve() -> None:
    curve = curve_of([10.0 ** -(at / 10) for at in range(100)])
    assert (curve[0], curve[-1], len(curve)) == ("█", "▁", 24)
    assert list(curve) == sorted(curve, reverse=True)
    assert curve_of([0.5]) == "▁"
    assert curve_of([0.0, 1.0]) == "▁█"


def steps() -> list[Step]:
    """Return the steps of three workers, of two after a pause, and of three again."""
    first = [Step(10 + at / 10, at, 3, 1.0 / (at + 1), 1) for at in range(50)]
    second = [Step(18 + at / 10, 50 + at, 2, 0.01 / (at + 1), 2) for at in range(50)]
    return [*first, *second, *(Step(23 + at / 10, 100 + at, 3, 0.0001, 3) for at in range(30))]


def test_the_picture_shows_worlds_pauses_and_what_was_done() -> None:
    drawn = ElementTree.fromstring(draw(steps(), [(15.0, "notice <b>"), (24.0, "gone")], "A title"))
    texts = [text.text for text in drawn.iter(f"{SVG}text")]
    assert {"A title", "notice <b>", "gone", "0", "1", "2", "3", "3.1 s"} <= set(texts)
    (path,) = [path.get("d") for path in drawn.iter(f"{SVG}path")]
    assert path is not None
    assert path.count("M") == 3, "one line for each world"
    (line,) = drawn.iter(f"{SVG}polyline")
    points = [tuple(map(float, point.split(","))) for point in line.get("points", "").split()]
    assert len(points) == len(steps())
    assert points == sorted(points), "time goes to the right and the loss down"
    width, height = float(drawn.get("width", 0)), float(drawn.get("height", 0))
    assert all(0 <= x <= width and 0 <= y <= height for x, y in points)


def test_nothing_trained_is_no_picture() -> None:
    with pytest.raises(ValueError):
        draw(steps()[:1], [], "")
