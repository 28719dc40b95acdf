"""Connect to the laptop cluster's etcd as a job's user or as its administrator."""

import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from elastic_runs import ElasticRun
from etcd_server import PROGRAM
from etcd_store import keys_under

from elastic.etcd.accounts import ROOT, Accounts
from elastic.etcd.channels import Channels
from elastic.etcd.grpc_store import GrpcStore
from elastic.etcd.place import Access, user_of
from elastic.local import LocalCluster
from elastic.membership.tokens import Role, job_token, load_keys


@contextmanager
def etcd_on_path() -> Iterator[None]:
    """Put etcd on PATH, so that a cluster that starts inside the block offers an etcd."""
    with pytest.MonkeyPatch.context() as patch:
        if PROGRAM is not None:
            patch.setenv("PATH", f"{Path(PROGRAM).parent}:{os.environ['PATH']}")
        yield


@asynccontextmanager
async def store_of(cluster: LocalCluster, job: str = "") -> AsyncIterator[GrpcStore]:
    """Yield the store with the login of this job's agents, or with the administrator's login if no job is given."""
    folder = cluster.data_dir / "installation"
    access = Access(user=user_of(job) if job else ROOT, password=password_of(cluster, job), ca=(folder / "ca.crt").read_text())
    port = json.loads((cluster.data_dir / "ports.json").read_text())["etcd"]
    store = GrpcStore(Channels(), (f"127.0.0.1:{port}",), access, is_tls=True)
    try:
        yield store
    finally:
        await store.close()


def password_of(cluster: LocalCluster, job: str) -> str:
    return job_token(load_keys(cluster.data_dir / "installation")[0], job, Role.ETCD)


def prefix_of(run: ElasticRun) -> str:
    return f"/elastic-training/{run.key.uid}/"


async def is_clean(cluster: LocalCluster, run: ElasticRun) -> bool:
    """Return whether nothing is left of the job: no record, no user, no role."""
    async with store_of(cluster) as store:
        roles = (await store.call("Auth/RoleList", "AuthRoleListRequest")).roles
        users = await Accounts(store, password="").jobs()
        return not await keys_under(store, prefix_of(run)) and run.key.uid not in users and user_of(run.key.uid) not in roles
