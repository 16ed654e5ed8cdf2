"""`maitred admin queue list`: which queues there are, a page at a time.

There may be a hundred thousand. The names of all fit into one answer; how a queue is, is asked only
of those that are shown, and unless told otherwise only of their roots: being asked brings a
partition into memory.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

from maitred.cli import admin_units as units
from maitred.cli.address import run, timeout_option, url_option
from maitred.cli.admin_ask import (
    ROOT,
    UNREACHABLE,
    Silent,
    all_described,
    connecting,
    described,
    each,
)
from maitred.cli.admin_names import TASKS, json_option, label
from maitred.cli.admin_totals import QueueTotals, totals
from maitred.cli.output import print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maitred.client.client import AsyncClient
    from maitred.protocol.tasks import Counts, PartitionDescription, QueuesFound
    from maitred.routing.names import QueueId

LIMIT = 50
"""Queues that are shown unless told otherwise: two screens of a terminal."""


NOTABLE = 0.5
"""Share of a namespace's quota of queues from which on its use is told; JSON always has it."""


NEVER_SHOWN = 10
"""Queues without a worker that are named below the table; JSON tells it of each."""


class Page(NamedTuple):
    """Some of the queues, and where the next page begins."""

    queues: list[QueueId]
    total: int
    after: str | None
    """What to give as `--after` to go on; None at the end."""


class Entry(NamedTuple):
    """A queue of the page."""

    queue: QueueId
    counts: Counts | None
    """None, if the root did not answer."""
    found: list[PartitionDescription | Silent]


class NamespaceUse(NamedTuple):
    """The number of queues that a namespace has, and may have."""

    namespace: str
    queues: int
    queues_max: int


class QueueListing(NamedTuple):
    """Everything that there is to print."""

    page: Page
    entries: list[Entry]
    namespaces: list[NamespaceUse]
    """All namespaces, or the one that the command names."""
    silent_nodes: dict[str, Silent]


@click.command(
    "list", epilog="Exit status: 0 if everybody who was asked has answered, 1 otherwise."
)
@url_option
@timeout_option
@click.option("--namespace", metavar="NAME", help="Only the queues of this namespace.")
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=LIMIT,
    show_default=True,
    help="Queues of one page.",
)
@click.option("--after", metavar="QUEUE", help="Begin behind this one: the next page.")
@click.option(
    "--totals",
    "whole",
    is_flag=True,
    help="Ask all partitions of each queue, not only its root.",
)
@json_option
def list_queues(
    url: str,
    timeout: float,
    namespace: str | None,
    limit: int,
    after: str | None,
    *,
    whole: bool,
    as_json: bool,
) -> None:
    """List queues by name, with how they are."""
    answer = run(_ask(url, timeout, namespace, limit, after, whole=whole))
    page, entries = answer.page, answer.entries
    if as_json:
        print_json(
            {
                "queues": [_told(entry) for entry in entries],
                "namespaces": [use._asdict() for use in answer.namespaces],
                "total": page.total,
                "next": page.after,
                "unreachable": [
                    {"node": node, "error": silent.told()}
                    for node, silent in answer.silent_nodes.items()
                ],
            }
        )
    elif entries:
        print_table([_row(entry) for entry in entries])
    else:
        click.echo("There are no queues here." if after is None else "There are no more queues.")
    silent = {**answer.silent_nodes, **_silent_partitions(entries)}
    for name, reason in silent.items():
        click.echo(f"{name}: {reason}", err=True)
    _notice(answer, whole=whole)
    if silent:
        sys.exit(1)


def paged(queues: Iterable[QueueId], limit: int, after: str | None) -> Page:
    """By name; queues of one name, which differ in their type, stay together."""
    ordered = sorted(set(queues), key=lambda queue: (label(queue), queue.type))
    rest = [queue for queue in ordered if after is None or label(queue) > after]
    end = limit
    while 0 < end < len(rest) and label(rest[end - 1]) == label(rest[end]):
        end += 1
    shown = rest[:end]
    return Page(shown, len(ordered), label(shown[-1]) if end < len(rest) else None)


async def _ask(
    url: str, seconds: float, namespace: str | None, limit: int, after: str | None, *, whole: bool
) -> QueueListing:
    async with connecting(url, seconds) as client:
        queues, quotas, silent = await _names(client)
        wanted = [queue for queue in queues if namespace in (None, queue.namespace)]
        page = paged(wanted, limit, after)

        async def entry(queue: QueueId) -> Entry:
            if whole:
                root, found = await all_described(client, queue)
                return Entry(queue, root.counts, found)
            root = await described(client, queue, ROOT)
            return Entry(queue, root.counts, [root])

        found = await each(page.queues, entry)
    entries = [
        Entry(queue, None, [one]) if isinstance(one, Silent) else one
        for queue, one in zip(page.queues, found, strict=True)
    ]
    counts = Counter(queue.namespace for queue in wanted)
    namespaces = [NamespaceUse(name, counts[name], quotas.get(name, 0)) for name in sorted(counts)]
    return QueueListing(page, entries, namespaces, silent)


