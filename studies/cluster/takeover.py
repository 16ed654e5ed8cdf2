"""Lets the shards that get the most and the median number of partitions of a lost node load them,
with the production code in virtual time: `PartitionMoves`, `Loader` and `Takeovers`.

The store takes a fixed time for each call, however many there are. The processor time of the shard
does not count in virtual time; the time to compute the owners is measured in `spread.py`. A
partition counts as loaded when the store has given it to its new owner.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from random import Random
from statistics import median_low
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID

from maitred.errors import InternalError
from maitred.matching.records import Acquired, PartitionKey
from maitred.node.ownership import PartitionMoves
from maitred.node.partition_loader import GROUP, Loader
from maitred.node.shard_place import ShardPlace
from maitred.node.takeover import Takeovers
from maitred.settings import Limits
from maitred.simulation.scenarios.record import ErrorLog
from maitred.simulation.world import World
from maitred.store.interface import LastOwner
from studies.cluster.spread import ShardOwner, owners, study_keys, study_view, without

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from maitred.membership.view import ClusterView
    from maitred.store.interface import Acquisition
    from studies.cluster.settings import ClusterStudySettings

SERVER_AT_ONCE = 8
"""Calls that a database of eight cores works on at once, for the lower bound of the last column."""


@dataclass(frozen=True, slots=True)
class Takeover:
    """How long the partitions of a lost node take to be loaded, from the view on."""

    nodes: int
    with_work: float
    """Share of the partitions that have stored tasks."""
    acquire_ms: float
    lost: int
    """Partitions of the lost node that have work."""
    most_of_a_shard: int
    """The most of them that one shard gets."""
    slowest_seconds: float
    """Until the last partition is loaded, if the store is as quick for many shards as for one."""
    median_seconds: float
    """The same for the shard that gets the median number."""
    commits: int
    """Groups that all shards acquire."""
    server_seconds: float
    """The shortest time in which a server that works on `SERVER_AT_ONCE` calls does all of them;
    computed."""
    listed_rows: int
    """Rows with tasks that the shards of all nodes read to find out which of them are theirs."""


class _LostStore:
    """The store after one node was lost: its partitions were not left in order."""

    def __init__(
        self, keys: list[PartitionKey], lost: str, *, read_seconds: float, acquire_seconds: float
    ) -> None:
        self._keys = keys
        self._lost = lost
        self._read_seconds = read_seconds
        self._acquire_seconds = acquire_seconds
        self.acquired_at: dict[PartitionKey, float] = {}

    async def partitions_with_tasks(self) -> list[PartitionKey]:
        return self._keys

    async def owners(self, group: Sequence[PartitionKey]) -> dict[PartitionKey, LastOwner]:
        await asyncio.sleep(self._read_seconds)
        return dict.fromkeys(group, LastOwner(1, self._lost))

    async def acquire(self, group: Sequence[Acquisition]) -> list[Acquired]:
        await asyncio.sleep(self._acquire_seconds)
        now = asyncio.get_running_loop().time()
        for one in group:
            self.acquired_at[one.key] = now
        return [Acquired(2, None, 1, clean=False) for _ in group]


class _LoadedPartition(NamedTuple):
    """A partition that the shard has, as `PartitionMoves` looks at it."""

    acquired: Acquired
    leaving: bool = False


class _LoadingShard:
    """A shard as the production code that loads partitions uses it; it has all partitions of its
    own, and gets those of the lost node."""

    def __init__(
        self, place: ShardPlace, view: ClusterView, wanted: set[PartitionKey], store: _LostStore
    ) -> None:
        self.place = place
        self.number = place.number
        self.view = view
        self.limits = Limits()
        self.draining = False
        self.loop = asyncio.get_running_loop()
        self.complaints: list[str] = []
        self.log = ErrorLog(self.complaints)
        self.view_listeners: list[Any] = []
        self.owned: dict[PartitionKey, _LoadedPartition] = {}
        self.store = store
        self.handovers = None
        self._wanted = wanted
        self._tasks: set[asyncio.Task[None]] = set()
        shard, used = cast("Any", self), cast("Any", store)
        self.loader = Loader(shard, used, {}, _ignore_silence, Takeovers(shard, used))

    @property
    def shard(self) -> _LoadingShard:
        return self

    def spawn(self, running: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(running)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def owner_of(self, message: Any) -> int:  # noqa: ANN401 - any request to a partition
        key = PartitionKey(message.namespace, message.queue, message.queue_type, message.partition)
        return self.number if key in self._wanted else self.place.shards

    def trusted(self) -> bool:
        return True

    async def question(self, message: Any, seconds: float = 0.0) -> Any:  # noqa: ANN401, ARG002
        """Load a partition: the request of `PartitionMoves` to the own shard."""
        key = PartitionKey(message.namespace, message.queue, message.queue_type, message.partition)
        found = await self.loader.find(key)
        if found is None:
            raise InternalError(f"The partition {key} does not exist.")
        self.owned[key] = _LoadedPartition(found)
        return found


def takeovers_of(settings: ClusterStudySettings, nodes: int) -> list[Takeover]:
    """Lose one node, and measure each store and each share of partitions with work."""
    keys = study_keys(settings)
    view = study_view(nodes, settings.shards)
    random = Random(settings.seed)
    lost = random.choice(view.members).id
    after = without(view, lost)
    before = owners(view, keys)
    placed = owners(after, keys)
    measured = []
    for share in settings.with_work:
        with_work = random.sample(range(len(keys)), max(1, round(share * len(keys))))
        listed = [keys[at] for at in sorted(with_work)]
        got: dict[ShardOwner, set[PartitionKey]] = {}
        for at in with_work:
            if before[at].member == lost:
                got.setdefault(placed[at], set()).add(keys[at])
        counts = Counter({owner: len(some) for owner, some in got.items()})
        shards = settings.shards * len(after.members)
        every = [0] * (shards - len(counts)) + list(counts.values())
        most = max(every)
        commits = sum(-(-count // GROUP) for count in counts.values())
        for ms in settings.acquire_ms:
            took = {}
            for count in {most, median_low(every)}:
                store = _LostStore(
                    listed,
                    lost,
                    read_seconds=settings.read_ms / 1_000,
                    acquire_seconds=ms / 1_000,
                )
                took[count] = _load_seconds(_of_size(got, count), store, after, settings.seed)
            calls_seconds = commits * (ms + settings.read_ms) / 1_000
            measured.append(
                Takeover(
                    nodes=nodes,
                    with_work=share,
                    acquire_ms=ms,
                    lost=sum(every),
                    most_of_a_shard=most,
                    slowest_seconds=took[most],
                    median_seconds=took[median_low(every)],
                    commits=commits,
                    server_seconds=calls_seconds / SERVER_AT_ONCE,
                    listed_rows=shards * len(listed),
                )
            )
    return measured


def _of_size(
    got: dict[ShardOwner, set[PartitionKey]], count: int
) -> tuple[ShardOwner, set[PartitionKey]] | None:
    return next((one for one in sorted(got.items()) if len(one[1]) == count), None)


def _load_seconds(
    taken: tuple[ShardOwner, set[PartitionKey]] | None,
    store: _LostStore,
    view: ClusterView,
    seed: int,
) -> float:
    """Return the virtual time in which the shard loads its new partitions; 0 if it gets none."""
    if taken is None:
        return 0.0
    owner, wanted = taken
    member = view.member(owner.member)
    if member is None:
        raise InternalError(f"The member {owner.member} is not in the view.")
    place = ShardPlace(
        node=UUID(member.node),
        number=owner.shard,
        shards=member.shards,
        host=member.host,
        port=member.port,
        own_ports=member.shard_ports,
        peer_paths=(),
        member=member.id,
    )

    async def load() -> float:
        shard = _LoadingShard(place, view, wanted, store)
        failed = await PartitionMoves(cast("Any", shard)).load_those_with_tasks()
        if failed or shard.complaints or shard.owned.keys() != wanted:
            raise InternalError(f"Not all partitions were loaded: {shard.complaints[:3]}")
        return max(store.acquired_at.values())

    with World(seed) as world:
        return world.run(load())


def _ignore_silence(_problem: Exception) -> None:
    """Ignore that the store was silent: it has no faults here."""
