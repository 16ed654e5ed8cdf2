"""Answers without private data, for users who lack the permission `reveal`.

Private are arguments, results, the messages of errors, tracebacks, and the texts of queries. The
class or code of an error is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import MsgspecError, msgpack, structs

from maitred.protocol.tasks import Failure

if TYPE_CHECKING:
    from maitred.protocol.queries import QueryRow

_encode: Final = msgpack.Encoder().encode
_decode: Final = msgpack.Decoder(Failure).decode


def public_failure(encoded: bytes) -> bytes:
    """Return an encoded `Failure` without message and traceback. Of a failure that cannot be read,
    nothing is left."""
    try:
        kind = _decode(encoded).kind
    except (MsgspecError, UnicodeDecodeError, RecursionError):
        kind = ""
    return _encode(Failure(kind, ""))


def public_query(row: QueryRow) -> QueryRow:
    """Return the row of a query without its text, and with nothing but the class or the code of its
    error."""
    return structs.replace(row, query="", error=row.error.partition(":")[0])
