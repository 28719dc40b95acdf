"""Holds the controller to what the Training Operator did on a real API server, recorded in tests/operator."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from control_plane import api_server
from operator_replay import DIFFERENCES, MODES, STRICT, Mode, Played, played, prepare

AGAIN = "scheduler-plugins"
"""The second of two gang schedulers, for which the controller does the same things with other words."""
ALL = [*MODES, DIFFERENCES]
FULL = [mode for mode in MODES if mode.needs == AGAIN or mode == STRICT]
"""Of STRICT the scenarios that play as in the default mode; the others are in DIFFERENCES."""


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Mode, "Future[Played]"]]:
    """The run of every mode that was chosen, in two lanes with an API server each: a run spends most of its time waiting."""
    items = [item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function)]
    chosen = {item.callspec.params["mode"] for item in items}
    lanes = [[mode for mode in ALL if mode.compat == compat and mode in chosen] for compat in ("default", "strict")]
    futures: dict[Mode, Future[Played]] = {mode: Future() for mode in chosen}
    with ThreadPoolExecutor(len(lanes)) as threads:
        for number, lane in enumerate(lanes):
            threads.submit(_play, lane, tmp_path_factory.mktemp(f"lane-{number}"), futures)
        yield futures


def _play(lane: Sequence[Mode], folder: Path, futures: dict[Mode, "Future[Played]"]) -> None:
    try:
        with api_server(folder) as kubeconfig:
            prepare(kubeconfig)
            for mode in lane:
                futures[mode].set_result(played(kubeconfig, mode, folder))
    except BaseException as error:
        for mode in lane:
            if not futures[mode].done():
                futures[mode].set_exception(error)


@pytest.mark.integration
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", [pytest.param(m, id=str(m), marks=[pytest.mark.full] * (m in FULL)) for m in ALL])
def test_every_must_check_of_the_recorded_operator_passes(
    runs: dict[Mode, "Future[Played]"], mode: Mode, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs[mode].result()
    with capsys.disabled():
        print(run.table)
    assert not run.failed, "\n".join(run.failed)
