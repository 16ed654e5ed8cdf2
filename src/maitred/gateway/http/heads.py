"""Check the head of a request before anything of its body is kept.

An ambiguous head is refused, and the connection ends: a proxy in between may have read it in the
other way. These checks see nothing but the head, so a head that passed once passes again, byte for
byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.errors import (
    ExpectationFailed,
    HeadersTooLarge,
    MalformedRequest,
    PayloadTooLarge,
    UnsupportedHttp,
    UnsupportedMediaType,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maitred.settings import GatewaySettings

ONCE: Final = frozenset(
    (
        b"host",
        b"content-length",
        b"content-type",
        b"content-encoding",
        b"transfer-encoding",
        b"authorization",
        b"origin",
        b"sec-fetch-site",
        b"sec-fetch-mode",
        b"expect",
        b"maitred-timeout",
        b"maitred-priority",
        b"maitred-idempotent",
        b"maitred-do-not-queue",
    )
)
"""Headers that may occur only once; the values of others are joined."""

HEADERS_MAX: Final = 128
"""The most header lines of one request. Browsers and proxies send some thirty. Without this limit,
32 KiB of two-letter headers would cost a megabyte of objects."""


CHUNKS_MAX: Final = 64 * 1024
"""The most chunks of one body. Each costs half a microsecond, however short it is; with two bytes
each, a body of 2 MiB would take half a second."""


def check_version(version: str, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether the version is 1.0; raise unless it is that, or 1.1 with a Host header."""
    if version == "1.1":
        if b"host" not in headers:
            raise MalformedRequest("The request has no Host.")
        return False
    if version == "1.0":
        return True
    raise UnsupportedHttp(f"HTTP/{version} is not spoken here.", remedy="Speak HTTP/1.1.")


def check_coding(headers: Mapping[bytes, bytes], *, is_10: bool) -> None:
    """Raise unless the length of the body can be read in one way only."""
    if b"content-length" in headers:
        raise MalformedRequest(
            "The request has both a Content-Length and a Transfer-Encoding, and could be read in "
            "two ways."
        )
    if headers[b"transfer-encoding"].strip().lower() != b"chunked" or is_10:
        raise MalformedRequest("The only transfer coding that is read here is 'chunked'.")


def check_upgrade(headers: Mapping[bytes, bytes]) -> None:
    """Raise if an upgrade has a body: the parser would take it for data of the other protocol."""
    if b"transfer-encoding" in headers or int(headers.get(b"content-length", b"0")):
        raise UnsupportedHttp(
            "A request with a body cannot ask for another protocol as well.",
            remedy="Speak HTTP/1.1; with curl, leave --http2 out.",
        )


def check_expectation(expected: bytes) -> None:
    """Raise unless the Expect header is `100-continue`."""
    if expected.strip().lower() != b"100-continue":
        raise ExpectationFailed("Only 100-continue can be expected here.")


def check_encoding(encoding: bytes) -> None:
    """Raise if the body is compressed: it could grow a thousandfold."""
    if encoding.strip().lower() != b"identity":
        raise UnsupportedMediaType(
            f"A body with the content encoding {encoding[:60].decode('latin-1')!r} is not read "
            "here.",
            remedy="Send the body as it is, without Content-Encoding.",
        )


def too_many_headers(settings: GatewaySettings) -> HeadersTooLarge:
    """Return the error for a head that is too large."""
    return HeadersTooLarge(
        f"The request line and the headers have more than the {settings.header_bytes:,} bytes "
        f"or {HEADERS_MAX} lines allowed.",
        remedy="Send less, or raise gateway.header_bytes.",
    )


def too_large(settings: GatewaySettings) -> PayloadTooLarge:
    """Return the error for a body that is too large."""
    return PayloadTooLarge(
        f"The body has more than the {settings.body_bytes:,} bytes allowed.",
        remedy="Put it into a store and send a reference, or raise gateway.body_bytes.",
    )


def too_many_chunks() -> PayloadTooLarge:
    """Return the error for a body in too many chunks."""
    return PayloadTooLarge(
        f"The body has more than the {CHUNKS_MAX:,} chunks allowed.",
        remedy="Send larger chunks, or a Content-Length.",
    )
