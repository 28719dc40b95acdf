"""Lives in which the simulation itself was wrong: it took for a defect what the product promises."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest
import sim_time
from sim_client import CALM
from sim_jobs import living_job
from sim_rendezvous import SimServer
from sim_scene import Options
from sim_storm import Storm, play
from sim_trainer import At, Trainer
from sim_worlds import LivingWorlds


def test_a_group_that_failed_again_and_again_is_waited_for_until_its_pause_ends() -> None:
    """Its last failure came when the programs ended; the pause was longer than the quiet after which everything must be right."""
    play(21604, Options(twins=True))


def test_the_autoscaler_may_change_its_mind_while_a_right_world_is_looked_at() -> None:
    """The work of a job with a deadline was done; the controller copied what the autoscaler said of it."""
    play(21854)


def test_a_pod_bound_to_a_node_that_goes_is_lost_to_the_cluster() -> None:
    """The signal taints nothing, so that replacements were bound to the same node, joined the world, and had to leave again."""
    play(21860)


def test_a_worker_may_go_just_before_its_node_is_lost_even_if_fewer_than_the_minimum_stay() -> None:
    """Its replacement could not be made: a pod of the former job still had the name."""
    play(20478, Options(twins=True))


def test_the_communication_of_a_world_may_break_while_a_right_world_is_looked_at() -> None:
    """The controller wrote of the world that living processes formed after that."""
    play(40117, Options(living=True), living_job(random.Random("living job 40117")))


def test_messages_that_come_while_the_rendezvous_server_stands_still_keep_their_order() -> None:
    """A newcomer stood by before it had said that its workers can change worlds, and was taken into a world that it could not enter."""
    play(40301, Options(living=True), living_job(random.Random("living job 40301")))


@pytest.mark.parametrize("cut_off_s", [1.0, 9.0])
def test_a_controller_that_was_cut_off_while_it_stood_still_speaks_to_everybody_again(cut_off_s: float) -> None:
    """It never reached the rendezvous server again, and a job that was resumed waited for ever until that had forgotten the former run."""

    async def life() -> None:
        storm = Storm(1, Options(steps=0, kills=False, weather=CALM), living_job(random.Random(1)))
        storm.start_controller()
        (controller,) = storm.controllers
        controller.stand_still(5.0)
        controller.cut_off(cut_off_s)
        storm.api.create(storm.resource, storm.manifest, actor="user")
        await asyncio.sleep(4.9)
        assert not storm.server.expected
        await asyncio.sleep(10.0)
        assert storm.server.expected
        controller.kill()

    sim_time.run(life())


def test_a_worker_that_stands_at_a_boundary_trains_on_when_the_change_is_called_off() -> None:
    """It waited there for ever, and at the end of its programs the job lost the worker to a scale-in that nobody needed any more."""

    async def life() -> None:
        said: list[Any] = []
        server = SimServer()
        server.living = LivingWorlds(server, random.Random(1))
        server.living.blips = 0.0
        agent = SimpleNamespace(name="w0", incarnation="pod/1", job_uid="job", draw=random.Random(3), save=None, is_over=False)
        agent.held, agent.server, agent.takes = (
            SimpleNamespace(id="1-s", rank=0),
            server,
            lambda trainer, message: said.append(message["t"]),
        )
        trainer = Trainer(agent)  # type: ignore[arg-type]

        async def hear(round: int, phase: str, **fields: object) -> None:
            trainer.hears({"t": "change", "round": round, "phase": phase, **fields})
            await asyncio.sleep(3.0)

        await hear(1, "form", generation=1, rank=0, size=1, step=0, donors=[0])
        await hear(1, "run")
        await hear(2, "hold")
        await hear(2, "stop", step=trainer.step)
        assert (trainer.at, said[-1]) == (At.BOUNDARY, "at")
        stood_at = trainer.step
        assert stood_at > 0
        await hear(2, "run")
        await asyncio.sleep(60.0)
        assert trainer.step > stood_at
        assert not server.living.breaches

    sim_time.run(life())
