"""Call an etcd over gRPC, with a password or without. Each call is bounded in time and bytes, and tries the next endpoint if one is away.

The records in etcd have no meaning here.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from elastic.etcd.answers import parsed
from elastic.etcd.channels import Channels, identity
from elastic.etcd.messages import Etcd3, etcd3
from elastic.etcd.place import Access
from elastic.etcd.store import Away, Compacted, Entry, Full, Listing, StoreRefused
from elastic_training.rendezvous.engine.messages.bounds import MAX_MEMBERS

CALL_S = 3.0
MOST_ATTEMPTS = 3
MOST_KEYS, PAGE = 4 * MAX_MEMBERS, 256
LONGEST_WORDS = 200
_TRANSIENT = frozenset({"CANCELLED", "UNKNOWN", "DEADLINE_EXCEEDED", "ABORTED", "UNAVAILABLE", "INTERNAL", "RESOURCE_EXHAUSTED"})
_ABOUT_TOKEN = ("invalid auth token", "revision of auth store is old")
DENIED = "permission denied"
NO_SPACE = 1
NO_AUTHENTICATION = "authentication is not enabled"


class GrpcStore:
    """An etcd for one event loop. `endpoints` are HOST:PORT."""

    def __init__(self, channels: Channels, endpoints: tuple[str, ...], access: Access, *, is_tls: bool, namespace: str = "") -> None:
        self._channels = channels
        self._endpoints = list(endpoints)
        self._access = access
        self._namespace = namespace
        self._identity = identity(access, is_tls=is_tls)
        self._etcd: Etcd3 = etcd3()
        self._channel: Any = None
        self._token = ""
        self._asks_nobody = not access.user

    # --- Store

    async def pages(self, prefix: str) -> AsyncIterator[Listing]:
        question: dict[str, Any] = {**_under(prefix), "limit": PAGE}
        for _ in range(0, MOST_KEYS, PAGE):
            answer = await self.call("KV/Range", "RangeRequest", **question)
            question |= {"revision": question.get("revision") or answer.header.revision}
            yield Listing(question["revision"], tuple(_entry(pair, prefix) for pair in answer.kvs))
            if not answer.more or not answer.kvs:
                return
            question["key"] = answer.kvs[-1].key + b"\0"
        raise StoreRefused(f"more than {MOST_KEYS} keys lie under {prefix}")

    async def newest(self, prefix: str) -> tuple[int, int]:
        question = {"limit": 1, "keys_only": True, "sort_target": "MOD", "sort_order": "DESCEND"}
        answer = await self.call("KV/Range", "RangeRequest", **_under(prefix), **question)
        return max((pair.mod_revision for pair in answer.kvs), default=0), answer.count

    async def watch(self, prefix: str, since: int) -> AsyncIterator[tuple[Entry, ...]]:
        request = self.message("WatchRequest", create_request=self.message("WatchCreateRequest", **_under(prefix), start_revision=since))
        async with _Stream(self, "Watch/Watch", request) as stream:
            while True:
                answer = await stream.read(None)
                if answer.canceled:
                    raise Compacted() if answer.compact_revision else _ended(answer.cancel_reason)
                yield tuple(_changed(event, prefix) for event in answer.events)

    async def put(self, key: str, value: bytes, *, lease: int, unchanged: int) -> int:
        compare = self.message("Compare", key=key.encode(), target="MOD", result="EQUAL", mod_revision=unchanged)
        put = self.message("PutRequest", key=key.encode(), value=value, lease=lease)
        answer = await self.call("KV/Txn", "TxnRequest", compare=[compare], success=[self.message("RequestOp", request_put=put)])
        return int(answer.header.revision) if answer.succeeded else 0

    async def remove(self, prefix: str) -> None:
        await self.call("KV/DeleteRange", "DeleteRangeRequest", **_under(prefix))

    async def grant(self, ttl_s: int) -> int:
        return int((await self.call("Lease/LeaseGrant", "LeaseGrantRequest", TTL=ttl_s)).ID)

    async def keep(self, lease: int) -> bool:
        async with _Stream(self, "Lease/LeaseKeepAlive", self.message("LeaseKeepAliveRequest", ID=lease)) as stream:
            return int((await stream.read(CALL_S)).TTL) > 0

    async def revoke(self, lease: int) -> None:
        await self.call("Lease/LeaseRevoke", "LeaseRevokeRequest", ID=lease)

    async def is_full(self) -> bool:
        try:
            answer = await self.call("Maintenance/Alarm", "AlarmRequest", action="GET")
        except StoreRefused as error:
            if DENIED in str(error):
                return False  # the first write tells
            raise
        return any(alarm.alarm == NO_SPACE for alarm in answer.alarms)

    async def close(self) -> None:
        if self._channel is not None:
            self._channel = None
            await self._channels.free(self._endpoints[0], self._identity)

    # --- calls

    async def call(self, method: str, kind: str, **fields: Any) -> Any:
        """Do one call. It is repeated with a new token if etcd refuses ours, and at other endpoints if one does not answer."""
        request = self.message(kind, **fields)
        await self.log_in()
        try:
            return await self._anywhere(method, request)
        except StoreRefused as error:
            if self._asks_nobody or not any(words in str(error) for words in _ABOUT_TOKEN):
                raise
        self._token = ""
        await self.log_in()
        return await self._anywhere(method, request)

    async def log_in(self) -> None:
        if self._asks_nobody or self._token:
            return
        request = self.message("AuthenticateRequest", name=self._access.user, password=self._access.password)
        try:
            self._token = (await self._anywhere("Auth/Authenticate", request)).token
        except StoreRefused as error:
            if NO_AUTHENTICATION not in str(error):
                raise
            self._asks_nobody = True

    @property
    def asks_nobody(self) -> bool:
        """Whether this etcd was found to ask nobody for a password."""
        return self._asks_nobody

    def forget_login(self) -> None:
        """Log in at the next call, although this etcd asked nobody before."""
        self._asks_nobody, self._token = not self._access.user, ""

    def message(self, kind: str, /, **fields: Any) -> Any:
        return self._etcd.messages[kind](**fields)

    async def _anywhere(self, method: str, request: Any) -> Any:
        failures = []
        for _ in range(min(len(self._endpoints), MOST_ATTEMPTS)):
            try:
                return await self._at_current(method, request)
            except Away as error:
                failures.append(f"{self._endpoints[0]}: {error}")
                await self.try_next()
        raise Away("; ".join(failures))

    async def try_next(self) -> None:
        """Use the next endpoint from now on."""
        await self.close()
        self._endpoints.append(self._endpoints.pop(0))

    def opened(self) -> Any:
        if self._channel is None:
            self._channel = self._channels.take(self._endpoints[0], self._identity, namespace=self._namespace)
        return self._channel

    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("token", self._token),) if self._token else ()

    def method(self, name: str) -> Any:
        return self._etcd.methods[name]

    async def _at_current(self, method: str, request: Any) -> Any:
        known = self.method(method)
        call = self.opened().unary_unary(known.path, known.request.SerializeToString)
        with _in_our_words():
            data = await call(request, timeout=CALL_S, metadata=self.metadata())
        return parsed(known.response, data)


class _Stream:
    """A call with one request and any number of answers."""

    def __init__(self, store: GrpcStore, method: str, request: Any) -> None:
        self._store = store
        self._method = method
        self._request = request
        self._call: Any = None

    async def __aenter__(self) -> "_Stream":
        await self._store.log_in()
        known = self._store.method(self._method)
        opened = self._store.opened().stream_stream(known.path, known.request.SerializeToString)
        # etcd ends the watch of a member that has lost its leader, instead of being silent.
        self._call = opened(metadata=(*self._store.metadata(), ("hasleader", "true")))
        await self._bounded(self._call.write(self._request), CALL_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._call.cancel()

    async def read(self, within_s: float | None) -> Any:
        import grpc

        data = await self._bounded(self._call.read(), within_s)
        if data is grpc.aio.EOF:
            raise Away("etcd ended the stream")
        return parsed(self._store.method(self._method).response, data)

    async def _bounded(self, waits: Any, within_s: float | None) -> Any:
        try:
            with _in_our_words():
                async with asyncio.timeout(within_s):
                    return await waits
        except TimeoutError:
            raise Away(f"no answer within {within_s:g} s") from None


@contextlib.contextmanager
def _in_our_words() -> Iterator[None]:
    """Turn what gRPC raises into Away or Refused."""
    import grpc

    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise failure(error) from None
    except (asyncio.InvalidStateError, grpc.aio.UsageError) as error:
        raise Away(_clipped(str(error)) or "the stream has ended") from None
    except asyncio.CancelledError:
        # gRPC says in this way, too, that the channel was closed: by a call that went on to the next endpoint.
        if _is_cancelled():
            raise
        raise Away("its connection was closed") from None


def _is_cancelled() -> bool:
    """Tell whether somebody cancelled this task."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


