"""The rendezvous server's certificate and keys change while it serves, and controllers show it their service accounts' tokens."""

import asyncio
import secrets
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from account_tokens import ONLY_THE_CONTROLLER_MAY, account_token, who_may_control
from api_process import ApiProcess
from api_process import running as running_api
from rendezvous_members import Member, expecting
from torch_agents import Server, serving, wait_until

from elastic.kube import connect
from elastic.local.installation import ensure_installation
from elastic.membership.tokens import control_token, job_token
from elastic.membership.wire import encode
from elastic_training.rendezvous.server.access import AUDIENCE

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as running:
        yield running


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiProcess]:
    (tmp_path / "api").mkdir()
    with running_api(tmp_path / "api") as process:
        yield process


def shown(server: Server) -> str:
    """Return the certificate that a new connection is shown, checked against the installation's CA as agents do."""
    tls = ssl.create_default_context(cadata=server.ca)
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=60) as plain,
        tls.wrap_socket(plain, server_hostname="127.0.0.1") as held,
    ):
        return ssl.DER_cert_to_PEM_cert(held.getpeercert(binary_form=True) or b"").strip()


def renew(server: Server) -> str:
    """Replace the certificate by another of the same CA, and return it. The key comes first, as a rotation may be seen halfway."""
    folder = server.installation
    (folder / "tls.crt").unlink()
    ensure_installation(folder, addresses=())
    return (folder / "tls.crt").read_text().strip()


def test_a_renewed_certificate_serves_new_connections_and_drops_nobody(server: Server) -> None:
    server.expect("job", expecting(1))
    member = Member(server, job="job", name="w0")
    try:
        wait_until(lambda: member.generation == 1, what="a world of 1")
        old, new = shown(server), renew(server)
        assert new != old
        wait_until(lambda: shown(server) == new, what="the new certificate is shown")
        assert not member.presence.away_s
        server.expect("job", expecting(1, floor=1))
        world = server.world("job")
        assert world is not None
        assert (world.generation, world.phase) == (1, "running"), "the member never went away"
    finally:
        member.stop()


def test_a_certificate_that_does_not_fit_its_key_is_reported_and_the_old_one_serves_on(server: Server, tmp_path: Path) -> None:
    other = tmp_path / "other"
    ensure_installation(other, addresses=())
    old = shown(server)
    shutil.copy(other / "tls.key", server.installation / "tls.key")
    wait_until(lambda: "the old ones stay in use" in server.log(), what="the trouble is told")
    assert shown(server) == old
    shutil.copy(other / "tls.crt", server.installation / "tls.crt")
    server.ca = (other / "ca.crt").read_text()
    wait_until(lambda: "files of the installation changed" in server.log(), what="the whole pair is taken")
    assert shown(server) == (other / "tls.crt").read_text().strip()


def test_a_new_key_is_taken_while_tokens_of_the_old_one_go_on(server: Server) -> None:
    folder, old = server.installation, server.key
    server.expect("job", expecting(1))
    new = secrets.token_bytes(32)
    (folder / "server.key.old").write_text(old.hex())
    (folder / "server.key").write_text(new.hex())

    def answer(token: str) -> int:
        return server.call("GET", "/v1/jobs/job/world", token=token)[0]

    wait_until(lambda: answer(job_token(new, "job")) == 200, what="the new key is in force")
    assert answer(job_token(old, "job")) == 200
    (folder / "server.key.old").unlink()
    wait_until(lambda: answer(job_token(old, "job")) == 403, what="the old key is gone")
    assert answer(control_token(new)) == 200


def test_only_the_controllers_account_speaks_for_the_control_plane(api: ApiProcess, tmp_path: Path) -> None:
    async def ask() -> tuple[dict[str, bool], str]:
        async with connect(api.folder / "kubeconfig") as kube:
            found = await who_may_control(kube, namespace="default")
            return found, await account_token(kube, "controller", namespace="default", audience=AUDIENCE)

    found, token = asyncio.run(ask())
    assert found == ONLY_THE_CONTROLLER_MAY
    flags = ("--kubeconfig", str(api.folder / "kubeconfig"), "--account", "system:serviceaccount:default:controller")
    with serving(tmp_path, *flags) as server:
        body = encode(expecting(1))
        assert server.call("PUT", "/v1/jobs/job/expectation", token=token, body=body)[0] == 204
        api.kill()
        assert server.call("PUT", "/v1/jobs/job/expectation", token=token, body=body)[0] == 204, "a review is remembered for a while"
        status, text = server.call("PUT", "/v1/jobs/job/expectation", token=token + "x", body=body)
        assert (status, b"API server" in text) == (503, True)
