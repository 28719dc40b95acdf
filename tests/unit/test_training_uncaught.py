"""Check that the library notices the exception that ends a program."""

from __future__ import annotations

import gc
import sys

import pytest

from elastic_worker.training.uncaught import Uncaught, first_line


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
