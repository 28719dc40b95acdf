"""`elastic run` shows some errors while a job runs, folds others, and ends with one."""

from __future__ import annotations

import pytest

from elastic.api.kinds import KINDS
from elastic.cli.folding import MOST_KNOWN, Folding
from elastic.cli.run_printer import Printer
from elastic.kube.following import FollowedJob, Line, Outcome, Ranks

JOB = FollowedJob(KINDS["PyTorchJob"], "default", "train", "uid")
START = "Traceback (most recent call last):"
OWN = [START, '  File "train.py", line 3, in <module>', "ValueError: bad batch"]
OF_PEER = [
    START,
    '  File "train.py", line 4, in <module>',
    "    dist.all_reduce(t)",
    "RuntimeError: [pair.cc:553] Connection closed by peer [10.64.0.8]:32914. Check the logs of the remote worker. GLHF! 🏖️",
]
OF_AGENT = [START, '  File "/venv/bin/torchrun", line 8, in <module>', "    sys.exit(main())"]
SYNTAX = ['  File "train.py", line 1', "    def f(:", "          ^", "SyntaxError: invalid syntax"]


def shown(folding: Folding, *lines: str, pod: str = "w0") -> list[str]:
    return [line for text in lines for line in folding.lines(pod, text)]


def test_a_rank_that_lost_its_peer_says_nothing_and_is_counted() -> None:
    """A healthy scale printed twenty lines of tracebacks, and each world after a crash did."""
    folding = Folding()
    of_rank = [f"[rank1]: {line}" for line in OF_PEER]
    assert shown(folding, "step 1", *OF_PEER, *of_rank, "step 2") == ["step 1", "step 2"]
    assert (folding.of_peers, folding.folded) == (8, 0)
    assert folding.error() == ("w0", OF_PEER), "without another one it is the error"
    killed = "a worker of w1 ended with status 137, SIGKILL: the kernel killed it"
    assert folding.error(None, killed, blames_other=True) is None, "the worker that was killed wrote none, and this one is of a victim"
    assert shown(folding, *OWN) == OWN
    assert folding.error() == ("w0", OWN)


def test_later_words_of_a_rank_that_lost_its_peer_are_its_own_except_for_the_link_to_a_second_error() -> None:
    folding = Folding()
    link = ["", "During handling of the above exception, another exception occurred:", ""]
    assert shown(folding, *OF_PEER, *link, *OF_PEER, *OF_PEER, *link, *OWN, "") == [*OWN, ""]
    assert folding.of_peers == 3 * 4 + 2 * 3


def test_a_traceback_that_was_shown_is_told_by_its_last_line() -> None:
    """A bug of the program stood there in twelve copies: of three ranks in four attempts."""
    folding = Folding()
    other = [START, '  File "train.py", line 9, in <module>', "ValueError: bad batch"]
    assert shown(folding, *[f"[rank1]: {line}" for line in OWN]) == [f"[rank1]: {line}" for line in OWN]
    assert shown(folding, *[f"[rank0]: {line}" for line in OWN], pod="w1") == [
        "[rank0]: ValueError: bad batch (the same traceback for the 2nd time)"
    ]
    assert shown(folding, *other) == other, "another line of the program"
    assert shown(folding, *OWN) == ["ValueError: bad batch (the same traceback for the 3rd time)"]
    assert folding.error("w1") == ("w1", [f"[rank0]: {line}" for line in OWN]), "it is kept for the end"


def test_a_flood_of_different_tracebacks_is_bounded() -> None:
    folding = Folding()
    for number in range(3 * MOST_KNOWN):
        error = [START, '  File "train.py", line 3, in <module>', f"ValueError: {number}"]
        assert shown(folding, *error) == error
    assert len(folding._times) == MOST_KNOWN


