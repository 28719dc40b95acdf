"""Read and write SPDY/3.1 as kubectl and API servers speak it to nodes: streams that the other side opens, data, ends, resets and pings.

This module turns bytes into frames and frames into bytes, and knows no connection. Clients of nodes use no priorities, pushed streams or
windows, so these frames are ignored.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

VERSION = 3
SYN_STREAM, SYN_REPLY, RST_STREAM, PING, GOAWAY = 1, 2, 3, 6, 7
FIN = 0x01
MOST_CONTROL = 64 * 1024
MOST_HEADERS = 64 * 1024
REFUSED, CANCELLED = 3, 5

_HEADER_NAMES = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow authorization "
    "cache-control connection content-base content-encoding content-language content-length content-location content-md5 content-range "
    "content-type date etag expect expires from host if-match if-modified-since if-none-match if-range if-unmodified-since last-modified "
    "location max-forwards pragma proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding "
    "upgrade user-agent vary via warning www-authenticate method get status"
)
_TEXT = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Authoritative Information"
    "204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not Found500 Internal Server Error"
    "501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, "
    "Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,public"
    "privatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


_LATER_NAMES = "version HTTP/1.1 url public set-cookie keep-alive origin"


def _counted(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">I", len(data)) + data


DICTIONARY = b"".join(_counted(word) for word in (*_HEADER_NAMES.split(), "200 OK", *_LATER_NAMES.split())) + _TEXT.encode()
"""Text that both sides' compressors know from the start. The protocol defines every byte, and a stream names its checksum (0xe3c6a7c2)."""


class SpdyError(Exception):
    """The other side breaks the protocol, so the connection cannot continue."""


@dataclass(frozen=True, slots=True)
class Opened:
    stream: int
    headers: dict[str, str]
    """Headers by their names in lower case."""
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Data:
    stream: int
    data: bytes
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    stream: int


@dataclass(frozen=True, slots=True)
class Ping:
    id: int


@dataclass(frozen=True, slots=True)
class GoneAway:
    """The other side will open no more streams."""


Frame = Opened | Data | Reset | Ping | GoneAway


class Decoder:
    """Finds the frames in received bytes. A long data frame is passed on in pieces, so that no long text is kept."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        self._stream, self._left, self._ends = 0, 0, False

    def feed(self, data: bytes) -> list[Frame]:
        self._pending += data
        found: list[Frame] = []
        while (frame := self._next()) is not None:
            found += frame
        return found

    def _next(self) -> list[Frame] | None:
        """Return the next frames: often one, an empty list for ignored frames, or None if more bytes are needed."""
        if self._left:
            return self._piece()
        if len(self._pending) < 8:
            return None
        word, length = struct.unpack_from(">II", self._pending)
        flags, length = length >> 24, length & 0xFFFFFF
        if not word >> 31:
            del self._pending[:8]
            self._stream, self._left, self._ends = word & 0x7FFFFFFF, length, bool(flags & FIN)
            return [] if length else [Data(self._stream, b"", self._ends)]
        if (word >> 16) & 0x7FFF != VERSION:
            raise SpdyError(f"a frame of SPDY version {(word >> 16) & 0x7FFF}, but only {VERSION} is spoken here")
        if length > MOST_CONTROL:
            raise SpdyError(f"a control frame of {length} bytes, more than {MOST_CONTROL}")
        if len(self._pending) < 8 + length:
            return None
        body = bytes(self._pending[8 : 8 + length])
        del self._pending[: 8 + length]
        return self._control(word & 0xFFFF, flags, body)

    def _piece(self) -> list[Frame] | None:
        if not self._pending:
            return None
        data = bytes(self._pending[: self._left])
        del self._pending[: self._left]
        self._left -= len(data)
        return [Data(self._stream, data, self._ends and not self._left)]

    def _control(self, kind: int, flags: int, body: bytes) -> list[Frame]:
        try:
            match kind:
                case 1:
                    stream, _, _ = struct.unpack_from(">IIH", body)
                    return [Opened(stream & 0x7FFFFFFF, self._headers(body[10:]), bool(flags & FIN))]
                case 3:
                    return [Reset(struct.unpack_from(">I", body)[0] & 0x7FFFFFFF)]
                case 6:
                    return [Ping(struct.unpack_from(">I", body)[0])]
                case 7:
                    return [GoneAway()]
                case 2 | 8:
                    self._headers(body[4:])  # both sides' compressors must see the same bytes
            return []
        except struct.error:
            raise SpdyError(f"a control frame of type {kind} with only {len(body)} bytes") from None

    def _headers(self, block: bytes) -> dict[str, str]:
        try:
            plain = self._inflate.decompress(block, MOST_HEADERS)
        except zlib.error as error:
            raise SpdyError(f"headers that cannot be read: {error}") from None
        if self._inflate.unconsumed_tail:
            raise SpdyError(f"headers of more than {MOST_HEADERS} bytes")
        return _pairs(plain)


def _pairs(plain: bytes) -> dict[str, str]:
    at, words = 4, []
    try:
        (count,) = struct.unpack_from(">I", plain)
        for _ in range(2 * min(count, MOST_HEADERS)):
            (length,) = struct.unpack_from(">I", plain, at)
            words.append(plain[at + 4 : at + 4 + length].decode())
            at += 4 + length
            if at > len(plain):
                raise SpdyError("headers that end in the middle")
    except (struct.error, UnicodeDecodeError):
        raise SpdyError("headers that end in the middle") from None
    return {name.lower(): value for name, value in zip(words[::2], words[1::2], strict=True)}


class Encoder:
    """Makes frames. Each connection needs its own encoder, because headers are compressed with the text that was sent before."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(zdict=DICTIONARY)

    def opened(self, stream: int, headers: dict[str, str]) -> bytes:
        return _control(SYN_STREAM, struct.pack(">IIH", stream, 0, 0) + self._headers(headers))

    def accepted(self, stream: int) -> bytes:
        return _control(SYN_REPLY, struct.pack(">I", stream) + self._headers({}))

    def _headers(self, headers: dict[str, str]) -> bytes:
        plain = struct.pack(">I", len(headers)) + b"".join(_counted(k) + _counted(v) for k, v in headers.items())
        return self._deflate.compress(plain) + self._deflate.flush(zlib.Z_SYNC_FLUSH)


def data(stream: int, payload: bytes, *, ended: bool = False) -> bytes:
    return struct.pack(">II", stream, (FIN << 24 if ended else 0) | len(payload)) + payload


def reset(stream: int, why: int = CANCELLED) -> bytes:
    return _control(RST_STREAM, struct.pack(">II", stream, why))


def ping(number: int) -> bytes:
    return _control(PING, struct.pack(">I", number))


def going_away(last: int) -> bytes:
    return _control(GOAWAY, struct.pack(">II", last, 0))


def _control(kind: int, body: bytes) -> bytes:
    return struct.pack(">II", 1 << 31 | VERSION << 16 | kind, len(body)) + body
