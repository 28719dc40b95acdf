"""Who a token speaks for."""

from pathlib import Path

import pytest

from elastic.membership.tokens import BadKey, Role, control_token, is_valid, job_token, load_keys
from rendezvous.server.access import Gate

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
    assert not is_valid("Grüße", keys=[KEY], job_uid="job")


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
    assert accounts.asked == 3
    assert await gate.is_control("ours.b.c")
    assert accounts.asked == 3, "a review is remembered for a while"
    now[0] = 61.0
    assert await gate.is_control("ours.b.c")
    assert accounts.asked == 4


async def test_without_an_api_server_only_the_installations_key_speaks_for_the_control_plane() -> None:
    gate = Gate(keys=lambda: [KEY], reviewer=None, accounts=["x"])
    assert await gate.is_control(control_token(KEY))
    assert not await gate.is_control("a.b.c")
    assert not await gate.is_control(job_token(KEY, "job"))
