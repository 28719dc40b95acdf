"""Calls to etcd's JSON gateway: what they cost where the peer is refused, slow, silent or hostile, and how tokens are renewed."""

import contextlib
import time
from collections.abc import Iterator

import pytest
from etcd_peers import Handle, Peer, Request, drip, drip_head, end_at_once, flood, peer, silence

from elastic.local.ports import free_port
from elastic_worker.etcd import gateway
from elastic_worker.etcd.gateway import Endpoint, Gateway, Login, Refused, Unreachable, checked, number

ERROR = {"error": "etcdserver: permission denied", "code": 7}


def right(request: Request) -> None:
    request.answer({"header": {"revision": "5"}})


@contextlib.contextmanager
def calling(*handles: Handle, login: Login | None = None, call_s: float = 0.4) -> Iterator[tuple[Gateway, list[Peer]]]:
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(peer(handle)) for handle in handles]
        made = Gateway([Endpoint("127.0.0.1", one.port) for one in peers], login=login, call_s=call_s)
        stack.callback(made.close)
        yield made, peers


def test_a_call_is_a_post_whose_answer_is_json() -> None:
    with calling(right) as (etcd, peers):
        assert etcd.call("kv/range", {"key": "YQ=="}) == {"header": {"revision": "5"}}
        assert etcd.call("kv/put", {}) == {"header": {"revision": "5"}}
        assert peers[0].seen == [("/v3/kv/range", {"key": "YQ=="}, ""), ("/v3/kv/put", {}, "")]


