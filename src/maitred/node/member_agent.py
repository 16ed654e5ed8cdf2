"""The member of the cluster that a node is: the shell around `membership/observer.py`.

It runs in the node's supervisor. It makes the calls of the membership table, one at a time; keeps
links to other members; answers their probes; and tells the supervisor each new view and how long
the lease may be trusted. What to do, and when, is decided by the observer.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from maitred.errors import CannotStart, MaitredError, OutcomeUnknown, StoreUnavailable
from maitred.membership.clock_watch import ClockWatch
from maitred.membership.member_effects import (
    AccuseMember,
    AdoptView,
    BecomeActive,
    ExtendLease,
    ProbeMember,
    ProbeOutcome,
    ReadTable,
    SendBeat,
    StopMember,
)
from maitred.membership.observer import Observer, without_common_version
from maitred.membership.timing import join_call_seconds, join_seconds, table_seconds
from maitred.membership.view import MemberState
from maitred.node.member_lines import ProbeAnswer, ProbeRequest, ReachAnswer
from maitred.node.member_link import LinkKey, MemberLinks, ProbeFailure, dial, unreached_ports
from maitred.node.member_listener import MemberListener
from maitred.node.member_log import MemberLog

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import Any

    from maitred.logs import Logger
    from maitred.membership.member_effects import MemberEffect
    from maitred.membership.table import Beats, MembershipTable, TableState
    from maitred.membership.view import ClusterMember, ClusterView
    from maitred.node.member_lines import MemberAnswer, MemberRequest
    from maitred.node.member_link import MemberLink
    from maitred.settings import ClusterSettings
    from maitred.surroundings import Surroundings

_Result = TypeVar("_Result")

GONE_SECONDS: Final = 3.0
"""The longest time for which a stopping member tries to enter its death into the table. If it does
not succeed, the others find out by its port or its missing heartbeats."""

OWN_DIALS: Final = 3
"""How often a node dials its own announced address before it gives up."""

HINDRANCES_SHOWN: Final = 3
"""How many reasons the error of a node that cannot join names."""

_AWAY = (StoreUnavailable, OutcomeUnknown, TimeoutError, OSError)


class _Answered(NamedTuple):
    """The answer to a call of the table, with the moment it was sent, by three clocks."""

    result: Any
    sent: float
    boot_sent: float
    wall_sent: float


class MemberAgent:
    """One start of one node as a member: `join`, perhaps `leave` and `undrain`, then `gone`."""

    def __init__(
        self,
        *,
        table: MembershipTable,
        me: ClusterMember,
        settings: ClusterSettings,
        surroundings: Surroundings,
        log: Logger,
        load: Callable[[], float],
        spread_batch: str,
        placement: str,
        on_view: Callable[[ClusterView], None],
        on_lease: Callable[[float], None],
        listen_host: str | None = None,
        listen_tls: ssl.SSLContext | None = None,
        dial_tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`load` returns the load of the node (1 is a full core). `on_view` gets each view, with
        rising versions, and `on_lease` the moment of the boot clock until which the lease may be
        trusted, 0 if this member is dead. The listener uses `listen_host`, by default the
        announced one. The agent closes the table."""
        self.dead = asyncio.Event()
        """Set when other members declared this one dead, or a later start replaced it."""
        self.clock = ClockWatch()
        """How far the node's wall clock is ahead of the database's."""
        self._table = table
        self._me = me
        self._settings = settings
        self._surroundings = surroundings
        self._log = MemberLog(log, me.id)
        self._load = load
        self._terms = (spread_batch, placement)
        self._on_view = on_view
        self._on_lease = on_lease
        self._listen_host = me.host if listen_host is None else listen_host
        self._listen_tls = listen_tls
        self._dial_tls = dial_tls
        self._observer = Observer(me, settings)
        self._calls = asyncio.Lock()
        """Held during a call of the table, which has one connection."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._links: MemberLinks | None = None
        self._listener: MemberListener | None = None
        self._key: LinkKey | None = None
        self._known: tuple[str, ...] = ()
        self._admitted: asyncio.Future[ClusterView] | None = None
        self._entered = False
        """Whether this member is, or may be, in the table."""
        self._began = False
        """Whether the observer decides."""
        self._closed = False

    @property
    def view(self) -> ClusterView | None:
        """The newest view; None before the member has joined."""
        return self._observer.view

    # For the supervisor

    async def join(self) -> ClusterView:
        """Enter the cluster, and return the first view in which this member is active; raise
        `CannotStart` if it is not admitted, and `StoreUnavailable` if the table is away for too
        long."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + join_seconds(self._settings)
        try:
            secret = (await self._until(deadline, self._table.secret)).result
            state = (await self._until(deadline, self._table.read)).result
            self._check(state.view)
            await self._open(secret, state.view)
            await self._until(deadline, lambda: self._table.listen(self._changed))
            self._entered = True
            # The table may watch for some seconds whether another node uses the address.
            joined = await self._until(
                deadline,
                lambda: self._table.join(self._me, *self._terms),
                seconds=join_call_seconds(self._settings),
            )
            self._check(joined.result.view)
            self._admitted = loop.create_future()
            self._began = True
            self._observer.joined(joined.result, joined.sent, loop.time())
            self._turn()
            return await self._admission(deadline)
        except BaseException:
            await self.gone()
            raise

    async def leave(self) -> None:
        """Leave the ring: from active to draining. Return when the new view is adopted, or when
        this member is dead; database outages are waited out."""
        await self.move(self._me.id, MemberState.ACTIVE, MemberState.DRAINING)

    async def undrain(self) -> None:
        """Return into the ring: from draining to active."""
        await self.move(self._me.id, MemberState.DRAINING, MemberState.ACTIVE)

    async def move(self, id_: str, before: MemberState, after: MemberState) -> ClusterView | None:
        """Change the state of any member, as an operator asks, if it is still `before`; return the
        view after it. Database outages are waited out."""
        loop = asyncio.get_running_loop()
        while not self.dead.is_set() and not self._closed:
            try:
                answered = await self._call(lambda: self._table.change(id_, before, after))
            except _AWAY as problem:
                self._log.table_away(problem, loop.time())
                await asyncio.sleep(self._settings.beat_seconds)
            else:
                self._observer.table_read(answered.result, answered.sent, loop.time())
                self._turn()
                break
        return self.view

    async def gone(self) -> None:
        """Enter the own death into the table, within a bounded time, and close."""
        self._began = False  # the observer decides nothing more
        self._stop_turning()
        if self._entered and not self.dead.is_set() and not self._closed:
            try:
                async with asyncio.timeout(GONE_SECONDS):
                    await self._enter_death()
            except TimeoutError as problem:
                self._log.table_away(problem, asyncio.get_running_loop().time())
        await self.close()

    async def close(self) -> None:
        """Stop without a word to the table; all ports and links are closed."""
        if self._closed:
            return
        self._closed = True
        self._stop_turning()
        await self._stop_tasks()
        if self._listener is not None:
            self._listener.close()
        if self._links is not None:
            self._links.close()
        try:
            async with asyncio.timeout(GONE_SECONDS):
                await self._table.close()
        except _AWAY as problem:
            self._log.table_away(problem, asyncio.get_running_loop().time())

    # Joining

    def _check(self, view: ClusterView) -> None:
        if view.cluster != self._settings.name:
            raise CannotStart(
                f"The database belongs to the cluster {view.cluster}, and this node to "
                f"{self._settings.name}.",
                remedy="Correct `store` or `cluster.name`.",
            )
        other = without_common_version(self._me, view)
        if other is not None:
            theirs, ours = (", ".join(map(str, one.versions)) for one in (other, self._me))
            raise CannotStart(
                f"Node {other.name} (release {other.release}) speaks the protocol versions "
                f"{theirs}, and this node {ours}.",
                remedy="Upgrade in steps: neighbouring releases have a version in common.",
            )

    async def _open(self, secret: bytes, view: ClusterView) -> None:
        """Listen for other members, and see whether this node is reached where it announces."""
        random_bytes = self._surroundings.secret
        self._known = tuple(one.id for one in view.members)
        self._key = LinkKey(secret, random_bytes, lambda: self._known, self._dial_tls)
        self._links = MemberLinks(self._key, self._link_lost)
        self._listener = MemberListener(
            member=self._me.id, cluster_secret=secret, random_bytes=random_bytes, desk=self
        )
        port = self._me.member_port
        await self._listener.start(self._listen_host, port, self._listen_tls)
        for left in reversed(range(OWN_DIALS)):
            found = await dial(self._key, self._me, _ignore_end)
            if not isinstance(found, ProbeFailure):
                found.abort()
                return
            if not left:
                raise self._not_here(found)
            await asyncio.sleep(self._settings.beat_seconds / 2)

    def _not_here(self, found: ProbeFailure) -> CannotStart:
        address = f"{self._me.host}:{self._me.member_port}"
        if found.outcome is ProbeOutcome.WRONG_MEMBER:
            sentence = f"Another node of the cluster announces the address {address} of this node."
        elif found.outcome is ProbeOutcome.STRANGER:
            sentence = (
                f"This node announces {address}, and the process that answers there does not know "
                f"the secret of the cluster {self._settings.name}: it belongs to another cluster, "
                "or is no node at all."
            )
        else:
            sentence = f"This node announces {address}, and is not reached there: {found.detail}."
        return CannotStart(
            sentence, remedy="Set `cluster.announce` to an address at which others reach this node."
        )

    async def _admission(self, deadline: float) -> ClusterView:
        if self._admitted is None:
            raise CannotStart("This node has not asked to join.")
        try:
            async with asyncio.timeout_at(deadline):
                return await self._admitted
        except TimeoutError:
            reasons = self._observer.hindrances() or ["The table did not confirm it in time."]
            more = len(reasons) - HINDRANCES_SHOWN
            text = " ".join(reasons[:HINDRANCES_SHOWN]) + (f" And {more} more." if more > 0 else "")
            raise CannotStart(
                f"This node cannot join the cluster {self._settings.name}. {text}",
                remedy="Every active node and this one have to reach each other at all announced "
                "ports: see `cluster.announce`, firewalls and routes. A node that is down is "
                "declared dead by the others.",
            ) from None

    async def _until(
        self,
        deadline: float,
        call: Callable[[], Awaitable[_Result]],
        *,
        seconds: float | None = None,
    ) -> _Answered:
        """Repeat a call of the table, of at most `seconds` each, until it succeeds; raise
        `StoreUnavailable` when the time is over."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return await self._call(call, seconds)
            except _AWAY as problem:
                self._log.table_away(problem, loop.time())
                if loop.time() >= deadline:
                    raise StoreUnavailable(
                        f"The membership table in the database cannot be used: "
                        f"{str(problem) or 'it does not answer.'}",
                        remedy="Start the node again when the database is up.",
                    ) from problem
            await asyncio.sleep(self._settings.beat_seconds)

    async def _enter_death(self) -> None:
        state = self._observer.state
        while state is not MemberState.DEAD:
            change = partial(self._table.change, self._me.id, state, MemberState.DEAD)
            try:
                answered = await self._call(change)
            except _AWAY:  # the caller logs it when the time is over
                await asyncio.sleep(self._settings.beat_seconds / 4)
                continue
            own = answered.result.view.member(self._me.id)
            state = MemberState.DEAD if own is None else own.state

    # Turns: what the observer decides is carried out

    def _turn(self) -> None:
        """Carry out the observer's decisions, and come back when the next ones are due."""
        if self._closed or not self._began:
            return
        self._stop_turning()
        loop = asyncio.get_running_loop()
        try:
            for effect in self._observer.tick(loop.time()):
                self._carry_out(effect)
        finally:
            if not self.dead.is_set() and not self._closed:
                at = self._observer.next_at(loop.time())
                self._timer = loop.call_at(at, self._turn)

    def _soon(self) -> None:
        """Take a turn in this iteration of the loop: something has happened."""
        if self._began and not self._closed and not self.dead.is_set():
            self._stop_turning()
            self._timer = asyncio.get_running_loop().call_later(0, self._turn)

    def _stop_turning(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _carry_out(self, effect: MemberEffect) -> None:
        if isinstance(effect, AdoptView):
            self._adopt(effect)
        elif isinstance(effect, ExtendLease):
            self._on_lease(effect.until)
        elif isinstance(effect, StopMember):
            self._stop(effect)
        elif isinstance(effect, ProbeMember):
            self._start(self._probe(effect))
        else:
            self._start(self._ask_table(effect))

    def _adopt(self, effect: AdoptView) -> None:
        view = effect.view
        self._known = tuple(one.id for one in view.members)
        self._log.adopted(effect)
        if self._links is not None:
            self._links.keep(self._observer.linked_ids())
        waits = self._admitted is not None and not self._admitted.done()
        if self._admitted is not None and waits and self._observer.state is not MemberState.JOINING:
            self._admitted.set_result(view)
        self._on_view(view)

    def _stop(self, effect: StopMember) -> None:
        self._log.stopped(effect.reason)
        self.dead.set()
        if self._links is not None:
            self._links.close()
        if self._admitted is not None and not self._admitted.done():
            self._admitted.set_exception(
                CannotStart(
                    f"This node was declared dead while it joined: {effect.reason}.",
                    remedy="See whether another node announces the same address.",
                )
            )
            self._admitted.exception()  # counts as seen, should `join` have been cancelled
        self._on_lease(0.0)

    async def _probe(self, effect: ProbeMember) -> None:
        loop = asyncio.get_running_loop()
        member, links = effect.member, self._links
        if links is None:
            return
        failure = await links.probe(member)
        unreached: tuple[int, ...] | None = None
        if failure is None and effect.and_back:
            unreached = await links.unreached_by(member, self._me.id)
        outcome, detail = failure or (ProbeOutcome.REACHED, "")
        if failure is not None:
            self._log.unreachable(member, failure, loop.time())
        self._observer.probed(member.id, outcome, loop.time(), detail=detail, unreached=unreached)
        self._soon()

    async def _ask_table(self, effect: SendBeat | ReadTable | AccuseMember | BecomeActive) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        if isinstance(effect, AccuseMember):
            self._log.accuses(effect)
        try:
            answered = await self._call(lambda: self._called(effect))
        except (MaitredError, OSError) as problem:
            self._observer.table_failed(effect, began, loop.time())
            self._log.table_away(problem, loop.time())
            self._soon()
            return
        self._log.table_back(loop.time())
        result, sent, boot_sent, wall_sent = answered
        if isinstance(effect, SendBeat):
            self._look_at_clock(result, wall_sent)
            self._observer.beat_answered(result, sent, boot_sent, loop.time())
        elif isinstance(effect, AccuseMember):
            self._observer.accused(effect, result, sent, loop.time())
        else:
            self._observer.table_read(result, sent, loop.time())
        self._soon()

    def _called(
        self, effect: SendBeat | ReadTable | AccuseMember | BecomeActive
    ) -> Coroutine[Any, Any, Beats | TableState]:
        table, me = self._table, self._me.id
        if isinstance(effect, SendBeat):
            ahead = self.clock.ahead_seconds if self.clock.is_measured else None
            return table.beat(me, self._load(), ahead)
        if isinstance(effect, ReadTable):
            return table.read()
        if isinstance(effect, BecomeActive):
            return table.change(me, MemberState.JOINING, MemberState.ACTIVE)
        return table.accuse(
            me,
            effect.member.id,
            beat=effect.beat,
            version=effect.version,
            needed=effect.needed,
        )

    async def _call(
        self, call: Callable[[], Awaitable[Any]], seconds: float | None = None
    ) -> _Answered:
        """Make one call of the table when the one before is over; bounded in time."""
        loop = asyncio.get_running_loop()
        boot_clock = self._surroundings.boot_clock or loop.time
        async with self._calls:
            sent, boot_sent = loop.time(), boot_clock()
            wall_sent = self._surroundings.wall_clock()
            async with asyncio.timeout(seconds or table_seconds(self._settings)):
                return _Answered(await call(), sent, boot_sent, wall_sent)

    def _look_at_clock(self, beats: Beats, wall_sent: float) -> None:
        if beats.now is None:
            return
        self.clock.measured(beats.now, wall_sent, self._surroundings.wall_clock())
        self._log.clock(self.clock, asyncio.get_running_loop().time())

    # Events

    def _changed(self) -> None:
        self._observer.changed()
        self._soon()

    def _link_lost(self, id_: str) -> None:
        self._observer.link_lost(id_, asyncio.get_running_loop().time())
        self._soon()

    async def answer(self, request: MemberRequest) -> MemberAnswer:
        """Answer another supervisor that has proved itself."""
        if isinstance(request, ProbeRequest):
            version = self.view.version if self.view is not None else 0
            return ProbeAnswer(self._me.id, self._settings.name, version)
        joining = self._observer.asked_back(request.member)
        if joining is None or self._key is None:
            self._soon()  # it reads the table
            return ReachAnswer(known=False)
        return ReachAnswer(known=True, unreached=await unreached_ports(self._key, joining))

    # Tasks

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            # A fault of the program: the loop's handler reports it, and the supervisor goes on.
            asyncio.get_running_loop().call_exception_handler(
                {"message": "A task of the membership failed", "exception": problem, "task": task}
            )

    async def _stop_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _ignore_end(link: MemberLink) -> None:
    """Ignore the end of a link that was only made to see whether it can be made."""
