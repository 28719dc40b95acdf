"""Check that a new TLS connection to the rendezvous server costs no needless work."""

import ssl
from pathlib import Path

from elastic.local.installation import ensure_installation
from elastic_training.rendezvous.server.credentials import Credentials


def test_no_handshake_pays_for_tickets_that_nobody_uses(tmp_path: Path) -> None:
    ensure_installation(tmp_path, addresses=())
    server_in, client_in = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = Credentials(tmp_path).tls.wrap_bio(server_in, client_in, server_side=True)
    trusted = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    client = trusted.wrap_bio(client_in, server_in, server_hostname="localhost")
    for end in (client, server, client, server):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    server.write(b"ok")
    assert client.read() == b"ok"
    assert client.version() == "TLSv1.3"
    assert client.session is None or not client.session.has_ticket
