"""Run the controller's side of rendezvous in real etcds, next to records that a test writes as agents do.

Members of etcd die, restart, compact and refuse. One etcd is silent for ever. No job waits for another job's etcd.
"""

import asyncio
import base64
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from etcd_server import Etcd, coded, needs_etcd
from etcd_store import keys_under
from laptop import until

from elastic.etcd.channels import Channels
from elastic.etcd.grpc_store import GrpcStore
from elastic.etcd.place import Access, EtcdPlace
from elastic.etcd.store import Away, StoreRefused
from elastic.etcd.thread import EtcdThread
from elastic.membership import wire
from elastic.membership.phases import WorldPhase
from elastic_worker.etcd.records import EXPECTED, MEMBERS, WORLD, Expected, Member, Seal, Seat, World

pytestmark = [pytest.mark.integration, needs_etcd, pytest.mark.timeout(240)]
TOKEN, USER, PASSWORD = "a token", "trainer", "secret"


class Controller:
    """The thread that serves all etcds, and the worlds that it reported."""

    def __init__(self, secrets: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self.secrets = secrets or {}
        self.thread = EtcdThread(token_for=lambda uid: TOKEN, read_secret=self.read)
        self.worlds: dict[str, wire.WorldReport] = {}

    async def read(self, namespace: str, name: str) -> Mapping[str, str]:
        if name not in self.secrets:
            raise StoreRefused(f"Secret {name} cannot be read: not found")
        return self.secrets[name]

    async def expect(self, job: str, etcd: Etcd, *members: str, secret: str = "") -> None:
        """Try again and again until the expectation has arrived, as the controller does."""
        await until(lambda: self.has_written(job, etcd, *members, secret=secret), f"what is expected of {job} is written")

    async def has_written(self, job: str, etcd: Etcd, *members: str, secret: str = "", port: int = 0) -> bool:
        ports = [port] if port else etcd.ports
        endpoints = tuple(f"127.0.0.1:{one}" for one in ports)
        self.thread.meet_at(job, EtcdPlace(endpoints=endpoints, prefix=f"/elastic-training/{job}/", namespace="default", secret=secret))
        try:
            await self.thread.expect(job, wire.Expectation(members=members, min=1, max=3))
        except Away:
            return False
        return True

    def generation(self, job: str) -> int:
        return self.worlds[job].generation if job in self.worlds else 0

    async def listen(self) -> None:
        async for world in self.thread.worlds():
            self.worlds[world.job] = world


@asynccontextmanager
async def controller(secrets: Mapping[str, Mapping[str, str]] | None = None) -> AsyncIterator[Controller]:
    made = Controller(secrets)
    listening = asyncio.create_task(made.listen())
    try:
        yield made
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


def seat(etcd: Etcd, job: str, *, generation: int, index: int = 0, user: str = "") -> None:
    """Write a world of one member, as the member writes it."""
    seal, prefix = Seal(TOKEN, job), f"/elastic-training/{job}/"
    member = Member("w0", "uid/1.1", "10.0.0.1:1", entered=generation, after=generation - 1)
    world = World(generation, (Seat("w0", "uid/1.1"),), "10.0.0.1:1", "the first members have come; 1 member", "start")
    for key, record in ((MEMBERS + "w0", member), (WORLD, world)):
        value = seal.close(key, record).decode()
        etcd.call("kv/put", {"key": coded(prefix + key), "value": coded(value)}, index=index, user=user)


def expected(etcd: Etcd, job: str, *, index: int = 0) -> Expected | None:
    pairs = etcd.call("kv/range", {"key": coded(f"/elastic-training/{job}/{EXPECTED}")}, index=index).get("kvs", [])
    record = Seal(TOKEN, job).open(EXPECTED, base64.b64decode(pairs[0]["value"])) if pairs else None
    return record if isinstance(record, Expected) else None


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with Etcd(tmp_path) as server:
        yield server


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Etcd]:
    with Etcd(tmp_path, members=3) as server:
        yield server


async def test_worlds_are_reported_and_what_is_expected_is_written(etcd: Etcd) -> None:
    async with controller() as following:
        await following.expect("job", etcd, "w0", "w1")
        assert expected(etcd, "job") == Expected(members=("w0", "w1"), min=1, max=3)
        seat(etcd, "job", generation=4)
        await until(lambda: following.generation("job") == 4, "the world is reported")
        assert following.worlds["job"].phase == "running"


async def test_the_death_of_one_member_of_three_changes_nothing(three: Etcd) -> None:
    async with controller() as following:
        await following.expect("job", three, "w0")
        seat(three, "job", generation=1)
        await until(lambda: following.generation("job") == 1, "the first world is reported")
        three.kill(0)
        await following.expect("job", three, "w0", "w1")
        assert expected(three, "job", index=1) == Expected(members=("w0", "w1"), min=1, max=3)
        seat(three, "job", generation=2, index=1)
        await until(lambda: following.generation("job") == 2, "the next world is reported")


async def test_a_single_etcd_restarts_and_compacts(etcd: Etcd) -> None:
    async with controller() as following:
        await following.expect("job", etcd, "w0")
        seat(etcd, "job", generation=1)
        await until(lambda: following.generation("job") == 1, "the first world is reported")
        etcd.kill()
        etcd.start()
        etcd.compact()
        seat(etcd, "job", generation=2)
        await until(lambda: following.generation("job") == 2, "the world after the restart is reported")
        assert following.worlds["job"].phase == "running"
        assert expected(etcd, "job") is not None


