"""Bounds of what members present, and the few members that keep what is not written down yet."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from rendezvous_group import Group, group_of

from elastic.membership.wire import MAX_HELD, Held, Join, Leave, Restart, encode
from elastic_training.rendezvous.engine.events import Said
from elastic_training.rendezvous.engine.presented import GENERATIONS_AHEAD, KEEPERS, MAX_CLAIMED_BYTES, share_of
from elastic_training.rendezvous.engine.restart_log import RestartLog, merged, unknown_to
from elastic_training.rendezvous.engine.state import accounting
from elastic_training.rendezvous.engine.state.membership import ranks_of
from elastic_training.rendezvous.engine.views import summary


def restarts(count: int, *, generation: int = 1, cause: str = "plan", first: int = 0) -> tuple[Restart, ...]:
    return tuple(Restart(id=f"1-s0/pod-{n}", generation=generation, cause=cause, pod=f"pod-{n}") for n in range(first, first + count))


def held(generation: int, *unacknowledged_restarts: Restart, size: int = 1) -> Held:
    return Held(id=f"{generation}-s0", generation=generation, rank=0, size=size, unacknowledged_restarts=unacknowledged_restarts)


def present(group: Group, world: Held, *, name: str = "w0", ready: bool = False) -> None:
    group.apply(Said(name, f"{name}/1", Join(incarnation=f"{name}/1", held=world, ready=ready)))


def test_a_world_far_beyond_what_can_have_been_is_not_believed() -> None:
    """One message claimed generation 2^52, and the next world's number fitted into no message any more."""
    group = group_of(1)
    far = 1 + GENERATIONS_AHEAD + 1
    present(group, held(far))
    assert summary(group.job).generation == 1
    present(group, held(far - 1))
    assert summary(group.job).generation == far - 1, "worlds may have gone on while the controller could not write"


def test_a_member_with_a_world_that_cannot_be_is_called_to_the_barrier() -> None:
    group = group_of(2, min=1, max=2)
    group.agents["w1"].held = held(2**52)
    group.cut("w1")
    group.link("w1")
    assert "without this member" in group.agents["w1"].view.reform


def test_a_claim_made_before_the_controller_spoke_is_judged_when_it_speaks() -> None:
    group = Group(up_for_s=0.0)
    group.start("w0")
    group.agents["w0"].is_ready = False
    group.agents["w0"].held = held(2**52, *restarts(3, generation=2**52))
    group.link("w0")
    world = summary(group.job)
    assert (world.generation, world.unacknowledged_restarts) == (0, ()), "nothing of it is told before it can be judged"
    group.expect("w0", floor=7)
    assert (group.job.membership.generation, group.job.membership.members, group.job.accounting.restarts) == (7, {}, {})
    assert group.cuts, "it is cut off, so that it presents itself anew"
    group.link("w0")
    group.come_all()
    assert group.job.membership.world is not None
    assert group.job.membership.world.generation == 8


@pytest.mark.parametrize("end", ["leaves", "failed"])
def test_a_claim_that_was_judged_leaves_nothing_behind_of_its_members_ends(end: str) -> None:
    """Losses of a world that there cannot have been were kept without it, and each decision on the job failed from then on."""
    group = Group(up_for_s=0.0)
    group.start("w0")
    claim = replace(group.agents["w0"].join(), held=held(2**52), ready=end == "failed", failed=end == "failed")
    group.apply(Said("w0", claim.incarnation, claim))
    if end == "leaves":
        group.say("w0", Leave())
    group.expect("w1", floor=7)
    group.start("w1")
    group.link("w1")
    group.advance(60)
    assert group.job.membership.world is not None
    assert (group.job.membership.world.generation, group.job.accounting.restarts) == (8, {})


def test_one_member_cannot_grow_the_state_of_its_job() -> None:
    """From one worker's token, 27,000 restarts of cause `plan` were counted in 35 seconds."""
    group, book = group_of(2), RestartLog(generation=1)
    for turn in range(20):
        present(group, held(1, *restarts(MAX_HELD, first=turn * MAX_HELD)), name="w1")
        told = summary(group.job).unacknowledged_restarts
        assert len(told) <= MAX_HELD
        assert len(group.job.accounting.known_restarts) <= MAX_HELD
        if turn % 5 == 4:  # the controller writes it down, and it does it again
            book = merged(book, told)
            group.expect("w0", "w1", unsettled=book.unsettled, restarts=book.counts, settled_to=book.generation)
    assert sum(group.job.accounting.restarts.values()) <= MAX_HELD


def fat(count: int, *, first: int) -> tuple[Restart, ...]:
    """Return restarts that are as long as a message allows."""
    return tuple(Restart(id=f"{n:-<512}", generation=1, cause="disruption", pod=f"{n:-<253}") for n in range(first, first + count))