TLS_MISTAKES = (
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not accepted; put its CA as ca.crt into the Secret of rdzvSecret"),
    ("TSI_DATA_CORRUPTED", "it does not accept our certificate, or asks for one; put tls.crt and tls.key into the Secret of rdzvSecret"),
    ("Handshake read failed", "it closed the connection, as an etcd without TLS does; leave out https:// in rdzvHost, and certificates"),
    ("WRONG_VERSION_NUMBER", "it speaks no TLS; leave out https:// in rdzvHost, and certificates"),
    ("Socket closed", "it closed the connection, as an etcd with TLS does; write https:// before the members of rdzvHost"),
)
"""Words of gRPC about a failed connection, and their meaning: a mistake about TLS, which only a user mends."""


def failure(error: Any) -> Away | StoreRefused:
    """Return what an error of gRPC means."""
    told = str(error.details() or "")
    if told.startswith("failed to connect") and (words := next((words for sign, words in TLS_MISTAKES if sign in told), "")):
        return Away(words)
    words = _clipped(error.details() or error.code().name)
    if "database space exceeded" in words:
        return Full()
    if words.startswith("Received http2 header with status"):
        return Away(f"what answers there speaks HTTP and is no etcd, or a proxy before one: {words.lower()}")
    return Away(words) if error.code().name in _TRANSIENT else StoreRefused(words)


def _ended(why: str) -> Away | StoreRefused:
    """Return what it means that etcd ended a watch, which it does in words alone."""
    words = _clipped(why.rpartition("desc = ")[2])
    return StoreRefused(words) if DENIED in words else Away(words or "etcd ended the watch")


def _under(prefix: str) -> dict[str, bytes]:
    return {"key": prefix.encode(), "range_end": (prefix[:-1] + chr(ord(prefix[-1]) + 1)).encode()}


def _entry(pair: Any, prefix: str) -> Entry:
    return Entry(pair.key.decode("utf-8", "replace")[len(prefix) :], bytes(pair.value), int(pair.mod_revision))


def _changed(event: Any, prefix: str) -> Entry:
    entry = _entry(event.kv, prefix)
    return entry._replace(value=None) if event.type == 1 else entry


def _clipped(words: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in " ".join(words.split())[:LONGEST_WORDS])
