"""An agent speaks for its workers in a change in process, and tells each of them its part."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_worker.agent.change import LocalChange, LocalWorker
from elastic_worker.agent.view import View
from elastic_worker.agent.worker_messages import MOST_KEYS_LINE, BrokenRule

Said = dict[str, Any]


def changing(
    workers: int = 1, *, generation: int = 3, steps: tuple[int | None, ...] = (), size: int | None = None, is_unit: bool = False
) -> tuple[LocalChange, list[LocalWorker]]:
    """Return the change of an agent whose workers have said hello."""
    change = LocalChange(address="10.0.0.7", secret=lambda generation, round: f"secret of {generation} and {round}")
    change.begin(generation, lambda: size or workers)
    said = [{"t": "hello", "pid": 7, "local_rank": rank, "step": step_of(steps, rank), "unit": is_unit} for rank in range(workers)]
    return change, [change.hello(hello) for hello in said]


def step_of(steps: tuple[int | None, ...], rank: int) -> int | None:
    return steps[rank] if steps else None


def view(round: int, phase: str, *, generation: int = 3, rank: int = 0, size: int = 1, **more: object) -> View:
    change = {"round": round, "phase": phase, **more}
    return View({"generation": generation, "rank": rank, "size": size, "change": change})


def say(change: LocalChange, worker: LocalWorker, kind: str, *, now: float = 0.0, **fields: object) -> None:
    change.heard(worker, {"t": kind, **fields}, now=now)


def kinds(said: list[Said]) -> list[str]:
    return [message["t"] for message in said]


def test_an_agent_is_able_once_all_its_workers_have_said_hello() -> None:
    change, _ = changing(2, size=3, steps=(7, 9))
    assert change.take_up() == []
    change.hello({"t": "hello", "pid": 9, "local_rank": 2, "step": 8})
    assert change.take_up() == [{"t": "able", "generation": 3, "workers": 3, "step": 9}]
    assert change.introduction() == ({"workers": 3}, [{"t": "able", "generation": 3, "workers": 3, "step": 9}])


def test_a_fresh_worker_gets_the_state_that_its_sibling_has_restored() -> None:
    change, workers = changing(2, steps=(None, 7))
    assert change.take_up() == [{"t": "able", "generation": 3, "workers": 2, "step": 7}]
    change.follow(view(1, "form", generation=3, rank=0, size=1, step=7, donors=[0]))
    assert [line["donors"] for worker in workers for line in change.lines(worker)] == [[1], [1]]


def test_a_unit_has_a_state_only_if_all_its_workers_have_it() -> None:
    """Each worker of a sharded model holds a part of the state, so a sibling cannot give the whole."""
    change, workers = changing(2, steps=(7, None), is_unit=True)
    assert change.take_up() == [{"t": "able", "generation": 3, "workers": 2}]
    change.follow(view(1, "abort"))
    say(change, workers[0], "at", round=1, step=13)
    say(change, workers[1], "at", round=1, step=12)
    assert change.take_up() == [{"t": "ready", "round": 1, "step": 12}]


def test_workers_in_a_provisional_world_stand_by_for_the_jobs_world() -> None:
    change, (worker,) = changing(generation=0, steps=(4,))
    assert change.take_up() == [{"t": "able", "generation": 0, "workers": 1, "step": 4}, {"t": "ready", "round": 0, "step": 4}]
    assert change.follow(view(5, "form", generation=9, rank=2, size=3, step=80, donors=[1]))
    assert change.generation == 9
    (form,) = change.lines(worker)
    assert form == {
        "t": "change",
        "round": 5,
        "phase": "form",
        "generation": 9,
        "rank": 2,
        "size": 3,
        "local_rank": 0,
        "local_size": 1,
        "node": 2,
        "nodes": 3,
        "step": 80,
        "donors": [1],
        "secret": "secret of 9 and 5",
        "address": "10.0.0.7",
    }


def test_a_worker_in_a_provisional_world_never_hears_that_the_job_is_plain() -> None:
    """It would train alone, as rank 0 of a world of one, and overwrite the job's checkpoints."""
    change, (worker,) = changing(generation=0)
    change.follow(View({"change": {"phase": "plain", "why": "w2 does not use the library"}}))
    assert change.lines(worker) == []
    change, (worker,) = changing()
    change.follow(view(0, "plain", why="w2 does not use the library"))
    assert change.lines(worker) == [{"t": "change", "round": 0, "phase": "plain", "why": "w2 does not use the library"}]


