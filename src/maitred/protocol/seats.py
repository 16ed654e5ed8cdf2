"""What a gateway and a worker say to each other, on a connection of their own.

The same frames as everywhere, but here a request may have many answers on its stream: ROWS, as many
as the stream has, and one last SEAT or ERROR. The gateway opens the connection and says HELLO with
the session of the worker that it means: whoever listens at an address may be another one by now.

| opcode | from | body |
|---|---|---|
| HELLO | both | `Hello`; first of all, on stream 0 |
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

from struct import Struct as Layout
from typing import Annotated, Final

from msgspec import Meta, Struct, msgpack

from maitred.protocol.queries import Token  # noqa: TC001 - msgspec reads the annotations
from maitred.protocol.requests import Milliseconds, Natural  # noqa: TC001 - likewise
from maitred.protocol.tasks import DONE, STOPPED, Session, WorkerName

SEATS_VERSION: Final = 1
CREDIT: Final = Layout(">I")


class Hello(Struct, array_like=True, gc=False):
    """Who I want to talk to, or who I am."""

    session: Session
    """The worker's, from both."""
    version: Natural = SEATS_VERSION
    name: WorkerName = ""
    frame_bytes: Natural = 16 * 2**20
    """Largest body that whoever says this takes."""


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
encode_seat: Final = msgpack.Encoder().encode
decode_seat: Final = msgpack.Decoder(Seat).decode
encode_seated: Final = msgpack.Encoder().encode
encode_load: Final = msgpack.Encoder().encode
decode_load: Final = msgpack.Decoder(Load).decode
decode_seated: Final = msgpack.Decoder(Seated).decode
