"""Jobs share connections to an etcd; no namespace takes all that there are."""

import pytest

from elastic.etcd.channels import MOST_CHANNELS, MOST_OF_NAMESPACE, Channels
from elastic.etcd.place import Access, EtcdPlace
from elastic.etcd.store import StoreRefused
from elastic.etcd.visits import Visitor


async def test_jobs_at_one_endpoint_share_a_connection_that_closes_with_the_last() -> None:
    channels, tls = Channels(), Access(ca="")
    first = channels.take("etcd:2379", None, namespace="a")
    assert channels.take("etcd:2379", None, namespace="b") is first
    other = channels.take("etcd:2379", tls, namespace="a")
    assert other is not first, "what is sent over TLS goes over no other connection"
    await channels.free("etcd:2379", None)
    assert channels.take("etcd:2379", None, namespace="a") is first
    for _ in range(2):
        await channels.free("etcd:2379", None)
    again = channels.take("etcd:2379", None, namespace="a")
    assert again is not first
    await channels.free("etcd:2379", None)
    await channels.free("etcd:2379", tls)


async def test_a_namespace_takes_no_connection_from_another_one_nor_from_the_installations_etcd() -> None:
    channels, taken = Channels(), []

    def take(namespace: str, number: int) -> None:
        endpoint = f"{namespace or 'own'}-{number}:2379"
        channels.take(endpoint, None, namespace=namespace)
        taken.append(endpoint)

    for number in range(MOST_OF_NAMESPACE):
        take("greedy", number)
    with pytest.raises(StoreRefused, match="64 etcd members for namespace greedy already"):
        take("greedy", MOST_OF_NAMESPACE)
    channels.take("greedy-0:2379", None, namespace="greedy")  # one that is open is shared
    taken.append("greedy-0:2379")
    take("modest", 0)
    for number in range(len(set(taken)), MOST_CHANNELS):
        take(f"many-{number // MOST_OF_NAMESPACE}", number)
    with pytest.raises(StoreRefused, match="512 etcd members already"):
        take("late", 0)
    take("", 0)
    for endpoint in taken:
        await channels.free(endpoint, None)


async def nobody(namespace: str, name: str) -> dict[str, str]:
    raise AssertionError("no Secret is named")


@pytest.mark.parametrize(
    "endpoint", ["unix:/run/etcd.sock:80", "unix-abstract:x:1", "xds:///x:1", "etcd", "etcd:2379/x", "a b:1", ":1", "e:99999999"]
)
async def test_only_a_host_and_a_port_is_an_endpoint(endpoint: str) -> None:
    visitor = Visitor(read_secret=nobody, own=None)
    with pytest.raises(StoreRefused, match="is not HOST or HOST:PORT"):
        await visitor.open(EtcdPlace(endpoints=("etcd-0:2379", endpoint), prefix="/p/", namespace="team"))
    store = await visitor.open(EtcdPlace(endpoints=("etcd-0.storage:2379", "[::1]:2379", "10.0.0.1:1"), prefix="/p/", namespace="team"))
    await store.close()