def test_a_planned_change_takes_the_highest_promise_and_the_newest_clean_step() -> None:
    change, workers = changing(2)
    change.take_up()
    change.follow(view(1, "hold"))
    for worker, step in zip(workers, (11, 12), strict=True):
        assert change.lines(worker) == [{"t": "change", "round": 1, "phase": "hold"}]
        say(change, worker, "holds", round=1, step=step)
    assert change.take_up() == [{"t": "holds", "round": 1, "step": 12}]
    change.follow(view(1, "stop", step=13))
    assert [change.lines(worker) for worker in workers] == 2 * [[{"t": "change", "round": 1, "phase": "stop", "step": 13}]]
    say(change, workers[0], "at", round=1, step=13)
    assert change.take_up() == []
    say(change, workers[1], "at", round=1, step=12)
    assert change.take_up() == [{"t": "ready", "round": 1, "step": 13}]


def test_a_dirty_worker_gets_the_state_of_its_sibling() -> None:
    change, workers = changing(2)
    change.follow(view(1, "abort"))
    change.take_up()
    say(change, workers[0], "at", round=1, step=13)
    say(change, workers[1], "at", round=1, step=None)
    assert change.take_up() == [{"t": "ready", "round": 1, "step": 13}]
    change.follow(view(1, "form", generation=4, rank=1, size=2, step=13, donors=[0, 1]))
    assert change.lines(workers[1])[0]["donors"] == [0, 1, 2]


def formed(change: LocalChange, workers: list[LocalWorker], round: int, *, generation: int, **more: Any) -> None:
    assert change.follow(view(round, "form", generation=generation, **more))
    for worker in workers:
        change.lines(worker)
        say(change, worker, "formed", round=round)
    change.follow(view(round, "run", generation=generation, **more))


def test_the_ranks_of_members_are_multiplied_by_their_workers() -> None:
    change, workers = changing(2)
    assert change.follow(view(6, "form", generation=4, rank=1, size=3, step=5, donors=[0, 2]))
    forms = [change.lines(worker)[0] for worker in workers]
    assert [(form["rank"], form["size"], form["node"], form["nodes"]) for form in forms] == [(2, 6, 1, 3), (3, 6, 1, 3)]
    assert forms[0]["donors"] == [0, 1, 4, 5]


def test_all_workers_form_before_their_member_has_formed_and_then_they_run() -> None:
    change, workers = changing(2)
    change.take_up()
    change.follow(view(6, "form", generation=4, rank=1, size=2))
    for worker in workers:
        change.lines(worker)
    say(change, workers[0], "formed", round=6)
    assert change.take_up() == []
    say(change, workers[1], "formed", round=6)
    assert change.take_up() == [{"t": "formed", "round": 6}, {"t": "started"}]
    assert not change.follow(view(6, "run", generation=4, rank=1, size=2))
    assert [change.lines(worker) for worker in workers] == 2 * [[{"t": "change", "round": 6, "phase": "run"}]]
    say(change, workers[0], "stepped", round=6, step=5)
    say(change, workers[1], "stepped", round=6, step=5)
    assert change.take_up() == [{"t": "stepped", "generation": 4, "step": 5}]


def test_a_new_worker_hears_nothing_of_a_change_that_ended_before_its_hello() -> None:
    change, (worker,) = changing()
    change.follow(view(6, "run"))
    assert change.lines(worker) == []