def test_an_agents_traceback_that_its_pods_end_cuts_off_is_folded() -> None:
    """Thirty lines of it stood behind the word Failed."""
    folding = Folding()
    assert shown(folding, *OF_AGENT) == []
    assert shown(folding, *OWN[:2], pod="w1") == []
    assert folding.rest() == [("w1", line) for line in OWN[:2]]
    assert folding.folded == 3


@pytest.mark.parametrize("error", [SYNTAX, [f"name? {START}", *OWN[1:]]])
def test_an_error_without_a_traceback_or_behind_other_words_is_one(error: list[str]) -> None:
    folding = Folding()
    assert shown(folding, "hello", *error, "bye") == ["hello", *error, "bye"]
    assert folding.error() == ("w0", error)


def ended(printer: Printer, capsys: pytest.CaptureFixture[str]) -> list[str]:
    printer.end(JOB, Outcome.FAILED)
    return [line.partition(" s  ")[2] for line in capsys.readouterr().out.splitlines()]


def test_the_last_error_has_its_rank_though_the_status_has_none_any_more(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(folds=True)
    printer.tell(JOB, Ranks({"train-worker-0": 1}))
    for line in [*OF_PEER, *OWN[:2]]:
        printer.tell(JOB, Line("train-worker-0", line))
    printer.tell(JOB, Ranks({}))
    printer.tell(JOB, Line("train-worker-0", OWN[2]))
    said = ended(printer, capsys)
    assert "the first error, of train-worker-0 rank 1:" in said
    assert "4 lines of ranks whose peer was lost are folded; --all-output shows them" in said


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_job_that_succeeds_after_errors_ends_with_the_newest(capsys: pytest.CaptureFixture[str], outcome: Outcome) -> None:
    """A script whose every evaluation failed succeeded within maxRestarts, and nothing at the end said so."""
    printer = Printer(folds=True)
    for line in [*OWN, "step 2", *(line.replace("bad batch", "no such metric") for line in OWN), *OF_PEER, "step 3"]:
        printer.tell(JOB, Line("w1", line))
    capsys.readouterr()
    printer.end(JOB, outcome)
    said = capsys.readouterr().out
    assert ("errors stand in its output; the newest, of w1:" in said) == (outcome is Outcome.SUCCEEDED)
    assert ("ValueError: no such metric" in said) == (outcome is Outcome.SUCCEEDED)


def test_one_line_a_second_of_a_progress_bar_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(folds=True)
    told = [printer.tell(JOB, Line("train-worker-0", f"step {number}", is_passing=True)) for number in range(9)]
    assert told == [True] + [False] * 8
    assert printer.tell(JOB, Line("train-worker-1", "step 0", is_passing=True)), "each pod has its own"
    assert printer.tell(JOB, Line("train-worker-0", "step 9"))
    said = [line.partition(" s  ")[2] for line in capsys.readouterr().out.splitlines()]
    assert said == ["train-worker-0 | step 0", "train-worker-1 | step 0", "train-worker-0 | step 9"]


def test_folded_lines_were_not_shown() -> None:
    """A wait that follows says what it waits for."""
    printer = Printer(folds=True)
    assert [printer.tell(JOB, Line("train-worker-0", line)) for line in OF_PEER] == [False] * 4
    assert not printer.tell(JOB, Ranks({"train-worker-0": 0}))


def test_while_a_question_stands_lines_wait_and_the_newest_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """It scrolled away at once where workers print."""
    printer = Printer()
    with printer.held():
        for number in range(1002):
            printer.tell(JOB, Line("train-worker-0", f"line {number}"))
        assert capsys.readouterr().out == ""
    said = [line.partition(" s  ")[2] for line in capsys.readouterr().out.splitlines()]
    assert said[0] == "2 lines are left out, which came while the question stood"
    assert (said[1], said[-1], len(said)) == ("train-worker-0 | line 2", "train-worker-0 | line 1001", 1001)
    printer.say("after")
    assert capsys.readouterr().out.endswith("after\n")
