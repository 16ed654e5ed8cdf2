"""How queries are named and picked on the command line.

A query is `gateway/sequence`: each gateway numbers its own. The number alone will do as long as
only one gateway has such a query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from maitred.cli.output import shortened
from maitred.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.protocol.queries import QueryFilter, QueryRow

_Command = TypeVar("_Command", bound="Callable[..., Any]")

SEQUENCE_MAX = 2**63 - 1

STATUSES = (
    "waiting",
    "running",
    "streaming",
    "done",
    "failed",
    "cancelled",
    "refused",
    "lost",
    "late",
)
UNDER_WAY = STATUSES[:3]
"""What can still be cancelled, in the order in which a query passes through."""


class QueryId(NamedTuple):
    """Which query: printed and typed as `gateway/sequence`."""

    gateway: str
    """Empty, if nobody said which."""
    sequence: int

    def __str__(self) -> str:
        return f"{self.gateway}/{self.sequence}" if self.gateway else str(self.sequence)

    @classmethod
    def of(cls, row: QueryRow) -> QueryId:
        return cls(row.gateway, row.sequence)

    @classmethod
    def parse(cls, text: str) -> QueryId:
        gateway, slash, sequence = text.rpartition("/")
        if _is_number(sequence) and bool(slash) == bool(gateway):
            return cls(gateway, int(sequence))
        raise InvalidArgument(
            f"{shortened(text)} is no query's id.",
            remedy="An id is GATEWAY/SEQUENCE, as `maitred admin query list` prints them.",
        )

    def filter(self) -> QueryFilter:
        """What finds it."""
        from maitred.protocol.queries import QueryFilter

        return QueryFilter(gateway=self.gateway, sequence=self.sequence)


def _is_number(text: str) -> bool:
    """Not longer than any that there is: Python refuses to read very long ones."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(SEQUENCE_MAX))):
        return False
    return int(text) <= SEQUENCE_MAX


def filter_options(command: _Command) -> _Command:
    """The options that pick queries, the same for all commands."""
    for decorate in (
        click.option("--gateway", default="", metavar="ID", help="Only of this gateway."),
        click.option("--worker", default="", metavar="NAME", help="Only those of this worker."),
        click.option("--status", type=click.Choice(STATUSES), help="Only those that are so."),
        click.option("--user", default="", metavar="NAME", help="Only those of this user."),
        click.option("--queue", default="", metavar="NAME", help="Only for this queue."),
        click.option("--namespace", default="", metavar="NAME", help="Only of this namespace."),
    ):
        command = decorate(command)
    return command


def wanted(options: dict[str, Any], most: int) -> QueryFilter:
    """What `filter_options` took in; a queue may be typed with its namespace."""
    from maitred.protocol.queries import QueryFilter

    namespace, queue = options["namespace"], options["queue"]
    if not namespace and "/" in queue:
        namespace, _, queue = queue.partition("/")
    return QueryFilter(
        namespace=namespace,
        queue=queue,
        user=options["user"],
        status=options["status"] or "",
        worker=options["worker"],
        gateway=options["gateway"],
        most=most,
    )
