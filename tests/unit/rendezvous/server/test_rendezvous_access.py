"""Tokens, and for whom each one speaks."""

import asyncio
import base64
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from elastic.membership.tokens import BadKey, Role, autoscaler_token, control_token, is_valid, job_token, load_keys
from elastic_training.rendezvous.server.access import Gate
from elastic_training.rendezvous.server.reviews import AT_ONCE, CLAIMANTS, KEPT_S, STRANGERS, Busy, claimed

KEY, OLD = b"k" * 32, b"o" * 32


class Accounts:
    """Replaces the API server's TokenReview."""

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
    assert await gate.is_control("ours.b.c", address="10.0.0.1")
    assert not await gate.is_control("theirs.b.c", address="10.0.0.1")
    assert not await gate.is_control("nobody.b.c", address="10.0.0.1")
    assert not await gate.is_control("", address="10.0.0.1")
    assert not await gate.is_control("\udcfc.b.c", address="10.0.0.1")
    assert accounts.asked == 3
    assert await gate.is_control("ours.b.c", address="10.0.0.1")
    assert accounts.asked == 3, "a review is remembered for a while"
    now[0] = 61.0
    assert await gate.is_control("ours.b.c", address="10.0.0.1")
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
        assert await gate.is_reader(token, address="10.0.0.1")
        assert not await gate.is_control(token, address="10.0.0.1")
        assert not gate.is_agent(token, "")
    assert not await gate.is_reader("ours.b.c", address="10.0.0.1")
    assert not await gate.is_reader(job_token(KEY, "job"), address="10.0.0.1")


class SlowAccounts:
    """Answers about strangers' tokens only once it is let."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.let = asyncio.Event()

    async def review(self, token: str) -> str | None:
        self.asked.append(token)
        if token.startswith("fake"):
            await self.let.wait()
            return None
        return "ours" if token.startswith("ours") else None


def claiming(account: str, number: int, *, prefix: str = "fake") -> str:
    """Return a token that names this account, which nobody has signed."""
    payload = base64.urlsafe_b64encode(json.dumps({"sub": account, "n": number}).encode()).decode().rstrip("=")
    return f"{prefix}{number}.{payload}.c"


async def ask(gate: Gate, tokens: Iterable[tuple[str, str]]) -> tuple[list[asyncio.Task[bool]], list[asyncio.Task[bool]]]:
    """Ask about tokens of addresses at once. Return the callers that wait, and those that were refused at once."""
    asking = [asyncio.create_task(gate.is_control(token, address=address)) for address, token in tokens]
    for _ in range(5):
        await asyncio.sleep(0)
    refused = [one for one in asking if one.done()]
    assert all(isinstance(one.exception(), Busy) for one in refused)
    return [one for one in asking if not one.done()], refused


async def test_thousands_of_strangers_wait_in_bounds_and_hold_up_no_client_of_ours() -> None:
    accounts, now = SlowAccounts(), [0.0]
    gate = Gate(keys=lambda: [KEY], reviewer=accounts, accounts=["ours"], clock=lambda: now[0])
    assert await gate.is_control("ours.b.c", address="10.0.0.1")
    waiting, refused = await ask(gate, ((f"10.1.0.{n % 20}", f"fake{n}.b.c") for n in range(600)))
    assert (len(waiting), len(refused)) == (STRANGERS.of_all, 600 - STRANGERS.of_all)
    assert len(accounts.asked) == 1 + AT_ONCE
    now[0] = KEPT_S + 1
    assert await asyncio.wait_for(gate.is_control("ours.b.c", address="10.0.0.1"), 10), "a token that was ours does not queue"
    accounts.let.set()
    assert not any([await one for one in waiting])
    now[0] += 1
    asked = len(accounts.asked)
    assert await gate.is_control("ours.b.c", address="10.0.0.1")
    assert len(accounts.asked) == asked, "strangers do not push it out of what is remembered"


async def test_a_new_token_of_the_control_plane_does_not_wait_behind_strangers() -> None:
    """While 80 callers without credentials asked, a controller with a rotated token was kept out for eight seconds."""
    accounts = SlowAccounts()
    gate = Gate(keys=lambda: [KEY], reviewer=accounts, accounts=["ours"], readers=["our scaler"])
    waiting, _ = await ask(gate, ((f"10.1.0.{n % 20}", f"fake{n}.b.c") for n in range(600)))
    assert await asyncio.wait_for(gate.is_control(claiming("ours", 1, prefix="ours"), address="10.0.0.1"), 10)
    assert not await asyncio.wait_for(gate.is_reader(claiming("our scaler", 1, prefix="ours"), address="10.1.0.1"), 10)
    accounts.let.set()
    await asyncio.gather(*waiting)


async def test_strangers_that_claim_to_be_the_control_plane_have_few_places_for_each_address() -> None:
    accounts = SlowAccounts()
    gate = Gate(keys=lambda: [KEY], reviewer=accounts, accounts=["ours"])
    waiting, refused = await ask(gate, (("10.1.0.1", claiming("ours", n)) for n in range(600)))
    assert (len(waiting), len(refused)) == (CLAIMANTS.of_address, 600 - CLAIMANTS.of_address)
    others, refused = await ask(gate, (("10.1.0.1", f"fake{n}.b.c") for n in range(600)))
    assert (len(others), len(refused)) == (STRANGERS.of_address, 600 - STRANGERS.of_address)
    assert await asyncio.wait_for(gate.is_control(claiming("ours", 1, prefix="ours"), address="10.0.0.1"), 10)
    waiting[0].cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (await ask(gate, [("10.1.0.1", claiming("ours", 601))]))[0] == [], "who goes away leaves its place taken until the answer"
    accounts.let.set()
    await asyncio.gather(*waiting[1:], *others)
    assert not await gate.is_control(claiming("ours", 602), address="10.1.0.1"), "places come back"


@pytest.mark.parametrize("payload", ["", "%%%", "é", "eyJzdWIi", "W10", "e30", "eyJzdWIiOjV9"])
async def test_a_token_whose_claims_cannot_be_read_is_a_strangers(payload: str) -> None:
    assert claimed(f"a.{payload}.c") == ""
    deep = base64.urlsafe_b64encode(b"[" * 50_000).decode()
    assert claimed(f"a.{deep}.c") == ""


async def test_one_token_is_reviewed_once_for_all_callers_meanwhile() -> None:
    accounts = SlowAccounts()
    gate = Gate(keys=lambda: [KEY], reviewer=accounts, accounts=["ours"])
    asking = [asyncio.create_task(gate.is_control("fake.b.c", address="10.0.0.1")) for _ in range(100)]
    await asyncio.sleep(0.01)
    accounts.let.set()
    assert not any(await asyncio.gather(*asking))
    assert accounts.asked == ["fake.b.c"]


async def test_without_an_api_server_only_the_installations_key_speaks_for_the_control_plane() -> None:
    gate = Gate(keys=lambda: [KEY], reviewer=None, accounts=["x"])
    assert await gate.is_control(control_token(KEY), address="10.0.0.1")
    assert not await gate.is_control("a.b.c", address="10.0.0.1")
    assert not await gate.is_control(job_token(KEY, "job"), address="10.0.0.1")
