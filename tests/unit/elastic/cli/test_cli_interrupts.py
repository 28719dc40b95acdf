"""SIGTERM and Ctrl-C end a command in order, wherever it just is."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from elastic.cli import main
from elastic.cli.interrupts import cancelled_by_sigterm

up = importlib.import_module("elastic.cli.up")


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


def test_ctrl_c_stops_the_cluster_as_soon_as_it_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """While `elastic up` told how to use it, Ctrl-C ended the command with 130, and the cluster only some seconds later."""
    stopped = []

    class Cluster:
        data_dir = tmp_path

        def start(self, **options: object) -> None: ...

        def stop(self) -> None:
            stopped.append(True)

    def interrupted(cluster: object, data_dir: Path) -> None:
        raise KeyboardInterrupt

    former = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(up, "LocalCluster", lambda **options: Cluster())
    monkeypatch.setattr(up, "_tell_how_to_use", interrupted)
    try:
        said = CliRunner().invoke(main, ["up", "--data-dir", str(tmp_path)])
    finally:
        signal.signal(signal.SIGTERM, former)
    assert (said.exit_code, said.stdout, stopped) == (0, "stopping\n", [True])
