"""Asking queries: a gateway as a library.

Every door uses this, and so does a client that asks for itself. A query is entered into the table,
waits for a slot, goes straight to the worker that has it, and comes to exactly one end: the result,
the rows of a stream, or an error that says which end it was.

Deadlines have one timer, set to the earliest, as everywhere: most queries are over long before
theirs.
"""

from __future__ import annotations

import asyncio
from inspect import isawaitable
from math import inf
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec.structs import replace

from maitred.client.allocating import Allocating, check_priority
from maitred.client.answers import Rows, Whole
from maitred.client.directing import Directing
from maitred.client.links import Links
from maitred.client.refusals import Refusals
from maitred.client.relaying import Relaying
from maitred.client.router import closed
from maitred.client.running import Running
from maitred.client.watching import Watching
from maitred.dispatch.admission import Admission
from maitred.dispatch.hung_workers import HungWorkers
from maitred.dispatch.query_states import Accident, Stage
from maitred.dispatch.query_table import QueryTable
from maitred.dispatch.warm_slots import WarmSlots
from maitred.errors import (
    Closed,
    DeadlineExceeded,
    InternalError,
    MaitredError,
    PayloadTooLarge,
)
from maitred.protocol.queries import Suspect
from maitred.routing.names import TASKS
from maitred.wire.alarm import TIMER_SLACK_SECONDS
from maitred.wire.complaints import Complaints

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from maitred.client.client import AsyncClient
    from maitred.client.seats import SeatLink
    from maitred.dispatch.ask import Ask
    from maitred.dispatch.hung_workers import Place
    from maitred.protocol.queries import Allocation
    from maitred.settings import Queries, QueryLimits
    from maitred.settings import Querying as Settings
    from maitred.surroundings import Surroundings

    Hook = Callable[[Ask], Ask | Awaitable[Ask]]

__all__ = ["Querying", "Rows", "Running", "Whole"]

LOOK_SECONDS: Final = 0.005
"""Least time between two looks at everybody's deadline."""

AGAIN_FIRST_SECONDS: Final = 0.02
AGAIN_LONGEST_SECONDS: Final = 1.0
"""Before a query is asked for a third time and more: whoever refused it twice may refuse it again.
The second time is at once."""

SUSPECT_SECONDS: Final = 5.0

_WITHOUT_WORKER: Final = (Stage.WAITING, Stage.SEATING)


