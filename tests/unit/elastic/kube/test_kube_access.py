import base64
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from elastic.certificates import make_ca
from elastic.kube.access import GET_AGAIN, AccessError, TokenCommand, TokenFile, from_kubeconfig, in_cluster


def kubeconfig(folder: Path, *, user: dict[str, object] | None = None, **cluster: object) -> Path:
    path = folder / "config"
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:8001/", **cluster}}],
                "users": [{"name": "u", "user": user or {}}],
            }
        )
    )
    return path


def test_server_token_and_namespace_come_from_the_current_context(tmp_path: Path) -> None:
    access = from_kubeconfig(kubeconfig(tmp_path, user={"token": "secret"}))
    assert (access.server, access.token(), access.namespace, access.tls) == ("http://127.0.0.1:8001", "secret", "team", None)


def test_a_token_file_is_named_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from a file\n")
    assert from_kubeconfig(kubeconfig(tmp_path, user={"tokenFile": "token"})).token() == "from a file"


def test_a_token_file_is_read_again_once_it_may_have_been_replaced(tmp_path: Path) -> None:
    now = 0.0
    path = tmp_path / "token"
    path.write_text("first")
    token = TokenFile(path, clock=lambda: now)
    assert token() == "first"
    path.write_text("second")
    assert token() == "first"
    now = 60.0
    assert token() == "second"


@pytest.mark.parametrize(
    ("user", "words"),
    [({"auth-provider": {"name": "gcp"}}, "auth-provider is gone"), ({"client-certificate-data": "***", "client-key": "k"}, "not base64")],
)
def test_credentials_that_cannot_be_used_are_refused_in_words(tmp_path: Path, user: dict[str, object], words: str) -> None:
    with pytest.raises(AccessError, match=words):
        from_kubeconfig(kubeconfig(tmp_path, user=user, server="https://127.0.0.1:1"))


def test_a_missing_context_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="contexts has no entry named 'there'"):
        from_kubeconfig(kubeconfig(tmp_path), context="there")


NO_PEM = base64.b64encode(b"-----BEGIN CERTIFICATE-----\nZGFtYWdlZA==\n-----END CERTIFICATE-----\n").decode()


@pytest.mark.parametrize("data", [NO_PEM, base64.b64encode(b"no").decode(), base64.b64encode(b"\xff\xfe").decode()])
def test_a_damaged_certificate_authority_is_named_with_its_file_and_the_remedy(tmp_path: Path, data: str) -> None:
    path = kubeconfig(tmp_path, server="https://127.0.0.1:1", **{"certificate-authority-data": data})
    with pytest.raises(AccessError) as refused:
        from_kubeconfig(path)
    assert str(refused.value).startswith(f"kubeconfig {path}: certificate-authority-data holds no certificate in PEM form but ")
    assert str(refused.value).endswith(f" other bytes; {GET_AGAIN}")


def test_a_damaged_client_certificate_or_key_is_named(tmp_path: Path) -> None:
    one, other = make_ca("one"), make_ca("other")

    def said(certificate: bytes, key: bytes) -> str:
        user = {"client-certificate-data": base64.b64encode(certificate).decode(), "client-key-data": base64.b64encode(key).decode()}
        with pytest.raises(AccessError) as refused:
            from_kubeconfig(kubeconfig(tmp_path, user=user, server="https://127.0.0.1:1"))
        return str(refused.value)

    assert f"{tmp_path}/config: client-certificate-data holds no certificate" in said(b"no", one.key)
    for key in (b"no", other.key):
        assert f"{tmp_path}/config: client-key-data is not the key of the client certificate" in said(one.certificate, key)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("foo: [", "is not YAML: while parsing"),
        ("hello", "is not a mapping with clusters, users and contexts: it holds a str"),
        ("", "is not a mapping with clusters, users and contexts: it holds nothing"),
        ("contexts: [{name: a}]", "has no current-context; set one with `kubectl config use-context NAME --kubeconfig "),
        ("contexts: [{name: a}]", "or name one with --context; its contexts: a"),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_one_line_with_the_remedy(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(AccessError) as refused:
        from_kubeconfig(path)
    said = str(refused.value)
    assert said.startswith(f"kubeconfig {path} ")
    assert words in said
    assert "\n" not in said
    assert "--context" in said or said.endswith(GET_AGAIN)


def test_outside_a_pod_the_advice_is_to_pass_a_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match=r"without KUBERNETES_SERVICE_HOST, .*/token, .*/ca\.crt; pass --kubeconfig FILE"):
        in_cluster(host="", port="443", folder=tmp_path)


@pytest.mark.parametrize(("host", "server"), [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")])
def test_in_a_pod_the_service_accounts_files_are_taken(tmp_path: Path, host: str, server: str) -> None:
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "ca.crt").write_bytes(make_ca("ca").certificate)
    (tmp_path / "namespace").write_text("team\n")
    access = in_cluster(host=host, port="443", folder=tmp_path)
    assert (access.server, access.token(), access.namespace) == (server, "secret", "team")
    assert access.tls is not None


def program(folder: Path, answer: str) -> dict[str, object]:
    """Return the kubeconfig user of a credential program that gives this answer, and notes each call in the file `asked`."""
    script = folder / "credentials"
    script.write_text(f"#!/bin/sh\necho asked >> {folder}/asked\ncat <<'END'\n{answer}\nEND\n")
    script.chmod(0o755)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(script), "args": [], "env": None}}


def test_a_credential_program_is_asked_again_before_its_token_expires(tmp_path: Path) -> None:
    now = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
    answer = '{"kind": "ExecCredential", "status": {"token": "short-lived", "expirationTimestamp": "2026-01-01T12:15:00Z"}}'
    token = TokenCommand(program(tmp_path, answer)["exec"], clock=lambda: now)
    assert (token(), token()) == ("short-lived", "short-lived")
    assert (tmp_path / "asked").read_text().count("asked") == 1
    now = datetime(2026, 1, 1, 12, 14, tzinfo=UTC)
    assert token() == "short-lived"
    assert (tmp_path / "asked").read_text().count("asked") == 2


@pytest.mark.parametrize(("answer", "words"), [("no", "did not answer with an ExecCredential"), ('{"status": {}}', "gave no token")])
def test_a_credential_program_that_gives_no_token_is_named(tmp_path: Path, answer: str, words: str) -> None:
    access = from_kubeconfig(kubeconfig(tmp_path, user=program(tmp_path, answer)))
    with pytest.raises(AccessError, match=words):
        access.token()
