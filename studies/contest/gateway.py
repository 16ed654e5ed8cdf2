"""A gateway of the contest: the real queue dispatcher between simulated clients and providers.

The roster, the passes and the queries are the model's; which worker gets a query, how long the line
may be, when a query is tried elsewhere and when it is refused is decided by
`maitred.dispatch.queue_dispatcher`, as in the product.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

from maitred.balancing.workers import worker_policy
from maitred.dispatch.dispatch_attempt import DispatchTotals
from maitred.dispatch.known_workers import KnownWorkers
from maitred.dispatch.queue_dispatcher import QueueDispatcher
from maitred.protocol.queries import Allocation, Member, Roster, SheddingTerms
from maitred.protocol.query_link import Load
from studies.contest.central import CentralLine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maitred.balancing.interface import RandomSource
    from maitred.balancing.workers import LoadReport, WorkerPolicy
    from maitred.dispatch.dispatch_attempt import DispatchAttempt
    from maitred.dispatch.roster_subscription import RosterSubscription
    from studies.contest.provider import Provider

UNREACHABLE_SECONDS = 30.0
"""As `Querying.unreachable_seconds`."""

NO_RETRIES = SheddingTerms(retry_share=0.0, retries_per_second=0.0)
"""For the policies that are only compared: what a worker refuses fails, as in the contest."""


class World(Protocol):
    """What queries tell of themselves, and who rings alarms."""

    now: float

    def send(self, query: Query, allocation: Allocation, now: float) -> None: ...
    def refuse(self, query: Query, now: float) -> None: ...
    def expire(self, query: Query, now: float) -> None: ...
    def wake_at(self, moment: float, act: Callable[[float], None]) -> Any: ...  # noqa: ANN401


class Query:
    """One question of a client, until it has its answer; as the queue dispatcher sees it."""

    __slots__ = (
        "asked_at",
        "attempt",
        "attempts",
        "claim",
        "deadline",
        "do_not_queue",
        "gateway",
        "life",
        "open",
        "pressed",
        "priority",
        "world",
    )

    def __init__(
        self,
        world: World,
        gateway: Gateway,
        asked_at: float,
        *,
        priority: int,
        deadline: float,
    ) -> None:
        self.world = world
        self.gateway = gateway
        self.asked_at = asked_at
        self.priority = priority
        self.deadline = deadline
        self.do_not_queue = not gateway.queues
        self.attempt: DispatchAttempt | None = None
        self.open = True
        self.life = -1
        """The provider's life in which it is inside of it; -1 if it is nowhere inside."""
        self.pressed = False
        """Whether others waited at its gateway when it was sent."""
        self.attempts = 0
        self.claim = 0
        """What its gateway had in flight to the same provider, this one included."""

    def allocated(self, allocation: Allocation, now: float) -> None:
        self.world.send(self, allocation, now)

    def refused_by_node(self, problem: object, now: float) -> None:  # noqa: ARG002
        self.world.refuse(self, now)

    def expired(self, now: float) -> None:
        self.world.expire(self, now)

    def ask_node(self, now: float) -> None:
        """There is no node in the model."""
        self.world.refuse(self, now)

    def ask_node_at_once(self, now: float) -> None:
        """There is no node in the model; it has no slot, and says so at once."""
        if self.attempt is not None:
            self.gateway.queue.queue(self.attempt, now)


class Gateway:
    """A queue dispatcher, and the passes of its one user."""

    def __init__(
        self, number: int, policy: str, random: RandomSource, world: World, *, queues: bool
    ) -> None:
        self.number = number
        self.queues = queues
        """Whether queries may wait here, and be tried elsewhere."""
        self.workers = KnownWorkers()
        self.queue = QueueDispatcher(
            ("contest", "contest"),
            policy,
            random=random,
            effects=world,
            workers=self.workers,
            totals=DispatchTotals(),
            unreachable_seconds=UNREACHABLE_SECONDS,
            now=0.0,
            new_policy=_policy,
        )
        self.queue.subscriptions[""] = self.subscription
        self.passes: dict[str, Allocation] = {}
        self.missing: frozenset[str] = frozenset()
        self.used_at = 0.0
        self._version = 0

    @property
    def subscription(self) -> RosterSubscription:
        """The gateway itself, which has the passes of its one user."""
        return cast("RosterSubscription", self)

    def refresh(self, now: float) -> None:
        """Passes are never forgotten in the model."""

    def learn(self, providers: Sequence[Provider], now: float) -> None:
        """The roster names these providers, with the slots that they announce."""
        self._version += 1
        members = [
            Member(one.session, one.name, one.name, one.announced, one.session) for one in providers
        ]
        self.passes = {
            one.session.hex(): Allocation(one.number, one.session, one.session, one.name, one.name)
            for one in providers
        }
        shedding = SheddingTerms() if self.queues else NO_RETRIES
        roster = Roster(self._version, self.queue.policy_name, members, shedding)
        self.queue.learn(roster, now)

    def told(self, provider: Provider, report: LoadReport, now: float) -> None:
        """A report came that did not come with an answer."""
        worker = self.workers.get(provider.session)
        if worker is not None:
            worker.reported(load_of(report), now)

    def link_ended(self, provider: Provider, now: float) -> None:
        """The connection to a provider broke."""
        worker = self.workers.get(provider.session)
        if worker is not None:
            worker.away(now)


def load_of(report: LoadReport) -> Load:
    """The report as workers send it."""
    return Load(
        report.number,
        report.limit,
        report.serving,
        report.waiting,
        report.mean_service_seconds,
        report.yours or 0,
        report.senders,
    )


def _policy(name: str, random: RandomSource) -> WorkerPolicy:
    return CentralLine(random) if name == "idle" else worker_policy(name, random)
