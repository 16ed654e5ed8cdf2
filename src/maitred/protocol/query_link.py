"""Messages between a gateway and a worker, on a connection of their own.

The frames are those of all connections, but here a request may have many answers on its stream: any
number of ROWS, and one last RUN or ERROR.

The gateway opens the connection and sends HELLO, which holds only a version and a random challenge:
no other process chooses its content. The worker answers with a proof that it knows its own session.
The gateway has the session from the node; any other listener at that address cannot prove it. Only
then the gateway proves the same (PROVE) and sends queries without waiting for an answer: one round
trip per connection. Until the peer has proved it, each end accepts small frames only.

| opcode | from | body |
|---|---|---|
| HELLO | gateway | `Hello`; first of all, on stream 0 |
| HELLO + 0x80 | worker | `Greeting`: proves that this is the expected worker |
| PROVE | gateway | `Proof`, on stream 0, before anything else; answered only if it is wrong |
| RUN | gateway | `RunQuery`: run this, under this reservation |
| ROWS + 0x80 | worker | rows of a stream, each a msgpack value, one after the other |
| RUN + 0x80 | worker | `QueryEnd`: the end of the query, of any kind |
| ERROR | worker | a typed error: the query was not begun |
| CREDIT | gateway | four bytes, big-endian: how many bytes of rows the gateway has taken |
| CANCEL | gateway | empty, on the query's stream: stop the query; RUN or ERROR still comes |
| RELEASE | gateway | the sixteen bytes of a reservation that will not be used; no answer |
| LOAD + 0x80 | worker | `Load`, on stream -1: its load, about every 100 ms |
| PING | gateway | any bytes; the worker returns them with PING + 0x80 |

A stream is free again after the last frame on it.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct as Layout
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, msgpack

from maitred.protocol.queries import Token  # noqa: TC001 - msgspec reads the annotations
from maitred.protocol.requests import Milliseconds, Natural  # noqa: TC001 - likewise
from maitred.protocol.tasks import DONE, STOPPED, WorkerName
from maitred.trace_context import TRACE_BYTES_MAX

QUERY_LINK_VERSION: Final = 2
CREDIT: Final = Layout(">I")

HELLO_BYTES: Final = 1_024
"""Largest frame of either end until the other end has proved who it is: an unauthenticated peer
uses little memory."""

LOST_MAX: Final = 16
"""Most tokens of lost attempts that a query names: the latest ones. A query that was lost more
often has left behind any worker that could still run its first attempts."""

CHALLENGE_BYTES: Final = 16
PROOF_BYTES: Final = 32

Challenge = Annotated[bytes, Meta(min_length=CHALLENGE_BYTES, max_length=CHALLENGE_BYTES)]
SessionProof = Annotated[bytes, Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]


class Hello(Struct, array_like=True, gc=False):
    """The first message of a gateway: it asks the worker to prove that it has the expected
    session."""

    challenge: Challenge
    """Random bytes, drawn for this connection alone."""
    version: Natural = QUERY_LINK_VERSION


class Greeting(Struct, array_like=True, gc=False):
    """The worker's answer: its own proof, and a challenge for the gateway to prove that the node
    told it the session."""

    proof: SessionProof
    """`session_proof` of the gateway's challenge."""
    challenge: Challenge
    version: Natural = QUERY_LINK_VERSION
    frame_bytes: Natural = 16 * 2**20
    """Largest body that the worker accepts."""


class Proof(Struct, array_like=True, gc=False):
    """The gateway's proof that the node told it the worker's session."""

    proof: SessionProof
    """`session_proof` of the worker's challenge."""
    name: WorkerName = ""
    """Name of the gateway, for people to read."""
    frame_bytes: Natural = 16 * 2**20
    """Largest body that the gateway accepts."""


def session_proof(side: Literal["worker", "gateway"], session: bytes, challenge: bytes) -> bytes:
    """Prove to the peer that made the challenge that this side knows the worker's session.

    It is a MAC with the session as its key. Each side has its own, so that a challenge cannot be
    answered by passing it to the other end of another connection.
    """
    person = b"maitred-" + side.encode()
    return blake2b(challenge, key=session, digest_size=PROOF_BYTES, person=person).digest()


class RunQuery(Struct, array_like=True, gc=False):
    """A query for a reserved slot."""

    token: Token
    sequence: Natural
    """The gateway's number for the query, as its query table shows it."""
    timeout_milliseconds: Milliseconds
    """Time that the query has left; 0: no deadline."""
    window_bytes: Natural
    """Bytes of rows that the worker may send before CREDIT arrives."""
    payload: bytes
    """The arguments as msgpack: an array, in order, or a map, by name."""
    rows: bool = True
    """Whether the caller accepts rows; otherwise the worker gathers a stream into a list."""
    in_flight: Natural = 0
    """For a query that is sent with a pass: queries that the gateway has in flight to this worker,
    this one included. Otherwise the worker could not see that its limit is used while some are
    still on the wire."""
    pressed: bool = False
    """Whether other queries are queued at the gateway for lack of room; the worker then does not
    reserve the slot again for this gateway."""
    lost: Annotated[list[Token], Meta(max_length=LOST_MAX)] | None = None
    """Tokens with which the same query was sent before, if the gateway lost the connection each
    time and the query may run again: a worker that still runs one of them stops that run, and
    begins this one only after it has ended."""
    trace: Annotated[bytes, Meta(max_length=TRACE_BYTES_MAX)] = b""
    """The trace context of the query, whose round is the attempt (`maitred.trace_context`)."""


class Load(Struct, array_like=True, frozen=True, gc=False):
    """A worker's load, sent to one gateway: with each answer to a query that came with a pass, and
    about every 100 ms while there are some."""

    number: int
    """Increases with each report on a link; a report with a lower number is out of date."""
    limit: int
    """How many tasks and queries the worker runs at a time, from all gateways, as it measured."""
    serving: int
    waiting: int
    """How many wait inside the worker for a thread, a permit or the event loop."""
    mean_service_seconds: float
    yours: int
    """How many of the queries inside the worker came by this link."""
    senders: int = 1
    """Gateways that sent queries lately."""


class QueryEnd(Struct, array_like=True, gc=False):
    """A query has ended, and its slot is free again."""

    how: Annotated[int, Meta(ge=DONE, le=STOPPED)]
    """DONE, FAILED, TIMED_OUT or STOPPED, as for tasks."""
    body: bytes
    """The result, or a `Failure`; nil for a stream."""
    streamed: bool = False
    rows: int = 0
    run_seconds: float = 0.0
    load: Load | None = None
    again: bytes = b""
    """Token of a new reservation of the same slot, for the next query of the same user to the same
    queue; empty if there is none."""
    again_seconds: float = 0.0
    """Seconds that this reservation is valid."""


encode_hello: Final = msgpack.Encoder().encode
decode_hello: Final = msgpack.Decoder(Hello).decode
encode_greeting: Final = msgpack.Encoder().encode
decode_greeting: Final = msgpack.Decoder(Greeting).decode
encode_proof: Final = msgpack.Encoder().encode
decode_proof: Final = msgpack.Decoder(Proof).decode
encode_run: Final = msgpack.Encoder().encode
decode_run: Final = msgpack.Decoder(RunQuery).decode
encode_query_end: Final = msgpack.Encoder().encode
encode_load: Final = msgpack.Encoder().encode
decode_load: Final = msgpack.Decoder(Load).decode
decode_query_end: Final = msgpack.Decoder(QueryEnd).decode
