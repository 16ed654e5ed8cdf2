"""Queues whose policy lets gateways pick the worker: which they are, and who is sent by that way.

A queue is learned from the first answer to a request for slots (`Allocated.policy`); from then on
its roster is held, and queries go straight to a worker that the policy picks. Whatever cannot go so
(no roster yet, nobody on it that can be reached, more users than are remembered) asks the node for
a slot, as for every other queue. So a query is never worse off for the policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.balancing.workers import WORKER_POLICIES
from maitred.client.floor import Floor
from maitred.client.roster import UNUSED_SECONDS, Subscription

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from random import Random

    from maitred.client.client import AsyncClient
    from maitred.client.running import Running
    from maitred.client.seats import SeatLink
    from maitred.client.turns import Turn
    from maitred.protocol.seats import Load

SUBSCRIPTIONS_MAX: Final = 256
"""Queues and users whose rosters are held; each is a request that waits at the node. Further ones
ask for slots."""


class Directing:
    """All floors of one gateway."""

    def __init__(
        self,
        client: AsyncClient,
        session: bytes,
        random: Random,
        loop: asyncio.AbstractEventLoop,
        unreachable_seconds: float,
        by_the_node: Callable[[Running], None],
        at_once: Callable[[Running], None],
    ) -> None:
        self.loop = loop
        self.random = random
        self.unreachable_seconds = unreachable_seconds
        self.floors: dict[tuple[str, str], Floor] = {}
        self.refused_by_workers = 0
        """How often a worker said that it has as much as it can do."""
        self.shed = 0
        """Queries that were refused here, for want of room."""
        self._client = client
        self._session = session
        self._by_the_node = by_the_node
        self._at_once = at_once
        self._subscriptions = 0
        self._closed = False

    @property
    def in_line(self) -> int:
        """Queries that wait here for room at a worker."""
        return sum(len(floor.line) for floor in self.floors.values())

    # Queries

    def takes(self, running: Running) -> bool:
        """Have it sent to a worker, or refused, by a floor; False: it has to ask for a slot."""
        ask = running.ask
        floor = self.floors.get((ask.namespace, ask.queue))
        if floor is None:
            return False
        subscription = floor.subscriptions.get(ask.user)
        if subscription is None:
            self._subscribe(floor, ask.user)
            return False
        if not subscription.passes:
            if not subscription.over:
                subscription.used_at = self.loop.time()
            elif self.loop.time() - subscription.used_at >= UNUSED_SECONDS:
                self._forget(floor, ask.user)
            return False
        if not floor.works or running.deadline <= self.loop.time():
            return False
        if running.turn is not None and running.turn.floor is not floor:
            running.turn = None
        floor.enter(running, subscription)
        return True

    def again(self, running: Running) -> bool:
        """The same for one that a worker had no room for; False: it may wait for its next try."""
        turn = running.turn
        if turn is None or not turn.was_full:
            return False
        floor = turn.floor
        if floor.works and self.floors.get(floor.place) is floor:
            floor.again(turn)
        else:
            self.by_the_node(running)
        return True

    def by_the_node(self, running: Running) -> None:
        """It cannot go by a floor after all."""
        running.turn = None
        self._by_the_node(running)

    def at_once(self, turn: Turn) -> None:
        """Ask the node for a slot that is free now. If the node has none, the gateway goes on
        looking for a worker by itself (`resume`)."""
        running = turn.running
        running.turn, running.put_off = None, turn
        self._at_once(running)

    def resume(self, turn: Turn) -> None:
        """The node has no slot for it now either."""
        running, floor = turn.running, turn.floor
        if floor.works and self.floors.get(floor.place) is floor:
            running.turn = turn
            floor.wait(turn, self.loop.time())
        else:
            self.by_the_node(running)

    # What is told

    def learned(self, namespace: str, queue: str, user: str, policy: str) -> None:
        """How a queue wants its queries handed out."""
        if self._closed or policy not in WORKER_POLICIES:
            return  # `idle`, or one of a later version
        floor = self.floors.get((namespace, queue))
        if floor is None:
            if self._subscriptions >= SUBSCRIPTIONS_MAX:
                return
            floor = self.floors[namespace, queue] = Floor(self, (namespace, queue), policy)
        if user not in floor.subscriptions:
            self._subscribe(floor, user)

    def _subscribe(self, floor: Floor, user: str) -> None:
        if self._closed or self._subscriptions >= SUBSCRIPTIONS_MAX:
            return
        self._subscriptions += 1
        floor.subscriptions[user] = subscription = Subscription(
            self._client,
            self._session,
            (*floor.place, user),
            self.random,
            self.unreachable_seconds,
            self._told,
        )
        subscription.start()

    def _told(self, subscription: Subscription) -> None:
        namespace, queue, user = subscription.place
        floor = self.floors.get((namespace, queue))
        if floor is None or floor.subscriptions.get(user) is not subscription:
            return
        roster = subscription.roster
        if roster is not None and roster.policy not in WORKER_POLICIES:
            self._is_idle(floor, subscription)
        elif roster is not None:
            floor.learn(subscription)
        elif subscription.over:
            self._forget(floor, user)

    def _forget(self, floor: Floor, user: str) -> None:
        del floor.subscriptions[user]
        self._subscriptions -= 1
        if all(one.over for one in floor.subscriptions.values()):
            self._close(floor)

    def _is_idle(self, floor: Floor, subscription: Subscription) -> None:
        """The queue is not ours to hand out any more, or not for this user: then it is remembered,
        so that not every query of his asks again."""
        subscription.give_up()
        if all(one.over for one in floor.subscriptions.values()):
            self._close(floor)
        elif floor.line:
            floor.serve()

    def _close(self, floor: Floor) -> None:
        del self.floors[floor.place]
        self._subscriptions -= len(floor.subscriptions)
        floor.close()

    def reported(self, session: bytes, load: Load) -> None:
        """A worker says how it is."""
        name = session.hex()
        floors = [one for one in self.floors.values() if name in one.slots]
        if len(floors) == 1:
            floors[0].reported(name, load, 0)
            return
        ours = sum(one.policy.in_flight(name) for one in floors)
        for floor in floors:
            floor.reported(name, load, ours - floor.policy.in_flight(name))

    def link_ended(self, link: SeatLink, hung: bool) -> None:
        """The connection to a worker is gone."""
        name = link.session.hex()
        for floor in list(self.floors.values()):
            if link.streams or hung:
                floor.away(name, self.unreachable_seconds if hung else None)

    def unreachable(self, session: bytes, seconds: float | None) -> None:
        """It cannot be dialled, or is another one by now."""
        name = session.hex()
        for floor in list(self.floors.values()):
            floor.away(name, seconds)

    def close(self) -> None:
        """Hold nothing any more; whoever waited has been told."""
        self._closed = True
        for floor in list(self.floors.values()):
            self._close(floor)
