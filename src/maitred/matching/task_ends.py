"""Ends of tasks: how a partition remembers the end of a task, and how the store has it."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct, msgpack

from maitred.matching.records import UNREADABLE, RowDamagedError, seal, unseal

EndStatus = Literal["done", "failed", "cancelled", "expired"]

EndedBody = tuple[EndStatus, int, bytes]
"""The stored form of a finished task: status, attempts, body."""

_encode: Final = msgpack.Encoder().encode
_decode: Final = msgpack.Decoder(tuple[EndStatus, int, bytes]).decode


class Ended(Struct, frozen=True, gc=False):
    """The end of a task: its result or its failure."""

    status: EndStatus
    attempts: int
    body: bytes
    until: float
    """When the partition may forget the end."""
    stored: bool = False
    """Whether the store has the end as well, or gets it with the next commit."""


def encode_ended(ended: EndedBody) -> bytes:
    """Serialise the end of a task for the store."""
    return seal(_encode(ended))


def decode_ended(body: bytes, *, trusting: bool = False) -> EndedBody:
    """Read the end of a task as the store has it; raise `RowDamagedError` if it is damaged."""
    try:
        return _decode(unseal(body, trusting=trusting))
    except UNREADABLE as problem:
        raise RowDamagedError(f"It is not what was written: {problem}.") from None
