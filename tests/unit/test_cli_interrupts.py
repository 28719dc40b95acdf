"""SIGTERM ends a run in order, wherever the run just is."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from elastic.cli.interrupts import cancelled_by_sigterm


def test_sigterm_cancels_the_run_and_not_what_the_loop_just_does() -> None:
    """A KeyboardInterrupt out of a callback ended the loop, and the job that the run had made was left behind."""
    done: list[str] = []

    def callback() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        done.append("the callback was left alone")

    async def run() -> None:
        with cancelled_by_sigterm():
            asyncio.get_running_loop().call_soon(callback)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(0)
                done.append("deleted")
                raise

    former = signal.getsignal(signal.SIGTERM)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert done == ["the callback was left alone", "deleted"]
    assert signal.getsignal(signal.SIGTERM) is former
