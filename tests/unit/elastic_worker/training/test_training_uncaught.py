"""Check that the library notices the exception that ends a program."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest

from elastic_worker.training import uncaught
from elastic_worker.training.save_news import SaveNews
from elastic_worker.training.step import Step
from elastic_worker.training.uncaught import LONGEST_WORDS, Uncaught, first_line, in_words


class Listener:
    """An object that keeps the errors that it hears."""

    def __init__(self) -> None:
        self.heard = list[str]()

    def hear(self, error: str) -> None:
        self.heard.append(error)


def test_an_exception_is_told_and_then_printed_by_the_hook_before(monkeypatch: pytest.MonkeyPatch) -> None:
    one, printed = Listener(), list[object]()
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: printed.append((error, list(one.heard))))
    Uncaught(one.hear)
    error = ValueError("bad batch\nof samples")
    sys.excepthook(ValueError, error, None)
    assert printed == [(error, ["ValueError: bad batch"])]


def test_an_interrupt_is_no_error_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Listener()
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: None)
    Uncaught(one.hear)
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert one.heard == []
    assert first_line(SystemExit(1)) == first_line(None) == ""


def test_the_hook_keeps_no_model_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = list[object]()
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: printed.append(error))
    one = Listener()
    heard = one.heard
    Uncaught(one.hear)
    del one
    gc.collect()
    sys.excepthook(ValueError, ValueError(), None)
    assert (heard, len(printed)) == ([], 1)


class Left:
    """A run whose step is left by an exception that no change of the world explains."""

    _error = ""
    _open = None

    def _failed(self, error: BaseException) -> bool:
        return False


def test_the_exception_that_leaves_a_step_is_known_when_the_loop_closes() -> None:
    """Python closes the generator of a `for` loop before it calls the hook, and the generator sees GeneratorExit only."""
    run, step = Left(), Step.__new__(Step)
    step._run = run
    seen: list[str] = []

    def steps() -> Iterator[Step]:
        try:
            yield step
        finally:
            seen.append(run._error)

    with pytest.raises(ValueError, match="bad batch"):
        train(steps())
    assert seen == ["ValueError: bad batch"]


def train(steps: Iterator[Step]) -> None:
    for step in steps:
        try:
            raise ValueError("bad batch")
        except ValueError as error:
            if not step.__exit__(type(error), error, None):
                raise


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_whose_message_cannot_be_made_raises_no_other_one() -> None:
    """A save that failed with such an exception ended the thread of saves."""
    told: list[str] = []
    news = SaveNews()
    news.listener = lambda **fields: told.append(str(fields["words"]))
    news.failed(3, Unprintable())
    assert told == ["Unprintable: its message cannot be shown"]
    assert "Unprintable" in first_line(Unprintable())


def test_an_exception_whose_message_waits_for_ever_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uncaught, "MESSAGE_S", 0.05)
    lock = threading.Lock()

    class Waiting(Exception):
        def __str__(self) -> str:
            with lock:
                return "never"

    with lock:
        assert (first_line(Waiting()), in_words(Waiting())) == ("Waiting", "Waiting: its message cannot be shown")


def test_a_long_message_is_cut_and_stands_on_one_line() -> None:
    assert in_words(ValueError("a\n  b")) == "ValueError: a b"
    assert len(in_words(ValueError("x" * 10**6))) == LONGEST_WORDS
