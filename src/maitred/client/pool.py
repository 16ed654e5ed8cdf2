"""The connections to one node: carries out the decisions of `coverage`.

A request is sent on the connection of the shard that owns its partition. If that shard has none
just now, any other connection will do: the node forwards the request. Without any connection it
waits, for as long as the outage may be a restart; after that, requests are refused at once until a
connection is opened again. Requests to a shard that hangs, or that the other shards cannot reach
either, are refused in the same way: another shard would forward them in vain.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec import DecodeError, json
from msgspec.structs import replace

from maitred.client.connection_attempt import Refused, connect
from maitred.client.coverage import CloseExcess, Coverage, Described, Dial
from maitred.client.retries import patience_seconds
from maitred.client.statistics import (
    NodeStatistics,
    NodeView,
    ShardCounts,
    ShardStatistics,
    summed,
)
from maitred.errors import (
    ConnectionLost,
    InvalidArgument,
    MaitredError,
    NodeUnreachable,
    ProtocolViolation,
    Unauthenticated,
    Unavailable,
    UnsupportedVersion,
)
from maitred.routing.gradual import GradualChange
from maitred.routing.homes import Homes
from maitred.routing.keys import check_batch_size
from maitred.wire.alarm import TIMER_SLACK_SECONDS
from maitred.wire.background_tasks import BackgroundTasks

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable
    from random import Random

    from maitred.client.address import HostPort
    from maitred.client.call import Call
    from maitred.client.connection import Connection
    from maitred.client.connection_attempt import ConnectionTerms
    from maitred.client.coverage import Decision
    from maitred.client.waiting_room import WaitingRoom
    from maitred.membership.view import ClusterView
    from maitred.protocol.description import Description

HOPELESS = (Unauthenticated, UnsupportedVersion)
"""Refusals that another try in the next seconds does not change: requests get them at once. The
client goes on trying to connect."""


class CallRouter(Protocol):
    """The part of a client's router that its pools use."""

    def dispatch(self, call: Call, now: float) -> None:
        """Send the call to the shard that owns its partition, or queue it there."""

    def forget(self) -> None:
        """Forget all routes: a node has changed."""

    def described(self) -> None:
        """Match pools and members again: a node has described itself, or is another one than
        before."""

    def connected(self, pool: Pool) -> None:
        """Note that the pool has a connection again, or its first one."""

    def disconnected(self) -> None:
        """Note that a pool has lost its last connection."""

    def closed_last(self, pool: Pool) -> None:
        """Forget a retired pool whose last connection has ended."""

    def viewed(self, view: ClusterView) -> None:
        """Take over a view of the cluster, unless a newer one is known."""

    def lost(self, connection: Connection) -> None:
        """Note that a connection has ended that was to stay open."""

    def news(self) -> None:
        """Note that a connection was opened, failed or ended, or that a node was asked for its
        view."""

    def has_deputies(self, pool: Pool) -> bool:
        """Return whether other members of the cluster are connected, which take over the partitions
        of the pool's node if it does not answer."""


class Loss(NamedTuple):
    """The loss of a shard's connection."""

    heard_at: float
    """When the client last received bytes from the shard."""
    hung: bool


