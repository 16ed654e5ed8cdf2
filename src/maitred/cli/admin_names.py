"""How queues and dead letters are named on the command line.

A queue is `namespace/queue`. Queues may have slashes in their names, and so may namespaces; then
the first slash is the wrong place to cut, and `--namespace` says what the argument leaves out.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from maitred.cli.output import shortened
from maitred.errors import InvalidArgument, InvalidName
from maitred.routing.keys import PARTITIONS_MAX
from maitred.routing.names import QueueId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from maitred.protocol.tasks import DeadLetter

_Command = TypeVar("_Command", bound="Callable[..., Any]")

TASKS = 1
"""The queue type of durable tasks."""

SEQUENCE_MAX = 2**63 - 1


def queue_argument(command: Callable[..., None]) -> Callable[..., None]:
    """QUEUE, with the two options that say what it leaves open; the command gets a `QueueId`."""

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


def ids_arguments(what: str) -> Callable[[_Command], _Command]:
    """Ids of some, or `--all`, of what a queue has; `check_selection` looks at them."""

    def decorate(command: _Command) -> _Command:
        every = click.option("--all", "every", is_flag=True, help=f"All {what} of the queue.")
        return click.argument("ids", metavar="[ID]...", nargs=-1)(every(command))

    return decorate


def check_selection(ids: Sequence[str], *, every: bool, what: str, lister: str) -> None:
    """Raise `InvalidArgument` unless there are either ids or `--all`."""
    if every == bool(ids):
        raise InvalidArgument(
            "Give either ids or --all." if every else f"Nothing says which {what}.",
            remedy=f"Give ids, as `{lister}` prints them, or --all.",
        )


def json_option(command: _Command) -> _Command:
    """`--json`, as everywhere."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(
        command
    )


def queue_id(text: str, namespace: str | None, queue_type: int = TASKS) -> QueueId:
    """The queue that somebody typed; raises `InvalidName`."""
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
    """The name as it is typed."""
    return f"{queue.namespace}/{queue.queue}"


class LetterId(NamedTuple):
    """Which dead letter, in a queue: printed and typed as `partition/sequence`."""

    partition: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.partition}/{self.sequence}"

    @classmethod
    def of(cls, letter: DeadLetter) -> LetterId:
        return cls(letter.partition, letter.sequence)

    @classmethod
    def parse(cls, text: str) -> LetterId:
        partition, slash, sequence = text.partition("/")
        if slash and _is_number(partition) and _is_number(sequence):
            found = cls(int(partition), int(sequence))
            if found.partition < PARTITIONS_MAX and found.sequence <= SEQUENCE_MAX:
                return found
        raise InvalidArgument(
            f"{shortened(text)} is no dead letter's id.",
            remedy="An id is PARTITION/SEQUENCE, as `dead list` prints them.",
        )


def _is_number(text: str) -> bool:
    """Not longer than any that there is: Python refuses to read very long ones."""
    return text.isascii() and text.isdigit() and len(text) <= len(str(SEQUENCE_MAX))


def by_partition(ids: Iterable[LetterId]) -> dict[int, list[int]]:
    """Sequence numbers for each partition, each once, in order."""
    found: dict[int, list[int]] = {}
    for one in sorted(set(ids)):
        found.setdefault(one.partition, []).append(one.sequence)
    return found
