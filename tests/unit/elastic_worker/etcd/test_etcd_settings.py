"""Check the options of `torchrun --rdzv-backend elastic-etcd`, and the messages for wrong ones."""

import re

import pytest

from elastic_worker.etcd.gateway import Endpoint, Login, Refused
from elastic_worker.etcd.settings import Settings, read, remedy
from elastic_worker.settings import SettingsError


def of(endpoint: str = "etcd.storage", job: str = "train", environment: dict[str, str] | None = None, **options: object) -> Settings:
    return read(environment or {}, {"timeout": 900, **options}, endpoint=endpoint, job=job, nodes=(1, 4), local_address="10.0.0.9")


def test_a_host_is_enough() -> None:
    own = of()
    assert own.endpoints == (Endpoint("etcd.storage", 2379),)
    assert (own.tls, own.login, own.prefix, own.address) == (None, None, "/elastic-training/train/", "10.0.0.9")
    assert (own.rules.min, own.rules.max, own.rules.last_call_s, own.rules.max_restarts, own.lease_s) == (1, 4, 2, None, 5)
    assert own.member != of().member, "by hand several agents of one host have names of their own"


def test_several_members_of_etcd() -> None:
    assert of("a:1,b , [::1]:3").endpoints == (Endpoint("a", 1), Endpoint("b", 2379), Endpoint("::1", 3))
    assert of("https://a:1,https://b:2").tls is not None


def test_one_jobs_prefix_never_holds_anothers() -> None:
    assert of(job="a/b").prefix == "/elastic-training/a%2Fb/"
    assert of(job="a%2Fb").prefix == "/elastic-training/a%252Fb/"
    assert of(job="ä", etcd_prefix="/x/").prefix == "/x/%C3%A4/"


def test_login_and_rules() -> None:
    own = of(environment={"ELASTIC_ETCD_USER": "ann", "ELASTIC_ETCD_PASSWORD": "secret", "ELASTIC_MEMBER": "w-0"}, allowed_sizes="1:4:2")
    assert own.login == Login("ann", "secret")
    assert "secret" not in repr(own)
    assert own.member == "w-0"
    assert own.rules.sizes == (1, 2, 4)
    assert of(max_restarts="3", controller="true").rules.max_restarts == 3


@pytest.mark.parametrize(
    ("endpoint", "options", "environment", "words"),
    [
        ("", {}, {}, "names 0 etcd members"),
        ("a:b", {}, {}, "the rendezvous endpoint 'a:b' is not HOST[:PORT]"),
        ("a:99999", {}, {}, "is not HOST[:PORT]"),
        ("user:secret@a:1", {}, {}, "is not HOST[:PORT]"),
        ("http://a,https://b", {}, {}, "mixes http and https"),
        ("http://a", {"cacert": "/x"}, {}, "cacert is set, but etcd is spoken to in plain http"),
        ("a", {"protocol": "ftp"}, {}, "protocol is 'ftp'; expected http or https"),
        ("a", {"cacert": "/nowhere"}, {}, "the TLS files for etcd (cacert) cannot be used"),
        ("a", {}, {"ELASTIC_ETCD_CA": "no pem"}, "the TLS files for etcd (ELASTIC_ETCD_CA) cannot be used"),
        ("a", {}, {"ELASTIC_ETCD_USER": "ann"}, "ELASTIC_ETCD_USER is set and ELASTIC_ETCD_PASSWORD is not"),
        ("a", {}, {"ELASTIC_MEMBER": "a/b"}, "ELASTIC_MEMBER is 'a/b'"),
        ("a", {"last_call": "1"}, {}, "--rdzv-conf holds last_call, which elastic-etcd does not know; it knows allowed_sizes"),
        ("a", {"last_call_timeout": "soon"}, {}, "last_call_timeout is 'soon'; expected a number from 0 to 86400"),
        ("a", {"lease_ttl": "1"}, {}, "lease_ttl is '1'; expected a number from 2 to 600"),
        ("a", {"allowed_sizes": "1,2"}, {}, "expected numbers with colons"),
        ("a", {"allowed_sizes": "8:16"}, {}, "none of --rdzv-conf allowed_sizes (8:16) lies within --nnodes 1:4"),
        ("a", {"controller": "maybe"}, {}, "controller is 'maybe'; expected true or false"),
    ],
)
def test_a_mistake_is_one_clear_error(endpoint: str, options: dict[str, object], environment: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(words)):
        of(endpoint, environment=environment, **options)


def test_the_id_is_needed() -> None:
    with pytest.raises(SettingsError, match="give all agents of a job the same --rdzv-id"):
        of(job="")


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("etcdserver: user name is empty", "; set ELASTIC_ETCD_USER and ELASTIC_ETCD_PASSWORD"),
        ("etcdserver: authentication failed, invalid user ID or password", "; look at ELASTIC_ETCD_USER and ELASTIC_ETCD_PASSWORD"),
        ("etcdserver: permission denied", "; its user trainer needs readwrite permission for the prefix /elastic-training/run-7/"),
        ("etcdserver: too many operations in txn request", ""),
    ],
)
def test_a_refusal_says_what_to_do(words: str, advice: str) -> None:
    own = of("etcd.storage", "run-7", environment={"ELASTIC_ETCD_USER": "trainer", "ELASTIC_ETCD_PASSWORD": "x"})
    assert remedy(Refused(words, 0), own) == advice


def test_a_certificate_that_is_no_login_is_told() -> None:
    told = remedy(Refused("etcdserver: user name is empty", 0), of("https://etcd.storage"))
    assert told == "; set ELASTIC_ETCD_USER and ELASTIC_ETCD_PASSWORD, for its gateway takes no user from a certificate"
