"""Short ways to write down what tests write down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maitred.matching.records import (
    PRIORITIES,
    Acquired,
    Changes,
    Dead,
    Later,
    PartitionKey,
    Result,
    Segment,
)
from maitred.store.interface import Acquisition

if TYPE_CHECKING:
    from maitred.store.interface import SegmentRead, Store

KEY = PartitionKey("shop", "mails", 1, 0)
OTHER = PartitionKey("shop", "mails", 1, 1)
THIRD = PartitionKey("shop", "thumbnails", 1, 0)
ANY_SIZE = 2**60
"""More bytes than anybody reads."""


def segment(first: int, last: int, priority: int = 2, body: bytes = b"") -> Segment:
    return Segment(
        priority, first, last, last - first + 1, body or f"tasks {first} to {last}".encode()
    )


def gone(one: Segment) -> Segment:
    return one._replace(body=b"")


def later(sequence: int, due: float, body: bytes = b"later") -> Later:
    return Later(sequence, due, body)


def dead(sequence: int) -> Dead:
    return Dead(sequence, 1_800_000_000.1 + sequence, "failed", b"dead")


def result(sequence: int, expires_at: float) -> Result:
    return Result(sequence, expires_at, f"result {sequence}".encode())


async def acquire(store: Store, key: PartitionKey) -> Acquired:
    """Become the owner of one partition; it is made if it does not exist."""
    (found,) = await store.acquire([Acquisition(key)])
    assert isinstance(found, Acquired)
    return found


async def write(store: Store, key: PartitionKey, range_id: int, **what: Any) -> bool:  # noqa: ANN401
    """Commit changes of one partition; whether they were written."""
    what.setdefault("backlog", 0)
    return not await store.commit([Changes(key, range_id, **what)])


async def everything(store: Store, key: PartitionKey) -> dict[str, Any]:
    """All that can be read of a partition without becoming its owner."""
    segments: list[SegmentRead] = []
    for priority in range(PRIORITIES):
        segments += await store.segments(key, priority, -1, 10**9, ANY_SIZE)
    return {
        "segments": segments,
        "later": await store.later(key, float("inf"), 10**6, ANY_SIZE),
        "dead": await store.dead(key, -1, 10**6, ANY_SIZE),
        "dead_count": await store.dead_count(key),
    }
