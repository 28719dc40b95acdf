"""Ports that stay free for a server: no connection that somebody else opens takes one of them."""

import socket
from pathlib import Path

import pytest

from elastic.local import ports


def test_free_ports_are_different_and_lie_below_those_of_outgoing_connections() -> None:
    first_ephemeral = int(ports.EPHEMERAL.read_text().split()[0])
    found = ports.free_ports(50)
    assert len(set(found)) == 50
    assert all(ports.LOWEST <= port < first_ephemeral for port in found)
    for port in found:
        socket.create_server(("127.0.0.1", port)).close()


def test_a_port_in_use_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    used, free = ports.free_ports(2)
    monkeypatch.setattr(ports, "range", lambda *bounds: [used, free], raising=False)
    with socket.create_server(("127.0.0.1", used)):
        assert ports.free_port() == free


def test_a_machine_that_leaves_no_room_below_gives_any_port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ports, "EPHEMERAL", tmp_path / "range")
    (tmp_path / "range").write_text("1024\t60999\n")
    assert ports.free_port() > 1023
    monkeypatch.setattr(ports, "EPHEMERAL", tmp_path / "missing")
    assert ports.free_port() < 32768
