"""Share connections to etcds between jobs.

There is one connection for each endpoint and TLS identity. It closes with the last job that uses it. The number of connections is bounded
for each namespace and in total. All of them belong to one event loop.
"""

from dataclasses import dataclass
from typing import Any

from elastic.etcd.answers import LONGEST_ANSWER
from elastic.etcd.messages import INSTALL, NotInstalled
from elastic.etcd.place import Access
from elastic.etcd.store import StoreRefused

MOST_CHANNELS, MOST_OF_NAMESPACE = 512, 64
_OPTIONS = (
    ("grpc.max_receive_message_length", LONGEST_ANSWER),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # gRPC ends a silent connection after 15 s. etcd refuses more than one ping each 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)


@dataclass(slots=True)
class _Open:
    channel: Any
    namespace: str
    users: int = 0


class Channels:
    def __init__(self) -> None:
        self._open: dict[tuple[str, Access | None], _Open] = {}

    def take(self, endpoint: str, access: Access | None, *, namespace: str = "") -> Any:
        """Return the channel to an endpoint, `HOST:PORT`, for a job of a namespace. Without `access` it is in plain text.

        Give it back with `free`. An empty namespace means the installation's etcd, whose channels are never refused.
        """
        try:
            import grpc
            import grpc.aio
        except ImportError as error:
            raise NotInstalled(f"the package grpcio is not installed: {INSTALL}") from error
        key = (endpoint, access)
        if key not in self._open:
            self._check_room(namespace)
            self._open[key] = _Open(_channel(grpc, endpoint, access), namespace)
        self._open[key].users += 1
        return self._open[key].channel

    def _check_room(self, namespace: str) -> None:
        if not namespace:
            return
        if len(self._open) >= MOST_CHANNELS:
            raise StoreRefused(f"this controller is connected to {MOST_CHANNELS} etcd members already, which is its limit")
        if sum(one.namespace == namespace for one in self._open.values()) >= MOST_OF_NAMESPACE:
            raise StoreRefused(
                f"this controller is connected to {MOST_OF_NAMESPACE} etcd members for namespace {namespace} already, its limit"
            )

    async def free(self, endpoint: str, access: Access | None) -> None:
        found = self._open[(endpoint, access)]
        found.users -= 1
        if not found.users:
            del self._open[(endpoint, access)]
            await found.channel.close()


def identity(access: Access, *, is_tls: bool) -> Access | None:
    """Return the part of an access that decides which connection it may share. A password goes with each call."""
    return Access(ca=access.ca, certificate=access.certificate, key=access.key) if is_tls else None


def _channel(grpc: Any, endpoint: str, access: Access | None) -> Any:
    if access is None:
        return grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
    parts = [text.encode() or None for text in (access.ca, access.key, access.certificate)]
    credentials = grpc.ssl_channel_credentials(root_certificates=parts[0], private_key=parts[1], certificate_chain=parts[2])
    return grpc.aio.secure_channel(endpoint, credentials, options=_OPTIONS)
