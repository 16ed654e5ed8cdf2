"""A long poll for the roster of a queue: its workers, as the queue's root knows them.

A gateway that picks workers itself has one subscription per queue and user: a pass is for the
queries of one user, with that user's limits. The root answers when something changes. While the
root cannot be asked, the last roster counts for a while. A subscription that no query has used for
a minute ends: the next query of the queue asks for a slot, as the first one did, and the gateway
learns the queue's policy again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.backoff import backoff_seconds
from maitred.errors import (
    Closed,
    DeadlineExceeded,
    MaitredError,
    PermissionDenied,
    ProtocolViolation,
    UnknownQueue,
    UnknownRequest,
)
from maitred.protocol.queries import Allocation, Roster, Subscribe
from maitred.routing.names import TASKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.balancing.interface import RandomSource
    from maitred.dispatch.effects import Effects, NodeRequest, Wakeup
    from maitred.protocol.messages import AnyAnswer

ROOT: Final = 0
HOLD_SECONDS: Final = 30.0
"""Deadline of one long poll; half of the time for which a pass is valid."""

UNUSED_SECONDS: Final = 60.0
"""A subscription that no query has used for this long ends."""

LEAST_SECONDS: Final = 0.05
"""Least time between two requests that get the same answer: a node that answers at once must not be
asked without a pause."""

REFRESH_SECONDS: Final = 2.0
"""Least time between two requests to tell the workers their passes again."""

_REFUSALS: Final = (Closed, PermissionDenied, UnknownQueue, UnknownRequest)
"""Errors after which the subscription ends."""


class RosterSubscription:
    """One user's subscription to the roster of one queue; `ask` starts it."""

    def __init__(
        self,
        place: tuple[str, str, str],
        *,
        effects: Effects,
        session: bytes,
        random: RandomSource,
        backoff: tuple[float, float],
        keep_seconds: float,
        told: Callable[[RosterSubscription, float], None],
        now: float,
    ) -> None:
        self.place = place
        """Namespace, queue and user."""
        self.roster: Roster | None = None
        """The last roster; None before the first one, and when it is out of date."""
        self.passes: dict[str, Allocation] = {}
        """The pass for each worker, by the worker's session in hexadecimal."""
        self.missing: frozenset[str] = frozenset()
        """Workers of the queue to which this user has no pass yet; set by the queue's
        dispatcher."""
        self.used_at = now
        self.over = False
        """Whether the subscription has ended."""
        self._effects = effects
        self._session = session
        self._random = random
        self._backoff = backoff
        self._keep_seconds = keep_seconds
        self._told = told
        self._request: NodeRequest | None = None
        self._pause: Wakeup | None = None
        self._asked_at = 0.0
        self._fails_since: float | None = None
        self._tries = 0
        self._anew = False
        self._anew_at = -REFRESH_SECONDS

    def __repr__(self) -> str:
        namespace, queue, user = self.place
        return f"<RosterSubscription {namespace}/{queue} for {user!r}, {len(self.passes)} workers>"

    def refresh(self, now: float) -> None:
        """Have all workers told of their passes again: one of them does not know its pass."""
        if self.over or now - self._anew_at < REFRESH_SECONDS:
            return
        self._anew = True
        self._anew_at = now
        if self._request is not None:
            self._request.take_back()  # the next request follows its answer

    def stop(self) -> None:
        """Stop asking the node for the roster."""
        self.over = True
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._request is not None:
            self._request.take_back()

    def give_up(self) -> None:
        """Stop asking the node for the roster, and disregard the one that is known."""
        self.stop()
        self.roster = None
        self.passes = {}

    def ask(self, now: float) -> None:
        """Ask the root for the roster, or for its next change."""
        self._pause = None
        namespace, queue, user = self.place
        version = 0 if self.roster is None or self._anew else self.roster.version
        self._anew = False
        self._asked_at = now
        message = Subscribe(namespace, queue, TASKS, ROOT, 0, self._session, version, user)
        try:
            self._request = self._effects.ask_node(message, HOLD_SECONDS, self._came, patient=True)
        except MaitredError as problem:
            self._failed(problem, now)

    def _came(self, outcome: AnyAnswer | MaitredError, now: float) -> None:
        self._request = None
        if self.over:
            return
        if now - self.used_at >= UNUSED_SECONDS:
            self._give_up(now)
        elif isinstance(outcome, Roster):
            self._learn(outcome, now)
        elif isinstance(outcome, DeadlineExceeded) or self._anew:
            self._fails_since, self._tries = None, 0
            self._ask_later(now)  # nothing has changed
        elif isinstance(outcome, MaitredError):
            self._failed(outcome, now)
        else:
            self._failed(ProtocolViolation("The answer to SUBSCRIBE is another one's."), now)

    def _learn(self, roster: Roster, now: float) -> None:
        self._fails_since, self._tries = None, 0
        before, self.roster = self.roster, roster
        if before is None or before != roster:
            self.passes = {
                one.session.hex(): Allocation(ROOT, one.token, one.session, one.worker, one.address)
                for one in roster.members
            }
            self._told(self, now)
            if self.over:
                return
            same = before is not None and before.version == roster.version
        else:
            same = True
        if same:
            self._ask_later(now)
        else:
            self.ask(now)

    def _ask_later(self, now: float) -> None:
        pause = LEAST_SECONDS - (now - self._asked_at)
        if pause <= 0:
            self.ask(now)
        else:
            self._pause = self._effects.wake_at(now + pause, self.ask)

    def _failed(self, problem: MaitredError, now: float) -> None:
        if isinstance(problem, _REFUSALS):
            self._give_up(now)
            return
        if self._fails_since is None:
            self._fails_since = now
        elif self.roster is not None and now - self._fails_since >= self._keep_seconds:
            self.roster = None
            self.passes = {}
            self._told(self, now)
            if self.over:
                return
        self._tries += 1
        pause = backoff_seconds(self._tries, *self._backoff, self._random)
        self._pause = self._effects.wake_at(now + pause, self.ask)

    def _give_up(self, now: float) -> None:
        self.give_up()
        self._told(self, now)
