"""Permits: counts the queries in flight of users and queues that have a limit, across the cluster.

One shard counts each name; the name selects it, as the routing key of a partition selects its
owner. The shard that receives a slot request takes permits there first. Once a slot is reserved,
the permit becomes the reservation's token and belongs to the shard that reserved the slot: the
worker reports to that shard which reservations run and which have ended.

Each report has a proof that the reservation was made for this worker
(`maitred.matching.reservation_proofs`), so that no worker can fill or empty a limit with the tokens
of others. The shard compares the proof with the one it remembers, which costs next to nothing; a
restarted shard verifies it with the store's key.

Every holder of permits repeats its report, and a permit without reports expires
(`maitred.matching.permits`). Messages may therefore get lost, and shards, workers and gateways die,
in any order: the counts are correct again within seconds.

When the view of the cluster changes, some names are counted elsewhere. Every holder reports its
permits to the new counters at once, and a new counter gives out nothing before the holders had the
time to do so: requests wait for it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from hmac import compare_digest
from math import inf
from typing import TYPE_CHECKING, Final

from maitred.errors import MaitredError, NotOwner, Unavailable
from maitred.matching.permits import LEASE_SECONDS, PERMITS_KEPT, Permits
from maitred.matching.reservation_proofs import expires_at
from maitred.membership.view import MemberState
from maitred.node.peer_calls import ASK_SECONDS
from maitred.node.permit_taking import PermitQuestion, PermitTaking
from maitred.node.request_table import RequestTable
from maitred.protocol.frames import Opcode
from maitred.protocol.queries import Count, Counted
from maitred.wire.alarm import TIMER_SLACK_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from msgspec import Struct

    from maitred.matching.slots import AllocatedSlot
    from maitred.membership.homes import ClusterHomes
    from maitred.membership.view import ClusterView
    from maitred.node.deferred_reply import DeferredReply
    from maitred.node.permit_taking import Taken
    from maitred.node.query_limits import Limit
    from maitred.node.shard_services import ClusterShard
    from maitred.surroundings import Surroundings

    Verify = Callable[[bytes, bytes], bool]
    """Returns whether this is the proof that a worker got with the token."""

RENEW_SECONDS: Final = LEASE_SECONDS / 4
"""Interval at which held permits are reported: three reports may get lost."""

ROOM_SECONDS: Final = 0.25
"""How long a request waits for a permit. A gateway that got an answer and asks again may be faster
than the worker's report of the end, which takes a millisecond, or a little more under load."""

PERMIT_BYTES: Final = 16

OVER_KEPT: Final = 20_000
"""Ended reservations that are remembered and do not count again; some two hundred bytes each. A
worker that reports one as running after so many others, before its proof expires, holds a permit
that it could as well have held all the time."""

FRAME_SHARE: Final = 512
"""Bytes of a frame for each permit, which may come with a name of its own."""


class _Permit:
    """A permit that this shard holds; another shard may count it."""

    __slots__ = ("held", "names", "proof", "until")

    def __init__(
        self, names: tuple[str, ...], held: DeferredReply | None, until: float, proof: bytes = b""
    ) -> None:
        self.names = names
        self.held = held
        """The request that waits for a slot; None once the slot is reserved."""
        self.until = until
        """When the permit expires, unless the worker reports it again."""
        self.proof = proof
        """The proof with which the worker reports it; empty before the reservation."""


class _Wish:
    """A request for permits that waits until one is free."""

    __slots__ = ("held", "message", "timer")

    def __init__(self, message: Count, held: DeferredReply, timer: asyncio.TimerHandle) -> None:
        self.message = message
        self.held = held
        self.timer = timer


