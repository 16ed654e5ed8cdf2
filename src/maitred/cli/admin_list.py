"""`maitred admin queue list`: the queues by name, a page at a time.

There may be a hundred thousand. The names of all fit into one answer; the state is asked only of
the queues on the page, and by default only of their roots: being asked loads a partition into
memory.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

from maitred.cli import admin_units as units
from maitred.cli.address import node_options
from maitred.cli.admin_ask import UNREACHABLE, print_unreachable, unreachable
from maitred.cli.admin_names import TASKS, label
from maitred.cli.admin_totals import DescribedQueue, QueueTotals, describe_all, describe_root
from maitred.cli.output import json_option, print_json, print_table, row_of
from maitred.client.answers import Answers, Silent, each, each_node
from maitred.errors import MaitredError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from maitred.cli.address import AskedNode
    from maitred.client.client import AsyncClient
    from maitred.client.queue_states import ListedQueue, Name
    from maitred.protocol.tasks import QueuesFound
    from maitred.routing.names import QueueId

LIMIT = 50
"""Queues on a page by default: two screens of a terminal."""

NOTABLE = 0.5
"""Share of a quota from which on its use is printed below the table; JSON always has it."""

_NOT_LISTED = ("stored", "quota")
"""Columns that only `watch` has: the table would be too wide, and `describe` has them."""

NEVER_SHOWN = 10
"""Queues without a worker that are named below the table; JSON says it of each."""


class Page(NamedTuple):
    """Some of the queues, and where the next page begins."""

    queues: list[QueueId]
    total: int
    after: str | None
    """What to give as `--after` for the next page; None at the end."""


class NamespaceUse(NamedTuple):
    """The number of queues that a namespace has, and may have."""

    namespace: str
    queues: int
    queues_max: int


class QueueListing(NamedTuple):
    """A page of queues with their state, and what is printed below it."""

    page: Page
    described: Answers[QueueId, DescribedQueue]
    namespaces: list[NamespaceUse]
    """All namespaces, or the one that the command names."""
    silent_nodes: dict[str, Silent]
    states: dict[Name, ListedQueue]
    """What shards tell of the attempts of the last minutes; empty if none can."""

    def silent(self) -> dict[str, Silent]:
        """The nodes that did not answer, and the first silent partition of each queue; `describe`
        lists all of those."""
        found = dict(self.silent_nodes)
        for queue in self.page.queues:
            problem = self.described.silent.get(queue)
            if problem is None:
                problem = next(iter(self.described.found[queue].partitions.silent.values()), None)
            if problem is not None:
                found[_name(queue)] = problem
        return found


@click.command(
    "list",
    epilog="`failed` and `run p50` are about the attempts of the last five to ten minutes: how "
    "many failed, and the median of how long they took. Exit status: 0 if every node and partition "
    "that was asked answered, else 1.",
)
@node_options
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
    node: AskedNode,
    namespace: str | None,
    limit: int,
    after: str | None,
    *,
    whole: bool,
    as_json: bool,
) -> None:
    """List queues by name, with their state."""
    describe = describe_all if whole else describe_root
    answer = node.ask(lambda client: _list(client, namespace, limit, after, describe))
    page = answer.page
    if as_json:
        print_json(
            {
                "queues": [
                    queue_told(queue, answer.described) | _recent(answer.states.get(queue[:2]))
                    for queue in page.queues
                ],
                "namespaces": [use._asdict() for use in answer.namespaces],
                "total": page.total,
                "next": page.after,
                "unreachable": unreachable("node", answer.silent_nodes),
            }
        )
    elif page.queues:
        rows = queue_rows(page.queues, answer.described)
        states = [answer.states.get(queue[:2]) for queue in page.queues]
        print_table(
            [
                {name: cell for name, cell in row.items() if name not in _NOT_LISTED}
                | row_of(_RECENT, state)
                for row, state in zip(rows, states, strict=True)
            ]
        )
    else:
        click.echo("There are no queues here." if after is None else "There are no more queues.")
    silent = answer.silent()
    print_unreachable(silent)
    _print_notes(answer, whole=whole)
    if silent:
        sys.exit(1)


def paged(queues: Iterable[QueueId], limit: int, after: str | None) -> Page:
    """Return a page by name; queues that differ only in their type stay on one page."""
    ordered = sorted(set(queues), key=lambda queue: (label(queue), queue.type))
    rest = [queue for queue in ordered if after is None or label(queue) > after]
    end = limit
    while 0 < end < len(rest) and label(rest[end - 1]) == label(rest[end]):
        end += 1
    shown = rest[:end]
    return Page(shown, len(ordered), label(shown[-1]) if end < len(rest) else None)


async def _list(
    client: AsyncClient,
    namespace: str | None,
    limit: int,
    after: str | None,
    describe: Callable[[AsyncClient, QueueId], Any],
) -> QueueListing:
    from maitred.client.queue_states import QueuePages

    queues, quotas, silent = await all_queues(client)
    wanted = [queue for queue in queues if namespace in (None, queue.namespace)]
    page = paged(wanted, limit, after)
    found = await each(page.queues, lambda queue: describe(client, queue))
    counts = Counter(queue.namespace for queue in wanted)
    namespaces = [NamespaceUse(name, counts[name], quotas.get(name, 0)) for name in sorted(counts)]
    try:
        states = await QueuePages(client).named([queue[:2] for queue in page.queues])
    except MaitredError:  # shards of an earlier release, or a user who may read too little
        states = {}
    return QueueListing(page, found, namespaces, silent, states)


async def all_queues(
    client: AsyncClient,
) -> tuple[set[QueueId], dict[str, int], dict[str, Silent]]:
    """Ask every node, since they may share a store or have one each: their queues, the quotas of
    namespaces, and the nodes that did not answer."""
    from maitred.protocol.tasks import Queues
    from maitred.routing.names import QueueId

    answers = await each_node(client, Queues(0, 0))
    found = [cast("QueuesFound", one) for one in answers.found.values()]
    quotas = {name: most for one in found for name, most in one.quotas.items()}
    return {QueueId(*queue) for one in found for queue in one.queues}, quotas, answers.silent


def _name(queue: QueueId) -> str:
    return label(queue) + ("" if queue.type == TASKS else f" (type {queue.type})")


def queue_rows(
    queues: Iterable[QueueId], described: Answers[QueueId, DescribedQueue]
) -> list[dict[str, object]]:
    """Return the rows of the table; the column of the state is there if a queue is paused."""
    rows = [_row(queue, described) for queue in queues]
    if not any(row["state"] for row in rows):
        for row in rows:
            del row["state"]
    return rows


def _row(queue: QueueId, described: Answers[QueueId, DescribedQueue]) -> dict[str, object]:
    state = ""
    if queue in described.silent:
        partitions, rest = UNREACHABLE, dict.fromkeys(_COLUMNS)
    else:
        one = described.found[queue]
        read, write = one.root.counts.read, one.root.counts.write
        partitions = str(read) if read == write else f"{read}, {write} written"
        rest = row_of(_COLUMNS, one.totals())
        if one.root.controls.pause is not None:
            state = "paused"
    return {"queue": _name(queue), "state": state, "partitions": partitions} | rest


def _quota(summed: QueueTotals) -> units.Shown | None:
    """How full the fuller of the queue's own quotas is."""
    full = _full(summed)
    return None if full is None else units.Shown(f"{full:.0%}")


