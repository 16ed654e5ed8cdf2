"""Who serves a queue, as its root tells it: one request held there, asked again when answered.

A gateway that picks workers itself has one for each queue and user: a pass is for the queries of
one user, with his limits. The root says when something changes. While it cannot be asked, the last
roster counts for a while. One that nobody has used for a minute is given up: the next query of the
queue asks for a slot, as the first one did, and hears again how the queue wants it.
"""

from __future__ import annotations

import asyncio
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
    from random import Random

    from maitred.client.client import AsyncClient
    from maitred.client.held import Held
    from maitred.protocol.messages import AnyAnswer

ROOT: Final = 0
HOLD_SECONDS: Final = 30.0
"""How long one request waits for a change; half of the time for which a pass is good."""

UNUSED_SECONDS: Final = 60.0
"""A roster that no query needed for so long is given up."""

LEAST_SECONDS: Final = 0.05
"""Between two answers that say the same: a node that answers at once must not be asked without a
pause."""

REFRESH_SECONDS: Final = 2.0
"""Passes are told anew no more often than this."""

_REFUSALS: Final = (Closed, PermissionDenied, UnknownQueue, UnknownRequest)
"""Asking again would not help."""


class Subscription:
    """One user's roster of one queue."""

    def __init__(
        self,
        client: AsyncClient,
        session: bytes,
        place: tuple[str, str, str],
        random: Random,
        keep_seconds: float,
        told: Callable[[Subscription], None],
    ) -> None:
        self.place = place
        """Namespace, queue and user."""
        self.roster: Roster | None = None
        """The last one; None before the first, and when it does not count any more."""
        self.passes: dict[str, Allocation] = {}
        """What is shown to each worker, by its session in hexadecimal."""
        self.missing: frozenset[str] = frozenset()
        """Workers that others are let in by, and this user is not; kept by whoever is told."""
        self.used_at = 0.0
        self.over = False
        """Whether it was given up, or refused."""
        self._client = client
        self._session = session
        self._random = random
        self._keep_seconds = keep_seconds
        self._told = told
        self._loop = asyncio.get_running_loop()
        self._held: Held | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._asked_at = 0.0
        self._fails_since: float | None = None
        self._tries = 0
        self._anew = False
        self._anew_at = -REFRESH_SECONDS

    def __repr__(self) -> str:
        namespace, queue, user = self.place
        return f"<Subscription {namespace}/{queue} for {user!r}, {len(self.passes)} workers>"

    def start(self) -> None:
        """From now on."""
        self.used_at = self._loop.time()
        self._ask()

    def refresh(self) -> None:
        """A worker does not know our pass: have all of them told of theirs again."""
        now = self._loop.time()
        if self.over or now - self._anew_at < REFRESH_SECONDS:
            return
        self._anew = True
        self._anew_at = now
        if self._held is not None:
            self._held.take_back()  # and asked again when that is answered

    def stop(self) -> None:
        """It is not needed any more."""
        self.over = True
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._held is not None:
            self._held.take_back()

    def _ask(self) -> None:
        self._pause = None
        namespace, queue, user = self.place
        version = 0 if self.roster is None or self._anew else self.roster.version
        self._anew = False
        self._asked_at = self._loop.time()
        message = Subscribe(namespace, queue, TASKS, ROOT, 0, self._session, version, user)
        try:
            self._held = self._client.hold(message, HOLD_SECONDS)
        except MaitredError as problem:
            self._failed(problem)
            return
        self._held.tell(self._came)

    def _came(self, outcome: AnyAnswer | MaitredError) -> None:
        self._held = None
        if self.over:
            return
        now = self._loop.time()
        if now - self.used_at >= UNUSED_SECONDS:
            self._give_up()
        elif isinstance(outcome, Roster):
            self._learn(outcome, now)
        elif isinstance(outcome, DeadlineExceeded) or self._anew:
            self._fails_since, self._tries = None, 0
            self._ask_later(now)  # nothing has changed
        elif isinstance(outcome, MaitredError):
            self._failed(outcome)
        else:
            self._failed(ProtocolViolation("The answer to SUBSCRIBE is another one's."))

    def _learn(self, roster: Roster, now: float) -> None:
        self._fails_since, self._tries = None, 0
        before, self.roster = self.roster, roster
        if before is None or before != roster:
            self.passes = {
                one.session.hex(): Allocation(ROOT, one.token, one.session, one.worker, one.address)
                for one in roster.members
            }
            self._told(self)
            if self.over:
                return
            same = before is not None and before.version == roster.version
        else:
            same = True
        if same:
            self._ask_later(now)
        else:
            self._ask()

    def _ask_later(self, now: float) -> None:
        pause = LEAST_SECONDS - (now - self._asked_at)
        if pause <= 0:
            self._ask()
        else:
            self._pause = self._loop.call_later(pause, self._ask)

    def _failed(self, problem: MaitredError) -> None:
        if isinstance(problem, _REFUSALS):
            self._give_up()
            return
        now = self._loop.time()
        if self._fails_since is None:
            self._fails_since = now
        elif self.roster is not None and now - self._fails_since >= self._keep_seconds:
            self.roster = None
            self.passes = {}
            self._told(self)
            if self.over:
                return
        settings = self._client.settings
        self._tries += 1
        pause = backoff_seconds(
            self._tries,
            settings.backoff_first_seconds,
            settings.backoff_longest_seconds,
            self._random,
        )
        self._pause = self._loop.call_later(pause, self._ask)

    def give_up(self) -> None:
        """It counts no more."""
        self.stop()
        self.roster = None
        self.passes = {}

    def _give_up(self) -> None:
        self.give_up()
        self._told(self)
