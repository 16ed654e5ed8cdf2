"""Convert request and answer bodies between JSON and msgpack, and negotiate the format.

A body holds the arguments of a handler: an array in their order, an object by name, anything else
is the only argument. They travel to the worker as msgpack, and so does the result; a caller that
uses msgpack gets it unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import json, msgpack

from maitred.errors import (
    InvalidArguments,
    NotAcceptable,
    UnserialisableResult,
    UnsupportedMediaType,
)
from maitred.protocol.rows import as_array

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

JSON: Final = b"application/json"
MSGPACK: Final = b"application/msgpack"
NDJSON: Final = b"application/x-ndjson"
EVENTS: Final = b"text/event-stream"

_MSGPACK_NAMES: Final = frozenset((MSGPACK, b"application/x-msgpack", b"application/vnd.msgpack"))
_NDJSON_NAMES: Final = frozenset((NDJSON, b"application/ndjson", b"application/jsonl"))
_JSON_NAMES: Final = frozenset((JSON, b"application/*"))

_DECLARE: Final = (
    "Send Content-Type: application/json (UTF-8) or application/msgpack; curl --json does it."
)

NO_ARGUMENTS: Final = b"\x90"
_ARGUMENTS: Final = (list, dict)

_read_json: Final = json.Decoder().decode
_read_msgpack: Final = msgpack.Decoder().decode
_write_json: Final = json.Encoder().encode
_write_lines: Final = json.Encoder().encode_lines
_write_msgpack: Final = msgpack.Encoder().encode
_look_at_names: Final = msgpack.Decoder(dict[str, object]).decode


class Format:
    """A format of answers; this one is JSON, with NDJSON for streams."""

    __slots__ = ("content_type", "gather", "name", "row_type")

    def __init__(
        self, name: str, content_type: bytes, row_type: bytes, *, gather: bool = False
    ) -> None:
        self.name = name
        self.content_type = content_type
        """The content type of a result in one piece."""
        self.row_type = row_type
        """The content type of a stream."""
        self.gather = gather
        """Whether the caller accepts results in one piece only."""

    def whole(self, body: bytes) -> bytes:
        """Convert a result from msgpack."""
        return result_as_json(body)

    def value(self, value: object) -> bytes:
        """Encode a value of the gateway itself."""
        return _write_json(value)

    def rows(self, chunk: bytes) -> bytes:
        """Convert a chunk of a stream's rows from msgpack."""
        return _guarded(_rows_as_json, chunk)

    def error(self, said: Mapping[str, Any]) -> bytes:
        """Return the last piece of a stream that failed."""
        return _write_json(said) + b"\n"

    def end(self) -> bytes:
        """Return the last piece of a complete stream."""
        return b""


class Msgpack(Format):
    """Msgpack: results and rows pass unchanged, because workers send msgpack."""

    __slots__ = ()

    def whole(self, body: bytes) -> bytes:
        return body

    def value(self, value: object) -> bytes:
        return _write_msgpack(value)

    def rows(self, chunk: bytes) -> bytes:
        return chunk

    def error(self, said: Mapping[str, Any]) -> bytes:  # noqa: ARG002 - it would look like a row
        return b""


class Events(Format):
    """Server-sent events: one per row, and one at the end, so that clients do not reconnect."""

    __slots__ = ()

    def whole(self, body: bytes) -> bytes:
        return b"data: %b\n\n" % result_as_json(body) + self.end()

    def rows(self, chunk: bytes) -> bytes:
        lines = _guarded(_rows_as_json, chunk).split(b"\n")
        return b"".join(b"data: %b\n\n" % line for line in lines[:-1])

    def error(self, said: Mapping[str, Any]) -> bytes:
        return b"event: error\ndata: %b\n\n" % _write_json(said)

    def end(self) -> bytes:
        return b"event: end\ndata: \n\n"


AS_JSON: Final = Format("json", JSON, NDJSON)
AS_ONE_JSON: Final = Format("json", JSON, NDJSON, gather=True)
AS_MSGPACK: Final = Msgpack("msgpack", MSGPACK, MSGPACK)
AS_EVENTS: Final = Events("events", EVENTS, EVENTS)


def result_as_json(body: bytes) -> bytes:
    """Convert a msgpack result to JSON; raise `UnserialisableResult` if that is impossible."""
    return _guarded(_one_as_json, body)


def _one_as_json(body: bytes) -> bytes:
    return _write_json(_read_msgpack(body))


