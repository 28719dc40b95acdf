"""Mistakes about TLS at an etcd: an agent ends with words as quickly as with a wrong password, because no later attempt mends them."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elastic.certificates import Pair, issue, make_ca
from elastic.etcd.channels import Channels
from elastic.etcd.grpc_store import GrpcStore
from elastic.etcd.place import Access
from elastic.etcd.store import Away
from elastic.local.ports import free_port
from elastic_worker.etcd import settings
from elastic_worker.etcd.gateway import Endpoint, Gateway, Refused, Unreachable

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


class Files:
    """A CA with the certificate of an etcd and of an agent, and one that nobody knows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        known, unknown = make_ca("etcd CA"), make_ca("another CA")
        self.ca = self._write("ca", known.certificate)
        self.etcd, self.agent = self._pair(known, "etcd"), self._pair(known, "agent")
        self.stranger = self._pair(unknown, "stranger")

    def _pair(self, authority: Pair, name: str) -> str:
        pair = issue(authority, name, names=("127.0.0.1",))
        return self._write(name, pair.certificate + pair.key)

    def _write(self, name: str, text: bytes) -> str:
        (self.folder / name).write_bytes(text)
        return str(self.folder / name)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the connection that finds out why the time that it needs on a busy machine."""
    monkeypatch.setattr("elastic_worker.etcd.tls_mistakes.PROBE_S", 30.0)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


@contextlib.contextmanager
def etcd(context: ssl.SSLContext | None) -> Iterator[int]:
    """Serve as etcd does: it closes a connection of the other sort without a word."""

    def serve(sock: socket.socket) -> None:
        with contextlib.suppress(OSError), sock:
            sock.settimeout(5)
            if (sock.recv(1, socket.MSG_PEEK) == b"\x16") != (context is not None):
                sock.recv(65536)
                return
            spoken = context.wrap_socket(sock, server_side=True) if context is not None else sock
            with spoken:
                asked = b""
                while not asked.endswith(b"{}") and not (asked.startswith(b"GET ") and asked.endswith(b"\r\n\r\n")):
                    if not (more := spoken.recv(65536)):
                        return
                    asked += more
                spoken.sendall(ANSWER)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listening.accept()
                threading.Thread(target=serve, args=(sock,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def serving(files: Files, *, asks: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.etcd)
    context.set_alpn_protocols(["h2"])
    if asks:
        context.load_verify_locations(files.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def calling(files: Files, *, pair: str = "", trusts: bool = True) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.ca if trusts else None)
    if pair:
        context.load_cert_chain(pair)
    return context


CASES: dict[str, tuple[Callable[[Files], tuple[ssl.SSLContext | None, ssl.SSLContext | None]], str]] = {
    "unknown CA": (lambda files: (serving(files), calling(files, trusts=False)), "set cacert in --rdzv-conf, or ELASTIC_ETCD_CA"),
    "no client certificate": (lambda files: (serving(files, asks=True), calling(files)), "set cert and key in --rdzv-conf"),
    "wrong client certificate": (
        lambda files: (serving(files, asks=True), calling(files, pair=files.stranger)),
        "set cert and key in --rdzv-conf",
    ),
    "http to TLS": (lambda files: (serving(files), None), "write https:// before the members"),
    "http to TLS with client certificates": (lambda files: (serving(files, asks=True), None), "write https:// before the members"),
    "https to plain": (lambda files: (None, calling(files)), "leave out https://"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_about_tls_is_a_refusal_that_says_what_to_set(files: Files, name: str) -> None:
    """The agent took each of them for an etcd that is away, and tried again for ten minutes."""
    make, words = CASES[name]
    served, called = make(files)
    own = settings.read({}, {}, endpoint="etcd:2379", job="job", nodes=(1, 2), local_address="127.0.0.1")
    with etcd(served) as port:
        for _ in range(3):  # whether an alert is read before the connection ends is chance
            gateway = Gateway([Endpoint("127.0.0.1", port)], tls=called)
            with pytest.raises(Refused) as caught:
                gateway.call("kv/range", {})
            gateway.close()
            assert words in settings.remedy(caught.value, own), caught.value


@pytest.mark.parametrize(
    ("asks", "is_tls", "access", "words"),
    [
        (False, True, "", "put its CA as ca.crt into the Secret of rdzvSecret"),
        (True, True, "ca", "put tls.crt and tls.key into the Secret of rdzvSecret"),
        (False, False, "", "write https:// before the members of rdzvHost"),
        (None, True, "ca", "leave out https:// in rdzvHost"),
    ],
    ids=["unknown CA", "no client certificate", "http to TLS", "https to plain"],
)
async def test_the_controller_says_what_to_set(files: Files, asks: bool | None, is_tls: bool, access: str, words: str) -> None:
    """A condition quoted gRPC, such as `TSI_DATA_CORRUPTED`."""
    with etcd(serving(files, asks=asks) if asks is not None else None) as port:
        given = Access(ca=Path(files.ca).read_text() if access else "")
        store = GrpcStore(Channels(), (f"127.0.0.1:{port}",), given, is_tls=is_tls)
        with pytest.raises(Away, match=words):
            await store.newest("/x/")
        await store.close()


@pytest.mark.parametrize("pair", [True, False])
def test_the_right_certificates_are_no_mistake(files: Files, pair: bool) -> None:
    with etcd(serving(files, asks=pair)) as port:
        gateway = Gateway([Endpoint("127.0.0.1", port)], tls=calling(files, pair=files.agent if pair else ""))
        assert gateway.call("kv/range", {}) == {}
        gateway.close()


def test_one_member_with_a_wrong_certificate_refuses_nothing_while_another_may_answer(files: Files) -> None:
    """A certificate is renewed member by member."""
    tls = calling(files)
    with etcd(None) as wrong, etcd(serving(files)) as right:
        gateway = Gateway([Endpoint("127.0.0.1", wrong), Endpoint("127.0.0.1", right)], tls=tls)
        assert gateway.call("kv/range", {}) == {}
        gateway.close()
        gateway = Gateway([Endpoint("127.0.0.1", wrong), Endpoint("127.0.0.1", free_port())], tls=tls)
        with pytest.raises(Unreachable, match="it speaks no TLS"):
            gateway.call("kv/range", {})


def test_a_peer_that_ends_every_connection_is_away() -> None:
    with etcd(None) as port:
        pass
    gateway = Gateway([Endpoint("127.0.0.1", port)])
    with pytest.raises(Unreachable):
        gateway.call("kv/range", {})
