"""Our own messages: msgpack arrays, typed, with the fields in the order in which they stand here.

New fields come at the end and have a default: older readers skip them, newer ones fill them in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from msgspec import DecodeError, Meta, Struct, ValidationError, msgpack

from maitred.errors import InvalidArgument, MaitredError, ProtocolViolation
from maitred.protocol.access import ACCESS_EXCHANGES, AnyAccessAnswer, AnyAccessRequest
from maitred.protocol.frames import Opcode
from maitred.protocol.notation import Reader, bytes_map
from maitred.protocol.queries import QUERY_EXCHANGES, AnyQueryAnswer, AnyQueryRequest
from maitred.protocol.requests import Answer, PartitionRequest, ShardRequest
from maitred.protocol.shared_offers import OfferedMany, OfferMany
from maitred.protocol.tasks import EXCHANGES, AnyTaskAnswer, AnyTaskRequest

if TYPE_CHECKING:
    from collections.abc import Callable

HOLD_MAX_MILLISECONDS: Final = 60_000
"""Longest that an echo may be held back."""


class Echo(PartitionRequest, array_like=True, gc=False):
    """Say this back from the shard that owns the partition: the whole way, and no work."""

    opcode = Opcode.ECHO
    permission = "query"
    repeatable = True

    payload: bytes
    hold_milliseconds: Annotated[int, Meta(ge=0, le=HOLD_MAX_MILLISECONDS)] = 0
    """How long to hold the answer back, to see what slowness does."""


class Echoed(Answer, array_like=True, gc=False):
    """The payload, and who said it."""

    payload: bytes
    shard: int


class Status(ShardRequest, array_like=True, gc=False):
    """How is the shard?"""

    opcode = Opcode.STATUS
    permission = "admin"
    repeatable = True


class ShardStatus(Struct, kw_only=True):
    """How a shard is. A map, not an array: it is read by people and grows with every feature."""

    node: str
    shard: int
    pid: int
    state: str
    """`serving` or `draining`."""
    release: str
    address: str
    """Where its own port listens."""
    uptime_seconds: float
    restarts: int
    """How often it was started again since the node came up."""
    load: float
    """Share of the last seconds that the process spent on the CPU: 1 is a full core."""
    memory_bytes: int
    connections: int
    requests: int
    """Requests answered since it started, errors too."""
    requests_per_second: float
    in_flight: int
    forwarded: int
    """Requests that belonged to another shard and were passed on."""
    received_forwarded: int
    """Requests that another shard passed on to this one."""
    errors: dict[str, int]
    """Errors given as answers, by code."""
    logins: dict[str, int] = {}
    """Logins by outcome: `remembered`, `verified`, `wrong`, or the code with which they were
    refused before the secret was looked at."""
    reloads: dict[str, int] = {}
    """How often files were read again, as `users changed`, `certificate failed`."""
    certificate_expires_at: float = 0.0
    """When its certificate expires, in seconds since 1970; 0 without TLS."""
    audit: dict[str, int] = {}
    """Audit records that were `written` and `dropped`, and writes that `failed`."""
    damaged: dict[str, int] = {}
    """`rows` that could not be read and were set aside since the shard started, and `tasks` in
    them."""


AnyRequest = Echo | Status | OfferMany | AnyTaskRequest | AnyQueryRequest | AnyAccessRequest
AnyAnswer = Echoed | ShardStatus | OfferedMany | AnyTaskAnswer | AnyQueryAnswer | AnyAccessAnswer

REQUESTS: Final[dict[int, type[AnyRequest]]] = {
    kind.opcode: kind
    for kind in (
        Echo,
        Status,
        OfferMany,
        *(request for request, _ in EXCHANGES),
        *(request for request, _ in QUERY_EXCHANGES),
        *(request for request, _ in ACCESS_EXCHANGES),
    )
}
ANSWERS: Final[dict[int, type[AnyAnswer]]] = {
    Opcode.ECHO: Echoed,
    Opcode.STATUS: ShardStatus,
    Opcode.OFFER_MANY: OfferedMany,
    **{request.opcode: answer for request, answer in EXCHANGES},
    **{request.opcode: answer for request, answer in QUERY_EXCHANGES},
    **{request.opcode: answer for request, answer in ACCESS_EXCHANGES},
}
"""By the request's opcode."""

encode: Final[Callable[[Struct], bytes]] = msgpack.Encoder().encode
"""The body of a request or an answer."""

REQUEST_DECODERS: Final[dict[int, Callable[[bytes], AnyRequest]]] = {
    opcode: msgpack.Decoder(kind).decode for opcode, kind in REQUESTS.items()
}
"""Raise one of `UNREADABLE`; `not_understood` makes a typed error of it."""
_answer_decoders: Final = {opcode: msgpack.Decoder(kind).decode for opcode, kind in ANSWERS.items()}


UNREADABLE: Final = (DecodeError, UnicodeDecodeError, RecursionError)
"""What decoders raise for bodies that are wrong. Text that is not UTF-8 and fields that are nested
a thousand deep come out of msgspec as Python's own errors, and are no fault of ours."""


def not_understood(
    opcode: int, problem: DecodeError | UnicodeDecodeError | RecursionError
) -> MaitredError:
    """Why the body of a request could not be read."""
    name = Opcode(opcode).name
    if isinstance(problem, ValidationError):
        return InvalidArgument(f"The {name} request is not as it should be: {problem}.")
    return ProtocolViolation(f"The body of the {name} request is no msgpack: {problem}.")


def decode_answer(opcode: int, body: bytes) -> AnyAnswer:
    """The answer to the request with that opcode."""
    try:
        return _answer_decoders[opcode](body)
    except UNREADABLE as problem:
        raise ProtocolViolation(
            f"The answer to {Opcode(opcode).name} is not as it should be: {problem}."
        ) from None


class Home(Struct, array_like=True, frozen=True):
    """Where a key really lives, told with the answer to a request that went elsewhere."""

    node: str
    shard: int


HOME_KEY: Final = "maitred-home"
_decode_home: Final = msgpack.Decoder(Home).decode


def with_home(home: Home, body: bytes) -> bytes:
    """An answer's body for a frame with the flag for custom payloads."""
    return bytes_map({HOME_KEY: encode(home)}) + body


def without_home(body: bytes) -> tuple[Home | None, bytes]:
    """The inverse; other entries of the custom payload are skipped."""
    reader = Reader(body)
    encoded = reader.bytes_map().get(HOME_KEY)
    if encoded is None:
        return None, reader.rest()
    try:
        return _decode_home(encoded), reader.rest()
    except UNREADABLE as problem:
        raise ProtocolViolation(f"The answer's {HOME_KEY} makes no sense: {problem}.") from None
