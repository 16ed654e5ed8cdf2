"""Our own messages: msgpack arrays, typed, with the fields in the order in which they stand here.

New fields come at the end and have a default: older readers skip them, newer ones fill them in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from msgspec import DecodeError, Meta, Struct, ValidationError, msgpack

from maitred.errors import InvalidArgument, MaitredError, ProtocolViolation
from maitred.protocol.access import ACCESS_EXCHANGES
from maitred.protocol.cluster import CLUSTER_EXCHANGES
from maitred.protocol.frames import Opcode
from maitred.protocol.gauge_series import GAUGE_SERIES_EXCHANGES
from maitred.protocol.inspection import INSPECTION_EXCHANGES
from maitred.protocol.notation import Reader, bytes_map
from maitred.protocol.queries import QUERY_EXCHANGES
from maitred.protocol.queue_overview import QUEUE_OVERVIEW_EXCHANGES
from maitred.protocol.requests import Answer, PartitionRequest, ShardRequest
from maitred.protocol.shared_offers import OfferedMany, OfferMany
from maitred.protocol.tasks import EXCHANGES, PartitionDescription
from maitred.protocol.worker_overview import WORKER_OVERVIEW_EXCHANGES

if TYPE_CHECKING:
    from collections.abc import Callable

HOLD_MAX_MILLISECONDS: Final = 60_000
"""Longest time that an echo may be delayed."""


class Echo(PartitionRequest, array_like=True, gc=False):
    """Ask the shard that owns the partition to return this payload, which tests the whole way
    without any work."""

    opcode = Opcode.ECHO
    permission = "query"
    repeatable = True

    payload: bytes
    hold_milliseconds: Annotated[int, Meta(ge=0, le=HOLD_MAX_MILLISECONDS)] = 0
    """How long the shard delays the answer, to test what a slow node does."""


class Echoed(Answer, array_like=True, gc=False):
    """The payload, and the shard that returned it."""

    payload: bytes
    shard: int


class Status(ShardRequest, array_like=True, gc=False):
    """Ask for the status of a shard."""

    opcode = Opcode.STATUS
    permission = "read"
    repeatable = True


class ShardStatus(Struct, kw_only=True):
    """The status of a shard. A map, not an array: people read it, and it grows with every
    feature."""

    node: str
    shard: int
    pid: int
    state: str
    """State of the shard: `serving` or `draining`."""
    release: str
    address: str
    """Address of the shard's own port."""
    uptime_seconds: float
    restarts: int
    """How often the shard was restarted since the node came up."""
    load: float
    """Share of the last seconds that the process spent on the CPU: 1 is a full core."""
    memory_bytes: int
    connections: int
    requests: int
    """Requests answered since the shard started, including those answered with an error."""
    requests_per_second: float
    in_flight: int
    forwarded: int
    """Requests for another shard that this one passed on."""
    received_forwarded: int
    """Requests that another shard passed on to this one."""
    errors: dict[str, int]
    """Number of errors sent as answers, by code."""
    logins: dict[str, int] = {}
    """Logins by outcome: `remembered`, `verified`, `wrong`, or the code with which they were
    refused before the secret was verified."""
    reloads: dict[str, int] = {}
    """How often files were reloaded, by part and result: `users changed`, `certificate failed`."""
    certificate_expires_at: float = 0.0
    """When the shard's certificate expires, in seconds since 1970; 0 without TLS."""
    audit: dict[str, int] = {}
    """Audit records that were `written` and `dropped`, and writes that `failed`."""
    damaged: dict[str, int] = {}
    """`rows` set aside since the shard started because they could not be read, and the `tasks` in
    them."""
    parts: dict[str, dict[str, int]] = {}
    """Numbers of the shard's parts, by part: `memory` (bytes that count against the limits of the
    same names), `partitions`, `writer`, `permits`, `relays`, `query_tables`, `series`,
    `worker_series`, `logins`, and in a cluster `links` (to shards of other nodes)."""
    loop_lag_seconds: float = 0.0
    """How late the shard's event loop was in the last seconds, at worst; older delays fade."""