def test_a_job_of_one_worker_has_room_for_its_members_however_large_it_may_become() -> None:
    """With `maxReplicas: 8192` and one pod, a job made each of its worlds 13 MB long, and with it every neighbour wait."""
    group = group_of(1, min=1, max=8192)
    for turn in range(40):
        present(group, held(1, *fat(MAX_HELD, first=turn * MAX_HELD)), name=f"x{turn}", ready=True)
    told = summary(group.job)
    assert len(told.unacknowledged_restarts) <= MAX_HELD
    assert len(encode(told)) < 300 * 1024


def test_workers_whose_pods_cannot_have_come_make_no_room() -> None:
    group = group_of(1, min=1, max=8192)
    names = ("w0", *(f"p{n}" for n in range(2000)))
    group.expect(*names, min=1, max=8192, pending=names[1:])
    present(group, held(1, *fat(MAX_HELD, first=0)), name="x1")
    present(group, held(1, *fat(MAX_HELD, first=MAX_HELD)), name="x2")
    assert len(group.job.accounting.known_restarts) == MAX_HELD
    group.expect(*names, min=1, max=8192)
    present(group, held(1, *fat(MAX_HELD, first=MAX_HELD)), name="x3")
    assert len(group.job.accounting.known_restarts) == 2 * MAX_HELD, "a job with thousands of pods has room for their losses"


def test_claims_made_before_the_controller_spoke_have_bounded_bytes_and_are_cut_when_it_speaks() -> None:
    """A server that has just started cannot know how large a job is, and members may claim worlds of 8,192."""
    group = Group(up_for_s=0.0)
    for turn in range(60):
        group.start(f"x{turn}")
        present(group, held(1, *fat(MAX_HELD, first=turn * MAX_HELD), size=8192), name=f"x{turn}")
    kept = group.job.accounting.known_restarts.values()
    assert len(kept) > MAX_HELD
    assert sum(len(entry.id) + len(entry.pod) for entry in kept) < MAX_CLAIMED_BYTES
    group.expect("x0", floor=1, max=8192)
    assert len(summary(group.job).unacknowledged_restarts) <= MAX_HELD


def test_a_step_without_a_restart_looks_at_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step compared all restarts of the job with the controller's log, twice."""
    group = group_of(2)
    present(group, held(1, *restarts(MAX_HELD)), name="w1")
    seen = []

    def looked(log: RestartLog, entries: Iterable[Restart]) -> tuple[Restart, ...]:
        seen.append(log)
        return unknown_to(log, entries)

    monkeypatch.setattr(accounting, "unknown_to", looked)
    present(group, held(1), name="w2", ready=True)
    group.advance(30)
    assert (len(summary(group.job).unacknowledged_restarts), seen) == (MAX_HELD, [])


def test_restarts_of_unknown_causes_or_of_worlds_to_come_are_not_taken_over() -> None:
    group = group_of(1)
    present(group, held(1, *restarts(2, cause="whim"), *restarts(2, generation=2, first=2), *restarts(2, first=4)))
    assert group.job.accounting.restarts == {"plan": 2}


def test_half_of_eight_thousand_losses_lie_with_a_few_members_and_are_complete() -> None:
    group, size = group_of(1), 4000
    assert group.job.membership.world is not None
    names = tuple(f"w{number}" for number in range(size))
    world = replace(group.job.membership.world, by_rank=names, ranks=ranks_of(names))
    lost = restarts(4000, cause="disruption")
    job = replace(
        group.job,
        membership=replace(group.job.membership, world=world),
        accounting=replace(group.job.accounting, unacknowledged_restarts=lost),
    )
    shares = {name: share for name in names if (share := share_of(job, name))}
    assert len(shares) == KEEPERS * -(-len(lost) // MAX_HELD)
    assert all(len(share) <= MAX_HELD for share in shares.values())
    assert {entry for share in shares.values() for entry in share} == set(lost)
    neighbours = [name for name in shares if int(name[1:]) < size // 2]
    assert {entry for name in neighbours for entry in shares[name]} == set(lost), "half of the world is lost once more"


def test_facts_that_the_controller_has_written_down_are_kept_no_longer() -> None:
    group = group_of(2)
    group.fail("w0")
    group.advance(2)
    group.come_all()
    kept = group.agents["w1"].held
    assert kept is not None
    assert [entry.cause for entry in kept.unacknowledged_restarts] == ["user"]
    group.expect("w0", "w1", unsettled=kept.unacknowledged_restarts, restarts={"user": 1}, settled_to=2)
    for agent in group.agents.values():
        assert agent.held is not None
        assert agent.held.unacknowledged_restarts == ()
