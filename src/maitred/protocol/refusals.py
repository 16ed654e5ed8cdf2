"""ERROR: our taxonomy on the wire.

    [int] number   [string] sentence   [string map] code, outcome, remedy, retry-after, limit

The number is CQL's nearest one, for drivers that know only those; numbers that would make a driver
look for further fields are not used. Our code, outcome and remedy follow in the map, where a driver
that does not know them does not look.
"""

from __future__ import annotations

from typing import Final

from maitred import errors
from maitred.errors import UNKNOWN, MaitredError, RemoteError, RequestOutcome, printable
from maitred.protocol.notation import Reader, integer, string, string_map

_SERVER_ERROR: Final = 0x0000

# The most specific class comes first: the first that matches is taken.
_NUMBERS: Final[tuple[tuple[type[MaitredError], int], ...]] = (
    # Drivers take 0x000A for a broken node; this node only lacks one request.
    (errors.UnknownRequest, 0x2000),
    (errors.ProtocolViolation, 0x000A),
    (errors.Unauthenticated, 0x0100),
    (errors.Overloaded, 0x1001),
    (errors.PermissionDenied, 0x2100),
    (errors.InvalidArgument, 0x2200),
)

CLASSES: Final[dict[str, type[MaitredError]]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, MaitredError) and kind is not RemoteError
}
"""Exception class of every error code."""

OTHER_CODE: Final = "other"
"""Stands for the code of an error that this release does not know."""

_OUTCOMES: Final = {outcome.value: outcome for outcome in RequestOutcome}


def number_of(error: MaitredError) -> int:
    """Return CQL's number for the error."""
    return next((number for kind, number in _NUMBERS if isinstance(error, kind)), _SERVER_ERROR)


def counted_code(code: str) -> str:
    """Return the code under which an error is counted: its own, or `OTHER_CODE` if this release
    does not know it. A process that answers with made-up codes must not fill the memory, the log
    or the metrics of the process that counts them."""
    return code if code in CLASSES else OTHER_CODE


def encode_error(error: MaitredError) -> bytes:
    """Return the body of an ERROR."""
    details = {"code": error.code, "outcome": error.outcome}
    if error.remedy:
        details["remedy"] = error.remedy
    if isinstance(error, errors.Overloaded) and error.retry_after is not None:
        details["retry-after"] = f"{error.retry_after:.3f}"
    if isinstance(error, errors.AtCapacity) and error.limit is not None:
        details["limit"] = str(error.limit)
    return integer(number_of(error)) + string(error.sentence) + string_map(details)


def decode_error(body: bytes) -> MaitredError:
    """Return the error as an exception of its class; a `RemoteError` if its code is unknown."""
    reader = Reader(body)
    number = reader.integer()
    sentence = printable(reader.string())
    details = {} if reader.at_end else reader.string_map()
    remedy = printable(details["remedy"]) if "remedy" in details else None
    code = details.get("code", f"cql-{number:04x}")
    kind = CLASSES.get(code)
    if kind is None:
        outcome = _OUTCOMES.get(details.get("outcome", ""), UNKNOWN)
        return RemoteError(sentence, remedy=remedy, code=printable(code), outcome=outcome)
    made = kind(sentence, remedy=remedy)
    if isinstance(made, errors.Overloaded):
        made.retry_after = _number(details.get("retry-after", ""))
    if isinstance(made, errors.AtCapacity) and details.get("limit", "").isdecimal():
        made.limit = int(details["limit"][:9])
    return made


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