def test_new_workers_hear_nothing_of_the_change_that_their_predecessors_did_not_survive() -> None:
    """The server gave the round up and restarted the workers. An answer to it would put the new ones to the barrier."""
    change, (worker,) = changing()
    change.follow(view(6, "abort"))
    assert len(change.lines(worker)) == 1
    change.stop()
    say(change, worker, "at", round=6, step=4)
    assert change.take_up() == [], "torchrun stops it"
    change.begin(4, lambda: 1)
    again = change.hello({"t": "hello", "pid": 8, "local_rank": 0, "step": None})
    change.follow(View({"generation": 4}))
    assert change.lines(again) == []
    assert kinds(change.take_up()) == ["able"]


def test_answers_to_an_older_round_change_nothing_and_to_a_newer_one_break_the_rules() -> None:
    change, (worker,) = changing()
    change.take_up()
    change.follow(view(2, "hold"))
    change.follow(view(3, "abort"))
    assert not change.follow(view(2, "form", generation=8)), "an older round of a server that was replaced"
    for kind in ("holds", "at"):
        say(change, worker, kind, round=2, step=4)
    say(change, worker, "formed", round=2)
    say(change, worker, "unformed", round=2, words="no")
    say(change, worker, "put", round=2, key="k", value="")
    assert change.take_up() == []
    with pytest.raises(BrokenRule, match="it named round 4, and the newest is 3"):
        say(change, worker, "at", round=4, step=4)


def test_a_change_that_is_called_off_puts_the_member_back_into_its_world() -> None:
    change, (worker,) = changing()
    formed(change, [worker], 1, generation=4)
    change.follow(view(2, "stop", generation=4, step=9))
    change.lines(worker)
    change.take_up()
    say(change, worker, "at", round=2, step=9)
    assert kinds(change.take_up()) == ["ready"]
    assert not change.follow(view(2, "run", generation=4))
    assert change.lines(worker) == [{"t": "change", "round": 2, "phase": "run"}]
    assert change.take_up() == [{"t": "resume"}]
    say(change, worker, "complains", round=1, words="reset by peer")
    assert change.take_up() == [{"t": "complains", "round": 1, "words": "reset by peer"}], "its world is still that of round 1"


def test_a_complaint_about_the_present_world_is_passed_on_once_also_after_the_next_round_began() -> None:
    change, workers = changing(2)
    formed(change, workers, 1, generation=4)
    change.follow(view(2, "hold", generation=4))
    change.take_up()
    for worker in workers:
        say(change, worker, "complains", round=1, words="reset by peer")
    say(change, workers[0], "complains", round=0, words="of a former world")
    assert change.take_up() == [{"t": "complains", "round": 1, "words": "reset by peer"}]


def test_a_new_connection_repeats_the_state_of_the_world_and_of_the_newest_round() -> None:
    change, (worker,) = changing(steps=(2,))
    formed(change, [worker], 1, generation=4)
    change.follow(view(2, "hold", generation=4))
    say(change, worker, "holds", round=2, step=8)
    say(change, worker, "put", round=1, key="0//cpu//0/0", value="QUJD")
    change.take_up()
    fields, repeated = change.introduction()
    assert fields == {"workers": 1}
    assert repeated == [
        {"t": "able", "generation": 4, "workers": 1},
        {"t": "formed", "round": 1},
        {"t": "holds", "round": 2, "step": 8},
        {"t": "put", "round": 1, "key": "0//cpu//0/0", "value": "QUJD"},
    ]
    change.follow(view(3, "abort", generation=4))
    assert kinds(change.introduction()[1]) == ["able", "formed", "put"], "what belongs to an older round is over"


def test_a_worker_that_has_ended_its_loop_makes_its_member_unable() -> None:
    change, workers = changing(2)
    change.take_up()
    say(change, workers[0], "done")
    assert change.take_up() == [{"t": "unable", "words": "the training loop of local rank 0 has ended"}]
    assert change.introduction() == ({}, [{"t": "unable", "words": "the training loop of local rank 0 has ended"}])
    change.follow(view(1, "abort"))
    assert change.lines(workers[0]) == []
    say(change, workers[1], "at", round=1, step=4)
    assert change.take_up() == [], "one of its workers cannot change worlds"
    with pytest.raises(BrokenRule):
        say(change, workers[0], "at", round=1, step=4)


