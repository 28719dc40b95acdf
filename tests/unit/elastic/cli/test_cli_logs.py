"""Check whose lines `elastic logs` shows while ranks move, and its words about pods that print nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cli_api import PYTORCH, Api, elastic, job, pod, running, served
from click.testing import Result

from elastic.cli.jobs.logs import Printer, Wanted, _wanted
from elastic.client.verbs import Found
from elastic.kube.following import ConditionNews, Line, Ranks

NO_ROOM = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}


def asked(tmp_path: Path, api: Api, *words: str) -> Result:
    with served(api, tmp_path) as kubeconfig:
        return elastic(kubeconfig, *words)


def test_lines_of_a_rank_are_those_of_the_pod_that_has_it_then(capsys: pytest.CaptureFixture[str]) -> None:
    """After an eviction the pod that had the rank was gone, and nothing was shown for ever."""
    printer, wanted = Printer(), Wanted("train-worker-1", rank=0)
    shown = [printer.tell(happening, wanted) for happening in (
        Ranks({"train-worker-1": 0, "train-worker-0": 1}),
        Line("train-worker-1", "one"),
        Line("train-worker-0", "not this"),
        Ranks({"train-worker-0": 0}),
        Line("train-worker-1", "not this"),
        Line("train-worker-0", "two"),
        Ranks({}),
        Line("train-worker-0", "three"),
        ConditionNews("Succeeded", "r", "not this"),
    )]  # fmt: skip
    said = capsys.readouterr()
    assert said.out.splitlines() == ["train-worker-1 | one", "train-worker-0 | two", "train-worker-0 | three"]
    assert said.err == "rank 0 is train-worker-0 now\n"
    assert shown == [False, True, False, True, False, True, False, True, False]


def test_a_rank_that_nobody_has_any_more_is_said() -> None:
    wanted = Wanted("train-worker-1", rank=1)
    assert wanted.see(Ranks({"train-worker-0": 0})) == "no worker has rank 1 now"
    assert not wanted.has("train-worker-1")
    assert wanted.see(Ranks({"train-worker-0": 0, "train-worker-2": 1})) == "rank 1 is train-worker-2 now"


def test_before_the_workers_have_met_a_rank_is_waited_for() -> None:
    unmet = Found(PYTORCH, job(status=running(backend="elastic")))
    assert _wanted(unmet, [pod(0)], rank=0, index=None, pod_name=None) == Wanted("", 0)
    met = Found(PYTORCH, job(status=running(backend="elastic", worldSize=1, ranks="0")))
    assert _wanted(met, [pod(0)], rank=0, index=None, pod_name=None) == Wanted("train-worker-0", 0)
    assert _wanted(met, [pod(0)], rank=None, index=0, pod_name=None) == Wanted("train-worker-0", None)
    assert _wanted(met, [pod(0)], rank=None, index=None, pod_name=None) == Wanted(None, None)


def test_a_pod_that_has_not_started_says_so_and_why(tmp_path: Path) -> None:
    """The log of a pod without a node is empty, and so was the answer."""
    api = Api(job(status=running()), pod(0, phase="Pending", conditions=[NO_ROOM], containerStatuses=[]), pod(1))
    api.logs = {"train-worker-0": "", "train-worker-1": "one\n"}
    said = asked(tmp_path, api, "logs", "train")
    assert (said.exit_code, said.stdout) == (0, "train-worker-1 | one\n")
    words = "train-worker-0 has printed nothing, because it has not started; it waits for room for train-worker-0: 0/1 nodes are available"
    assert said.stderr.startswith(words)


def test_the_final_state_of_a_progress_bar_is_shown(tmp_path: Path) -> None:
    api = Api(job(status=running()), pod(0))
    api.logs = {"train-worker-0": "begin\r\n\rstep 1\rstep 2\rstep 3\nend\rEND"}
    assert asked(tmp_path, api, "logs", "train", "--no-prefix").stdout == "begin\nstep 3\nEND\n"
    assert asked(tmp_path, api, "logs", "train", "--no-prefix", "--tail", "2").stdout == "step 3\nEND\n"


def test_one_state_a_second_and_the_end_of_a_followed_progress_bar_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    printer, everything = Printer(prefix=False), Wanted()
    shown = []
    for step in range(10):
        shown.append(printer.tell(Line("a", f"step {step}", True), everything))
        now += 0.25
    printer.tell(Line("a", "step 10"), everything)
    assert capsys.readouterr().out == "step 0\nstep 4\nstep 8\nstep 10\n"
    assert shown.count(True) == 3


def test_the_last_lines_can_be_followed(tmp_path: Path) -> None:
    """Nothing was shown if the condition of a finished job came into view before its pods."""
    over = {"conditions": [{"type": "Succeeded", "status": "True", "reason": "r", "message": "done"}]}
    ended = [{"name": "pytorch", "state": {"terminated": {"exitCode": 0}}, "restartCount": 0}]
    api = Api(job(status=over), pod(0, phase="Succeeded", containerStatuses=ended))
    api.logs = {"train-worker-0": "1\n2\n3\n4\n"}
    assert asked(tmp_path, api, "logs", "-f", "train", "--no-prefix", "--tail", "3").stdout == "2\n3\n4\n"
    assert "--previous the ones before" in asked(tmp_path, api, "logs", "-f", "train", "--previous").stderr


def test_logs_that_are_followed_end_with_the_reader_of_their_output(tmp_path: Path) -> None:
    """`elastic logs -f train | head -1`: the closed pipe was taken for a log that broke off, and was read again until the job had ended."""
    api = Api(job(status=running()), pod(0))
    api.logs = {"train-worker-0": "a line\n" * 50_000}
    with served(api, tmp_path) as kubeconfig:
        words = [sys.executable, "-m", "elastic.cli", "logs", "-f", "train", "--kubeconfig", str(kubeconfig)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as logs:
            assert logs.stdout is not None
            assert logs.stderr is not None
            assert logs.stdout.readline() == "train-worker-0 | a line\n"
            logs.stdout.close()
            try:
                assert logs.wait(30) == 1
            finally:
                logs.kill()
            assert logs.stderr.read() == ""
