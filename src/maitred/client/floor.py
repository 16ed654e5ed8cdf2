"""A queue whose workers are picked here: its policy, its line, its retries.

Every query that goes to a worker by this way has a *turn* (`turns.py`). What ends makes room, so
the line is served then; and when a worker says that it can do more, or one joins.

A query for which nobody has room waits in the line or is refused at once, as the line says. One
that a worker refused goes elsewhere, within the budget for retries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.balancing.workers import (
    Outcome,
    Report,
    RetryBudget,
    Shed,
    SheddingLine,
    SheddingSettings,
    worker_policy,
)
from maitred.client.turns import Turn
from maitred.errors import Overloaded

if TYPE_CHECKING:
    import asyncio

    from maitred.balancing.workers import Dispatch, WorkerPolicy
    from maitred.client.directing import Directing
    from maitred.client.roster import Subscription
    from maitred.client.running import Running
    from maitred.protocol.queries import Shedding
    from maitred.protocol.seats import Load

LOOK_SECONDS: Final = 0.02
"""How often a line is looked at though nothing ended: some room comes back with time alone."""

AWAY_FIRST_SECONDS: Final = 0.1
"""How long nothing is sent to a worker whose link broke; doubled with each further time."""


class Floor:
    """One queue. Its workers are known by their sessions, in hexadecimal."""

    def __init__(self, directing: Directing, place: tuple[str, str], policy: str) -> None:
        self.directing = directing
        self.place = place
        self.loop = directing.loop
        self.policy_name = policy
        self.policy: WorkerPolicy = worker_policy(policy, directing.random)
        self.subscriptions: dict[str, Subscription] = {}
        """By user."""
        self.slots: dict[str, int] = {}
        """Slots of each worker that the last roster names with an address, by session."""
        self._members = 0
        """Workers that the last roster names, with an address or without."""
        self._shedding: Shedding | None = None
        self._settings = SheddingSettings()
        self.line: SheddingLine[Turn] = SheddingLine(self.loop.time(), self._settings)
        self.budget = RetryBudget(self.loop.time(), self._settings)
        self._away: dict[str, tuple[asyncio.TimerHandle, float]] = {}
        """Workers that nothing is sent to for a while."""
        self._broken: dict[str, int] = {}
        """How often in a row the link of a worker broke."""
        self._timer: asyncio.TimerHandle | None = None
        self._serving = False

    def __repr__(self) -> str:
        return f"<Floor {'/'.join(self.place)}, {self.policy!r}, {len(self.line)} wait>"

    @property
    def works(self) -> bool:
        """Whether there is anybody to send to."""
        return bool(self.policy.workers)

    # Queries

    def enter(self, running: Running, subscription: Subscription) -> None:
        """It needs a worker."""
        now = self.loop.time()
        subscription.used_at = now
        turn = running.turn
        if turn is None:
            turn = running.turn = Turn(self, running, subscription)
            self.budget.admitted()
        else:
            turn.subscription = subscription
        self._place(turn, now)

    def again(self, turn: Turn) -> None:
        """A worker refused it: elsewhere, if that is allowed."""
        now = self.loop.time()
        running = turn.running
        if running.deadline <= now:
            running.expired()
        elif set(self.policy.workers) <= set(turn.refused_by):
            if not self._asks_the_node(turn):
                self._shed(turn, "Every worker of {} has as much as it can do.", now)
        elif not self.budget.spend(now):
            self._shed(turn, "Workers of {} have as much as they can do.", now)
        else:
            self._place(turn, now, first=True)

    def leave(self, turn: Turn) -> None:
        """The query is over. If its worker still has it, the turn ends when that says so."""
        if turn.waits:
            turn.waits = False
            self.line.remove(turn)
        if turn.link is None:
            turn.end(Outcome.CANCELLED)

    def _place(self, turn: Turn, now: float, *, first: bool = False) -> None:
        """`first`: it need not let those in the line go before it."""
        line = self.line
        if line and not first:
            self.serve()
        if first or not line:
            name = self._pick(turn, now)
            if name is not None:
                if not line:
                    line.passed(now)
                self._send(turn, name, now)
                return
        if not self._asks_the_node(turn):
            self.wait(turn, now, again=first)

    def _asks_the_node(self, turn: Turn) -> bool:
        """Have the node asked, once, for a slot that is free now, if it knows of more workers.

        The roster may name workers that only the node reaches, for want of an address or of a way
        to it. Without this they would be idle while queries wait here or are refused.
        """
        if turn.asked_the_node or self._members <= len(self.policy.workers):
            return False
        turn.asked_the_node = True
        self.directing.at_once(turn)
        return True

    def wait(self, turn: Turn, now: float, *, again: bool = False) -> None:
        """Put it into the line, or refuse it, as the line says."""
        turn.refused_by = ()
        running = turn.running
        ask = running.ask
        why = self.line.offer(
            turn,
            now,
            deadline=running.deadline,
            priority=ask.priority,
            do_not_queue=ask.do_not_queue,
            again=again,
        )
        if why is None:
            turn.waits = True
            if self._timer is None:
                self._timer = self.loop.call_later(LOOK_SECONDS, self._look)
        elif why is Shed.DO_NOT_QUEUE:
            self._shed(turn, "No worker of {} has room, and the query was not to wait.", now)
        else:
            self._shed(turn, "No worker of {} has room, and the line is long.", now)

    def _pick(self, turn: Turn, now: float) -> str | None:
        without: tuple[str, ...] | frozenset[str] = turn.refused_by
        missing = turn.subscription.missing
        if missing:
            without = missing.union(without)
        name = self.policy.pick(now, without)
        return name if name in turn.subscription.passes else None

    def _send(self, turn: Turn, name: str, now: float) -> None:
        turn.policy = self.policy
        turn.dispatch = self.policy.sent(name, now)
        turn.link = None
        turn.leaving = Outcome.CANCELLED
        turn.was_full = False
        turn.running.allocated(turn.subscription.passes[name])

    def _shed(self, turn: Turn, why: str, now: float) -> None:
        self.directing.shed += 1
        turn.running.refused_by_node(
            Overloaded(
                why.format("/".join(self.place)),
                remedy="Come back later, ask for less, or start more workers.",
                retry_after=self.line.retry_after_seconds(now),
            )
        )

    # The line

    def ended(
        self,
        turn: Turn,
        dispatch: Dispatch,
        outcome: Outcome,
        limit: int | None,
        load: Load | None = None,
    ) -> None:
        """A turn is over."""
        now = self.loop.time()
        name = dispatch.worker.name
        turn.policy.ended(dispatch, outcome, now, limit)
        if load is not None:
            self.directing.reported(bytes.fromhex(name), load)
        if turn.link is not None and outcome is not Outcome.REFUSED:
            self.line.freed(now)
            if outcome is Outcome.DONE and self._broken:
                self._broken.pop(name, None)
        if self.line:
            self.serve()

    def reported(self, name: str, load: Load, elsewhere: int) -> None:
        """A worker says how it is; so many of ours there are of other queues."""
        report = Report(
            load.number,
            load.limit,
            load.serving,
            load.waiting,
            load.mean_service_seconds,
            max(0, load.yours - elsewhere),
            load.senders,
        )
        self.policy.reported(name, report, self.loop.time())
        if self.line:
            self.serve()

    def serve(self) -> None:
        """Send those in the line while somebody has room."""
        if self._serving:
            return
        self._serving = True
        try:
            line = self.line
            while line:
                now = self.loop.time()
                if self.policy.pick(now) is None:
                    return
                turn, late = line.take(now)
                for one in late:
                    one.waits = False
                    one.running.expired()
                if turn is None:
                    return
                turn.waits = False
                name = self._pick(turn, now)
                if name is not None:
                    self._send(turn, name, now)
                else:  # only those have room that do not know this user yet
                    self.directing.by_the_node(turn.running)
        finally:
            self._serving = False

    def _look(self) -> None:
        self._timer = None
        if self.line:
            self.serve()
        if self.line:
            self._timer = self.loop.call_later(LOOK_SECONDS, self._look)

    def give_back(self) -> None:
        """Whoever is in the line asks the node instead."""
        line = self.line
        while line:
            turn, late = line.take(self.loop.time())
            for one in late:
                one.waits = False
                one.running.expired()
            if turn is not None:
                turn.waits = False
                self.directing.by_the_node(turn.running)

    # Workers

    def learn(self, subscription: Subscription) -> None:
        """A roster has come. The last one counts for everybody, whoever asked for it."""
        roster = subscription.roster
        if roster is None:
            return
        now = self.loop.time()
        if roster.policy != self.policy_name:
            self.policy_name = roster.policy
            self.policy = worker_policy(roster.policy, self.directing.random)
            self.slots = {}
        before = self.slots
        self._members = len(roster.members)
        # Who has no address is reached through the node only: by those who ask it for a slot.
        self.slots = {one.session.hex(): one.slots for one in roster.members if one.address}
        for name in before.keys() - self.slots.keys():
            self._come_back(name)
            self._broken.pop(name, None)
            self.policy.left(name, now)
        for name, slots in self.slots.items():
            if name not in self._away:
                self.policy.joined(name, slots, now)
        known = frozenset(self.slots)
        for one in self.subscriptions.values():
            one.missing = known.difference(one.passes)
        if not self.works:
            self.give_back()
        if roster.shedding != self._shedding:
            self._shedding = roster.shedding
            self._follow(roster.shedding, now)
        if self.line:
            self.serve()

    def _follow(self, shedding: Shedding, now: float) -> None:
        self._settings = settings = settings_of(shedding)
        old = self.line
        self.line = SheddingLine(now, settings)
        self.budget = RetryBudget(now, settings)
        while old:
            turn, late = old.take(now)
            for one in late:
                one.waits = False
                one.running.expired()
            if turn is not None:
                turn.waits = False
                self._place(turn, now)

    def away(self, name: str, seconds: float | None = None) -> None:
        """Nothing is sent to this worker for a while, unless it joins anew."""
        if name not in self.slots:
            return
        if seconds is None:
            times = self._broken.get(name, 0)
            self._broken[name] = times + 1
            seconds = AWAY_FIRST_SECONDS * 2 ** min(times, 30)
            seconds = min(seconds, self.directing.unreachable_seconds)
        until = self.loop.time() + seconds
        known = self._away.get(name)
        if known is not None:
            if known[1] >= until:
                return
            known[0].cancel()
        self._away[name] = (self.loop.call_later(seconds, self._back, name), until)
        self.policy.left(name, self.loop.time())
        if not self.works:
            self.give_back()

    def _back(self, name: str) -> None:
        self._away.pop(name, None)
        slots = self.slots.get(name)
        if slots is not None:
            self.policy.joined(name, slots, self.loop.time())
            if self.line:
                self.serve()

    def _come_back(self, name: str) -> None:
        known = self._away.pop(name, None)
        if known is not None:
            known[0].cancel()

    def close(self) -> None:
        """Nobody is sent to anybody by this way any more."""
        for name in list(self._away):
            self._come_back(name)
        for one in self.subscriptions.values():
            one.stop()
        self.subscriptions.clear()
        self.slots = {}
        self.give_back()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def settings_of(shedding: Shedding) -> SheddingSettings:
    """What the queue says, as far as it makes sense."""
    return SheddingSettings(
        wait_target_seconds=max(0.0001, shedding.wait_target_seconds),
        length_max=max(1, shedding.length),
        holdback=min(max(0.0, shedding.holdback), 0.24),
        retry_share=max(0.0, shedding.retry_share),
        retries_per_second=max(0.0, shedding.retries_per_second),
    )