class ShardPermits:
    """Counts permits at one shard: those of the names that it counts for the node, and those that
    it holds itself."""

    def __init__(self, shard: ClusterShard, surroundings: Surroundings) -> None:
        self.shard = shard
        self._loop = shard.loop
        self._secret = surroundings.secret
        self._wall_clock = surroundings.wall_clock
        self._counter = Permits()
        self._wishes: dict[str, dict[_Wish, None]] = {}
        """Requests that wait for a permit, by name, in the order of arrival."""
        self._knows_at = self._loop.time() + LEASE_SECONDS if shard.place.restarts else -inf
        """When a restarted shard has got all reports of running queries."""
        self._earlier: list[tuple[ClusterHomes | None, float]] = []
        """Who counted what by the views that were replaced a moment ago (None: it is not known),
        each with the time at which the reports of all holders have reached the new counters."""
        shard.view_listeners.append(self._view_changed)
        self._permits: dict[bytes, _Permit] = {}
        self._over: OrderedDict[bytes, None] = OrderedDict()
        """Tokens of reservations whose end was reported, the latest last."""
        self._changes: dict[int, dict[str, dict[bytes, bool]]] = {}
        """Changes to report, by counting shard and name: permits, and whether they are held."""
        self._portion = max(1, shard.limits.frame_bytes // FRAME_SHARE)
        """Most permits in one message, so that it fits into a frame."""
        self._beats = False
        self.requests = RequestTable(holders={Opcode.COUNT: self._count})

    def counter_of(self, name: str) -> int:
        """Return the owner number of the shard that counts for this name; raise `Unavailable` if
        the cluster has none."""
        return self.shard.owners.keeper(name)

    # Permits that this shard holds

    def statistics(self) -> dict[str, int]:
        """Return the number of permits that this shard holds, of those that it counts for the node,
        and of the requests that wait for a permit."""
        return {
            "held": len(self._permits),
            "counted": self._counter.total,
            "waiting": sum(map(len, self._wishes.values())),
        }

    def take(self, limits: Sequence[Limit], slots: int, held: DeferredReply, then: Taken) -> None:
        """Take up to so many permits of each limit, and call `then` with them. If a limit has none
        left, refuse the request."""
        slots = min(slots, self._portion, *(limit.most for limit in limits))
        drawn = self._secret(slots * PERMIT_BYTES)
        permits = [drawn[at : at + PERMIT_BYTES] for at in range(0, len(drawn), PERMIT_BYTES)]
        PermitTaking(self, limits, permits, held, then).go_on()

    def reserve(
        self, names: tuple[str, ...], permit: bytes, reserved: AllocatedSlot, seconds: float
    ) -> None:
        """Replace a permit by the token of the reserved slot, which is reserved for so many
        seconds: this shard holds it from now on."""
        until = self._loop.time() + seconds + LEASE_SECONDS
        self._keep(reserved.token, _Permit(names, None, until, reserved.proof))
        for name in names:
            self._changed(name, [permit], held=False)
        self.free([permit])

    def runs(self, names: tuple[str, ...], proven: Iterable[bytes], verify: Verify) -> int:
        """Count the reservations that a worker reports as running, each a token and its proof.
        Return how many were refused."""
        now, wall = self._loop.time(), self._wall_clock()
        refused = 0
        for one in proven:
            token, proof = one[:PERMIT_BYTES], one[PERMIT_BYTES:]
            known = self._permits.get(token)
            seconds = min(expires_at(proof) - wall, LEASE_SECONDS)
            if seconds <= 0.0 or not self._is_right(known, token, proof, verify):
                refused += 1
            elif known is not None:
                known.until = now + seconds
            elif token in self._over:
                refused += 1
            elif names and len(self._permits) < PERMITS_KEPT:
                self._keep(token, _Permit(names, None, now + seconds, proof))
        return refused

    def ended(self, proven: Iterable[bytes], verify: Verify) -> int:
        """Free the permits of the reservations that a worker reports as ended. Return how many were
        refused."""
        refused = 0
        over = self._over
        for one in proven:
            token, proof = one[:PERMIT_BYTES], one[PERMIT_BYTES:]
            known = self._permits.get(token)
            if not self._is_right(known, token, proof, verify):
                refused += 1
                continue
            if known is not None:
                self.free((token,))
            over[token] = None
            if len(over) > OVER_KEPT:
                over.popitem(last=False)
        return refused

    def _is_right(self, known: _Permit | None, token: bytes, proof: bytes, verify: Verify) -> bool:
        return verify(token, proof) if known is None else compare_digest(known.proof, proof)

    def free(self, permits: Iterable[bytes]) -> None:
        """Free those of these permits that this shard holds."""
        for permit in permits:
            known = self._permits.pop(permit, None)
            if known is not None:
                for name in known.names:
                    self._changed(name, [permit], held=False)

    def wait(self, names: tuple[str, ...], permits: Iterable[bytes], held: DeferredReply) -> None:
        """Keep these permits while their request waits for a slot."""
        for permit in permits:
            self._permits[permit] = _Permit(names, held, inf)
        self._begin_to_beat()

    def _keep(self, token: bytes, what: _Permit) -> None:
        self._permits[token] = what
        for name in what.names:
            self._changed(name, [token], held=True)
        self._begin_to_beat()

    def _begin_to_beat(self) -> None:
        if not self._beats:
            self._beats = True
            self.shard.spawn(self._beat())

    async def _beat(self) -> None:
        """Report the held permits periodically, while this shard holds or counts any."""
        try:
            while self._permits or self._counter.total:
                await asyncio.sleep(RENEW_SECONDS)
                self._speak(self._loop.time())
        finally:
            self._beats = False

    def _speak(self, now: float) -> None:
        gone = []
        names: dict[str, list[bytes]] = {}
        for permit, known in self._permits.items():
            if known.until <= now or (known.held is not None and not known.held.wanted):
                gone.append(permit)
                continue
            for name in known.names:
                names.setdefault(name, []).append(permit)
        self.free(gone)
        for name, permits in names.items():
            self._changed(name, permits, held=True)
        self._counter.sweep(now)

    # Reports to the counting shards

    def _changed(self, name: str, permits: Iterable[bytes], *, held: bool) -> None:
        try:
            number = self.counter_of(name)
        except Unavailable:
            return  # held permits are reported again when the cluster has a view
        if not self._changes:
            self._loop.call_soon(self._tell_all)
        names = self._changes.setdefault(number, {})
        names.setdefault(name, {}).update(dict.fromkeys(permits, held))

    def _tell_all(self) -> None:
        changes, self._changes = self._changes, {}
        for number, names in changes.items():
            self._tell(number, names)

    def _tell(self, number: int, names: dict[str, dict[bytes, bool]]) -> None:
        each = [(name, *one) for name, permits in names.items() for one in permits.items()]
        for start in range(0, len(each), self._portion):
            held: dict[str, list[bytes]] = {}
            over: dict[str, list[bytes]] = {}
            for name, permit, still in each[start : start + self._portion]:
                (held if still else over).setdefault(name, []).append(permit)
            if number == self.shard.number:
                self._note(held, over)
            else:
                # If a report is lost, the next one repeats held permits, and ended ones expire.
                message = Count(number, 0, held, over)
                self.shard.ask(message, ASK_SECONDS, lambda _: None, number)

    def ask(
        self, limit: Limit, permits: list[bytes], done: Callable[[Struct | MaitredError], None]
    ) -> None:
        """Send the pending reports to the counting shard, and ask it for permits."""
        if self.shard.owners.clustered:
            PermitQuestion(self, limit, permits, done).go_on()
        else:
            self.ask_counter(limit, permits, done)

    def ask_counter(
        self, limit: Limit, permits: list[bytes], done: Callable[[Struct | MaitredError], None]
    ) -> None:
        """Ask the shard that counts by the present view; raise `Unavailable` if there is none."""
        number = self.counter_of(limit.name)
        self._tell(number, self._changes.pop(number, {}))
        message = Count(number, 0, {}, {}, limit.name, limit.most, permits)
        self.shard.ask(message, ASK_SECONDS, done, number)

    def give_back(self, names: Iterable[str], permits: Sequence[bytes]) -> None:
        """Give back permits that led to no reservation."""
        for name in names:
            self._changed(name, permits, held=False)

    # Changes of the view

    def _view_changed(self, before: ClusterView | None, view: ClusterView) -> None:  # noqa: ARG002
        """Report what this shard holds to the shards that count it from now on."""
        now = self._loop.time()
        previous = self.shard.owners.previous
        own = self.shard.place.member
        alone = all(one.id == own or one.state is MemberState.JOINING for one in view.members)
        self._earlier = [one for one in self._earlier if one[1] > now]
        # The first node of a cluster has nobody to wait for.
        if previous is not None or not alone:
            self._earlier.append((previous, now + LEASE_SECONDS))
        changes, self._changes = self._changes, {}
        for names in changes.values():
            for name, permits in names.items():
                for still in (True, False):
                    some = [one for one, held in permits.items() if held is still]
                    if some:
                        self._changed(name, some, held=still)
        self._speak(now)

    def _counts_from(self, name: str, now: float) -> float:
        """Return from when on this shard knows all permits of a name that it counts."""
        self._earlier = [one for one in self._earlier if one[1] > now]
        mine = self.shard.place.member, self.shard.number
        known = -inf
        for homes, until in self._earlier:
            member, shard = (None, 0) if homes is None else homes.keeper(name)
            if member is None or (member.id, shard) != mine:
                known = max(known, until)
        return known

    # Permits that this shard counts for the cluster

    def _count(self, message: Count, held: DeferredReply) -> None:
        self._note(message.held, message.over)
        if not message.wanted:
            held.answer(Counted())
            return
        now = self._loop.time()
        if now < self._knows_at:
            raise Unavailable(
                "The shard that counts these queries has just been started, and does not know yet "
                "what is under way.",
                remedy=f"Ask again in {self._knows_at - now:.1f} s.",
            )
        if self.shard.owners.clustered and self.counter_of(message.name) != self.shard.number:
            raise NotOwner("Another shard counts these queries.")
        if message.name not in self._wishes:
            granted = self._granted(message, now)
            if granted:
                held.answer(Counted(granted))
                return
        wait = ROOM_SECONDS
        known = self._counts_from(message.name, now) if self._earlier else now
        if known > now:
            wait += known - now
            self._loop.call_at(known + TIMER_SLACK_SECONDS, self._counts, message.name)
        wish: _Wish
        timer = self._loop.call_later(wait, lambda: self._no_room(wish))
        wish = _Wish(message, held, timer)
        self._wishes.setdefault(message.name, {})[wish] = None
        held.on_stop = lambda: self._forget(wish)

    def _counts(self, name: str) -> None:
        """Serve the requests that waited until this shard knew all permits of the name."""
        if name in self._wishes:
            self._let_in(name, self._loop.time())

    def _granted(self, message: Count, now: float) -> int:
        if self._earlier and self._counts_from(message.name, now) > now:
            return 0
        granted = self._counter.take(message.name, message.limit, message.wanted, now)
        if granted:
            self._begin_to_beat()
        return granted

    def _note(self, held: dict[str, list[bytes]], over: dict[str, list[bytes]]) -> None:
        now = self._loop.time()
        for name, permits in held.items():
            self._counter.hold(name, permits, now)
        for name, permits in over.items():
            self._counter.free(name, permits)
            if name in self._wishes:
                self._let_in(name, now)
        if held:
            self._begin_to_beat()

    def _let_in(self, name: str, now: float) -> None:
        for wish in list(self._wishes[name]):
            granted = self._granted(wish.message, now)
            if not granted:
                return
            self._forget(wish)
            wish.held.answer(Counted(granted))

    def _no_room(self, wish: _Wish) -> None:
        self._forget(wish)
        wish.held.answer(Counted())

    def _forget(self, wish: _Wish) -> None:
        wish.timer.cancel()
        waiting = self._wishes.get(wish.message.name)
        if waiting is not None:
            waiting.pop(wish, None)
            if not waiting:
                del self._wishes[wish.message.name]