AnyRequest = PartitionRequest | ShardRequest
AnyAnswer = Answer | ShardStatus | PartitionDescription

_EXCHANGES: Final[tuple[tuple[type[AnyRequest], type[AnyAnswer]], ...]] = (
    (Echo, Echoed),
    (Status, ShardStatus),
    (OfferMany, OfferedMany),
    *EXCHANGES,
    *INSPECTION_EXCHANGES,
    *QUEUE_OVERVIEW_EXCHANGES,
    *WORKER_OVERVIEW_EXCHANGES,
    *GAUGE_SERIES_EXCHANGES,
    *QUERY_EXCHANGES,
    *ACCESS_EXCHANGES,
    *CLUSTER_EXCHANGES,
)
REQUESTS: Final[dict[int, type[AnyRequest]]] = {
    request.opcode: request for request, _ in _EXCHANGES
}
"""Class of the request, by its opcode."""
ANSWERS: Final[dict[int, type[AnyAnswer]]] = {
    request.opcode: answer for request, answer in _EXCHANGES
}
"""Class of the answer, by the request's opcode."""

encode: Final[Callable[[Struct], bytes]] = msgpack.Encoder().encode
"""Return the body of a request or an answer."""

REQUEST_DECODERS: Final[dict[int, Callable[[bytes], AnyRequest]]] = {
    opcode: msgpack.Decoder(kind).decode for opcode, kind in REQUESTS.items()
}
"""Decoder of each request, by opcode. It raises one of `UNREADABLE`, which `not_understood` turns
into a `MaitredError`."""
_answer_decoders: Final = {opcode: msgpack.Decoder(kind).decode for opcode, kind in ANSWERS.items()}


UNREADABLE: Final = (DecodeError, UnicodeDecodeError, RecursionError)
"""The errors that decoders raise for malformed bodies. For text that is not UTF-8 and for fields
nested a thousand deep msgspec raises Python's own errors; the peer caused them, not this node."""


def not_understood(
    opcode: int, problem: DecodeError | UnicodeDecodeError | RecursionError
) -> MaitredError:
    """Return the error that tells the peer why the body of its request could not be decoded."""
    name = Opcode(opcode).name
    if isinstance(problem, ValidationError):
        return InvalidArgument(f"The {name} request is malformed: {problem}.")
    return ProtocolViolation(f"The body of the {name} request is not msgpack: {problem}.")


def decode_answer(opcode: int, body: bytes) -> AnyAnswer:
    """Decode the answer to a request with that opcode; raise `ProtocolViolation` if it is
    malformed."""
    try:
        return _answer_decoders[opcode](body)
    except UNREADABLE as problem:
        raise ProtocolViolation(
            f"The answer to {Opcode(opcode).name} is malformed: {problem}."
        ) from None


class HomeHint(Struct, array_like=True, frozen=True):
    """The shard that owns a key, sent with the answer to a request that went to another shard."""

    node: str
    shard: int


HOME_KEY: Final = "maitred-home"
_decode_home: Final = msgpack.Decoder(HomeHint).decode


def with_home(home: HomeHint, body: bytes) -> bytes:
    """Prefix an answer's body with its home, for a frame with the flag `CUSTOM_PAYLOAD`."""
    return bytes_map({HOME_KEY: encode(home)}) + body


def without_home(body: bytes) -> tuple[HomeHint | None, bytes]:
    """Split the body of such a frame into the home and the answer; other entries of the custom
    payload are skipped."""
    reader = Reader(body)
    encoded = reader.bytes_map().get(HOME_KEY)
    if encoded is None:
        return None, reader.rest()
    try:
        return _decode_home(encoded), reader.rest()
    except UNREADABLE as problem:
        raise ProtocolViolation(f"The answer's {HOME_KEY} is malformed: {problem}.") from None
