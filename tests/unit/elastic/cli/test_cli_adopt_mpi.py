"""Check the changes that take MPIJobs over from the MPI Operator, their order, and the jobs that are created again.

tests/cluster/test_cluster_migration.py does the same with a real API server.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click import ClickException
from served_api import served

from elastic.api.parser import parse
from elastic.cli.adopting import command, definitions, mpi_operator
from elastic.cli.adopting.mpi_operator import Seen, converted, is_suspended, obstacles, return_, return_obstacles, saved, takeover
from elastic.cli.adopting.plan import Apply, Create, DeleteDefinition, Scale

Object = dict[str, Any]
DEFINITION: Object = {
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "mpijobs.kubeflow.org", "uid": "d"},
    "spec": {"versions": [{"name": "v1"}, {"name": "v2beta1", "storage": True}]},
}
OUR_DEFINITION: Object = {**DEFINITION, "spec": {"versions": [{"name": "v1", "storage": True}]}}
OPERATOR: Object = {"metadata": {"name": "mpi-operator", "namespace": "mpi-operator"}, "spec": {"replicas": 2}}
OVER = {"conditions": [{"type": "Succeeded", "status": "True"}]}
RUNS = {"conditions": [{"type": "Running", "status": "True"}], "replicaStatuses": {"Launcher": {"active": 1}, "Worker": {}}}


def mpi_job(name: str, status: Object | None = None, *, suspend: bool = False, **more: Any) -> Object:
    container = {"name": "mpi", "image": "example.com/mpi:1", "command": ["mpirun", "true"]}
    replica = {"replicas": 1, "restartPolicy": "Never", "template": {"spec": {"containers": [container]}}}
    spec = {"runPolicy": {"suspend": suspend}, "mpiReplicaSpecs": {"Launcher": replica, "Worker": replica}, **more}
    metadata = {"name": name, "namespace": "a", "uid": f"uid-{name}", "resourceVersion": "7", "generation": 3, "labels": {"team": "x"}}
    return {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": metadata, "spec": spec, "status": status or {}}


def seen(*jobs: Object) -> Seen:
    return Seen([OPERATOR], DEFINITION, jobs)


def test_a_job_that_runs_is_in_the_way_and_the_line_says_how_to_suspend_it() -> None:
    going = mpi_job("going", RUNS)
    stopping = mpi_job("stopping", RUNS, suspend=True)
    said = list(obstacles(seen(going, stopping, mpi_job("new"), mpi_job("over", OVER), mpi_job("rests", suspend=True))))
    assert [line.split()[1] for line in said] == ["a/going", "a/stopping", "a/new"]
    patch = '{"spec": {"runPolicy": {"suspend": true}}}'
    assert f"kubectl -n a patch mpijobs.v2beta1.kubeflow.org going --type merge -p '{patch}'" in said[0]
    assert not is_suspended(stopping), "its pods have not gone yet"


def test_suspended_jobs_are_created_again_and_finished_jobs_are_only_kept() -> None:
    found = seen(mpi_job("over", OVER), mpi_job("rests", suspend=True))
    stop, delete, apply, create = takeover(found, [{"metadata": {"name": "x"}}], file="kept.json")
    assert isinstance(stop, Scale)
    assert (stop.name, stop.replicas) == ("mpi-operator", 0)
    assert isinstance(delete, DeleteDefinition)
    assert delete.words == "delete the definition mpijobs.kubeflow.org (v2beta1) with its 2 jobs, kept in kept.json"
    assert (delete.api_version, delete.seen) == ("kubeflow.org/v2beta1", frozenset({("uid-over", 3), ("uid-rests", 3)}))
    _, alone, *_ = takeover(seen(mpi_job("over", OVER)), [{"metadata": {"name": "x"}}], file="kept.json")
    assert alone.words.endswith("with its 1 job, kept in kept.json")
    assert isinstance(apply, Apply)
    assert isinstance(create, Create)
    assert create.object["metadata"] == {"name": "rests", "namespace": "a", "labels": {"team": "x"}}
    job, warnings = parse(create.object)
    assert (job.kind.name, create.object["spec"]["mpiTransport"], list(warnings)) == ("MPIJob", "SSH", [])
    kept = saved(found)
    assert [one["metadata"]["name"] for one in kept["jobs"]] == ["over", "rests"]
    assert kept["waiting"] == ["a/rests"]
    assert kept["operators"] == [{"namespace": "mpi-operator", "name": "mpi-operator", "replicas": 2}]


def test_fields_of_the_mpi_operator_are_read_as_it_means_them() -> None:
    job = mpi_job("a", suspend=True, slotsPerWorker=4, sshAuthMountPath="/home/mpi/.ssh", mpiImplementation="Intel", waitForWorkers=True)
    job["spec"]["runPolicy"]["managedBy"] = "kubeflow.org/mpi-operator"
    made = converted(job)["spec"]
    assert (made["launcherCreationPolicy"], made["runPolicy"], "waitForWorkers" in made) == (
        "WaitForWorkersReady",
        {"suspend": True},
        False,
    )
    assert list(parse(converted(job))[1]) == []
    assert job["spec"]["waitForWorkers"], "what is kept is as it was"


def test_a_job_that_ours_would_refuse_is_left_in_the_file_and_named() -> None:
    *_, last = takeover(seen(mpi_job("wrong", suspend=True, slotsPerWorker="many")), [], file="kept.json")
    assert not isinstance(last, Create)
    assert last.words.startswith("leave MPIJob a/wrong in kept.json alone: spec.slotsPerWorker")


def test_giving_back_deletes_ours_before_theirs_comes_and_starts_their_operator_last() -> None:
    kept = saved(seen(mpi_job("over", OVER), mpi_job("rests", suspend=True)))
    ours = {"metadata": {"name": "elastic-controller", "namespace": "elastic-system"}, "spec": {"replicas": 1}}
    mine = {**converted(mpi_job("mine", suspend=True)), "metadata": {"name": "mine", "namespace": "a", "uid": "u"}}
    changes = list(return_(kept, [ours], [mine], OUR_DEFINITION))
    assert [type(change).__name__ for change in changes] == ["Scale", "DeleteWebhook", "DeleteDefinition", "Apply", "Create", "Scale"]
    assert isinstance(changes[2], DeleteDefinition)
    assert (changes[2].api_version, changes[2].seen) == ("kubeflow.org/v1", frozenset({("u", 0)}))
    assert isinstance(changes[4], Create)
    assert (changes[4].object["apiVersion"], changes[4].object["metadata"]["name"]) == ("kubeflow.org/v2beta1", "rests")


@pytest.mark.parametrize(
    ("status", "suspend", "is_obstacle"), [(RUNS, False, True), (RUNS, True, True), (OVER, False, False), ({}, True, False)]
)
def test_a_job_of_ours_that_runs_is_in_the_way_of_giving_back(status: Object, suspend: bool, is_obstacle: bool) -> None:
    job = {**converted(mpi_job("mine", suspend=suspend)), "status": status}
    assert bool(list(return_obstacles({"waiting": ["a/mine"]}, [job]))) == is_obstacle


def test_a_suspended_job_that_the_file_does_not_have_is_not_deleted_with_our_definition() -> None:
    job = converted(mpi_job("mine", suspend=True))
    assert ["is suspended, not in the file" in line for line in return_obstacles({"waiting": ["a/other"]}, [job])] == [True]


def test_giving_back_deletes_nothing_if_the_definition_is_theirs() -> None:
    """Their jobs may run by now, after a take-over that broke off, or if the user gives back a second time."""
    changes = list(return_(saved(seen(mpi_job("rests", suspend=True))), [], [], DEFINITION))
    assert [type(change).__name__ for change in changes] == ["DeleteWebhook", "Apply", "Create", "Scale"]


class Api:
    """An API server with one definition and its jobs, which counts deletions."""

    def __init__(self, definition: Object | None, *jobs: Object) -> None:
        self.definition, self.jobs, self.deleted = definition, jobs, 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if "mpijobs.kubeflow.org" not in request.path:
            return web.json_response({"kind": "MPIJobList", "apiVersion": "kubeflow.org/v2beta1", "metadata": {}, "items": self.jobs})
        if self.definition is None:
            return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
        if request.method == "DELETE":
            assert (await request.json())["preconditions"] == {"uid": "d"}
            self.definition, self.deleted = None, self.deleted + 1
        return web.json_response(self.definition or {})


def _deletion(*jobs: Object) -> DeleteDefinition:
    return next(change for change in takeover(seen(*jobs), [], file="kept.json") if isinstance(change, DeleteDefinition))


async def test_a_definition_goes_only_with_the_jobs_that_are_kept_as_they_are() -> None:
    rests = mpi_job("rests", suspend=True)
    resumed = {**rests, "metadata": {**rests["metadata"], "generation": 4}}
    for now in (resumed, mpi_job("new")):
        api = Api(DEFINITION, now)
        async with served(api.answer) as kube:
            with pytest.raises(ClickException, match=r"was created or changed meanwhile.*adopt --back kept\.json"):
                await definitions.delete(kube, _deletion(rests))
        assert api.deleted == 0
    api = Api(DEFINITION, rests)
    async with served(api.answer) as kube:
        await definitions.delete(kube, _deletion(rests))
        await definitions.delete(kube, _deletion(rests))
    assert api.deleted == 1


async def test_a_definition_that_goes_already_is_waited_for() -> None:
    """An earlier take-over gave up waiting for the definition. No job can be created under it any more."""
    going = {**DEFINITION, "metadata": {**DEFINITION["metadata"], "deletionTimestamp": "now"}}
    changes = list(return_(saved(seen()), [], [], going))
    delete = next(change for change in changes if isinstance(change, DeleteDefinition))
    api = Api(going)
    async with served(api.answer) as kube:
        waiting = asyncio.create_task(definitions.delete(kube, delete))
        done, _ = await asyncio.wait([waiting], timeout=definitions.LOOK_S)
        assert not done
        api.definition = None
        await waiting
    assert api.deleted == 0


async def test_a_definition_of_another_version_is_never_deleted() -> None:
    api = Api(OUR_DEFINITION)
    async with served(api.answer) as kube:
        await definitions.delete(kube, _deletion())
    assert api.deleted == 0


def test_only_a_definition_that_stores_v2beta1_is_the_mpi_operators() -> None:
    assert mpi_operator.is_theirs(DEFINITION)
    assert not mpi_operator.is_theirs({**DEFINITION, "spec": {"versions": [{"name": "v1", "storage": True}]}})
    assert not mpi_operator.is_theirs({"metadata": {"name": "mpijobs.kubeflow.org"}})


def test_a_file_that_could_not_be_read_back_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "MOST_BYTES", 1000)
    with pytest.raises(ClickException, match="delete jobs that are over first"):
        command._write(tmp_path / "kept.json", saved(seen(*(mpi_job(f"job-{number}") for number in range(10)))))
    assert not list(tmp_path.iterdir())
