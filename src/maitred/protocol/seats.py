"""What a gateway and a worker say to each other, on a connection of their own.

The same frames as everywhere, but here a request may have many answers on its stream: ROWS, as many
as the stream has, and one last SEAT or ERROR.

The gateway opens the connection and says HELLO, in which nothing is of anybody else's choice: a
version and a random challenge. The worker answers with a proof that it knows its own session, which
only the node told the gateway: whatever else listens at an address cannot. Only then the gateway
proves the same (PROVE) and sends queries, without waiting for an answer: one round trip a
connection. Until it has proved it, each end takes small frames only.

| opcode | from | body |
|---|---|---|
| HELLO | gateway | `Hello`; first of all, on stream 0 |
| HELLO + 0x80 | worker | `Greeting`: the worker is the one that is meant |
| PROVE | gateway | `Proof`, on stream 0, before anything else; answered only if it is wrong |
| SEAT | gateway | `Seat`: run this, under this reservation |
| ROWS + 0x80 | worker | rows of a stream, each a msgpack value, one after the other |
| SEAT + 0x80 | worker | `Seated`: the end, however it came about |
| ERROR | worker | the query was not begun: a typed error |
| CREDIT | gateway | four bytes, big-endian: so many bytes of rows were taken |
| CANCEL | gateway | empty, on the query's stream: nobody waits; SEAT or ERROR still comes |
| RELEASE | gateway | the sixteen bytes of a reservation that will not be used; no answer |
| LOAD + 0x80 | worker | `Load`, on stream -1: how it is, about every 100 ms |
| PING | gateway | anything; comes back with PING + 0x80 |

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

SEATS_VERSION: Final = 2
CREDIT: Final = Layout(">I")

HELLO_BYTES: Final = 1_024
"""Largest frame of either end until the other one has proved that it is meant: strangers get little
memory."""

LOST_MAX: Final = 16
"""Tokens of lost attempts that a query names, the last ones. A query that was lost more often is
past any worker that could still run its first attempts."""

CHALLENGE_BYTES: Final = 16
PROOF_BYTES: Final = 32

Challenge = Annotated[bytes, Meta(min_length=CHALLENGE_BYTES, max_length=CHALLENGE_BYTES)]
SessionProof = Annotated[bytes, Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]


class Hello(Struct, array_like=True, gc=False):
    """The first words of a gateway: prove that you are the worker that I mean."""

    challenge: Challenge
    """Random, for this connection alone."""
    version: Natural = SEATS_VERSION


class Greeting(Struct, array_like=True, gc=False):
    """The worker's answer: I am; now prove that the node sent you."""

    proof: SessionProof
    """`session_proof` of the gateway's challenge."""
    challenge: Challenge
    version: Natural = SEATS_VERSION
    frame_bytes: Natural = 16 * 2**20
    """Largest body that the worker takes."""


class Proof(Struct, array_like=True, gc=False):
    """The node told me of you."""

    proof: SessionProof
    """`session_proof` of the worker's challenge."""
    name: WorkerName = ""
    """The gateway's, for people to read."""
    frame_bytes: Natural = 16 * 2**20
    """Largest body that the gateway takes."""


def session_proof(side: Literal["worker", "gateway"], session: bytes, challenge: bytes) -> bytes:
    """Prove to whoever made the challenge that this side knows the worker's session.

    It is a MAC with the session as its key. Each side has its own, so that nobody can answer a
    challenge by asking the other end of another connection.
    """
    person = b"maitred-" + side.encode()
    return blake2b(challenge, key=session, digest_size=PROOF_BYTES, person=person).digest()


class Seat(Struct, array_like=True, gc=False):
    """A query for a reserved slot."""

    token: Token
    sequence: Natural
    """The gateway's number for it: what its table shows."""
    timeout_milliseconds: Milliseconds
    """What is left of its time; 0: nobody has set any."""
    window_bytes: Natural
    """Rows that may be under way before CREDIT comes."""
    payload: bytes
    """The arguments: a msgpack array, in order, or a map, by name."""
    rows: bool = True
    """Whether the caller takes rows; otherwise a stream is gathered into a list."""
    in_flight: Natural = 0
    """What the gateway counts to this worker, this one included, if it comes by a pass: only so the
    worker can tell whether its limit is used, while some is still under way."""
    pressed: bool = False
    """Whether others wait at the gateway for want of room; then no slot need be kept for it."""
    lost: Annotated[list[Token], Meta(max_length=LOST_MAX)] | None = None
    """The tokens under which the same query was sent before, if the gateway lost the connection
    each time and the query may run again: a worker that still runs one of them stops that run, and
    begins this one only after it has ended."""


class Load(Struct, array_like=True, frozen=True, gc=False):
    """How a worker is, told to one gateway: with each answer to a query that came by a pass, and
    about every 100 ms while there are some."""

    number: int
    """Counts up on each link; a lower one comes too late."""
    limit: int
    """How many it takes at a time, from all gateways, as it measured."""
    serving: int
    waiting: int
    """Inside of it, for a thread, a permit, the loop."""
    mean_service_seconds: float
    yours: int
    """Of those, how many came by this link."""
    senders: int = 1
    """Gateways that sent something lately."""


class Seated(Struct, array_like=True, gc=False):
    """A query is over, and its slot is free again."""

    how: Annotated[int, Meta(ge=DONE, le=STOPPED)]
    """DONE, FAILED, TIMED_OUT or STOPPED, as for tasks."""
    body: bytes
    """The result, or a `Failure`; of a stream, nil."""
    streamed: bool = False
    rows: int = 0
    run_seconds: float = 0.0
    load: Load | None = None
    again: bytes = b""
    """A reservation of the same slot, for the next query of the same user to the same queue..."""
    again_seconds: float = 0.0
    """... for so long."""


encode_hello: Final = msgpack.Encoder().encode
decode_hello: Final = msgpack.Decoder(Hello).decode
encode_greeting: Final = msgpack.Encoder().encode
decode_greeting: Final = msgpack.Decoder(Greeting).decode
encode_proof: Final = msgpack.Encoder().encode
decode_proof: Final = msgpack.Decoder(Proof).decode
encode_seat: Final = msgpack.Encoder().encode
decode_seat: Final = msgpack.Decoder(Seat).decode
encode_seated: Final = msgpack.Encoder().encode
encode_load: Final = msgpack.Encoder().encode
decode_load: Final = msgpack.Decoder(Load).decode
decode_seated: Final = msgpack.Decoder(Seated).decode