def _full(summed: QueueTotals) -> float | None:
    """Return which share of the fuller quota is used; None: the queue has none."""
    quotas = (
        (summed.stored_tasks, summed.stored_tasks_quota),
        (summed.stored_bytes, summed.stored_bytes_quota),
    )
    return max((used / most for used, most in quotas if most), default=None)


_COLUMNS: dict[str, Callable[[QueueTotals], object]] = {
    "backlog": lambda summed: units.count(summed.backlog),
    "oldest": lambda summed: units.duration(summed.oldest_seconds),
    "in/s": lambda summed: units.rate(summed.added_per_second),
    "out/s": lambda summed: units.rate(summed.finished_per_second),
    "running": lambda summed: units.count(summed.running),
    "offers": lambda summed: units.count(summed.offers),
    "dead": lambda summed: units.count(summed.dead),
    "stored": lambda summed: units.size(summed.stored_bytes),
    "quota": _quota,
}


_RECENT: dict[str, Callable[[ListedQueue | None], object]] = {
    "failed": lambda state: None if state is None else units.count(state.recent_failed),
    "run p50": lambda state: None if state is None else _run(state.run_p50_seconds),
}


def _run(seconds: float | None) -> units.Shown | None:
    return None if seconds is None else units.duration(seconds)


def _recent(state: ListedQueue | None) -> dict[str, object]:
    """Return the attempts of the last minutes for JSON."""
    if state is None:
        return {}
    return {
        "recent_ended": state.recent_ended,
        "recent_failed": state.recent_failed,
        "run_p50_seconds": state.run_p50_seconds,
        "run_p99_seconds": state.run_p99_seconds,
    }


def queue_told(queue: QueueId, described: Answers[QueueId, DescribedQueue]) -> dict[str, Any]:
    """Return a queue for JSON."""
    from msgspec import to_builtins

    named = queue._asdict()
    if queue in described.silent:
        return named | {"state": UNREACHABLE, "error": described.silent[queue].told()}
    one = described.found[queue]
    counts, pause = one.root.counts, one.root.controls.pause
    return (
        named
        | {"read": counts.read, "write": counts.write, "version": counts.version}
        | {"partitions_asked": len(one.partitions.found) + len(one.partitions.silent)}
        | {"served_seconds_ago": one.root.served_seconds_ago}
        | {"paused": None if pause is None else to_builtins(pause)}
        | one.totals()._asdict()
    )


def _print_notes(answer: QueueListing, *, whole: bool) -> None:
    """Print what the table does not show, on standard error, so that JSON stays JSON."""
    page, described = answer.page, answer.described.found.values()
    shown = {queue.namespace for queue in page.queues}
    used = [
        f"{use.namespace} has {use.queues:,} of {use.queues_max:,}"
        for use in answer.namespaces
        if use.namespace in shown and use.queues >= NOTABLE * use.queues_max
    ]
    if used:
        click.echo(f"\nQueues that a namespace may have: {'; '.join(used)}.", err=True)
    full = [
        f"{_name(one.id)} uses {share:.0%}"
        for one in described
        if (share := _full(one.totals()) or 0.0) >= NOTABLE
    ]
    if full:
        click.echo(f"\nQuotas of stored tasks: {'; '.join(full[:NEVER_SHOWN])}.", err=True)
    never = [
        _name(one.id)
        for one in described
        if one.root.served_seconds_ago is None and not one.workers()
    ]
    if never:
        more = f" and {len(never) - NEVER_SHOWN:,} more" if len(never) > NEVER_SHOWN else ""
        named = ", ".join(never[:NEVER_SHOWN])
        click.echo(f"\nNever served by a worker in the last day: {named}{more}.", err=True)
    if not whole and any(one.root.counts.read > 1 for one in described):
        click.echo(
            "\nOf queues with several partitions only the root was asked; --totals asks them all.",
            err=True,
        )
    if page.after is not None:
        click.echo(
            f"\n{len(page.queues):,} of {page.total:,} queues. The next page: --after {page.after}",
            err=True,
        )
