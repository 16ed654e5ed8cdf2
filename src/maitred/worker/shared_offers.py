"""Offers of a worker with several queues: all free slots are on offer to all of them.

The partitions of the worker's queues are grouped by the shard that owns them. Each group is a
*post*: a set that the shard knows by its number. An offer at a post is a number of slots for all of
its partitions, so one shard uses a slot once.

While at most one post has a backlog, every free slot is on offer at all posts, and the worker
returns a task whose slot another post has used. If several posts have a backlog, as their answers
tell, that would be half of all tasks; the worker then divides its free slots among those posts, the
most urgent first, in proportion to their partitions with a backlog.

When a view of the cluster gives partitions other owners, the posts are made anew at once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Final, cast

from maitred.errors import (
    Cancelled,
    ConnectionLost,
    CutOff,
    DeadlineExceeded,
    MaitredError,
    UnknownRequest,
)
from maitred.protocol.refusals import decode_error
from maitred.protocol.shared_offers import MEMBERS_MAX, OfferedMany, OfferMany, SetMember
from maitred.wire.alarm import Alarm

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from maitred.client.call import CallConnection
    from maitred.client.long_poll import LongPoll
    from maitred.protocol.tasks import Offered
    from maitred.worker.context import WorkerContext
    from maitred.worker.served import Served

PARTITIONS_SHARED: Final = 64
"""Most partitions of one queue that the worker offers slots to. They are the top of the tree; tasks
of the other partitions move up to them when no worker is free below."""

PRESSED_SECONDS: Final = 0.05
"""A post with a backlog answers an offer at once. If it has not answered after this time it has no
backlog any more, and the slots are on offer at all posts."""

FULL_SECONDS: Final = 0.02
"""Offers are taken back after this time without a free slot. Most slots are free again sooner, and
to take an offer back and make it again costs as much as a task."""

HASTY_SECONDS: Final = 0.1
"""Least time between two offers that a post answers without a task: a stopping node does so, and
one that thinks that the partitions are elsewhere."""


@dataclass(slots=True, eq=False)
class Post:
    """A set of partitions of one shard that get slots by the same offers."""

    place: tuple[str, int, str]
    """The node, the shard and the namespace."""
    number: int
    members: tuple[tuple[Served, int], ...]
    named: bool = False
    """Whether the shard has been told the members."""
    on_offer: int = 0
    """Slots on offer at this post."""
    asking: int = 0
    """Number of offers."""
    held: dict[LongPoll, None] = field(default_factory=dict)
    urgency: int = 0
    """Urgency of the backlog when the last offer was answered."""
    hungry: int = 0
    """Partitions that had a backlog as urgent; 0: no backlog."""
    pressed_until: float = -inf
    """Until then `hungry` is taken as true."""
    turn: float = 0.0
    """Slots that the post was dealt, divided by its hungry partitions: the lowest is next."""


class SharedOffers:
    """The posts of one worker, and its offers at them."""

    def __init__(
        self,
        context: WorkerContext,
        served: Sequence[Served],
        *,
        free: Callable[[], int],
        take: Callable[[Served, Offered, CallConnection | None, float], None],
        freed: Callable[[], None],
        spawn: Callable[[Coroutine[object, object, None]], None],
        rest: Callable[[float, int], Awaitable[None]],
        connection_lost: Callable[[], None],
    ) -> None:
        self.available = True
        """Whether the node knows shared offers; True until it says that it does not."""
        self.posts: list[Post] = []
        self._context = context
        self._client = context.client
        self._served = served
        self._outage = context.outage
        self._free = free
        self._take = take
        self._freed = freed
        self._spawn = spawn
        self._rest = rest
        self._connection_lost = connection_lost
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(self._loop, self._rings)
        self._number = 0
        self._regroup = True
        self._routes_until = inf
        """Wall-clock time from which on a partition may be at another shard."""
        self._homes: dict[tuple[object, int], int] = {}
        """Shards of partitions, as the node corrected the worker's own computation."""
        self._full_since = inf
        self._turn = 0.0

    def changed(self) -> None:
        """Group the partitions anew: some were added or removed, or a queue is held back or not any
        more."""
        self._regroup = True
        self._freed()

    def rerouted(self) -> None:
        """Group the partitions by their present owners, at once: long polls at posts that are no
        more are taken back, before the client would send them to another node as they are."""
        self._homes.clear()
        self._group()
        self._freed()

    def supply(self, free: int) -> None:
        """Offer this number of free slots, as far as they are not on offer already."""
        now = self._loop.time()
        if self._regroup or (
            self._routes_until < inf and self._client.wall_clock() >= self._routes_until
        ):
            self._group()
        if not free:
            if self._full_since == inf:
                self._full_since = now
            self._alarm.by(self._full_since + FULL_SECONDS)
            return
        self._full_since = inf
        pressed = [post for post in self.posts if post.hungry and self._is_pressed(post, now)]
        idle: Sequence[Post] = self.posts
        if len(pressed) > 1:
            idle = [post for post in self.posts if not post.hungry]
            self._deal(free, pressed)
        for post in idle:
            more = free - post.on_offer
            if more > post.on_offer or (more > 0 and not post.asking):
                self._offer_at(post, more)

    def take_back(self) -> None:
        """Take all offers back; tasks that arrive all the same are returned."""
        for post in self.posts:
            self._take_back_at(post)

    def stop(self) -> None:
        """Stop the timer."""
        self._alarm.stop()

    # The division of slots

    def _is_pressed(self, post: Post, now: float) -> bool:
        if now >= post.pressed_until:
            post.hungry = 0
            return False
        self._alarm.by(post.pressed_until)
        return True

    def _deal(self, free: int, pressed: list[Post]) -> None:
        """Divide the free slots among the posts with the most urgent backlog."""
        urgency = min(post.urgency for post in pressed)
        posts = [post for post in pressed if post.urgency == urgency]
        spare = free - sum(post.on_offer for post in posts)
        for post in posts:
            post.turn = max(post.turn, self._turn)
        dealt = dict.fromkeys(posts, 0)
        for _ in range(spare):
            post = min(posts, key=_turn)
            self._turn = post.turn
            post.turn += 1 / post.hungry
            dealt[post] += 1
        for post, slots in dealt.items():
            if slots:
                self._offer_at(post, slots)

    def _rings(self, now: float) -> None:
        if now >= self._full_since + FULL_SECONDS and not self._free():
            self.take_back()
        else:
            self._freed()

    def _take_back_at(self, post: Post) -> None:
        for held in list(post.held):
            held.take_back()

    # Groups

    def _group(self) -> None:
        """Make the posts anew; a post whose members are the same stays."""
        self._regroup = False
        self._routes_until = inf
        places: dict[tuple[str, int, str], list[tuple[Served, int]]] = {}
        for served in self._served:
            served.posts = []
            served.grouped = served.view.counts.read
            if served.held_back:
                continue  # it gets offers of its own
            for partition in range(min(served.grouped, PARTITIONS_SHARED)):
                queue = served.view.id
                node, shard, until = self._client.place((*queue, partition))
                shard = self._homes.get((queue, partition), shard)
                self._routes_until = min(self._routes_until, until)
                places.setdefault((node, shard, queue.namespace), []).append((served, partition))
        before = {(post.place, post.members): post for post in self.posts}
        self.posts = []
        for place, members in places.items():
            for start in range(0, len(members), MEMBERS_MAX):
                some = tuple(members[start : start + MEMBERS_MAX])
                post = before.pop((place, some), None)
                if post is None:
                    self._number += 1
                    post = Post(place, self._number, some)
                self.posts.append(post)
                for served in dict.fromkeys(served for served, _ in some):
                    served.posts.append(post)
        for post in before.values():
            self._take_back_at(post)

    # Offers

    def _offer_at(self, post: Post, slots: int) -> None:
        post.on_offer += slots
        post.asking += 1
        self._spawn(self._offer(post, slots))

    async def _offer(self, post: Post, slots: int) -> None:
        try:
            # All slots may have been used, or the worker stopped, before this task's first turn.
            if self._free():
                answer = await self._ask(post, slots)
                if answer is not None:
                    self._answered(post, *answer)
        finally:
            post.on_offer -= slots
            post.asking -= 1
            self._freed()

    async def _ask(
        self, post: Post, slots: int
    ) -> tuple[OfferedMany, CallConnection | None] | None:
        """Offer slots at a post; return the answer, and the connection over which it came."""
        context, asked_at = self._context, self._loop.time()
        reroutes = context.reroutes
        served, partition = post.members[0]
        message = OfferMany(
            *served.view.id,
            partition,
            0,
            context.session,
            context.name,
            slots,
            post.number,
            [] if post.named else [_member(*one) for one in post.members],
            context.address,
        )
        naming, post.named = not post.named, True
        context.statistics.offers += 1
        held: LongPoll | None = None
        try:
            held = self._client.hold(message, context.settings.offer_seconds)
            post.held[held] = None
            answer = cast("OfferedMany", await held.answer())
        except Cancelled:
            post.named = post.named and not naming  # the message may never have been sent
            return None
        except DeadlineExceeded:
            return None
        except UnknownRequest:
            self.available = False  # an older node, to which each queue makes offers of its own
            return None
        except MaitredError as problem:
            post.named = False
            post.hungry = 0
            if isinstance(problem, ConnectionLost | CutOff):
                self._regroup = True
                self._homes.clear()
                self._connection_lost()
            await self._rest(self._outage.failed(served.name, partition, problem), reroutes)
            return None
        finally:
            if held is not None:
                post.held.pop(held, None)
        self._outage.worked(served.name, partition)
        # A set that the shard has forgotten is named again at once, unless it was named just now.
        nothing = not answer.gifts and not answer.refused and (answer.known or naming)
        if nothing and self._loop.time() - asked_at < HASTY_SECONDS:
            await self._rest(HASTY_SECONDS, reroutes)
        return answer, held.connection

    def _answered(self, post: Post, answer: OfferedMany, link: CallConnection | None) -> None:
        now = self._loop.time()
        if not answer.known:
            post.named = False
        for index, offered in answer.gifts:
            served, _ = post.members[index]
            self._take(served, offered, link, now)
        post.urgency, post.hungry = answer.urgency, answer.hungry
        post.pressed_until = now + PRESSED_SECONDS
        for index, shard in answer.elsewhere:
            served, partition = post.members[index]
            if not self._client.clustered:  # otherwise the view tells, or a newer one that comes
                self._homes[served.view.id, partition] = shard
            self._regroup = True
            post.named = False
        for index, body in answer.refused:
            served, partition = post.members[index]
            seconds = self._outage.failed(served.name, partition, decode_error(body))
            self._loop.call_later(seconds, self._name_again, post)

    def _name_again(self, post: Post) -> None:
        post.named = False
        self._take_back_at(post)


def _member(served: Served, partition: int) -> SetMember:
    queue = served.view.id
    return SetMember(queue.queue, queue.type, partition, served.view.counts.version)


def _turn(post: Post) -> float:
    return post.turn
