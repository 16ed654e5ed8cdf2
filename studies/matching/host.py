"""A host of the model: the node's own driver and requests, in virtual time.

Partitions decide, the driver carries out their effects, and requests are served as at a node. Only
the surroundings are a model: the clock, the network, the store and its commits. Messages arrive as
they are, without being encoded.
"""

from __future__ import annotations

from collections import Counter
from math import ceil
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from maitred.errors import Cancelled, MaitredError
from maitred.logs import logger
from maitred.matching.partition import Partition
from maitred.matching.records import PartitionKey
from maitred.node.deferred_reply import DeferredReply
from maitred.node.owned import Owned
from maitred.node.partition_driver import PartitionDriver
from maitred.node.task_requests import TaskRequests
from maitred.protocol.tasks import Finish
from maitred.security.directory import Directory
from maitred.settings import Limits, Log, Node
from studies.matching.writer import ModelWriter, SlowStore

if TYPE_CHECKING:
    from msgspec import Struct

    from maitred.node.driver_shell import TreeRequest
    from maitred.node.partitions import Partitions
    from maitred.node.peer_calls import Done
    from maitred.node.request_table import Holder
    from maitred.node.waiting_requests import Serve
    from maitred.protocol.tasks import Add
    from studies.matching.model import Model

    Request = Add | TreeRequest

SIGNING_KEY = bytes(32)
"""A constant will do, since no worker of this model forges a proof."""

NO_USERS = Directory(Node())


class Call(DeferredReply):
    """A request on its way to a host, and the answer on its way back.

    The network of the model loses nothing, so a call has no deadline.
    """

    __slots__ = ("_done", "_host", "_model", "_source", "message", "over")

    def __init__(
        self,
        model: Model,
        source: object,
        message: Request,
        done: Done,
    ) -> None:
        super().__init__()
        self.message = message
        self.over = False
        self._model = model
        self._source = source
        self._host = model.host(message.partition)
        self._done = done
        model.network.send(source, self._host, self._arrive)

    def _arrive(self) -> None:
        self._model.arrives(self)
        self._host.holders[self.message.opcode](self.message, self)

    @property
    def wanted(self) -> bool:
        return not self.over

    def answer(self, message: Struct) -> None:
        self._end(message)

    def refuse(self, problem: MaitredError) -> None:
        self._end(problem)

    def _end(self, outcome: Struct | MaitredError) -> None:
        self._forget_holder()
        if self.over:
            return
        self.over = True
        self._model.answered(self, outcome)
        if not isinstance(self.message, Finish):  # nothing in this model waits for that answer
            self._model.network.send(self._host, self._source, self._done, outcome)

    def give_up(self) -> None:
        raise AssertionError("no partition of the model is let go")

    def recall(self) -> None:
        """Ask the host to answer at once."""
        self._model.network.send(self._source, self._host, self._recalled)

    def _recalled(self) -> None:
        if self.over:
            return
        if self.on_recall is not None:
            self.on_recall()
        else:
            self.on_stop()
            self._end(Cancelled("The caller took the request back."))


class Host(PartitionDriver):
    """A shard of the model and the partitions that it owns."""

    def __init__(self, model: Model) -> None:
        settings = model.settings
        self._model = model
        self.loop = model.clock
        self.log = logger(Log())
        self.users = NO_USERS
        self.errors: Counter[str] = Counter()
        self.damaged: Counter[str] = Counter()
        self.tracing = None
        self.holders: dict[int, Holder] = {}
        self.spawn = model.clock.spawn
        self.writer = ModelWriter(model.clock, model.contents, settings.commit_seconds, self.touch)
        store = SlowStore(model.contents, settings.commit_seconds)
        super().__init__(self, store=store, writer=self.writer)
        self.holders = self._task_requests(store)

    def _task_requests(self, store: SlowStore) -> dict[int, Holder]:
        """Return the functions by which a node serves requests about tasks.

        This host stands in for the shard and for its partitions, and has as much of both as these
        requests need; none of them asks the store, since all tasks of a run are in memory.
        """
        self.shard = self
        self.store = store
        self.limits = Limits()
        self.reads = SimpleNamespace(answer=None)
        return TaskRequests(cast("Partitions", self)).requests.holders

    def load(self, number: int) -> Owned:
        """Load a partition from the model's store."""
        model, key = self._model, model_key(number)
        acquired = model.contents.own(key)
        partition = Partition(
            key,
            acquired._replace(clean=True),
            model.counts,
            model.settings.queue,
            random=model.random,
            loaded_at=self.loop.now,
            wall=0.0,
            signing_key=SIGNING_KEY,
            forwards=model.settings.forwards,
        )
        owned = self.owned[key] = Owned(partition, self.loop.now)
        self.touch(owned)
        return owned

    def holder(self, serve: Serve, *, touches: bool = False, **_: object) -> Holder:
        """Return a function that serves a request at its partition; see `Partitions.holder`."""

        def hold(message: Request, held: DeferredReply) -> None:
            owned = self.owned[model_key(message.partition)]
            serve(owned, message, held)
            if not touches:
                self.touch(owned)

        return hold

    def ask(self, message: TreeRequest, seconds: float, done: Done) -> Call:
        """Send a request to the host of another partition; see `Shard.ask`."""
        message.timeout_milliseconds = ceil(seconds * 1000)
        if isinstance(message, Finish):
            self._model.returned(message)
        return Call(self._model, self, message, done)

    def failed(self, owned: Owned, fault: Exception) -> None:  # noqa: ARG002
        """Fail the run."""
        raise fault


def model_key(partition: int) -> PartitionKey:
    """Return the key of a partition of the model's one queue."""
    return PartitionKey("study", "tasks", 1, partition)