async def _names(
    client: AsyncClient,
) -> tuple[set[QueueId], dict[str, int], dict[str, Silent]]:
    """Queues and quotas of every node: they may share a store, or have one each."""
    from maitred.protocol.tasks import Queues
    from maitred.routing.names import QueueId

    nodes = [view.address for view in client.nodes()]
    answers = await each(nodes, lambda node: client.request(Queues(0, 0), node=node))
    silent = {
        node: answer
        for node, answer in zip(nodes, answers, strict=True)
        if isinstance(answer, Silent)
    }
    if len(silent) == len(nodes):
        raise next(iter(silent.values())).error
    found = [cast("QueuesFound", one) for one in answers if not isinstance(one, Silent)]
    quotas = {name: most for one in found for name, most in one.quotas.items()}
    return {QueueId(*queue) for one in found for queue in one.queues}, quotas, silent


def _silent_partitions(entries: list[Entry]) -> dict[str, Silent]:
    """The first of each queue will do; `describe` tells them all."""
    found: dict[str, Silent] = {}
    for entry in entries:
        for one in entry.found:
            if isinstance(one, Silent):
                found.setdefault(_name(entry.queue), one)
    return found


def _name(queue: QueueId) -> str:
    return label(queue) + ("" if queue.type == TASKS else f" (type {queue.type})")


def _row(entry: Entry) -> dict[str, object]:
    if entry.counts is None:
        return {"queue": _name(entry.queue)} | dict.fromkeys(_COLUMNS) | {"partitions": UNREACHABLE}
    summed = totals(entry.found)
    read, write = entry.counts.read, entry.counts.write
    return {
        "queue": _name(entry.queue),
        "partitions": str(read) if read == write else f"{read}, {write} written",
        "backlog": units.count(summed.backlog),
        "oldest": units.duration(summed.oldest_seconds),
        "in/s": units.rate(summed.added_per_second),
        "out/s": units.rate(summed.finished_per_second),
        "running": units.count(summed.running),
        "offers": units.count(summed.offers),
        "dead": units.count(summed.dead),
        "stored": units.size(summed.stored_bytes),
        "quota": _quota(summed),
    }


_COLUMNS = (
    *("partitions", "backlog", "oldest", "in/s", "out/s", "running", "offers", "dead"),
    *("stored", "quota"),
)


def _served(entry: Entry) -> float | None:
    """Seconds since a worker served it, as its root says; it is the first that was asked."""
    root = entry.found[0]
    return None if isinstance(root, Silent) else root.served_seconds_ago


def _quota(summed: QueueTotals) -> units.Shown | None:
    """How full the fuller of the queue's own quotas is."""
    quotas = (
        (summed.stored_tasks, summed.stored_tasks_quota),
        (summed.stored_bytes, summed.stored_bytes_quota),
    )
    full = [used / most for used, most in quotas if most]
    return units.Shown(f"{max(full):.0%}") if full else None


def _told(entry: Entry) -> dict[str, Any]:
    queue, counts = entry.queue, entry.counts
    named = {"namespace": queue.namespace, "queue": queue.queue, "type": queue.type}
    if counts is None:
        (silent,) = entry.found
        return named | {"state": UNREACHABLE, "error": cast("Silent", silent).told()}
    return (
        named
        | {"read": counts.read, "write": counts.write, "version": counts.version}
        | {"partitions_asked": len(entry.found), "served_seconds_ago": _served(entry)}
        | totals(entry.found)._asdict()
    )


def _notice(answer: QueueListing, *, whole: bool) -> None:
    """What the table does not show, on standard error, so that JSON stays JSON."""
    page, entries = answer.page, answer.entries
    shown = {entry.queue.namespace for entry in entries}
    used = [
        f"{use.namespace} has {use.queues:,} of {use.queues_max:,}"
        for use in answer.namespaces
        if use.namespace in shown and use.queues >= NOTABLE * use.queues_max
    ]
    if used:
        click.echo(f"\nQueues that a namespace may have: {'; '.join(used)}.", err=True)
    never = [
        _name(entry.queue)
        for entry in entries
        if entry.counts is not None and _served(entry) is None and not totals(entry.found).workers
    ]
    if never:
        more = f" and {len(never) - NEVER_SHOWN:,} more" if len(never) > NEVER_SHOWN else ""
        named = ", ".join(never[:NEVER_SHOWN])
        click.echo(f"\nNever served by a worker in the last day: {named}{more}.", err=True)
    if not whole and any(entry.counts is not None and entry.counts.read > 1 for entry in entries):
        click.echo(
            "\nOf queues with several partitions only the root was asked; --totals asks them all.",
            err=True,
        )
    if page.after is not None:
        click.echo(
            f"\n{len(page.queues):,} of {page.total:,} queues. The next page: --after {page.after}",
            err=True,
        )