@pytest.mark.parametrize(
    ("error", "what"), [("ValueError: bad batch", "raised ValueError: bad batch"), ("", "left its training loop early")]
)
def test_a_worker_whose_program_ends_in_the_middle_of_training_tells_the_server_why(error: str, what: str) -> None:
    change, workers = changing(2)
    change.follow(view(1, "form", rank=3, size=4, step=0))
    change.take_up()
    say(change, workers[1], "done", early=True, words=error)
    said = {"t": "unable", "words": f"the program of rank 7 {what}", "early": True, "rank": 7, "error": error}
    assert change.take_up() == [said]
    assert change.introduction() == ({}, [said])


def test_the_loss_of_a_connection_is_reported_if_nothing_else_explains_it() -> None:
    """The end of its process says more, and comes within the second."""
    change, (worker,) = changing()
    change.take_up()
    change.lost(worker, now=10.0)
    assert change.able == 0
    change.pass_time(10.9)
    assert change.take_up() == []
    change.pass_time(11.0)
    change.pass_time(12.0)
    assert change.take_up() == [{"t": "unable", "words": "the connection of local rank 0 to its agent has ended"}]
    change.begin(4, lambda: 1)
    change.lost(worker, now=13.0)
    change.pass_time(15.0)
    assert change.take_up() == [], "it was a worker of the world before"


def test_progress_of_a_transfer_is_passed_on_at_most_twice_a_second() -> None:
    change, workers = changing(2)
    change.follow(view(1, "form"))
    change.take_up()
    for tenths in range(11):
        for worker in workers:
            say(change, worker, "receives", round=1, bytes=tenths, now=tenths / 10)
    assert change.take_up() == 3 * [{"t": "receives", "round": 1}]


def test_values_of_the_exchange_come_once_and_in_lines_that_fit() -> None:
    change, (worker,) = changing()
    change.follow(view(1, "form"))
    change.lines(worker)
    items = {f"0//cpu//0/{rank}": "A" * 8000 for rank in range(20)}
    change.add_keys(0, {"of": "a former round"})
    change.add_keys(1, items)
    lines = change.lines(worker)
    assert max(len(json.dumps(line)) for line in lines) <= MOST_KEYS_LINE + 1000
    assert {key: value for line in lines for key, value in line["items"].items()} == items
    assert change.lines(worker) == []
    change.add_keys(1, {"late": "QQ=="})
    assert change.lines(worker) == [{"t": "keys", "round": 1, "items": {"late": "QQ=="}}]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"t": "at", "round": 1, "step": -1}, "step is no number"),
        ({"t": "at", "round": 1, "step": True}, "step is no number"),
        ({"t": "at", "round": "1", "step": 1}, "round is no number"),
        ({"t": "holds", "round": 1}, "step is no number"),
        ({"t": "leave"}, "it sent 'leave'"),
        ({"t": "hello", "local_rank": 0, "step": None}, "it sent 'hello'"),
        ({"t": "put", "round": 1, "key": "a b", "value": ""}, "a key is not"),
        ({"t": "put", "round": 1, "key": "k" * 257, "value": ""}, "a key is not"),
        ({"t": "put", "round": 1, "key": "k", "value": "?"}, "not in base64"),
        ({"t": "put", "round": 1, "key": "k", "value": 16388 * "A"}, "more than 16384 characters"),
        ({"t": "unformed", "round": 1, "words": 7}, "words are no text"),
    ],
)
def test_a_message_that_breaks_a_rule_is_refused(message: Said, why: str) -> None:
    change, (worker,) = changing()
    change.follow(view(1, "form", generation=4, step=0, donors=[0]))
    change.take_up()
    with pytest.raises(BrokenRule, match=why):
        change.heard(worker, message, now=0.0)
    assert change.take_up() == []