class Log(Protocol):
    """Where a gateway says what a person should know."""

    def info(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401 - anything
    def warning(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401 - anything


class Querying:
    """One for each client. Make it on the running loop."""

    def __init__(
        self,
        client: AsyncClient,
        settings: Settings,
        surroundings: Surroundings,
        log: Log | None = None,
        name: str = "",
        hook: Hook | None = None,
        limits: Callable[[str], QueryLimits | None] | None = None,
        queue_limits: Callable[[str, str], Queries | None] = lambda _, __: None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.client = client
        self.settings = settings
        self.name = name
        self.session = surroundings.secret(16)
        """This gateway, from its start to its end."""
        self.table = QueryTable(settings, self.session.hex()[:8], name)
        self.admission = None if limits is None else Admission(limits, queue_limits)
        self.wall_clock = surroundings.wall_clock
        self.window_bytes = settings.window_bytes
        self.frame_bytes = client.settings.frame_bytes
        self.directing = Directing(
            client,
            self.session,
            surroundings.random,
            self.loop,
            settings.unreachable_seconds,
            self._ask_the_node,
            self._ask_at_once,
        )
        self.links = Links(
            settings,
            self.frame_bytes,
            name,
            self._hung,
            self._stray,
            self.directing.reported,
            self.directing.link_ended,
            self._link_refused,
            surroundings.secret,
            encrypted=client.encrypted,
        )
        self.hung = HungWorkers(settings.unreachable_seconds)
        """Workers that do not answer."""
        self._refusals = Refusals(client, self.spawn)
        self._warm = WarmSlots()
        self._allocating = Allocating(
            client, self.session, surroundings.random, self._surplus, self.directing.learned
        )
        self._watching = Watching(client, self)
        self._watches = False
        self._hook = hook
        self._log = log
        self._complaints = None if log is None else Complaints(self.loop, log)
        self.links_refused = 0
        """Connections to workers that were given up because of what answered there."""
        self._random = surroundings.random
        self._under_way: dict[int, Running] = {}
        self._pauses: dict[Running, asyncio.TimerHandle] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._payload_bytes = 0
        self._closed = False
        self._quiet: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<Querying {self.table.gateway}, {len(self._under_way)} queries under way>"

    # Asking

    def begin(self, ask: Ask) -> Running:
        """Have it answered; raises what is refused at once."""
        if self._closed:
            raise closed()
        if not self._watches:
            self._watches = True
            self._watching.start()
        now = self.loop.time()
        table = self.table
        if table.under_way >= table.most_under_way:
            table.check_room()
        entry = table.enter(ask, self.wall_clock())
        running = Running(self, ask, entry, now)
        try:
            if self.admission is not None:
                self.admission.enter(*running.counted, now)
        except MaitredError as problem:
            table.fail(entry, "refused", _text(problem), self.wall_clock())
            raise
        self._under_way[entry.sequence] = running
        try:
            if self._hook is None:
                self._wait_for_a_slot(running, ask)
            else:
                self._call_hook(running, self._hook)
            if running.deadline <= now:
                raise DeadlineExceeded("The query's time was over before it began.")
        except MaitredError as problem:
            late = isinstance(problem, DeadlineExceeded)
            running.happen(Accident.DEADLINE if late else Accident.REFUSED, problem)
            raise
        if running.deadline < self._timer_at:
            self._set_timer(running.deadline)
        return running

    def cancel(self, sequence: int) -> bool:
        """Cancel the query of that number; False if it is over, or never was."""
        running = self._under_way.get(sequence)
        if running is None:
            return False
        running.cancel()
        return True

    @property
    def closed(self) -> bool:
        """Whether nothing more can be asked."""
        return self._closed

    @property
    def under_way(self) -> int:
        """Queries that are not over."""
        return len(self._under_way)

    @property
    def waiting(self) -> int:
        """Those of them that have no worker yet."""
        return sum(one.stage in _WITHOUT_WORKER for one in self._under_way.values())

    async def close(self, within: float = 0.0) -> None:
        """Take nothing new, wait so long for what is under way, then end it all."""
        self._closed = True
        if self._under_way and within > 0:
            self._quiet = self.loop.create_future()
            await asyncio.wait([self._quiet], timeout=within)
        for running in list(self._under_way.values()):
            running.happen(Accident.REFUSED, Closed("The client was closed."))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._allocating.close()
        self.directing.close()
        for task in list(self._tasks):
            task.cancel()
        await self._watching.stop()
        await self.links.close()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    # Before a slot is asked for

    def _call_hook(self, running: Running, hook: Hook) -> None:
        try:
            made = hook(running.ask)
        except MaitredError:
            raise
        except Exception as problem:
            raise self._hook_failed(problem) from problem
        if isawaitable(made):
            self.spawn(self._after_hook(running, made))
        else:
            self._hooked(running, made)

    async def _after_hook(self, running: Running, made: Awaitable[Ask]) -> None:
        try:
            ask = await made
            if not running.over:
                self._hooked(running, ask)
        except MaitredError as problem:
            running.happen(Accident.REFUSED, problem)
        except Exception as problem:  # noqa: BLE001 - somebody else's code
            running.happen(Accident.REFUSED, self._hook_failed(problem))
        except BaseException:
            running.cancel()
            raise

    def _hooked(self, running: Running, ask: Ask) -> None:
        # Whose it is, and how long it may take, is not the hook's to say.
        ask.user, ask.connection = running.counted[0], running.entry.connection
        running.ask = ask
        self.table.changed(running.entry, ask)
        self._wait_for_a_slot(running, ask)

    def _hook_failed(self, problem: Exception) -> InternalError:
        if self._log is not None:
            self._log.warning("the hook for queries failed", error=repr(problem))
        return InternalError("The gateway's hook for queries failed; the query was not begun.")

    def _wait_for_a_slot(self, running: Running, ask: Ask) -> None:
        check_priority(ask.priority)  # before anything takes 2.0 or True for one that it knows
        if len(ask.payload) > self._payload_bytes:
            self._check_size(ask.payload)
        if not self.directing.takes(running):
            self._ask_the_node(running)

    def _ask_the_node(self, running: Running) -> None:
        ask = running.ask
        allocating = self._allocating
        namespace, queue, user = ask.namespace, ask.queue, ask.user
        line = allocating.lines.get(
            (namespace, queue, ask.priority, user, ask.do_not_queue, False)
        ) or allocating.line(namespace, queue, ask.priority, user, do_not_queue=ask.do_not_queue)
        if not running.tries and not line.demand.by_query:
            warm = self._warm.take((namespace, queue, user), self.loop.time())
            if warm is not None:
                running.allocated(warm, warm=True)
                return
        allocating.add(line, running)

    def _ask_at_once(self, running: Running) -> None:
        ask = running.ask
        allocating = self._allocating
        line = allocating.line(
            ask.namespace, ask.queue, ask.priority, ask.user, do_not_queue=True, at_once=True
        )
        allocating.add(line, running)

    def keep_warm(self, running: Running, token: bytes, seconds: float) -> None:
        """Its slot may be used once more, for a moment."""
        ask = running.ask
        key = (ask.namespace, ask.queue, ask.user)
        waiting = self._allocating.first(key)
        if waiting is not None:
            # Whoever waits here has asked already; what comes of that goes to the next.
            self._allocating.remove(waiting)
            waiting.allocated(replace(running.allocation, token=token), warm=True)
            return
        self._warm.keep(key, running.allocation, token, seconds, self.loop.time())

    def _check_size(self, payload: bytes) -> None:
        known = [node.payload_bytes for node in self.client.nodes() if node.node is not None]
        self._payload_bytes = min(known, default=0)
        if known and len(payload) > self._payload_bytes:
            raise PayloadTooLarge(
                f"Arguments of {len(payload):,} bytes are more than the {self._payload_bytes:,} "
                "that the node allows for a query.",
                remedy="Put them into a store and send a reference, or raise limits.payload_bytes.",
            )

    # For queries on their way

    def ask_again(self, running: Running) -> None:
        """It needs another slot, as old as it is."""
        if self.directing.again(running):
            return
        if running.tries <= 1:
            self._wait_again(running)
            return
        pause = min(AGAIN_LONGEST_SECONDS, AGAIN_FIRST_SECONDS * 2 ** min(running.tries - 2, 30))
        pause *= 0.5 + 0.5 * self._random.random()
        self._pauses[running] = self.loop.call_later(pause, self._wait_again, running)

    def _wait_again(self, running: Running) -> None:
        self._pauses.pop(running, None)
        if not self.directing.takes(running):
            self.directing.by_the_node(running)

    def left(self, running: Running, *, waited: bool) -> None:
        """It is over."""
        self._under_way.pop(running.sequence, None)
        if running.line is not None:
            self._allocating.remove(running)
        if running.turn is not None:
            running.turn.floor.leave(running.turn)
        if self._pauses:
            pause = self._pauses.pop(running, None)
            if pause is not None:
                pause.cancel()
        if self.admission is not None:
            self.admission.leave(*running.counted, waited=waited)
        if self._quiet is not None and not self._under_way and not self._quiet.done():
            self._quiet.set_result(None)

    def relay(self, running: Running) -> None:
        """Its worker cannot be reached directly: have the node carry it."""
        relaying = Relaying(self.client, running, running.allocation, self.window_bytes, self.loop)
        try:
            relaying.begin(running.seat(self.loop.time()))
        except MaitredError as problem:
            running.refused(problem)
            return
        running.sent(relaying, relayed=True)

    def cannot_reach(self, allocation: Allocation, *, for_long: bool) -> None:
        """A worker that was picked here is not where it was said to be."""
        seconds = self.settings.unreachable_seconds if for_long else None
        self.directing.unreachable(allocation.session, seconds)

    def spawn(self, running: Coroutine[Any, Any, None]) -> None:
        """Something that goes on by itself, until the end at most."""
        task = self.loop.create_task(running)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def _surplus(self, allocation: Allocation) -> None:
        if not self._closed or self.links.has(allocation):
            self.links.get(allocation, _Surplus(allocation.token))

    # Workers that are not as they should be

    def _hung(self, link: SeatLink) -> None:
        places: dict[Place, None] = {}
        worker = ""
        for guest in link.streams.values():
            if isinstance(guest, Running):
                worker = guest.allocation.worker
                places[(guest.ask.namespace, guest.ask.queue, guest.allocation.partition)] = None
        if self._log is not None:
            self._log.warning("a worker hangs", worker=worker, session=link.session.hex()[:8])
        self.hung.found(link.session, set(places), self.loop.time())
        for place in places:
            self.suspect(place, link.session)

    def still_hangs(self, place: Place, allocation: Allocation) -> bool:
        """Whether this slot is of a worker that hangs, and its partition did not know."""
        session = allocation.session
        if self.links.has(allocation) or not self.hung.is_news(session, place, self.loop.time()):
            return False
        self.suspect(place, session)
        return True

    def suspect(self, place: Place, session: bytes) -> None:
        """Tell this partition that the worker does not answer."""
        if not self._closed:
            self.spawn(self._suspect(place, session))

    async def _suspect(self, place: Place, session: bytes) -> None:
        namespace, queue, partition = place
        try:
            message = Suspect(namespace, queue, TASKS, partition, 0, session)
            await self.client.request(message, SUSPECT_SECONDS)
        except MaitredError:
            return  # the node finds out by itself when the worker's presence is over

    def slot_refused(self, place: Place, allocation: Allocation) -> None:
        """Tell this partition that the worker did not take a slot which it had offered."""
        if not self._closed:
            self._refusals.add(place, allocation)

    def _link_refused(self, allocation: Allocation, problem: MaitredError) -> None:
        self.links_refused += 1
        if self._complaints is not None:
            peer = f"{allocation.worker} at {allocation.address.partition('#')[0]}"
            self._complaints.say("a connection to a worker was refused", peer, problem)

    def _stray(self, link: SeatLink) -> None:
        if self._log is not None:
            self._log.warning("a worker answered what nobody asked", session=link.session.hex()[:8])

    # Deadlines

    def _set_timer(self, moment: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = moment
        self._timer = self.loop.call_at(moment, self._look_at_deadlines)

    def _look_at_deadlines(self) -> None:
        self._timer, self._timer_at = None, inf
        now = self.loop.time()
        slack = now + TIMER_SLACK_SECONDS
        for running in [one for one in self._under_way.values() if one.deadline <= slack]:
            running.expired()
        earliest = min((one.deadline for one in self._under_way.values()), default=inf)
        if earliest < self._timer_at < inf or (earliest < inf and self._timer is None):
            self._set_timer(max(earliest, now + LOOK_SECONDS))


class _Surplus:
    """A slot that nobody needs: given back at once if the worker can be told."""

    __slots__ = ("_token",)

    def __init__(self, token: bytes) -> None:
        self._token = token

    def linked(self, link: SeatLink) -> None:
        link.release(self._token)

    def unreachable(self) -> None:
        """Then it is free again when the reservation is over."""

    def gone(self, why: str) -> None:
        """Then there is no slot."""


def _text(problem: MaitredError) -> str:
    return f"{problem.code}: {problem.sentence}"
