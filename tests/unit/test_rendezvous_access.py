"""Who a token speaks for."""

import asyncio
from pathlib import Path

import pytest

from elastic.membership.tokens import BadKey, Role, autoscaler_token, control_token, is_valid, job_token, load_keys
from rendezvous.server.access import MOST_WAITING, REVIEW_KEPT_S, REVIEWS_AT_ONCE, Busy, Gate

KEY, OLD = b"k" * 32, b"o" * 32


class Accounts:
    """Stands for the API server's TokenReview."""

    def __init__(self, **users: str) -> None:
        self.users = users
        self.asked = 0

    async def review(self, token: str) -> str | None:
        self.asked += 1
        return self.users.get(token.split(".")[0])


def test_a_token_is_for_one_job_and_one_role() -> None:
    token = job_token(KEY, "job")
    assert is_valid(token, keys=[KEY], job_uid="job")
    assert not is_valid(token, keys=[KEY], job_uid="other")
    assert not is_valid(token, keys=[KEY], job_uid="job", role=Role.CONTROL)
    assert not is_valid(control_token(KEY), keys=[KEY], job_uid="")
    for odd in ("Grüße", "\udcfc\udcff"):  # the second is how the server's HTTP reads bytes that are no text
        assert not is_valid(odd, keys=[KEY], job_uid="job")


def test_two_keys_are_accepted_while_one_is_rotated(tmp_path: Path) -> None:
    (tmp_path / "server.key").write_text(KEY.hex() + "\n")
    (tmp_path / "server.key.old").write_text(OLD.hex())
    keys = load_keys(tmp_path)
    assert keys[0] == KEY
    for key in (KEY, OLD):
        assert is_valid(job_token(key, "job"), keys=keys, job_uid="job")


@pytest.mark.parametrize(
    ("text", "words"), [("not hex", "is not a key in hex digits"), ("00ff", "holds 2 bytes but a key needs at least 16")]
)
def test_an_unusable_key_is_one_clear_error(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "server.key").write_text(text)
    with pytest.raises(BadKey, match=words):
        load_keys(tmp_path)


async def test_a_service_account_speaks_for_the_control_plane_only_if_it_is_one_of_ours() -> None:
    accounts = Accounts(ours="system:serviceaccount:elastic:controller", theirs="system:serviceaccount:team:default")
    now = [0.0]
    gate = Gate(keys=lambda: [KEY], reviewer=accounts, accounts=["system:serviceaccount:elastic:controller"], clock=lambda: now[0])
    assert await gate.is_control("ours.b.c")
    assert not await gate.is_control("theirs.b.c")
    assert not await gate.is_control("nobody.b.c")
    assert not await gate.is_control("")
    assert not await gate.is_control("\udcfc.b.c")
    assert accounts.asked == 3
    assert await gate.is_control("ours.b.c")
    assert accounts.asked == 3, "a review is remembered for a while"
    now[0] = 61.0
    assert await gate.is_control("ours.b.c")
    assert accounts.asked == 4


async def test_an_autoscaler_may_read_and_nothing_else() -> None:
    accounts = Accounts(scaler="system:serviceaccount:elastic:autoscaler", ours="system:serviceaccount:elastic:controller")
    gate = Gate(
        keys=lambda: [KEY],
        reviewer=accounts,
        accounts=["system:serviceaccount:elastic:controller"],
        readers=["system:serviceaccount:elastic:autoscaler"],
    )
    for token in (autoscaler_token(KEY), "scaler.b.c"):
        assert await gate.is_reader(token)
        assert not await gate.is_control(token)
        assert not gate.is_agent(token, "")
    assert not await gate.is_reader("ours.b.c")
    assert not await gate.is_reader(job_token(KEY, "job"))


class SlowAccounts:
    """Answers when it is let."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.let = asyncio.Event()

    async def review(self, token: str) -> str | None:
        self.asked.append(token)
        if token.startswith("fake"):
            await self.let.wait()
        return "ours" if token.startswith("ours") else None


async def test_strangers_who_come_by_the_thousand_wait_in_bounds_and_hold_up_nobody_of_ours() -> None:
    accounts, now = SlowAccounts(), [0.0]
    gate = Gate(keys=lambda: [KEY], reviewer=accounts, accounts=["ours"], clock=lambda: now[0])
    assert await gate.is_control("ours.b.c")
    strangers = [asyncio.create_task(gate.is_control(f"fake{i}.b.c")) for i in range(600)]
    await asyncio.sleep(0.01)
    refused = [s for s in strangers if s.done()]
    assert len(refused) == 600 - MOST_WAITING
    assert all(isinstance(s.exception(), Busy) for s in refused)
    assert len(accounts.asked) == 1 + REVIEWS_AT_ONCE
    now[0] = REVIEW_KEPT_S + 1
    assert await asyncio.wait_for(gate.is_control("ours.b.c"), 10), "a token that was ours does not queue"
    accounts.let.set()
    assert not any([await s for s in strangers if s not in refused])
    now[0] += 1
    asked = len(accounts.asked)
    assert await gate.is_control("ours.b.c")
    assert len(accounts.asked) == asked, "strangers do not push it out of what is remembered"


async def test_one_token_is_reviewed_once_whoever_asks_meanwhile() -> None:
    accounts = SlowAccounts()
    gate = Gate(keys=lambda: [KEY], reviewer=accounts, accounts=["ours"])
    asking = [asyncio.create_task(gate.is_control("fake.b.c")) for _ in range(100)]
    await asyncio.sleep(0.01)
    accounts.let.set()
    assert not any(await asyncio.gather(*asking))
    assert accounts.asked == ["fake.b.c"]


async def test_without_an_api_server_only_the_installations_key_speaks_for_the_control_plane() -> None:
    gate = Gate(keys=lambda: [KEY], reviewer=None, accounts=["x"])
    assert await gate.is_control(control_token(KEY))
    assert not await gate.is_control("a.b.c")
    assert not await gate.is_control(job_token(KEY, "job"))
