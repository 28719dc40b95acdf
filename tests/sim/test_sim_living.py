"""Lives of jobs whose workers use the training library: that the simulation plays changes in process, and judges them."""

import random

import pytest
from sim_jobs import living_job
from sim_scene import Options
from sim_storm import Storm, play
from sim_trainer import Trainer


def lived(seed: int, options: Options | None = None) -> Storm:
    return play(seed, options or Options(living=True), living_job(random.Random(f"living job {seed}")))


def story(storm: Storm) -> tuple[object, ...]:
    return storm.history, storm.api.objects, storm.api.version


def test_the_worlds_of_a_few_lives_change_in_process_by_plan_and_after_losses() -> None:
    worlds = [storm.server.living for storm in map(lived, range(4))]
    assert all(worlds)
    assert sum(one.planned for one in worlds if one is not None) > 0
    assert sum(one.aborted for one in worlds if one is not None) > 0
    assert sum(one.trained for one in worlds if one is not None) > 0


def test_the_same_seed_tells_the_same_story_of_processes_that_live_on() -> None:
    assert story(lived(3)) == story(lived(3))


@pytest.mark.parametrize("seed", [0, 2, 24])
def test_jobs_that_do_not_meet_at_the_rendezvous_server_keep_their_stories(seed: int) -> None:
    living = play(seed, Options(living=True))
    assert living.server.living is not None
    if not living.server.living.agents:
        assert story(living) == story(play(seed, Options(living=False)))


def test_a_state_of_another_history_breaks_a_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that keeps its own state, and takes only the number of the step from its peers, is found out."""

    def keeps(self: Trainer, world: object, donor: Trainer) -> None:
        self.lineage = f"own state of {self.agent.name}"
        self.is_writing = False
        self._formed(world)  # type: ignore[arg-type]

    monkeypatch.setattr(Trainer, "_level", keeps)
    with pytest.raises(AssertionError, match="a world trains with one state"):
        list(map(lived, range(8)))
