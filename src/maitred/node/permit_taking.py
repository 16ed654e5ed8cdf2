"""A request that takes permits before it gets slots: of each limit in turn, from its counter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from maitred.errors import ConnectionLost, MaitredError, Overloaded, Unavailable
from maitred.node.deferred_reply import node_fault
from maitred.node.peer_calls import ASK_SECONDS
from maitred.protocol.queries import Counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from msgspec import Struct

    from maitred.node.deferred_reply import DeferredReply
    from maitred.node.query_limits import Limit
    from maitred.node.shard_services import ClusterShard

    Taken = Callable[[list[bytes]], None]
    """Called with the permits that were taken."""

RETRY_SECONDS: Final = 0.5
"""The `retry_after` of the refusal, as gateways have it: the end of a query cannot be predicted."""

AGAIN_SECONDS: Final = 0.05
"""Pause before permits are asked for again, when the shard that counts them has changed or died."""


class PermitCounting(Protocol):
    """The permits of a shard: those that it holds, and those that it counts."""

    @property
    def shard(self) -> ClusterShard:
        """The shard."""

    def ask(
        self, limit: Limit, permits: list[bytes], done: Callable[[Struct | MaitredError], None]
    ) -> None:
        """Send the pending reports to the counting shard, and ask it for permits."""

    def ask_counter(
        self, limit: Limit, permits: list[bytes], done: Callable[[Struct | MaitredError], None]
    ) -> None:
        """Ask the shard that counts by the present view; raise `Unavailable` if there is none."""

    def wait(self, names: tuple[str, ...], permits: Iterable[bytes], held: DeferredReply) -> None:
        """Keep these permits while their request waits for a slot."""

    def free(self, permits: Iterable[bytes]) -> None:
        """Free those of these permits that this shard holds."""

    def give_back(self, names: Iterable[str], permits: Sequence[bytes]) -> None:
        """Give back permits that led to no reservation."""


class PermitQuestion:
    """Asks for permits of one name in a cluster, again if another shard counts by now."""

    def __init__(
        self,
        counting: PermitCounting,
        limit: Limit,
        permits: list[bytes],
        done: Callable[[Struct | MaitredError], None],
    ) -> None:
        self._counting = counting
        self._limit = limit
        self._permits = permits
        self._done = done
        self._loop = counting.shard.loop
        self._until = self._loop.time() + ASK_SECONDS

    def go_on(self) -> None:
        """Ask the shard that counts by the present view."""
        try:
            self._counting.ask_counter(self._limit, self._permits, self._answered)
        except MaitredError as problem:
            self._loop.call_soon(self._answered, problem)

    def _answered(self, outcome: Struct | MaitredError) -> None:
        # Nothing depends on whether a lost counter had granted them: its successor is told all.
        again = isinstance(outcome, Unavailable | ConnectionLost)
        if again and self._loop.time() + AGAIN_SECONDS < self._until:
            self._loop.call_later(AGAIN_SECONDS, self.go_on)
        else:
            self._done(outcome)


class PermitTaking:
    """Takes the permits of one request, of one limit after the other."""

    def __init__(
        self,
        counting: PermitCounting,
        limits: Sequence[Limit],
        permits: list[bytes],
        held: DeferredReply,
        then: Taken,
    ) -> None:
        self._counting = counting
        self._limits = limits
        self._permits = permits
        self._held = held
        self._then = then
        self._taken: tuple[str, ...] = ()
        """The names of the limits that granted permits."""

    def go_on(self) -> None:
        """Ask for permits of the next limit, or finish."""
        if len(self._taken) < len(self._limits):
            limit = self._limits[len(self._taken)]
            self._counting.ask(limit, self._permits, self._answered)
            return
        self._counting.wait(self._taken, self._permits, self._held)
        try:
            self._then(self._permits)
        except MaitredError as problem:
            self._counting.free(self._permits)
            self._held.refuse(problem)
        except Exception:
            self._counting.free(self._permits)
            self._held.refuse(node_fault())
            raise

    def _answered(self, outcome: Struct | MaitredError) -> None:
        limit = self._limits[len(self._taken)]
        granted = outcome.granted if isinstance(outcome, Counted) else 0
        counting = self._counting
        counting.give_back(self._taken, self._permits[granted:])
        self._permits = self._permits[:granted]
        if not self._held.wanted:  # the gateway has left meanwhile
            counting.give_back((*self._taken, limit.name), self._permits)
        elif granted:
            self._taken = (*self._taken, limit.name)
            self.go_on()
        elif isinstance(outcome, MaitredError):
            self._held.refuse(outcome)
        else:
            self._held.refuse(
                Overloaded(
                    f"{limit.who} has {limit.most:,} queries under way, as many as allowed.",
                    retry_after=RETRY_SECONDS,
                )
            )
