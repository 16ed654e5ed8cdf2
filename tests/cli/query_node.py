"""A node that tells made-up queries and workers, for the tests of the commands about them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from maitred.errors import UnknownQueue, UnknownWorker
from maitred.protocol.frames import Opcode
from maitred.protocol.queries import (
    Queries,
    QueriesFound,
    QueryFilter,
    QueryRow,
    WorkerRow,
    Workers,
    WorkersFound,
)
from maitred.protocol.tasks import Queues, QueuesFound
from tests.cli.admin_node import CannedNode, canned_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from maitred.errors import MaitredError
    from maitred.node.shard import Shard

EQUITY = ("default", "EQUITY_MARKET_RDB", 1)
UNDER_WAY = ("waiting", "connecting", "running", "streaming")
BEGIN = 1_700_000_000.0


def row(sequence: int, **changes: Any) -> QueryRow:  # noqa: ANN401
    """A query that was answered; `sequence` says also when it came."""
    made = QueryRow(
        gateway="1a2b3c4d",
        sequence=sequence,
        user="kevin",
        connection="http 127.0.0.1:50312",
        namespace="default",
        queue="EQUITY_MARKET_RDB",
        query="select * from quote",
        priority=2,
        status="done",
        received_at=BEGIN + sequence,
        sent_at=BEGIN + sequence + 0.002,
        returned_at=BEGIN + sequence + 0.014,
        worker="ant",
        bytes_in=30,
        bytes_out=640,
        attempts=1,
        changed_at=BEGIN + sequence + 0.014,
    )
    return replace(made, **changes)


def worker(name: str, letter: str = "a", **changes: Any) -> WorkerRow:  # noqa: ANN401
    made = WorkerRow(
        session=bytes.fromhex(letter * 32),
        worker=name,
        address="127.0.0.1:40001",
        slots=8,
        busy=3,
        state="online",
        heard_seconds=0.4,
    )
    return replace(made, **changes)


class Plant:
    """What there is: queries in the gateways' tables, workers at queues."""

    def __init__(self) -> None:
        self.url = ""
        self.rows: list[QueryRow] = []
        self.gateways = 1
        self.silent = 0
        self.asked: list[QueryFilter] = []
        self.answered: Callable[[], object] = lambda: None
        """Called after each answer about queries."""
        self.failure: MaitredError | None = None
        self.queues: dict[tuple[str, str, int], list[WorkerRow]] = {}
        self.orders: list[tuple[str, str, str]] = []
        self.looks_until_offline = 1

    def find(self, wanted: QueryFilter) -> list[QueryRow]:
        self.asked.append(wanted)
        fields = ("namespace", "queue", "user", "status", "worker")
        found = [
            one
            for one in self.rows
            if all(getattr(wanted, name) in ("", getattr(one, name)) for name in fields)
            and one.gateway.startswith(wanted.gateway)
            and wanted.sequence in (-1, one.sequence)
            and one.changed_at > wanted.changed_since
        ]
        return found[-wanted.most :]

    def queries(self, message: Queries) -> QueriesFound:
        if self.failure is not None:
            raise self.failure
        found = self.find(message.filter)
        if message.action == "cancel":
            found = [one for one in found if one.status in UNDER_WAY]
            for one in found:
                one.status = "cancelled"
        try:
            return QueriesFound([replace(one) for one in found], self.gateways, self.silent)
        finally:
            self.answered()

    def workers(self, message: Workers) -> WorkersFound:
        key = (message.namespace, message.queue, message.queue_type)
        if key not in self.queues:
            raise UnknownQueue("Nobody ever used this queue.")
        here = self.queues[key]
        if message.action == "list":
            if any(one.state == "draining" for one in here):
                self.looks_until_offline -= 1
            if not self.looks_until_offline:
                for one in here:
                    if one.state == "draining":
                        one.state, one.busy = "offline", 0
            return WorkersFound(here)
        self.orders.append((message.action, message.worker, message.queue))
        told = [one for one in here if message.worker in (one.worker, one.session.hex())]
        if not told:
            raise UnknownWorker("No such worker serves the queue.")
        for one in told:
            one.state = "online" if message.action == "online" else "draining"
        return WorkersFound(told)

    def serve(self, shard: Shard) -> None:
        handlers: dict[int, Callable[[Any], Any]] = {
            Opcode.QUERIES: self.queries,
            Opcode.WORKERS: self.workers,
            Opcode.QUEUES: self.names,
        }
        shard.handlers.update(handlers)

    def names(self, _message: Queues) -> QueuesFound:
        return QueuesFound(list(self.queues))


@contextmanager
def plant(directory: Path) -> Iterator[Plant]:
    made = Plant()

    class Serving(CannedNode):
        def serve(self, shard: Shard) -> None:
            super().serve(shard)
            made.serve(shard)

    with canned_node(directory, canned=Serving()) as node:
        made.url = node.url
        yield made
