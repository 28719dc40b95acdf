"""The controller's log of its rounds has constant messages, and each names its job by the same fields."""

import asyncio
import logging
import random

import pytest
import sim_time
from sim_api import Api
from sim_client import Sky, Weather
from sim_cluster import Cluster
from sim_jobs import NAME, job_of
from sim_process import Controller
from sim_rendezvous import SimServer

from elastic.api.kinds import KINDS
from elastic_training.controller.facts.keys import JOBS

KIND = "PyTorchJob"
OF_ROUNDS = {"elastic_training.controller.running.reconcile", "elastic_training.controller.acting.event_recorder"}
ONE_BUG_AT = 5


async def _life(uids: list[str]) -> None:
    """Let a job run under an API server that refuses half of all requests, and let one of them meet a bug."""
    api, server, draw, asked = Api(), SimServer(), random.Random(1), []

    def on_call(moment: str) -> bool:
        asked.append(moment)
        if len(asked) == ONE_BUG_AT:
            raise RuntimeError("a bug")
        return False

    cluster = Cluster(api, server, draw)
    Controller(api, Sky(Weather(refused=0.5)), server, draw, name="controller-1", kinds=[KIND], on_call=on_call).start()
    job = api.create(JOBS[KIND], job_of(KINDS[KIND], {"Master": 1, "Worker": 4}, run_policy={}), actor="user")
    uids.append(job["metadata"]["uid"])
    for _ in range(480):
        await asyncio.sleep(0.5)
        cluster.tick()


def test_every_line_of_a_round_names_its_job_by_the_same_fields(caplog: pytest.LogCaptureFixture) -> None:
    uids: list[str] = []
    with caplog.at_level(logging.DEBUG, logger="elastic_training.controller"):
        sim_time.run(_life(uids))
    lines = [record.__dict__ for record in caplog.records if record.name in OF_ROUNDS]
    assert {line["msg"] for line in lines} >= {"reconcile failed", "the state of a job changed"}
    broken = [line for line in lines if line["msg"] == "reconcile failed" and line["exc_info"]]
    assert len(broken) == 1, "a bug has its traceback"
    named = {(line.get("kind"), line.get("namespace"), line.get("job"), line.get("uid")) for line in lines}
    assert named == {(KIND, "team", NAME, uids[0])}
    states = [line["reason"] for line in lines if line["msg"] == "the state of a job changed"]
    assert states[-1] == f"{KIND}Running"
