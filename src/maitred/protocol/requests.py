"""What requests and answers of ours have in common.

A request that belongs to a partition starts with the same five fields, so that a shard can see
whose it is whatever else it says. The time that a request may take travels with it, as what is left
of it when it is sent: clocks of two machines need not agree.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import Meta, Struct

from maitred.protocol.frames import Opcode  # noqa: TC001 - msgspec reads the annotations
from maitred.settings import Permission  # noqa: TC001 - msgspec reads the annotations

TIMEOUT_MAX_MILLISECONDS: Final = 24 * 60 * 60 * 1000
"""A day. Who waits longer for one answer wants a task, not a request."""

Milliseconds = Annotated[int, Meta(ge=0, le=TIMEOUT_MAX_MILLISECONDS)]
Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""What stores can count."""


class Request(Struct, array_like=True, gc=False):
    """What a client asks of a node."""

    opcode: ClassVar[Opcode]
    permission: ClassVar[Permission | None]
    """What the user must be allowed to do in the request's namespace; None: whoever is logged in
    may ask."""
    repeatable: ClassVar[bool] = False
    """Whether doing it twice is the same as doing it once; only then is it ever sent again after
    it may have arrived."""
    anywhere: ClassVar[bool] = False
    """Of a request that has no namespace: whether the permission in any one is enough, and whoever
    serves it sees to it that it reaches no further."""
    between_shards: ClassVar[bool] = False
    """Said by shards to each other; clients may not."""


class PartitionRequest(Request, array_like=True, gc=False):
    """What belongs to a partition, and so to the shard that owns it."""

    namespace: str
    queue: str
    queue_type: int
    partition: int
    timeout_milliseconds: Milliseconds


class ShardRequest(Request, array_like=True, gc=False):
    """What is asked of a shard by its number."""

    shard: Natural
    timeout_milliseconds: Milliseconds


class Answer(Struct, array_like=True, gc=False):
    """What a node says to a request of ours."""