class Pool:
    """The connections to one node."""

    def __init__(
        self,
        node: HostPort,
        terms: ConnectionTerms,
        router: CallRouter,
        room: WaitingRoom,
        loop: asyncio.AbstractEventLoop,
        random: Random,
        member: str = "",
    ) -> None:
        """`member` is the id of the member of the cluster that is dialled, if it is known."""
        self.node = node
        self.name = node.name
        self.member = member
        """The id of the member that it serves in the newest view; empty before the first view."""
        self.room = room
        self.asked_for_views = False
        """Whether the node has sent its view of the cluster, or is known to have none."""
        self.wavers = False
        """Whether its address has led to different nodes."""
        self.description: Description | None = None
        """The node's last description of itself; its `shard` has no meaning here."""
        self.homes: Homes | None = None
        self.by_shard: dict[int, Connection] = {}
        self.line: OrderedDict[Call, None] = OrderedDict()
        """Calls that wait for any connection."""
        self.problem: MaitredError | None = None
        """Why the last attempt at a connection failed; None after a successful one."""
        self._warned = False
        self.reached = False
        """Whether the network has ever connected to the node, perhaps without a handshake. Always
        true with uvloop, which does not tell."""
        self._router = router
        self._loop = loop
        self._terms = terms
        self._coverage = Coverage(terms.settings, random)
        self._counts: dict[int, ShardCounts] = {}
        self._held: dict[int, Connection] = {}
        """The connections that coverage knows of, by number."""
        self._retired: dict[Connection, None] = {}
        """Connections that finish the requests that they have."""
        self._lost: dict[int, Loss] = {}
        """The losses of shards that have no connection now."""
        self._heard_at = loop.time()
        """While there is no connection: when the client last received bytes from the node, or when
        it began to connect."""
        self._patience: asyncio.TimerHandle | None = None
        """Fires when a node that is away counts as unreachable."""
        self._next_number = 0
        self._dialing = BackgroundTasks(loop)
        self._timer: asyncio.TimerHandle | None = None
        self._viewer: Connection | None = None
        """The connection on which the node sends its views of the cluster."""
        self.closed = False
        """Whether it opens no more connections."""

    def __repr__(self) -> str:
        shards = self.description.shards if self.description is not None else "?"
        return (
            f"<Pool {self.name}, {len(self.by_shard)} of {shards} shards connected, "
            f"{len(self.line)} requests wait>"
        )

    def start(self) -> None:
        """Begin to connect."""
        self._heard_at = self._loop.time()
        self._tick()

    # Requests

    def submit(self, call: Call, now: float) -> None:
        """Send the call, or queue it; raises if neither is possible."""
        connection = self.by_shard.get(call.shard)
        if connection is None:
            if not self.by_shard and isinstance(self.problem, HOPELESS):
                raise type(self.problem)(self.problem.sentence, remedy=self.problem.remedy)
            if not call.patient and self.lacks(call.shard):
                patience = patience_seconds(
                    self._terms.settings, awaits_takeover=call.awaits_takeover
                )
                if self.is_away(call.shard, now, patience):
                    raise self.unreachable(call.shard, now)
            if not self.by_shard:
                call.wait_in(self.line, self.room)
                if self._patience is None:
                    moment = self._heard_at + self._terms.settings.away_seconds
                    self._patience = self._loop.call_at(moment, self._lose_patience)
                return
            connection = min(self.by_shard.values(), key=_in_flight)
        connection.submit(call, now, self.room)

    def forward(self, call: Call, now: float) -> None:
        """Send a call that belongs to another node, which this node forwards."""
        connection = min(self.by_shard.values(), key=_in_flight)
        if call.pool is not None and call.shard == connection.shard:
            call.pool.counts(call.shard).fallbacks += 1  # the connection counts those of others
        connection.submit(call, now, self.room)

    def counts(self, shard: int) -> ShardCounts:
        """Return the counters of the shard."""
        return self._counts.setdefault(shard, ShardCounts())

    @property
    def missing(self) -> bool:
        """Whether a shard has no connection, or the node has not told its number of shards."""
        return self.description is None or len(self.by_shard) < self.description.shards

    @property
    def connected(self) -> bool:
        """Whether it has a connection."""
        return bool(self.by_shard)

    @property
    def identity(self) -> str | None:
        """The node that last answered; None before the first answer."""
        return None if self.description is None else self.description.node

    # Outages

    def lacks(self, shard: int) -> bool:
        """Return whether no request can reach the shard now: without connection, or it hangs."""
        if not self.by_shard:
            return True
        loss = self._lost.get(shard)
        return loss is not None and loss.hung

    @property
    def stalled(self) -> bool:
        """Whether no request can be sent to the node just now: it has no connection, or each one
        waits for a sign of life."""
        return all(connection.stalled for connection in self.by_shard.values())

    @property
    def has_deputies(self) -> bool:
        """Whether other members of the cluster are connected, which take over the partitions of
        this node if it does not answer."""
        return self._terms.settings.takeover_seconds > 0 and self._router.has_deputies(self)

    @property
    def awaits_takeover(self) -> bool:
        """Whether the node does not answer, and other members of the cluster are about to take over
        its partitions."""
        return self.stalled and not self.closed and self.has_deputies

    def stalls(self, connection: Connection) -> None:
        """Find out whether the whole node is silent, or only the shard of this connection."""
        for other in self.by_shard.values():
            if other is not connection:
                other.probe()

    def is_silent(self, shard: int) -> bool:
        """Return whether calls for the shard wait for a sign of life."""
        connection = self.by_shard.get(shard)
        return connection is not None and connection.stalled

    def is_away(self, shard: int, now: float, seconds: float | None = None) -> bool:
        """Return whether the shard has been without connection for longer than `seconds`; by
        default, for longer than a restart takes."""
        if shard in self.by_shard:
            return False
        heard_at = self._heard_at
        if self.by_shard:
            loss = self._lost.get(shard)
            if loss is None:
                return False
            heard_at = loss.heard_at
        limit = self._terms.settings.away_seconds if seconds is None else seconds
        return now - heard_at + TIMER_SLACK_SECONDS >= limit

    def unreachable(self, shard: int, now: float, said: str = "") -> NodeUnreachable:
        """Return the error for a request to a shard that is away. `said` is the reason that another
        shard of the node gave."""
        loss = self._lost.get(shard)
        if self.by_shard and loss is not None:
            away, heard_at = f"Shard {shard} of {self.name}", loss.heard_at
            because = f" ({said.rstrip('.')})" if said else " and hangs" if loss.hung else ""
        else:
            away, heard_at, because = self.name, self._heard_at, self.because()
        remedy = self.problem.remedy if self.problem is not None else None
        return NodeUnreachable(
            f"{away} has been away for {now - heard_at:.1f} s{because}. Nothing was done.",
            remedy=remedy or "Try again later: connections are made again by themselves.",
        )

    def _lose_patience(self) -> None:
        """Refuse the calls that wait: the node is not being restarted after all."""
        self._patience = None
        now = self._loop.time()
        for call in [one for one in self.line if not one.patient]:
            call.stop_waiting()
            call.fail(self.unreachable(call.shard, now))

    def _note_loss(self, connection: Connection) -> None:
        """Remember the loss of a shard's connection."""
        now = self._loop.time()
        heard_at = connection.arrived_at if connection.hung else now
        if connection.shard not in self.by_shard:
            self._lost[connection.shard] = Loss(heard_at, connection.hung)
        if not self.by_shard:
            self._heard_at = max(loss.heard_at for loss in self._lost.values())
        elif connection.hung:
            for other in self.by_shard.values():
                other.probe()

    def _is_back(self, *, from_outage: bool) -> None:
        """Forget losses of connected shards. If the whole node was away, its other shards will be
        back soon as well."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        for shard in self._lost.keys() & self.by_shard.keys():
            del self._lost[shard]
        if from_outage:
            back = Loss(self._loop.time(), hung=False)
            self._lost = dict.fromkeys(self._lost, back)

    def because(self) -> str:
        """Return the last reason for having no connection, in parentheses."""
        return f" ({self.problem.sentence.rstrip('.')})" if self.problem is not None else ""

    def resubmit(self, line: Iterable[Call]) -> None:
        """Dispatch queued calls again: none of them was sent."""
        now = self._loop.time()
        for call in list(line):
            call.stop_waiting()
            if call.is_over:
                continue
            try:
                self._router.dispatch(call, now)
            except MaitredError as problem:
                call.fail(problem)

    # Connections

    def draining(self, connection: Connection) -> None:
        """Retire a connection whose shard accepts no more requests, and replace it."""
        if self._held.pop(connection.number, None) is not None:
            self._retired[connection] = None
            connection.retire()
            self._closed_one(connection)
            self._router.news()

    def ended(self, connection: Connection, problem: Exception | None) -> None:
        """Replace a connection that has ended."""
        self._retired.pop(connection, None)
        if self._held.pop(connection.number, None) is None:
            self.resubmit(connection.line)
            if self.closed and not self._retired:
                self._router.closed_last(self)
        else:
            self.problem = connection.last_words or ConnectionLost(
                f"The connection was lost: {connection.why_lost(problem)}."
            )
            self._router.lost(connection)
            self._closed_one(connection)
        self._router.news()

    def _closed_one(self, connection: Connection) -> None:
        self._perform(self._coverage.closed(connection.number, self._loop.time()))
        self._note_loss(connection)
        if not self.by_shard:
            self._router.disconnected()
        self.resubmit(connection.line)

    async def _dial(self, dial: Dial) -> None:
        port = self.node.port if dial.port is None else dial.port
        connection: Connection | None = None
        reached = True
        try:
            place = self.node._replace(port=port)
            connection = await connect(place, self._terms, self._was_reached, self.member)
            homes = _homes(connection.description)
            if connection.closing:
                problem = connection.last_words or Unavailable(
                    f"{self.name} closed the connection right after its handshake."
                )
                raise Refused(problem, reached=True)  # noqa: TRY301 - like a failed handshake
        except Refused as refusal:
            problem, reached = refusal.problem, refusal.reached
        except MaitredError as nonsense:
            problem = nonsense
        else:
            if self.closed:
                connection.abort()
            else:
                self._opened(connection, dial, homes)
                self._router.news()
            return
        if connection is not None:
            connection.abort()
        self.problem = problem
        if isinstance(problem, HOPELESS) and not self.by_shard:
            self.resubmit(self.line)  # which fails each of them
        self._perform(self._coverage.failed(dial, reached=reached, now=self._loop.time()))
        self._router.news()

    def _was_reached(self) -> None:
        self.reached = True

    def _warn_of_ignored_credentials(self) -> None:
        if not self._warned:
            self._warned = True
            logging.getLogger("maitred.client").warning(
                "%s has no users: it ignored the credentials, and every client that reaches it may "
                "do anything",
                self.name,
            )

    def _opened(self, connection: Connection, dial: Dial, homes: Homes) -> None:
        if connection.credentials_ignored:
            self._warn_of_ignored_credentials()
        description = connection.description
        self.problem = None
        connection.join(self, self._next_number, self.counts(description.shard))
        self._next_number += 1
        self._held[connection.number] = connection
        was_connected = self.connected
        described = Described(description.node, description.shards, description.shard_ports)
        decisions = self._coverage.opened(
            connection.number, dial, described, description.shard, self._loop.time()
        )
        is_new = self._coverage.described == described and self._learn(description, homes)
        if self._coverage.covering.get(description.shard) == connection.number:
            connection.counts.connected += 1
        self._perform(decisions)
        if is_new:
            self._router.described()
            if self.closed:  # the newest view has no place for it
                return
        if connection.draining:  # since before the pool knew it
            self.draining(connection)
        if self.by_shard:
            self.resubmit(self.line)
            if not was_connected:
                self._router.connected(self)
        # Calls for this shard that wait for another connection use this one.
        for other in self.by_shard.values():
            if other is not connection and other.line:
                self.resubmit([call for call in other.line if call.shard == connection.shard])

    def _learn(self, description: Description, homes: Homes) -> bool:
        """Remember the node's description; return whether it is another one than before."""
        anonymous = replace(description, shard=0)
        if anonymous != self.description:
            self.wavers = self.wavers or self.identity not in (None, anonymous.node)
            self.description, self.homes = anonymous, homes
            self._lost.clear()
            self._router.forget()
            return True
        return False

    def _perform(self, decisions: list[Decision]) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        excess: list[Connection] = []
        for decision in decisions:
            if isinstance(decision, CloseExcess):
                excess.append(self._held.pop(decision.connection))
            elif self.closed:
                continue
            elif isinstance(decision, Dial):
                self._dialing.start(self._dial(decision))
            else:
                self._timer = self._loop.call_at(decision.moment, self._tick)
        covering = sorted(self._coverage.covering.items())
        was_away = not self.by_shard
        self.by_shard = {shard: self._held[number] for shard, number in covering}
        if self.by_shard:
            self._is_back(from_outage=was_away)
        self._follow_views()
        for connection in excess:
            self._retired[connection] = None
            connection.retire()
            self.resubmit(connection.line)

    def _tick(self) -> None:
        self._timer = None
        self._perform(self._coverage.tick(self._loop.time()))

    # Views of the cluster

    def _follow_views(self) -> None:
        """Keep one connection registered for the node's views."""
        if self._viewer is not None and self.by_shard.get(self._viewer.shard) is self._viewer:
            return
        self._viewer = next((one for one in self.by_shard.values() if not one.closing), None)
        if self._viewer is not None:
            self._viewer.follow_views()

    def viewed(self, view: ClusterView) -> None:
        """Pass on the node's view of the cluster."""
        self._router.viewed(view)

    def asked_for_view(self) -> None:
        """Note that the node has sent its view, or has none."""
        self.asked_for_views = True
        self._router.news()

    # The end

    def retire(self) -> None:
        """Open no more connections, finish the requests that were sent, and dispatch the others
        again: the node is not in the cluster any more."""
        self._stop_timers()
        self._dialing.cancel()
        connections = list(self._held.values())
        self._held.clear()
        self.by_shard = {}
        waiting = [*self.line, *(call for one in connections for call in one.line)]
        self._retired.update(dict.fromkeys(connections))
        # Before connections end, which would dispatch the calls in their lines once more.
        self.resubmit(waiting)
        for connection in list(self._retired):
            connection.leave()
        if not self._retired:
            self._router.closed_last(self)

    async def stop(self) -> None:
        """Stop connecting, and wait for the end of the attempts under way."""
        self._stop_timers()
        await self._dialing.stop()

    def _stop_timers(self) -> None:
        self.closed = True
        for timer in (self._timer, self._patience):
            if timer is not None:
                timer.cancel()

    def connections(self) -> list[Connection]:
        """Return all open connections, including retired ones."""
        return [*self._held.values(), *self._retired]

    # Introspection

    def view(self) -> NodeView:
        """Return what was learned of the node."""
        problem = self.problem.sentence if self.problem is not None else None
        known = self.description
        if known is None:
            return NodeView(address=self.name, problem=problem)
        return NodeView(
            address=self.name,
            node=known.node,
            release=known.release,
            shards=known.shards,
            shard_ports=known.shard_ports,
            covered=tuple(self.by_shard),
            spread_batch=known.spread_batch,
            payload_bytes=known.payload_bytes,
            frame_bytes=known.frame_bytes,
            problem=problem,
        )

    def statistics(self) -> NodeStatistics:
        """Return the counts of each shard and their sums."""
        shards = self.description.shards if self.description is not None else 0
        open_now = self.connections()
        listed = []
        for shard in sorted({*range(shards), *self._counts}):
            counts = self.counts(shard)
            mine = [one for one in open_now if one.shard == shard]
            listed.append(
                ShardStatistics(
                    shard=shard,
                    connections=len(mine),
                    in_flight=sum(one.in_flight for one in mine),
                    requests=counts.requests,
                    misroutes=counts.misroutes,
                    violations=counts.violations,
                    fallbacks=counts.fallbacks,
                    retries=counts.retries,
                    reconnects=max(0, counts.connected - 1),
                )
            )
        return NodeStatistics(address=self.name, shards=tuple(listed), **summed(listed))


def _in_flight(connection: Connection) -> tuple[bool, int]:
    """Return by what the best connection for a forwarded call is chosen."""
    return connection.stalled, connection.in_flight


def _homes(description: Description) -> Homes:
    try:
        change = GradualChange.parse(json.decode(description.spread_batch), check_batch_size)
    except (DecodeError, InvalidArgument) as problem:
        raise ProtocolViolation(
            f"The node's spread batch {description.spread_batch[:60]!r} makes no sense: {problem}"
        ) from None
    return Homes(description.shards, description.ignore_msb, change)