async def test_a_login_comes_from_the_users_secret_and_a_wrong_one_is_told(etcd: Etcd) -> None:
    etcd.ask_for_passwords(USER, PASSWORD, "/elastic-training/mine/")
    right, wrong = {"user": USER, "password": PASSWORD}, {"user": USER, "password": "other"}
    async with controller({"right": right, "wrong": wrong}) as following:
        await following.expect("mine", etcd, "w0", secret="right")
        seat(etcd, "mine", generation=1, user="root")
        await until(lambda: following.generation("mine") == 1, "the world is reported")
        for job, secret, words in (
            ("mine-too", "right", "permission denied"),
            ("stranger", "wrong", "authentication failed"),
            ("without", "none", "Secret none cannot be read"),
        ):
            assert not await following.has_written(job, etcd, "w0", secret=secret)
            await until(
                lambda job=job: job in following.worlds and following.worlds[job].phase == WorldPhase.UNREACHED, f"{job} is reported"
            )
            assert words in following.worlds[job].reason


async def test_an_etcd_that_never_answers_costs_its_own_job_only(etcd: Etcd) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        async with controller() as following:
            port = silent.getsockname()[1]
            waiting = [asyncio.create_task(following.has_written(f"silent-{number}", etcd, "w0", port=port)) for number in range(20)]
            await following.expect("job", etcd, "w0")
            seat(etcd, "job", generation=1)
            await until(lambda: following.generation("job") == 1, "the world is reported")
            assert not any(await asyncio.gather(*waiting))
            await until(lambda: following.worlds.get("silent-7") is not None, "that it does not answer is reported")
            assert following.worlds["silent-7"].phase == WorldPhase.UNREACHED


async def test_a_job_of_many_members_is_listed_page_by_page(etcd: Etcd) -> None:
    names = [f"members/w{number:03}" for number in range(600)]
    store = GrpcStore(Channels(), (f"127.0.0.1:{etcd.ports[0]}",), Access(), is_tls=False)
    try:
        lease = await store.grant(60)
        for name in names:
            await store.put(f"/elastic-training/job/{name}", b"x", lease=lease, unchanged=0)
        await store.put("/elastic-training/other/members/w0", b"x", lease=lease, unchanged=0)
        assert await keys_under(store, "/elastic-training/job/") == names
    finally:
        await store.close()


async def test_records_go_with_the_job(etcd: Etcd) -> None:
    async with controller() as following:
        await following.expect("job", etcd, "w0")
        seat(etcd, "job", generation=1)
        with pytest.raises(Away):
            await following.thread.forget("job")
        etcd.call("kv/deleterange", {"key": coded("/elastic-training/job/members/w0")})
        assert await following.thread.forget("job") is None
        assert etcd.keys("/elastic-training/job/") == []


async def test_a_token_is_asked_for_again_after_etcd_forgot_it_or_users_changed(etcd: Etcd) -> None:
    etcd.ask_for_passwords(USER, PASSWORD, "/elastic-training/job/")
    async with controller({"login": {"user": USER, "password": PASSWORD}}) as following:
        await following.expect("job", etcd, "w0", secret="login")
        etcd.call("auth/user/add", {"name": "another", "password": "x"}, user="root")  # ends every token
        await following.expect("job", etcd, "w0", "w1", secret="login")
        etcd.kill()  # and with it all tokens
        etcd.start()
        await following.expect("job", etcd, "w0", "w1", "w2", secret="login")
        etcd.log_in("root", "root")
        seat(etcd, "job", generation=1, user="root")
        await until(lambda: following.generation("job") == 1, "the world is reported")


async def test_a_user_may_neither_read_nor_write_nor_watch_under_another_prefix(etcd: Etcd) -> None:
    etcd.ask_for_passwords(USER, PASSWORD, "/elastic-training/mine/")
    store = GrpcStore(Channels(), (f"127.0.0.1:{etcd.ports[0]}",), Access(user=USER, password=PASSWORD), is_tls=False)
    try:
        assert await store.put("/elastic-training/mine/world", b"{}", lease=0, unchanged=0)
        with pytest.raises(StoreRefused, match="permission denied"):
            await store.put("/elastic-training/yours/world", b"{}", lease=0, unchanged=0)
        with pytest.raises(StoreRefused, match="permission denied"):
            await keys_under(store, "/elastic-training/yours/")
        with pytest.raises(StoreRefused, match="permission denied"):
            await store.remove("/elastic-training/yours/")
        with pytest.raises(StoreRefused, match=r"^etcdserver: permission denied$"):
            await anext(aiter(store.watch("/elastic-training/yours/", 1)))
    finally:
        await store.close()


@pytest.mark.full
async def test_a_quota_that_is_used_up_is_reported_within_seconds_and_made_room_for(tmp_path: Path) -> None:
    with Etcd(tmp_path, options=("--quota-backend-bytes=8388608",)) as etcd:
        async with controller() as following:
            await following.expect("job", etcd, "w0")
            seat(etcd, "job", generation=1)
            await until(lambda: following.generation("job") == 1, "the world is reported")
            etcd.fill()
            began = time.monotonic()
            await until(lambda: following.worlds["job"].phase == WorldPhase.UNREACHED, "the alarm is reported")
            print(f"the alarm was reported after {time.monotonic() - began:.1f} s")
            assert "its quota is used up (alarm NOSPACE)" in following.worlds["job"].reason
            assert not await following.has_written("job", etcd, "w0", "w1")
            etcd.make_room()
            await following.expect("job", etcd, "w0", "w1")
            await until(lambda: following.worlds["job"].phase == "running", "the world is reported again")
