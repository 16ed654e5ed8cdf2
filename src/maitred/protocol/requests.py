"""The base classes of maitred's requests and answers.

Every request to a partition starts with the same five fields, so that a shard can see which
partition it is for without knowing the rest. A request carries the time that it has left when it is
sent, not a deadline: the clocks of two machines need not agree.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import Meta, Struct

from maitred.protocol.frames import Opcode  # noqa: TC001 - msgspec reads the annotations
from maitred.settings import Permission  # noqa: TC001 - msgspec reads the annotations

TIMEOUT_MAX_MILLISECONDS: Final = 24 * 60 * 60 * 1000
"""A day. A caller that waits longer for one answer should use a task, not a request."""

Milliseconds = Annotated[int, Meta(ge=0, le=TIMEOUT_MAX_MILLISECONDS)]
Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A number from 0 to the largest that stores can hold."""


class Request(Struct, array_like=True, gc=False):
    """Base of all requests from a client to a node."""

    opcode: ClassVar[Opcode]
    permission: ClassVar[Permission | None]
    """Permission that the user needs in the request's namespace; None: any authenticated user may
    send it."""
    repeatable: ClassVar[bool] = False
    """Whether doing it twice is the same as doing it once; only then is it sent again after it may
    have arrived."""
    anywhere: ClassVar[bool] = False
    """For a request without a namespace: whether the permission in any one namespace is enough. The
    code that serves it then restricts it to the user's namespaces."""
    any_node: ClassVar[bool] = False
    """For a request to a shard: whether every node of a cluster gives the same answer."""
    stays: ClassVar[bool] = False
    """Whether a shard that has begun to serve it keeps it, and what follows it, when the partition
    gets another owner."""
    between_shards: ClassVar[bool] = False
    """Whether only shards send it to each other, and clients may not."""


class PartitionRequest(Request, array_like=True, gc=False):
    """A request to a partition, served by the shard that owns it."""

    namespace: str
    queue: str
    queue_type: int
    partition: int
    timeout_milliseconds: Milliseconds


class ShardRequest(Request, array_like=True, gc=False):
    """A request to a shard, named by its number."""

    shard: Natural
    timeout_milliseconds: Milliseconds


class Answer(Struct, array_like=True, gc=False):
    """Base of all answers from a node to our requests."""


Exchanges = tuple[tuple[type[PartitionRequest | ShardRequest], type[Answer]], ...]
"""Pairs of the class of a request and the class of its answer."""
