"""The engine of a real server raises: its members train on, and the controller's outbox sends its expectation again."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rendezvous_members import expecting, members
from torch_agents import Server, wait_until

from elastic.membership.client import RendezvousError
from elastic.membership.wire import RankedMember
from elastic_training.controller.acting.link import expectation as encoded
from elastic_training.controller.acting.outbox import Outbox
from elastic_training.controller.deciding.actions import Budget, SetExpectation

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


class FaultyServer(Server):
    module = "faulty_rendezvous"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.faults = folder / "faults"

    def break_next(self, times: int) -> None:
        self.faults.write_text(str(times))

    @property
    def faults_left(self) -> int:
        return int(self.faults.read_text() or 0)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("FAULTS", str(tmp_path / "faults"))
    server = FaultyServer(tmp_path)
    server.start()
    yield server
    server.stop()


def standing(server: Server) -> tuple[RankedMember, ...]:
    world = server.world("job")
    return world.members if world is not None else ()


def test_members_train_on_while_decisions_fail_and_after_the_jobs_state_was_dropped(server: FaultyServer) -> None:
    server.expect("job", expecting(2, min=2))
    with members(server, "job", 2) as group:
        wait_until(lambda: all(member.is_in_world for member in group), what="a world of two")
        for times in (1, 3):
            server.break_next(times)
            wait_until(lambda: server.faults_left == 0, what="the decisions failed")
        wait_until(lambda: "state was dropped" in server.log(), what="the state is dropped")
        server.expect("job", expecting(2, min=2))
        wait_until(lambda: len(standing(server)) == 2, what="the world is adopted")
        assert [(member.generation, member.is_in_world) for member in group] == [(1, True)] * 2
        server.expect("job", expecting(1, min=1, floor=1))
        wait_until(lambda: group[0].generation == 2, what="the server decides again")
    assert "Traceback" in server.log()
    assert '"story": ["' in server.log()


def test_the_outbox_sends_an_expectation_again_that_was_answered_500(server: FaultyServer) -> None:
    """It took the 204 of a decision that failed later for an acknowledgement."""
    server.break_next(2)
    told = SetExpectation(
        members=("w0",), pending=(), leaving=(), ended=(), least=1, most=1, sizes=(), budget=Budget(), restarts=(), grace_s=30.0, floor=0
    )

    async def send() -> list[str]:
        heard, errors = asyncio.Event(), list[str]()

        class Client:
            async def expect(self, job_uid: str, expectation: object) -> None:
                try:
                    await client.expect(job_uid, expectation)  # type: ignore[arg-type]
                except RendezvousError as error:
                    errors.append(str(error))
                    raise

            async def forget(self, job_uid: str) -> int | None:
                raise AssertionError

        async with server.client() as client:
            outbox = Outbox(
                Client(),
                encode=lambda told: encoded(told, now=datetime.now(UTC)),
                errors=(RendezvousError,),
                heard=lambda job_uid, **_: heard.set(),
                refused=lambda job_uid, words: None,
            )
            assert not outbox.tell("job", told, is_awaited=True)
            await asyncio.wait_for(heard.wait(), 60)
            assert outbox.tell("job", told, is_awaited=False)
            await outbox.close()
        return errors

    errors = asyncio.run(send())
    assert len(errors) == 2
    assert all("the expectation was not applied" in error and "(500)" in error for error in errors)
