"""How many slots to offer to which queue and partition, for queues that do not share them. Pure.

With one queue all free slots that are not on offer yet are offered. Several queues share all slots
(`shared_offers.py`), but not at a node of an older release, and not a queue that is offered few
because its queries fail. An offer to one queue then must not keep a slot from the others, so the
same slot may be on offer in several places: each queue gets its share of the free slots, and at
least one as long as any is free. Tasks beyond the free slots are returned; when no slot is free,
all offers are taken back.

Every offer that is answered costs another one, so a slot that becomes free while many are on offer
is not offered at once: a query that uses one slot of many then costs one message, not two.

The slots of a queue are spread over its partitions: if all were at one partition, they could wait
there for a minute while the next one has a backlog. (The tree would bring both together, at the
price of a request up the tree.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def to_offer(free: int, on_offer: Sequence[int]) -> list[int]:
    """Return how many more slots to offer to each queue, given how many are on offer there."""
    if free <= 0:
        return [0] * len(on_offer)
    share = max(1, free // len(on_offer))
    return [max(0, share - out) for out in on_offer]


def worth_it(more: int, on_offer: int, offers: int, partitions: int) -> bool:
    """Return whether to offer `more` slots now, with `on_offer` slots in `offers` offers
    already."""
    return more > on_offer or offers < partitions


def spread(slots: int, partitions: int) -> list[int]:
    """Return the slots of each offer: at most one offer per partition, and none without a slot."""
    offers = min(slots, partitions)
    share, more = divmod(slots, offers)
    return [share + (number < more) for number in range(offers)]
