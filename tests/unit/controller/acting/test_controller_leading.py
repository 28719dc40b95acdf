"""The leading controller gives the rendezvous server a sign every two seconds; a standby gives none."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from elastic.membership.protocol import GIVES_SIGNS
from elastic.membership.tokens import control_token, job_token
from elastic_training.controller.acting.leading import RENEWED_S, give_signs
from elastic_training.rendezvous.server.access import Gate
from elastic_training.rendezvous.server.http import Face
from elastic_training.rendezvous.server.hub import Hub

sys.path.append(str(Path(__file__).parents[3] / "sim"))
from sim_time import run

KEY = b"k" * 32


class Refused(Exception):
    """The server's answer is an error, such as the 404 of release 0.4."""


def signs_given(*, seconds: float, left_s: float = 10.0, renewed_ago_s: float = 1.0, is_refused: bool = False) -> list[int]:
    """Return the terms of the signs that a controller gives in this time."""
    given: list[int] = []
    election: Any = SimpleNamespace(term=7, renewed_ago_s=lambda: renewed_ago_s)

    async def lead(term: int) -> None:
        given.append(term)
        if is_refused:
            raise Refused

    async def life() -> None:
        signs = asyncio.create_task(give_signs(lead, election, errors=(Refused,), left=lambda: left_s))
        await asyncio.sleep(seconds)
        signs.cancel()

    run(life())
    return given


def test_a_leader_gives_a_sign_every_two_seconds_also_after_an_error() -> None:
    assert signs_given(seconds=9.0) == signs_given(seconds=9.0, is_refused=True) == [7] * 5


def test_a_standby_gives_no_sign() -> None:
    assert signs_given(seconds=9.0, left_s=-1.0) == []


def test_a_leader_whose_renewals_fail_gives_no_sign_though_its_lease_lasts() -> None:
    """With a Lease of a minute, it leads for 40 s more. The server would have given up silent members by then."""
    assert signs_given(seconds=9.0, left_s=30.0, renewed_ago_s=RENEWED_S + 0.1) == []


async def test_the_server_takes_signs_of_the_newest_term_from_the_control_plane_alone() -> None:
    now = [100.0]
    hub = Hub(instance="s1", clock=lambda: now[0])
    face = Face(hub=hub, gate=Gate(keys=lambda: [KEY], reviewer=None, accounts=()), clock=lambda: now[0], metrics=lambda: (b"", ""))
    ours, agents = {"Authorization": f"Bearer {control_token(KEY)}"}, {"Authorization": f"Bearer {job_token(KEY, 'job')}"}
    async with TestClient(TestServer(face.application())) as client:
        stream = await client.get("/v1/worlds", headers={**ours, GIVES_SIGNS: "1"})
        now[0] = 110.0
        assert (await client.put("/v1/leader/3", headers=agents)).status == 403
        assert (await client.put("/v1/leader/3")).status == 401
        assert hub.signs.last_at() == 100.0, "the open stream of a standby is no sign"
        assert (await client.put("/v1/leader/3", headers=ours)).status == 204
        assert hub.signs.last_at() == 110.0
        now[0] = 120.0
        assert (await client.put("/v1/leader/2", headers=ours)).status == 409
        assert (await client.put("/v1/leader/x", headers=ours)).status == 404
        assert hub.signs.last_at() == 110.0
        stream.close()
