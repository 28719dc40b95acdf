"""Let presences meet in a real etcd, without torch, and try what etcd's own troubles do to them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from etcd_server import Etcd, coded, needs_etcd
from rendezvous_members import Follower
from torch_agents import wait_until

from elastic.certificates import issue, make_ca
from elastic_worker.etcd import settings
from elastic_worker.etcd.in_process import ChangingPresence
from elastic_worker.etcd.records import MEMBERS, WORLD, Seal, World

pytestmark = [pytest.mark.integration, needs_etcd, pytest.mark.timeout(240)]
PREFIX = "/elastic-training/job/"
LEASE_S = 2
"""The shortest lease that members take."""


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with Etcd(tmp_path) as server:
        yield server


class Members(contextlib.ExitStack):
    """Members of one job."""

    def __init__(self, etcd: Etcd, *, most: int = 8, token: str = "token", **environment: str) -> None:
        super().__init__()
        self.etcd = etcd
        self._environment = {"ELASTIC_TOKEN": token} | environment
        self._most = most
        self._token = token
        self.followers: dict[str, Follower] = {}

    def start(self, *names: str, **options: Any) -> None:
        for name in names:
            own = settings.read(
                self._environment | {"ELASTIC_MEMBER": name},
                {"last_call_timeout": 0.5, **options},
                endpoint=self.etcd.endpoint,
                job="job",
                nodes=(1, self._most),
                local_address="127.0.0.1",
            )
            self.followers[name] = Follower(ChangingPresence(own, on_signal=lambda number: None))
            self.callback(self.followers[name].stop)

    def stop(self, name: str) -> None:
        self.followers.pop(name).stop()

    def world(self) -> World | None:
        value = self.etcd.value(PREFIX + WORLD)
        record = Seal(self._token, "job").open(WORLD, value) if value is not None else None
        return record if isinstance(record, World) else None

    def wait_for_world(self, size: int, *, above: int = 0) -> int:
        """Wait until this many are in the same world, above this generation; returns its generation."""

        def generations() -> set[int]:
            return {follower.generation for follower in self.followers.values() if follower.is_in_world}

        def is_there() -> bool:
            inside = [f for f in self.followers.values() if f.is_in_world and f.presence.view.size == size and f.generation > above]
            return len(inside) == size and len(generations()) == 1

        def described() -> str:
            views = {name: vars(follower.presence.view) for name, follower in self.followers.items()}
            return f"a world of {size} above {above}\n{views}\n{self.etcd.log()}"

        wait_until(is_there, what=described)
        return generations().pop()


def names(count: int) -> list[str]:
    return [f"w{index:02}" for index in range(count)]


def test_members_come_and_go(etcd: Etcd) -> None:
    with Members(etcd) as members:
        members.start("w0")
        first = members.wait_for_world(1)
        members.start("w1", "w2")
        second = members.wait_for_world(3, above=first)
        members.stop("w1")
        members.wait_for_world(2, above=second)
        world = members.world()
        assert world is not None
        assert world.restarts == {"disruption": 1}
        assert not [key for key in etcd.keys(PREFIX) if key.endswith("w1")]


def test_a_dozen_members_meet_in_one_world(etcd: Etcd) -> None:
    with Members(etcd, most=12) as members:
        members.start(*names(12))
        generation = members.wait_for_world(12)
        ranks = sorted(follower.presence.view.rank for follower in members.followers.values())
        assert ranks == list(range(12))
        members.stop("w07")
        members.wait_for_world(11, above=generation)


def test_an_etcd_that_restarts_is_found_again_and_nothing_changed(etcd: Etcd) -> None:
    with Members(etcd) as members:
        members.start("w0", "w1", lease_ttl=LEASE_S)
        generation = members.wait_for_world(2)
        etcd.kill()
        wait_until(lambda: all(f.presence.away_s > LEASE_S for f in members.followers.values()), what="it is away too long for a lease")
        etcd.start()
        wait_until(lambda: all(f.presence.away_s == 0 for f in members.followers.values()), what="etcd is found again")
        members.start("w2")
        members.wait_for_world(3, above=generation)
        world = members.world()
        assert world is not None
        assert world.generation == generation + 1, "the restart itself changed nothing"
        assert world.restarts == {}


def test_an_etcd_that_was_stopped_ends_all_leases_and_changes_nothing(etcd: Etcd) -> None:
    with Members(etcd) as members:
        members.start("w0", "w1", "w2", lease_ttl=LEASE_S)
        generation = members.wait_for_world(3)
        before = {etcd.call("kv/range", {"key": coded(PREFIX + MEMBERS + name)})["kvs"][0]["create_revision"] for name in members.followers}
        etcd.pause(0)
        wait_until(
            lambda: all(f.presence.away_s > LEASE_S + 1 for f in members.followers.values()), what="it is away for longer than a lease"
        )
        etcd.go_on(0)
        wait_until(lambda: all(f.presence.away_s == 0 for f in members.followers.values()), what="etcd is found again")
        wait_until(lambda: len(etcd.keys(PREFIX + MEMBERS)) == 3, what="all records are there again")
        members.start("w3")
        members.wait_for_world(4, above=generation)
        world = members.world()
        assert world is not None
        assert (world.generation, world.restarts) == (generation + 1, {})
        after = {etcd.call("kv/range", {"key": coded(PREFIX + MEMBERS + name)})["kvs"][0]["create_revision"] for name in ("w0", "w1", "w2")}
        assert not before & after, "these are new records, as their leases had ended"


def test_compacted_history_is_listed_again(etcd: Etcd) -> None:
    with Members(etcd) as members:
        members.start("w0", "w1")
        generation = members.wait_for_world(2)
        etcd.pause(0)
        for follower in members.followers.values():
            follower.presence._mirror._watch.close()  # type: ignore[attr-defined]
        etcd.go_on(0)
        etcd.compact()
        members.start("w2")
        members.wait_for_world(3, above=generation)


def test_a_silent_watch_is_found(etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a proxy that keeps a connection to nobody open."""
    with Members(etcd) as members:
        members.start("w0", "w1")
        generation = members.wait_for_world(2)
        for follower in members.followers.values():
            watch = follower.presence._mirror._watch  # type: ignore[attr-defined]
            monkeypatch.setattr(watch, "changes", lambda: iter(()))
        members.start("w2")
        members.wait_for_world(3, above=generation)


