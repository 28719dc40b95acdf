import base64
from pathlib import Path

import pytest
import yaml

from elastic.kube.access import AccessError, TokenFile, from_kubeconfig, in_cluster


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
    [({"exec": {"command": "aws"}}, "external program"), ({"client-certificate-data": "***", "client-key": "k"}, "not base64")],
)
def test_credentials_that_cannot_be_used_are_refused_in_words(tmp_path: Path, user: dict[str, object], words: str) -> None:
    with pytest.raises(AccessError, match=words):
        from_kubeconfig(kubeconfig(tmp_path, user=user, server="https://127.0.0.1:1"))


def test_a_missing_context_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="contexts has no entry named 'there'"):
        from_kubeconfig(kubeconfig(tmp_path), context="there")


def test_a_certificate_authority_that_is_no_certificate_is_not_trusted(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"(?i)pem|certificate|ssl"):
        from_kubeconfig(
            kubeconfig(tmp_path, server="https://127.0.0.1:1", **{"certificate-authority-data": base64.b64encode(b"no").decode()})
        )


def test_outside_a_pod_the_advice_is_to_pass_a_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="pass --kubeconfig FILE"):
        in_cluster(host="", port="443", folder=tmp_path)
