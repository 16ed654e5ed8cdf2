"""How many slots to offer where, if queues do not share them. Pure.

With one queue it is simple: whatever is free and not on offer yet. Several queues share all slots
(`shared_offers.py`), but not at a node of an older release, and not while a queue is offered few
because its queries fail. An offer to one queue must not keep a slot from the others then, so the
same slot may be on offer in several places: each queue gets its share of the free slots, and at
least one, as long as any is free. If more tasks come than there is room for, they are given back;
when nothing is free, all offers are taken back.

Every offer that is answered costs another one, so what is freed while plenty is on offer need not
be offered at once: a query that finds one slot of many free makes one message, not two.

The slots for a queue are spread over its partitions: all of them at one could wait there for a
minute while there is work at the next. (The tree would bring both together, at the price of asking
its way up.)
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
    """Whether to offer so many more slots now, if so many are on offer already."""
    return more > on_offer or offers < partitions


def spread(slots: int, partitions: int) -> list[int]:
    """The slots of each of as many offers as make sense."""
    offers = min(slots, partitions)
    share, more = divmod(slots, offers)
    return [share + (number < more) for number in range(offers)]
