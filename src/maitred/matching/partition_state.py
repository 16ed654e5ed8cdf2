"""The state that the parts of a partition share: tasks, offers, and what has to be written."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from maitred.errors import InternalError
from maitred.matching.attempt_proofs import AttemptProofs
from maitred.matching.backlog import Backlog
from maitred.matching.controls import NO_CONTROLS, QueueControls, effective
from maitred.matching.hand_out import HandOut, always
from maitred.matching.later import LaterTasks
from maitred.matching.ledger import Ledger
from maitred.matching.limits import Limiter
from maitred.matching.measures import Waits
from maitred.matching.offers import Offers
from maitred.matching.presence import Presence
from maitred.matching.queue_meter import QueueMeter
from maitred.matching.records import SEQUENCES_PER_RANGE
from maitred.matching.secret_tokens import SecretTokens
from maitred.matching.shared_supplies import SharedSupplies
from maitred.matching.store_health import StoreHealth
from maitred.matching.stored_history import StoredHistory
from maitred.matching.task_history import EndedTasks, no_history
from maitred.matching.task_memory import TaskMemory
from maitred.matching.tasks_away import TasksAway
from maitred.matching.tickets import Tickets
from maitred.matching.timers import Timers
from maitred.matching.unread_segments import UnreadSegments
from maitred.matching.worker_sightings import WorkerSightings
from maitred.routing.tree import parent

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.balancing.interface import RandomSource
    from maitred.matching.effects import Effect
    from maitred.matching.quotas import Quota
    from maitred.matching.records import Acquired, PartitionKey
    from maitred.matching.running_attempts import Inheritance
    from maitred.matching.task import QueueTask
    from maitred.routing.counts import PartitionCounts
    from maitred.settings import Queue


def _no_secrets(_: int) -> bytes:
    raise InternalError("The partition was made without a source of secrets.")


@dataclass(eq=False, repr=False)
class PartitionState:
    """What a partition is made from, and the state that its parts work on. Every part takes from it
    what it needs when it is made."""

    key: PartitionKey
    acquired: Acquired
    """What the store had when this owner acquired the partition."""
    counts: PartitionCounts
    settings: Queue
    _: KW_ONLY
    random: RandomSource
    loaded_at: float
    """The loop's time when this state was made."""
    wall: float
    """What to add to the loop's time for the wall clock's."""
    signing_key: bytes
    """The store's key, with which partitions prove what they handed out."""
    secret: Callable[[int], bytes] = _no_secrets
    """Returns so many random bytes."""
    quotas: tuple[Quota, ...] = ()
    """Quotas of stored tasks; each of them has to have room for a new task."""
    memory: TaskMemory = field(default_factory=TaskMemory)
    supplies: SharedSupplies = field(default_factory=SharedSupplies)
    forwards: bool = True
    """Whether the partition has a parent in the tree, unless it is the root."""
    meter: QueueMeter = field(default_factory=QueueMeter)
    """Counts for operators; all partitions of a queue at this shard share it."""
    is_trusted: Callable[[], bool] = always
    """Returns whether this owner can be sure that there is no other one."""
    is_clustered: bool = False
    """Whether owners on several nodes follow each other."""
    inheritance: Inheritance | None = None
    """What the last owner told this one; None if it told nothing."""
    controls: QueueControls = NO_CONTROLS
    """What operators have changed while the queue runs."""
    ended_tasks: EndedTasks = field(default_factory=no_history)
    """Tasks that ended lately; they outlive this state on its shard."""

    def __post_init__(self) -> None:
        self.configured = self.settings
        """The settings without those that were set live."""
        self.settings = effective(self.configured, self.controls)
        self.limit_history()
        key, settings, acquired = self.key, self.settings, self.acquired
        children = settings.forwarding.children
        self.parent = parent(key.partition, children) if self.forwards else None
        self.is_root = self.parent is None
        self.first_sequence = acquired.range_id * SEQUENCES_PER_RANGE
        """Lower numbers were given out by earlier owners of the partition."""
        self.tasks: dict[int, QueueTask] = {}
        """Tasks in memory that the partition owns and that are not over, by their numbers."""
        self.hand_out = HandOut(self.is_trusted)
        self.hand_out.is_paused = self.controls.pause is not None
        self.effects: list[Effect] = []
        """What the shell is to do, in order."""
        self.timers = Timers()
        self.tickets = Tickets(self.effects)
        self.health = StoreHealth()
        self.ledger = Ledger(key, acquired.range_id, acquired.backlog, self.wall)
        stored = acquired.backlog > 0
        buffer = settings.buffer_tasks, settings.buffer_bytes
        self.backlog = Backlog(*buffer, self.first_sequence, self.memory, stored=stored)
        self.unread = UnreadSegments(self.backlog)
        self.later = LaterTasks(*buffer, self.memory, stored=stored)
        self.offers = Offers(key, self.supplies)
        self.presence = Presence(self.loaded_at, self.first_sequence, settings.queries.pass_seconds)
        self.worker_sightings = WorkerSightings(self.presence)
        self.waits = Waits(self.meter.waits)
        self.away = TasksAway(self.effects)
        self.tokens = SecretTokens(self.secret)
        self.proofs = AttemptProofs(self.signing_key, key)
        self.rate_limit: Limiter | None = None
        """The partition's share of what the queue may give out a second; None: no limit."""
        self.share_rate(self.loaded_at)
        for quota in self.quotas:
            quota.join(self.ledger)
        self.stored_history = StoredHistory(
            self.first_sequence, self.ledger, self.ended_tasks, self.quotas
        )

    def limit_history(self) -> None:
        """Keep as many tasks that are over, and for as long, as the present settings say."""
        history = self.settings.history
        self.ended_tasks.limit_to(history.tasks, history.seconds, is_stored=history.stored)

    def share_rate(self, now: float) -> None:
        """Set the partition's share of the rate, by the present settings and counts."""
        rate = self.settings.rate_per_second
        if rate is None:
            self.rate_limit = None
            return
        share = rate / self.counts.read
        if self.rate_limit is None:
            self.rate_limit = Limiter(share, share / 10, now)
        else:
            self.rate_limit.change(share, share / 10, now)