def test_a_worker_may_put_few_values_and_words_are_cut() -> None:
    change, (worker,) = changing()
    change.follow(view(1, "form", generation=4, step=0, donors=[0]))
    for number in range(16):
        say(change, worker, "put", round=1, key=f"k{number}", value="")
    with pytest.raises(BrokenRule, match="more than 16 values"):
        say(change, worker, "put", round=1, key="k16", value="")
    change.take_up()
    say(change, worker, "unformed", round=1, words="\ud800" + "x" * 400)
    (unformed,) = change.take_up()
    assert unformed["words"] == "?" + "x" * 299, "half a surrogate pair would end the agent's connection"


@pytest.mark.parametrize("hello", [{"local_rank": 1}, {"local_rank": 2, "t": "at"}, {"local_rank": 5}, {"local_rank": "0"}, {}])
def test_only_a_workers_first_hello_is_taken(hello: Said) -> None:
    change, _ = changing(2, size=3)
    with pytest.raises(BrokenRule):
        change.hello({"t": "hello", "pid": 1, "step": None, **hello})


TEXT = st.sampled_from(["hello", "holds", "at", "put", "formed", "receives", "unformed", "complains", "stepped", "done", "leave", ""])
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 3), st.integers(2**52, 2**64), st.floats(), st.text(max_size=3), st.lists(st.none())
)


@given(st.lists(st.fixed_dictionaries({"t": TEXT}, optional=dict.fromkeys(("round", "step", "key", "value", "words", "bytes"), ODD))))
def test_no_message_of_a_worker_speaks_for_more_than_its_own_member(messages: list[Said]) -> None:
    """It can make its member unable, late or faulty. It cannot say that a worker failed, or that the member leaves."""
    change, (worker, _) = changing(2)
    change.follow(view(1, "abort"))
    change.take_up()
    for message in messages:
        try:
            change.heard(worker, message, now=0.0)
        except BrokenRule:
            continue
    assert set(kinds(change.take_up())) <= {"put", "receives", "unformed", "complains", "unable"}


def test_the_workers_of_a_plain_job_are_presented_to_no_server_as_able() -> None:
    change, (worker,) = changing()
    change.take_up()
    change.follow(view(0, "plain", why="w1 is late"))
    assert [line["phase"] for line in change.lines(worker)] == ["plain"]
    assert change.introduction() == ({}, [])
    change.begin(4, lambda: 1)
    change.hello({"t": "hello", "pid": 8, "local_rank": 0, "step": None})
    assert change.introduction()[0] == {"workers": 1}, "the next workers may be"


def training(workers: int = 2, *, size: int = 1, is_unit: bool = False) -> tuple[LocalChange, list[LocalWorker]]:
    """Return the change of an agent whose workers train in a world that they formed in process."""
    change, said = changing(workers, is_unit=is_unit)
    formed(change, said, 1, generation=4, size=size, donors=[0])
    change.take_up()
    return change, said


def test_the_exchange_of_a_world_goes_on_while_its_workers_hold() -> None:
    """The agent passed no values on once it had heard of a hold, so a group that the program formed then waited in vain."""
    change, workers = training(2, size=2)
    change.follow(view(2, "hold", generation=4, size=2))
    put = {"t": "put", "round": 1, "key": "1//cpu//0/0", "value": "QUJD"}
    change.heard(workers[0], put, now=0.0)
    assert change.take_up() == [put]
    change.add_keys(1, {"1//cpu//0/0": "QUJD"})
    assert change.lines(workers[1])[-1] == {"t": "keys", "round": 1, "items": {"1//cpu//0/0": "QUJD"}}
    change.follow(view(2, "form", generation=5, size=3, donors=[0]))
    change.heard(workers[0], put, now=0.0)
    assert change.take_up() == [], "that world is over"
