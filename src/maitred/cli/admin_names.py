"""How queues, and the dead letters and damaged rows in them, are named on the command line.

A queue is `namespace/queue`. Queues may have slashes in their names, and so may namespaces; then
the first slash is the wrong place to cut, and `--namespace` says what the argument leaves out.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

from maitred.cli.output import shortened
from maitred.errors import InvalidArgument, InvalidName
from maitred.routing.keys import PARTITIONS_MAX
from maitred.routing.names import QueueId

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.protocol.tasks import DamagedRow, DeadLetter, RowKind

TASKS = 1
"""The queue type of durable tasks."""

SEQUENCE_MAX = 2**63 - 1

ROW_KINDS = ("segment", "later", "dead", "result")


def queue_argument(command: Callable[..., None]) -> Callable[..., None]:
    """QUEUE and the options `--namespace` and `--type`; the command gets a `QueueId`."""

    @wraps(command)
    def named(*, queue: str, namespace: str | None, queue_type: int, **options: Any) -> None:  # noqa: ANN401
        command(queue=queue_id(queue, namespace, queue_type), **options)

    for decorate in (
        click.option("--type", "queue_type", type=int, default=TASKS, hidden=True),
        click.option("--namespace", metavar="NAME", help="Its namespace, if QUEUE is only a name."),
        click.argument("queue"),
    ):
        named = decorate(named)
    return named


def queue_id(text: str, namespace: str | None, queue_type: int = TASKS) -> QueueId:
    """Return the queue of a name as typed; raise `InvalidName` if the namespace is missing."""
    if namespace is not None:
        return QueueId(namespace, text, queue_type)
    before, slash, name = text.partition("/")
    if not slash:
        raise InvalidName(
            f"{shortened(text)} does not say in which namespace the queue is.",
            remedy=f"Write NAMESPACE/{text}, or add --namespace NAMESPACE.",
        )
    return QueueId(before, name, queue_type)


def label(queue: QueueId) -> str:
    """Return the name as it is typed: `namespace/queue`."""
    return f"{queue.namespace}/{queue.queue}"


def sequence_number(text: str) -> int | None:
    """Return the number if it may be one of a task or a query. The length is checked first, since
    Python refuses to convert very long numbers."""
    if text.isascii() and text.isdigit() and len(text) <= len(str(SEQUENCE_MAX)):
        number = int(text)
        return number if number <= SEQUENCE_MAX else None
    return None


class LetterId(NamedTuple):
    """The id of a dead letter in a queue, printed and typed as `partition/sequence`."""

    partition: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.partition}/{self.sequence}"

    @classmethod
    def of(cls, letter: DeadLetter) -> LetterId:
        return cls(letter.partition, letter.sequence)

    @classmethod
    def parse(cls, text: str) -> LetterId:
        found = _place(text)
        if found is None:
            raise InvalidArgument(
                f"{shortened(text)} is no dead letter's id.",
                remedy="An id is PARTITION/SEQUENCE, as `dead list` prints them.",
            )
        return cls(*found)


class RowId(NamedTuple):
    """The id of a damaged row in a queue, printed and typed as `partition/sequence/kind`."""

    partition: int
    first: int
    kind: RowKind

    def __str__(self) -> str:
        return f"{self.partition}/{self.first}/{self.kind}"

    @classmethod
    def of(cls, row: DamagedRow) -> RowId:
        return cls(row.partition, row.first, row.kind)

    @classmethod
    def parse(cls, text: str) -> RowId:
        place, _, kind = text.rpartition("/")
        found = _place(place)
        if found is None or kind not in ROW_KINDS:
            raise InvalidArgument(
                f"{shortened(text)} is no damaged row's id.",
                remedy="An id is PARTITION/SEQUENCE/KIND, as `damaged list` prints them.",
            )
        return cls(*found, cast("RowKind", kind))


def _place(text: str) -> tuple[int, int] | None:
    """Return partition and sequence number of a task, as typed with a slash between them."""
    first, _, second = text.partition("/")
    partition, sequence = sequence_number(first), sequence_number(second)
    if partition is None or sequence is None or partition >= PARTITIONS_MAX:
        return None
    return partition, sequence
