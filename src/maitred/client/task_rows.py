"""Tasks as programs get them in JSON: the same from the command line and over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import asdict

from maitred.client.plain_values import plain_body
from maitred.errors import InvalidArgument, InvalidPartition
from maitred.routing.keys import check_partition

if TYPE_CHECKING:
    from maitred.client.task_changes import Place
    from maitred.protocol.inspection import ListedTask, TaskShown
    from maitred.routing.names import QueueId

DIGITS_MAX: Final = 19
"""Digits of the largest number that a task can have."""


def task_row(queue: QueueId, task: ListedTask) -> dict[str, object]:
    """Return a task of a list."""
    place = (task.partition, task.sequence)
    row: dict[str, object] = {
        "id": f"{queue.namespace}/{queue.queue}/{place_text(place)}",
        "namespace": queue.namespace,
        "queue": queue.queue,
        **asdict(task),
        "arguments": None if task.arguments is None else _readable(task.arguments),
    }
    del row["at"]
    return row


def shown_row(queue: QueueId, shown: TaskShown) -> dict[str, object]:
    """Return everything that is known of a task."""
    return {
        **asdict(shown),
        "task": task_row(queue, shown.task),
        "events": [asdict(event) for event in shown.events],
        "result": None if shown.result is None else _readable(shown.result),
    }


def place_text(place: Place) -> str:
    """Return the place of a task in its queue: partition and number, with a slash between."""
    return f"{place[0]}/{place[1]}"


def parse_place(text: str) -> Place:
    """Return the place that `place_text` wrote; raise `InvalidArgument`."""
    first, _, second = text.partition("/")
    if _is_number(first) and _is_number(second):
        partition, sequence = int(first), int(second)
        try:
            check_partition(partition)
        except InvalidPartition:
            sequence = 2**63
        if sequence < 2**63:
            return partition, sequence
    raise InvalidArgument(
        f"{text[:60]!r} is no task of a queue.", remedy="Write PARTITION/NUMBER, as lists have it."
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX


def _readable(body: bytes) -> object:
    """Return the value, or its bytes as text if it is not msgpack."""
    try:
        return plain_body(body)
    except ValueError:
        return f"bytes {body.hex()}"