@pytest.mark.parametrize("handle", [silence, drip, drip_head, flood, end_at_once], ids=lambda handle: handle.__name__)
def test_a_bad_peer_costs_one_bounded_call(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call peers that never end their answer: a call without a bound would last until the test's own time limit."""
    monkeypatch.setattr(gateway, "LONGEST_ANSWER", 3_000_000)
    with calling(handle) as (etcd, _), pytest.raises((Unreachable, Refused)):
        etcd.call("kv/range", {})


@pytest.mark.parametrize("handle", [silence, drip, end_at_once], ids=lambda handle: handle.__name__)
def test_the_next_endpoint_answers_for_a_bad_one_and_is_kept(handle: Handle) -> None:
    with calling(handle, right) as (etcd, peers):
        etcd.call("kv/range", {})
        etcd.call("kv/range", {})
        assert len(peers[0].seen) == 1 or handle is end_at_once
        assert len(peers[1].seen) == 2


def test_all_endpoints_are_named_if_none_answers() -> None:
    ports = free_port(), free_port()
    etcd = Gateway([Endpoint("127.0.0.1", port) for port in ports])
    with pytest.raises(Unreachable, match=rf"127.0.0.1:{ports[0]}: .*refused; 127.0.0.1:{ports[1]}: .*refused"):
        etcd.call("kv/range", {})


def test_a_connection_that_was_closed_while_idle_is_opened_again() -> None:
    def once(request: Request) -> None:
        right(request)
        request.close_connection = True

    with calling(once) as (etcd, peers):
        for _ in range(3):
            etcd.call("kv/range", {})
        assert len(peers[0].seen) == 3


def test_a_leaderless_member_is_left_for_another_one() -> None:
    def leaderless(request: Request) -> None:
        request.answer({"error": "etcdserver: no leader", "code": 14}, 503)

    with calling(leaderless, right) as (etcd, _):
        assert etcd.call("kv/range", {})
    with calling(leaderless) as (etcd, _), pytest.raises(Unreachable, match="answered 503: etcdserver: no leader"):
        etcd.call("kv/range", {})


def test_a_refusal_is_said_in_etcds_words() -> None:
    with calling(lambda request: request.answer(ERROR, 403)) as (etcd, _), pytest.raises(Refused, match="permission denied") as raised:
        etcd.call("kv/range", {})
    assert raised.value.is_denial


def test_an_etcd_without_a_gateway_is_named() -> None:
    missing = calling(lambda request: request.answer(b"404 page not found", 404))
    with missing as (etcd, _), pytest.raises(Refused, match="no JSON gateway at /v3"):
        etcd.call("kv/range", {})


class Users:
    """An etcd with one user. It forgets its tokens when asked."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.logins = 0

    def __call__(self, request: Request) -> None:
        if request.path == "/v3/auth/authenticate":
            self.logins += 1
            if request.body != {"name": "ann", "password": "secret"}:
                request.answer({"error": "etcdserver: authentication failed, invalid user ID or password", "code": 3}, 400)
                return
            self.tokens.append(f"token.{self.logins}")
            request.answer({"token": self.tokens[-1]})
        elif request.headers.get("Authorization", "") in self.tokens:
            right(request)
        else:
            request.answer({"error": "etcdserver: invalid auth token", "code": 16}, 401)


def test_a_forgotten_token_is_renewed_once() -> None:
    users = Users()
    with calling(users, login=Login("ann", "secret")) as (etcd, _):
        etcd.call("kv/range", {})
        etcd.call("kv/range", {})
        assert users.logins == 1
        users.tokens.clear()
        etcd.call("kv/range", {})
        assert users.logins == 2


def test_a_wrong_password_is_refused_and_never_in_words() -> None:
    login = Login("ann", "wrong-secret")
    with calling(Users(), login=login) as (etcd, _), pytest.raises(Refused, match="authentication failed") as raised:
        etcd.call("kv/range", {})
    assert raised.value.is_denial
    assert "wrong-secret" not in repr(login) + str(raised.value)


def test_a_password_that_this_etcd_does_not_ask_for_is_not_sent_again() -> None:
    def open_to_all(request: Request) -> None:
        if request.path == "/v3/auth/authenticate":
            request.answer({"error": "etcdserver: authentication is not enabled", "code": 9}, 412)
        else:
            right(request)

    with calling(open_to_all, login=Login("ann", "secret")) as (etcd, peers):
        etcd.call("kv/range", {})
        etcd.call("kv/range", {})
        assert [path for path, _, _ in peers[0].seen] == ["/v3/auth/authenticate", "/v3/kv/range", "/v3/kv/range"]


def test_an_etcd_that_never_takes_its_own_tokens_is_not_stormed() -> None:
    def forgetful(request: Request) -> None:
        if request.path == "/v3/auth/authenticate":
            request.answer({"token": "t"})
        else:
            request.answer({"error": "etcdserver: invalid auth token", "code": 16}, 401)

    with calling(forgetful, login=Login("ann", "secret")) as (etcd, peers):
        with pytest.raises(Refused):
            etcd.call("kv/range", {})
        assert len(peers[0].seen) == 4


def test_a_watch_brings_each_event_and_says_when_it_ends() -> None:
    def events(request: Request) -> None:
        request.begin_stream()
        request.chunk(b'{"result":{"created":true}}\n{"result":{"events":[]}}\n')
        time.sleep(0.6)  # longer than a call may take
        request.chunk(b'{"result":{"events":[{}]}}\n')
        request.chunk(b"")

    with calling(events) as (etcd, _):
        stream = etcd.stream("watch", {})
        found = []
        with pytest.raises(Unreachable, match="etcd ended the watch"):
            found.extend(iter_all(stream, found))
        assert found == [{"created": True}, {"events": []}, {"events": [{}]}]
        stream.free()


def iter_all(stream: gateway.Stream, found: list[gateway.Answer]) -> list[gateway.Answer]:
    for answer in stream:
        found.append(answer)
    return []


NESTED = b"[" * 200_000
HOSTILE = {
    "nested": NESTED + b"\n",
    "text": b"garbage\n",
    "list": b"[]\n",
    "error": b'{"error":{"message":"no leader"}}\n',
    "long": b"x" * 400_000,
}


@pytest.mark.parametrize("line", HOSTILE.values(), ids=list(HOSTILE))
def test_a_hostile_event_ends_the_watch(line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "LONGEST_ANSWER", 300_000)

    def events(request: Request) -> None:
        request.begin_stream()
        request.chunk(line)
        time.sleep(1)

    with calling(events) as (etcd, _):
        stream = etcd.stream("watch", {})
        with pytest.raises(Unreachable):
            next(iter(stream))
        stream.free()


def test_a_silent_watch_is_closed_by_another_thread() -> None:
    """Watch a peer that never sends an event: only `close` can end the wait before the test's own time limit."""

    def events(request: Request) -> None:
        request.begin_stream()
        silence(request)

    with calling(events) as (etcd, _):
        stream = etcd.stream("watch", {})
        stream.close()
        with pytest.raises(Unreachable):
            next(iter(stream))
        stream.free()


@pytest.mark.parametrize("handle", [silence, drip_head, end_at_once], ids=lambda handle: handle.__name__)
def test_opening_a_watch_is_bounded(handle: Handle) -> None:
    with calling(handle) as (etcd, _), pytest.raises(Unreachable):
        etcd.stream("watch", {})


@pytest.mark.parametrize(
    "data", [b"", b"[1]", b"null", b'"x"', b"\xff", b'{"error":{"message":7}}', b'{"code":"x","error":[]}', NESTED, b"9" * 200_000]
)
def test_an_answer_that_is_not_etcds_is_an_error_with_words(data: bytes) -> None:
    for status in (200, 400, 500):
        with pytest.raises((Unreachable, Refused), match=r"\w"):
            checked(status, data)


def test_integers_come_as_text_and_anything_else_is_0() -> None:
    assert [number({"a": value}, "a") for value in ("12", 12, "-1", "x", "9" * 5000, None, True, 1.5)] == [12, 12, -1, 0, 0, 0, 0, 0]