def test_one_of_three_dies_and_the_others_go_on(tmp_path: Path) -> None:
    with Etcd(tmp_path, members=3) as etcd, Members(etcd) as members:
        members.start("w0", "w1")
        generation = members.wait_for_world(2)
        etcd.kill(0)  # the endpoint that all of them use
        members.start("w2")
        etcd.ports.append(etcd.ports.pop(0))  # this test itself asks another one
        generation = members.wait_for_world(3, above=generation)
        members.stop("w1")
        members.wait_for_world(2, above=generation)
        world = members.world()
        assert world is not None
        assert world.restarts == {"disruption": 1}


def test_another_leader_of_etcd_changes_nothing(tmp_path: Path) -> None:
    with Etcd(tmp_path, members=3) as etcd, Members(etcd) as members:
        members.start("w0", "w1")
        generation = members.wait_for_world(2)
        status = etcd.call("maintenance/status", {})
        others = [one["ID"] for one in etcd.call("cluster/member/list", {})["members"] if one["ID"] != status["leader"]]
        leading = next(
            index for index in range(3) if etcd.call("maintenance/status", {}, index=index)["header"]["member_id"] == status["leader"]
        )
        etcd.call("maintenance/transfer-leadership", {"targetID": others[0]}, index=leading)
        wait_until(lambda: etcd.call("maintenance/status", {})["leader"] == others[0], what="another member leads")
        members.start("w2")
        members.wait_for_world(3, above=generation)
        world = members.world()
        assert world is not None
        assert (world.generation, world.restarts) == (generation + 1, {})


def test_an_etcd_without_a_majority_is_waited_for(tmp_path: Path) -> None:
    with Etcd(tmp_path, members=3) as etcd, Members(etcd) as members:
        members.start("w0", "w1")
        generation = members.wait_for_world(2)
        etcd.kill(1, 2)
        wait_until(lambda: members.followers["w0"].presence.away_s > 3, what="the member that is left cannot answer")
        assert members.followers["w0"].is_in_world
        etcd.start(1)
        members.start("w2")
        members.wait_for_world(3, above=generation)


def test_passwords_over_tls(tmp_path: Path) -> None:
    authority = make_ca("etcd CA")
    pair = issue(authority, "etcd", names=("127.0.0.1",))
    files = tmp_path / "ca.crt", tmp_path / "tls.crt", tmp_path / "tls.key"
    for path, text in zip(files, (authority.certificate, pair.certificate, pair.key), strict=True):
        path.write_bytes(text)
    login = {"ELASTIC_ETCD_USER": "ann", "ELASTIC_ETCD_PASSWORD": "secret", "ELASTIC_ETCD_CA": files[0].read_text()}
    with Etcd(tmp_path, certificate=files) as etcd:
        etcd.ask_for_passwords("ann", "secret", PREFIX)
        with Members(etcd, **login) as members:
            members.start("w0", "w1")
            generation = members.wait_for_world(2)
            etcd.kill()  # and with it all tokens
            etcd.start()
            members.start("w2")
            members.wait_for_world(3, above=generation)
        for wrong, words in (
            ({"ELASTIC_ETCD_PASSWORD": "guess"}, "authentication failed, invalid user ID or password"),
            ({"ELASTIC_ETCD_USER": "", "ELASTIC_ETCD_PASSWORD": ""}, "user name is empty"),
        ):
            with Members(etcd, **login | wrong) as members:
                members.start("w8")
                presence = members.followers["w8"].presence
                wait_until(lambda presence=presence: presence.denied != "", what="it is denied")  # type: ignore[misc]
                assert words in presence.denied
                assert "guess" not in presence.denied
        with Members(etcd, **login) as members:
            members.start("w9", etcd_prefix="/another")
            wait_until(lambda: members.followers["w9"].presence.denied != "", what="another prefix is denied")
            assert "permission denied" in members.followers["w9"].presence.denied


def test_agents_with_another_token_wait_and_say_so(etcd: Etcd) -> None:
    with Members(etcd) as members, Members(etcd, token="guessed") as strangers:
        members.start("w0")
        generation = members.wait_for_world(1)
        strangers.start("w9")
        presence = strangers.followers["w9"].presence
        wait_until(lambda: "sealed with another token" in presence.view.waiting, what="it says so")
        members.start("w1")
        members.wait_for_world(2, above=generation)
        assert not strangers.followers["w9"].is_in_world


def test_keys_go_with_their_leases(etcd: Etcd) -> None:
    with Members(etcd) as members:
        members.start("w0", linger=10)
        members.wait_for_world(1)
    assert etcd.keys(PREFIX)
    wait_until(lambda: not etcd.keys(PREFIX), what="all keys of the job are gone")
