"""Check that `elastic.Client` reaches a server as the official client's configuration says: certificates, tokens, headers and proxy."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli_api import Api, job, served
from kubernetes import config
from kubernetes.client import ApiClient, Configuration

from elastic.certificates import Pair, issue, make_ca
from elastic.client import errors
from elastic.client.client import Client

CA = make_ca("test")
USER = issue(CA, "a-user")


@contextmanager
def with_tls(api: Api, folder: Path, *names: str, asks: bool = False, **user: Any) -> Iterator[Path]:
    """Serve the API with a certificate for these names. asks: want a client certificate, too."""
    tls, pair = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), issue(CA, "server", names=names)
    tls.load_cert_chain(*written(folder, "server", pair))
    if asks:
        tls.load_verify_locations(cadata=CA.certificate.decode())
        tls.verify_mode = ssl.CERT_REQUIRED
    authority = {"certificate-authority-data": base64.b64encode(CA.certificate).decode()}
    with served(api, folder, tls=tls, cluster=authority, user=user) as kubeconfig:
        yield kubeconfig


def written(folder: Path, name: str, pair: Pair) -> tuple[Path, Path]:
    files = folder / f"{name}.crt", folder / f"{name}.key"
    files[0].write_bytes(pair.certificate)
    files[1].write_bytes(pair.key)
    return files


def configured(kubeconfig: Path) -> Configuration:
    configuration = Configuration()
    config.load_kube_config(str(kubeconfig), client_configuration=configuration)  # type: ignore[attr-defined]
    return configuration


def names(configuration: Configuration, **how: Any) -> list[str]:
    with Client(api=ApiClient(configuration, **how)) as client:
        return [found.name for found in client.jobs()]


def test_a_client_certificate_of_an_api_client_is_shown(tmp_path: Path) -> None:
    with with_tls(Api(job()), tmp_path, "127.0.0.1", asks=True) as kubeconfig:
        configuration = configured(kubeconfig)
        with pytest.raises(errors.Unreachable):
            names(configuration)
        configuration.cert_file, configuration.key_file = map(str, written(tmp_path, "user", USER))
        assert names(configuration) == ["train"]


def test_a_server_of_another_name_needs_tls_server_name_or_no_check(tmp_path: Path) -> None:
    with with_tls(Api(job()), tmp_path, "kubernetes.example") as kubeconfig:
        with pytest.raises(errors.Unreachable, match="the API server is not the one of the kubeconfig, by its certificate"):
            names(configured(kubeconfig))
        for field, value in (("tls_server_name", "kubernetes.example"), ("assert_hostname", False), ("verify_ssl", False)):
            configuration = configured(kubeconfig)
            setattr(configuration, field, value)
            assert names(configuration) == ["train"], field
        configuration = configured(kubeconfig)
        configuration.tls_server_name = "another.example"
        with pytest.raises(errors.Unreachable):
            names(configuration)


def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ca"
    file.write_text("no certificate")
    with pytest.raises(errors.NoCluster, match=f"the certificates for https://localhost:1 cannot be used \\({file}\\)"):
        names(Configuration(host="https://localhost:1", ssl_ca_cert=str(file)))


@pytest.mark.parametrize("expires", [None, "2020-01-01T00:00:00Z"])
def test_a_token_comes_from_the_exec_plugin_of_the_kubeconfig(tmp_path: Path, expires: str | None) -> None:
    """A plugin whose token has expired is asked again at each request."""
    asked, plugin = tmp_path / "asked", tmp_path / "plugin"
    status = {"token": "T"} | ({"expirationTimestamp": expires} if expires else {})
    answer = json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status})
    number = f"$(wc -l < {asked})"
    plugin.write_text(f'#!/bin/sh\necho asked >> {asked}\nn={number}\necho \'{answer}\' | sed "s/\\"T\\"/\\"token-$n\\"/"\n')
    plugin.chmod(0o755)
    entry = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "interactiveMode": "Never"}
    api = Api(job())
    with served(api, tmp_path, user={"exec": entry}) as kubeconfig, Client(kubeconfig) as client:
        before = len(asked.read_text().splitlines())
        assert [found.name for found in client.jobs()] == ["train"]
        assert api.headers["Authorization"] == f"Bearer token-{len(asked.read_text().splitlines())}"
        client.jobs()
        assert len(asked.read_text().splitlines()) - before == (0 if expires is None else 2)


def test_a_token_is_renewed_by_the_hook_of_a_configuration(tmp_path: Path) -> None:
    def renew(configuration: Configuration) -> None:
        configuration.api_key["authorization"] = next(tokens)

    api, tokens = Api(job()), iter(["Bearer one", "Basic dHdv"])
    with served(api, tmp_path) as kubeconfig:
        configuration = configured(kubeconfig)
        configuration.api_key["authorization"] = "old"
        configuration.refresh_api_key_hook = renew
        with Client(api=ApiClient(configuration)) as client:
            client.jobs()
            assert api.headers["Authorization"] == "Bearer one"
            client.jobs()
            assert api.headers["Authorization"] == "Basic dHdv"
            with pytest.raises(errors.Forbidden, match=r"the token for http://127\.0\.0\.1:[0-9]* cannot be renewed"):
                client.jobs()


def test_headers_and_proxy_of_an_api_client_are_honoured(tmp_path: Path) -> None:
    api = Api(job())
    with served(api, tmp_path) as proxy:  # a request through a proxy names the whole URL
        configuration = Configuration(host="http://kubernetes.example")
        configuration.proxy = configured(proxy).host
        assert names(configuration, header_name="Impersonate-User", header_value="jane", cookie="a=b") == ["train"]
        assert (api.headers["Host"], api.headers["Impersonate-User"]) == ("kubernetes.example", "jane")
        assert api.headers["Cookie"] == "a=b"
        direct = configured(proxy)
        direct.proxy, direct.no_proxy = "http://127.0.0.1:1", "127.0.0.1"
        assert names(direct) == ["train"]
    configuration.proxy_headers = {"Proxy-Authorization": "Basic eA=="}
    with pytest.raises(errors.NoCluster, match=r"the proxy http://127\.0\.0\.1:[0-9]* of the configuration cannot be used"):
        names(configuration)


def test_an_api_client_names_its_cluster_alone(tmp_path: Path) -> None:
    with pytest.raises(errors.NoCluster, match="api has a cluster already; give it without kubeconfig, context and data_dir"):
        Client(tmp_path, api=ApiClient(Configuration()))
    with pytest.raises(errors.NoCluster, match=r"api is 'x', but must be a kubernetes\.client\.ApiClient"):
        Client(api="x")
    with Client(api=ApiClient(Configuration(host="http://localhost:1")), namespace="team") as client:
        assert repr(client) == "<Client of http://localhost:1, namespace team>"