def _rows_as_json(chunk: bytes) -> bytes:
    return _write_lines(_read_msgpack(as_array(chunk)))


def _guarded(work: Callable[[bytes], bytes], body: bytes) -> bytes:
    try:
        return work(body)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as problem:
        raise UnserialisableResult(
            f"The result cannot be written as JSON: {problem}."[:300],
            remedy="Ask for it with Accept: application/msgpack.",
        ) from None


# Request bodies


def is_msgpack(content_type: bytes | None, body: bytes) -> bool:
    """Return whether the body is msgpack; raise `UnsupportedMediaType` if it is not JSON either.

    A body needs a Content-Type: pages of other origins can make a browser send one without.
    """
    if content_type == JSON or (content_type is None and not body):
        return False
    if content_type is None:
        raise UnsupportedMediaType("The body has no Content-Type.", remedy=_DECLARE)
    name, _, parameters = content_type.partition(b";")
    name = name.strip().lower()
    if name in _MSGPACK_NAMES:
        return True
    if name == JSON:
        charset = parameters.strip().lower()
        if not charset or charset.replace(b'"', b"") in {b"charset=utf-8", b"charset=utf8"}:
            return False
    raise UnsupportedMediaType(
        f"A body of the type {content_type[:60].decode('latin-1')!r} is not read here.",
        remedy=_DECLARE,
    )


def arguments(body: bytes, *, packed: bool) -> bytes:
    """Return the arguments as msgpack; raise `InvalidArguments` if the body cannot be decoded."""
    if not body:
        return NO_ARGUMENTS
    if packed:
        return _packed_arguments(body)
    try:
        value = _read_json(body)
        return _write_msgpack(value if isinstance(value, _ARGUMENTS) else [value])
    except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as problem:
        raise InvalidArguments(
            f"The body cannot be read as JSON: {problem}."[:300],
            remedy="An array has the arguments in order, an object by name; whole numbers have 64 "
            "bits, and text and names have no single surrogates such as \\ud800.",
        ) from None


def _packed_arguments(body: bytes) -> bytes:
    """Check msgpack by decoding all of it: text that is not UTF-8 may stand anywhere inside."""
    first = body[0]
    try:
        if 0x80 <= first <= 0x8F or first in {0xDE, 0xDF}:
            _look_at_names(body)
            return body
        _read_msgpack(body)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as problem:
        raise InvalidArguments(
            f"The body cannot be read as msgpack: {problem}."[:300],
            remedy="An array has the arguments in order, a map with names as keys by name.",
        ) from None
    return body if 0x90 <= first <= 0x9F or first in {0xDC, 0xDD} else b"\x91" + body


# The format of the answer


def accepted(accept: bytes | None, *, packed: bool) -> Format:
    """Return the format of the answer; raise `NotAcceptable` if the caller accepts none of ours.

    Without an Accept header, or with `*/*`, the answer has the format of the request.
    """
    usual = AS_MSGPACK if packed else AS_JSON
    if accept is None or accept == b"*/*":
        return usual
    best, best_quality = None, 0.0
    wishes = _wishes(accept)
    for name, quality in wishes:
        if quality > best_quality:
            found = _format(name, usual)
            if found is not None:
                best, best_quality = found, quality
    if best is None:
        raise NotAcceptable(
            f"An answer of the type {accept[:60].decode('latin-1')!r} is not written here.",
            remedy="Accept application/json, application/x-ndjson, application/msgpack or "
            "text/event-stream.",
        )
    if best is AS_ONE_JSON and any(
        quality > 0 and (name in _NDJSON_NAMES or name == b"*/*") for name, quality in wishes
    ):
        return AS_JSON
    return best


def _format(name: bytes, usual: Format) -> Format | None:
    if name == b"*/*":
        return usual
    if name in _JSON_NAMES:
        return AS_ONE_JSON
    if name in _NDJSON_NAMES:
        return AS_JSON
    if name in _MSGPACK_NAMES:
        return AS_MSGPACK
    return AS_EVENTS if name in {EVENTS, b"text/*"} else None


def _wishes(accept: bytes) -> list[tuple[bytes, float]]:
    found = []
    for part in accept.split(b","):
        name, *parameters = part.split(b";")
        quality = 1.0
        for parameter in parameters:
            key, _, value = parameter.partition(b"=")
            if key.strip().lower() == b"q":
                try:
                    quality = float(value)
                except ValueError:
                    quality = 0.0
        found.append((name.strip().lower(), quality))
    return found
