"""Answers without private data, for users who lack the permission `reveal`.

Private are arguments, results, the messages of errors, tracebacks, and the texts of queries. The
class or code of an error is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import MsgspecError, msgpack, structs

from maitred.matching.signatures import SIGNATURES_MAX
from maitred.protocol.handler_shapes import known_shapes
from maitred.protocol.tasks import Failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maitred.protocol.queries import QueryRow

HIDDEN_TEXT: Final = "[hidden]"
"""Stands in place of the text of a query whose handler hides arguments: a text has all of them."""

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


def queues_with_texts(rows: list[QueryRow]) -> list[tuple[str, str]]:
    """Return namespace and name of the queues of which rows have texts."""
    return list({(row.namespace, row.queue): None for row in rows if row.query})


def without_hidden(
    rows: list[QueryRow], signatures: Mapping[tuple[str, str], list[bytes] | None]
) -> list[QueryRow]:
    """Return the rows without the texts of queries whose handlers hide an argument. `signatures`
    are those of the queues; None, or missing: they are not known, so the texts are left out."""
    hiding = {name: may_hide(told) for name, told in signatures.items()}
    return [
        structs.replace(row, query=HIDDEN_TEXT)
        if row.query and hiding.get((row.namespace, row.queue), True)
        else row
        for row in rows
    ]


def may_hide(announced: list[bytes] | None) -> bool:
    """Return whether handlers that have announced this may hide an argument: one does, or announced
    it in a form of a later release, or nothing is known. Nothing is known of a queue that no worker
    served in the last day, and None stands for a queue whose root did not answer.

    An empty signature is of a worker that announces none. A root of the release before writes it
    also in place of `FURTHER`, for all signatures beyond those that it remembers, so among as many
    it may stand for handlers that hide arguments.
    """
    if not announced or (b"" in announced and len(announced) >= SIGNATURES_MAX):
        return True
    told = [one for one in announced if one]
    shapes = known_shapes(told)
    return len(shapes) < len(told) or any(shape.hidden for shape in shapes)
