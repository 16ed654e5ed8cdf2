"""What commands print of partitions, queues or nodes that do not answer, and the suggestion for a
queue that does not exist."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeVar, cast

import click

from maitred.cli.admin_names import label
from maitred.errors import MaitredError, UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maitred.client.answers import Silent
    from maitred.client.client import AsyncClient
    from maitred.protocol.tasks import QueuesFound
    from maitred.routing.names import QueueId

_Item = TypeVar("_Item")

UNREACHABLE = "unreachable"


def unreachable(kind: str, silent: Mapping[_Item, Silent]) -> list[dict[str, object]]:
    """Return those that did not answer, for JSON; `kind` is what they are, as in "partition"."""
    return [{kind: name, "error": reason.told()} for name, reason in silent.items()]


def print_unreachable(silent: Mapping[_Item, Silent], kind: str = "") -> None:
    """Print those that did not answer on standard error; `kind` goes before numbers."""
    for name, reason in silent.items():
        click.echo(f"{kind} {name}: {reason}".lstrip(), err=True)


async def with_suggestion(
    client: AsyncClient, queue: QueueId, problem: UnknownQueue
) -> MaitredError:
    """Return the error with the existing queue that the caller may have meant as its remedy."""
    from maitred.protocol.tasks import Queues

    try:
        found = cast("QueuesFound", await client.request(Queues(0, 0)))
    except MaitredError:
        return problem  # a user who may not list queues gets no suggestion
    names = [f"{namespace}/{name}" for namespace, name, _ in found.queues]
    near = get_close_matches(label(queue), names, n=1)
    return UnknownQueue(
        f"The queue {label(queue)} does not exist.",
        remedy=f"Did you mean {near[0]!r}?" if near else None,
    )
