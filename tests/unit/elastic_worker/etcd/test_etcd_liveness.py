"""Whether a peer's agent lives, asked at real ports on loopback."""

import socket
import threading

import pytest

from elastic_worker.etcd.liveness import AlivePort, Asking


class Woken:
    def __init__(self) -> None:
        self.event = threading.Event()
        self.asking = Asking(self.event.set)

    def ask(self, *addresses: str) -> bool:
        """Return whether an agent was found ended."""
        self.event.clear()
        self.asking.ask(addresses)
        return self.event.wait(10)

    def settle(self) -> None:
        for thread in threading.enumerate():
            if thread.name == "elastic-asking":
                thread.join(10)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_process_that_ended_refuses_and_one_that_lives_does_not(host: str) -> None:
    woken = Woken()
    try:
        alive = AlivePort(host)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    woken.asking.ask([alive.address])
    woken.settle()
    assert not woken.asking.has_ended(alive.address)
    alive.close()
    other = Woken()
    assert other.ask(alive.address)
    assert other.asking.has_ended(alive.address)
    other.asking.forget()
    assert not other.asking.has_ended(alive.address)


def test_a_port_lives_on_however_often_it_is_asked() -> None:
    alive, woken = AlivePort("127.0.0.1"), Woken()
    for _ in range(300):
        with socket.socket() as asking:
            asking.setblocking(False)  # beyond the backlog a connection would only wait
            asking.connect_ex(("127.0.0.1", int(alive.address.rpartition(":")[2])))
    woken.asking.ask([alive.address])
    woken.settle()
    assert not woken.asking.has_ended(alive.address)
    alive.close()


@pytest.mark.parametrize("address", ["", "nonsense", "127.0.0.1:", "127.0.0.1:99999999", "host.invalid:80", "[::1", ":80x"])
def test_an_address_that_is_none_proves_nothing(address: str) -> None:
    woken = Woken()
    woken.asking.ask([address])
    woken.settle()
    assert not woken.asking.has_ended(address)


def test_the_same_address_is_not_asked_again_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        address, woken = f"127.0.0.1:{server.getsockname()[1]}", Woken()
        for _ in range(5):
            woken.asking.ask([address])
        woken.settle()
        server.accept()[0].close()
        server.settimeout(0.2)
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_host_without_the_address_has_no_port() -> None:
    with pytest.raises(OSError, match="address"):
        AlivePort("203.0.113.7")
