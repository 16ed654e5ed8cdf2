"""`maitred admin queue dead`: list, show, retry or drop tasks whose attempts are used up."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from maitred.cli import admin_units as units
from maitred.cli.address import node_options
from maitred.cli.admin_ask import print_unreachable, unreachable
from maitred.cli.admin_letters import (
    Action,
    LetterCounts,
    ask,
    change,
    change_all,
    letter_counts,
    pages,
)
from maitred.cli.admin_names import LetterId, label, queue_argument
from maitred.cli.admin_payload import WITHHELD, Encoded, failure_of, payload_of
from maitred.cli.groups import HintingGroup
from maitred.cli.output import (
    Progress,
    counted,
    cut,
    json_option,
    print_fact,
    print_json,
    print_table,
)
from maitred.cli.selection import check_selection, confirm, ids_arguments, yes_option
from maitred.client.answers import Silent
from maitred.errors import InvalidArgument, MaitredError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maitred.cli.address import AskedNode
    from maitred.client.client import AsyncClient
    from maitred.protocol.tasks import DeadLetter
    from maitred.routing.names import QueueId

LIMIT = 50
"""Letters on a page by default."""

FAILURE_COLUMNS = 44
"""Columns of the table for the failure: those that are left of a hundred."""

NAMED_MAX = 5
"""Ids that a sentence names."""

_EPILOG = "Exit status: 0 if it was done to every letter that was meant, 1 otherwise."


@click.group(cls=HintingGroup)
def dead() -> None:
    """Dead letters: list, show, retry, drop.

    A dead letter is a task that has used up its attempts. Its id is PARTITION/SEQUENCE.
    """


class ListedLetters(NamedTuple):
    """A page of letters, the number of all, and the partitions that did not answer."""

    letters: list[DeadLetter]
    total: int
    silent: dict[int, Silent]
    after: LetterId | None
    """The last letter of the page, if there are more."""


@dead.command("list", epilog="Exit status: 0 if every partition has answered, 1 otherwise.")
@queue_argument
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=LIMIT,
    show_default=True,
    help="How many, at most.",
)
@click.option("--after", metavar="ID", help="Begin behind this one: the next page.")
@node_options
@json_option
def list_letters(
    queue: QueueId, limit: int, after: str | None, node: AskedNode, *, as_json: bool
) -> None:
    """List the dead letters of QUEUE, the oldest of each partition first."""
    begin = None if after is None else LetterId.parse(after)
    found = node.ask(lambda client: _list(client, queue, limit, begin))
    if as_json:
        print_json(
            {
                "letters": [_summary(letter) for letter in found.letters],
                "total": found.total,
                "next": None if found.after is None else str(found.after),
                "unreachable": unreachable("partition", found.silent),
            }
        )
    elif found.letters:
        print_table([_row(letter, time.time()) for letter in found.letters])
    else:
        click.echo(f"{label(queue)} has no {'more ' if begin else ''}dead letters.")
    print_unreachable(found.silent, "partition")
    if found.after is not None:
        click.echo(
            f"\n{len(found.letters):,} of {found.total:,}. The next page: --after {found.after}",
            err=True,
        )
    if found.silent:
        sys.exit(1)


async def _list(
    client: AsyncClient, queue: QueueId, limit: int, after: LetterId | None
) -> ListedLetters:
    letters: list[DeadLetter] = []
    counts = await letter_counts(client, queue)
    silent = dict(counts.silent)
    for partition, total in counts.totals.items():
        if not total or len(letters) > limit or (after and partition < after.partition):
            continue
        behind = after.sequence if after and partition == after.partition else None
        try:
            # One more than wanted, to know whether there are more.
            most = limit + 1 - len(letters)
            async for page in pages(client, queue, partition, most, behind):
                letters += page
        except MaitredError as problem:
            silent[partition] = Silent(problem)
    shown = letters[:limit]
    last = LetterId.of(shown[-1]) if len(letters) > limit else None
    return ListedLetters(shown, counts.total, silent, last)


@dead.command()
@queue_argument
@click.argument("id", metavar="ID")
@node_options
@json_option
def show(
    queue: QueueId,
    id: str,  # noqa: A002 - what users call it
    node: AskedNode,
    *,
    as_json: bool,
) -> None:
    """Show one dead letter of QUEUE: its payload, and why it failed.

    Users without the permission `reveal` see neither payloads nor the messages of errors.
    """
    which = LetterId.parse(id)
    found = node.ask(
        lambda client: ask(client, queue, which.partition, "show", [which.sequence], 1)
    )
    letter = next((one for one in found.letters if one.sequence == which.sequence), None)
    if letter is None:
        raise InvalidArgument(
            f"{label(queue)} has no dead letter {which}.",
            remedy=f"`maitred admin queue dead list {label(queue)}` shows those that it has.",
        )
    payload = None if letter.withheld else payload_of(letter.payload)
    if as_json:
        value, encoding = payload or (None, None)
        print_json(_summary(letter) | {"payload": value, "payload_encoding": encoding})
    else:
        _print(letter, payload)


def _print(letter: DeadLetter, payload: Encoded | None) -> None:
    from maitred.routing.gradual import format_time

    failure = failure_of(letter.failure)
    now = time.time()
    click.secho(str(LetterId.of(letter)), bold=True)
    print_fact("reason", letter.reason)
    print_fact("attempts", letter.attempts)
    for name, moment in (("added", letter.added_at), ("died", letter.died_at)):
        print_fact(name, f"{format_time(moment)}, {units.ago(now - moment)}")
    if failure is not None:
        print_fact("failure", f"{failure.kind}: {failure.message}")
    size = units.size(letter.payload_bytes)
    if payload is None:
        print_fact("payload", f"{size} {WITHHELD.get(letter.withheld, f'({letter.withheld})')}")
    else:
        print_fact("payload", f"{size}, {payload.encoding}")
        click.echo()
        click.echo(payload.text())
    if failure is not None and failure.traceback:
        click.echo()
        click.echo(failure.traceback.rstrip("\n"))


def _row(letter: DeadLetter, now: float) -> dict[str, object]:
    failure = failure_of(letter.failure)
    said = "" if failure is None else f"{failure.kind}: {failure.message}"
    return {
        "id": str(LetterId.of(letter)),
        "died": units.ago(now - letter.died_at),
        "reason": letter.reason,
        "attempts": letter.attempts,
        "payload": units.size(letter.payload_bytes),
        "failure": cut(said, FAILURE_COLUMNS),
    }


def _summary(letter: DeadLetter) -> dict[str, object]:
    from msgspec.structs import asdict

    summary = asdict(letter)
    del summary["payload"]
    failure = failure_of(letter.failure)
    told = None if failure is None else asdict(failure)
    return {"id": str(LetterId.of(letter)), **summary, "failure": told}


class Verb(NamedTuple):
    """An action on dead letters, in words."""

    action: Action
    done: str
    warning: str
    asks_for_few: bool
    """Whether letters that were named by id need a confirmation, too."""


RETRY = Verb("retry", "will be tried again", "They will all run again.", asks_for_few=False)
DROP = Verb("drop", "dropped", "They cannot be brought back.", asks_for_few=True)


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for decorate in (
        json_option,
        node_options,
        yes_option,
        ids_arguments("All dead letters of the queue."),
        queue_argument,
    ):
        command = decorate(command)
    return command


@dead.command(epilog=_EPILOG)
@_options
def retry(queue: QueueId, **options: Any) -> None:  # noqa: ANN401
    """Try dead letters of QUEUE again, with all their attempts."""
    _act(RETRY, queue, **options)


@dead.command(epilog=_EPILOG)
@_options
def drop(queue: QueueId, **options: Any) -> None:  # noqa: ANN401
    """Drop dead letters of QUEUE, for good."""
    _act(DROP, queue, **options)


def _act(
    verb: Verb,
    queue: QueueId,
    *,
    ids: Sequence[str],
    every: bool,
    yes: bool,
    node: AskedNode,
    as_json: bool,
) -> None:
    check_selection(ids, every=every, what=f"dead letters to {verb.action}", lister="dead list")
    meant = [LetterId.parse(one) for one in ids]
    counts = node.ask(lambda client: letter_counts(client, queue)) if every else None
    number = len(set(meant)) if counts is None else counts.total
    if not yes and (number if every else verb.asks_for_few):
        confirm(verb.action, f"{_letters(number)} of {label(queue)}", verb.warning)
    if counts is None:
        done = node.ask(lambda client: change(client, queue, verb.action, meant))
        lost = set(meant) - set(done.ids)
        missing = sorted(one for one in lost if one.partition not in done.silent)
    else:
        tell = _progress(verb, counts)
        done = node.ask(lambda client: change_all(client, queue, verb.action, counts, tell))
        missing = []
    if as_json:
        print_json(
            {
                "action": verb.action,
                "done": len(done.ids),
                "missing": [str(one) for one in missing],
                "unreachable": unreachable("partition", done.silent),
            }
        )
    else:
        click.echo(f"{_letters(len(done.ids))} of {label(queue)}: {verb.done}.")
    if missing:
        named = ", ".join(map(str, missing[:NAMED_MAX]))
        more = f" and {len(missing) - NAMED_MAX:,} more" if len(missing) > NAMED_MAX else ""
        click.echo(f"There is no dead letter {named}{more}.", err=True)
    print_unreachable(done.silent, "partition")
    if missing or done.silent:
        sys.exit(1)


def _progress(verb: Verb, counts: LetterCounts) -> Callable[[int], None]:
    progress = Progress()
    return lambda done: progress(done, counts.total, f"{done:,} of {counts.total:,} {verb.done}")


def _letters(count: int) -> str:
    return counted(count, "dead letter")
