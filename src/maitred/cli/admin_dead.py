"""`maitred admin queue dead`: tasks that nobody will try again unless a person says so."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import click

from maitred.cli import admin_units as units
from maitred.cli.address import run, timeout_option, url_option
from maitred.cli.admin_ask import Silent, connecting, tell_unreachable, unreachable
from maitred.cli.admin_dead_actions import drop, retry
from maitred.cli.admin_letters import LetterCounts, ask, held, pages
from maitred.cli.admin_names import LetterId, json_option, label, queue_argument
from maitred.cli.admin_payload import Encoded, failure_of, payload_of
from maitred.cli.groups import HintingGroup
from maitred.cli.output import print_json, print_table
from maitred.errors import InvalidArgument

if TYPE_CHECKING:
    from maitred.protocol.tasks import DeadLetter
    from maitred.routing.names import QueueId

LIMIT = 50
"""Letters that are shown unless told otherwise."""

FAILURE_COLUMNS = 44
"""What is left of a hundred columns for the reason."""


@click.group(cls=HintingGroup)
def dead() -> None:
    """Dead letters: list, show, retry, drop.

    A dead letter is a task that has used up its attempts. Its id is PARTITION/SEQUENCE.
    """


dead.add_command(retry)
dead.add_command(drop)


class Listed(NamedTuple):
    """Some letters, of how many, and who did not answer."""

    letters: list[DeadLetter]
    held: LetterCounts
    silent: dict[int, Silent]
    after: LetterId | None
    """The last one, if there are more."""


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
@url_option
@timeout_option
@json_option
def list_letters(
    queue: QueueId,
    limit: int,
    after: str | None,
    url: str,
    timeout: float,
    *,
    as_json: bool,
) -> None:
    """List the dead letters of QUEUE, the oldest of each partition first."""
    begin = None if after is None else LetterId.parse(after)
    found = run(_list(url, timeout, queue, limit, begin))
    if as_json:
        print_json(
            {
                "letters": [_summary(letter) for letter in found.letters],
                "total": found.held.total,
                "next": None if found.after is None else str(found.after),
                "unreachable": unreachable(found.silent),
            }
        )
    elif found.letters:
        print_table([_row(letter, time.time()) for letter in found.letters])
    else:
        click.echo(f"{label(queue)} has no {'more ' if begin else ''}dead letters.")
    tell_unreachable(found.silent)
    if found.after is not None:
        click.echo(
            f"\n{len(found.letters):,} of {found.held.total:,}. The next page: --after "
            f"{found.after}",
            err=True,
        )
    if found.silent:
        sys.exit(1)


async def _list(
    url: str, seconds: float, queue: QueueId, limit: int, after: LetterId | None
) -> Listed:
    from maitred.errors import MaitredError

    letters: list[DeadLetter] = []
    async with connecting(url, seconds) as client:
        there = await held(client, queue)
        silent = dict(there.silent)
        for partition, total in there.totals.items():
            if not total or len(letters) > limit or (after and partition < after.partition):
                continue
            behind = after.sequence if after and partition == after.partition else None
            try:
                # One more than wanted: that is how we know whether there are more.
                most = limit + 1 - len(letters)
                async for page in pages(client, queue, partition, most, behind):
                    letters += page
            except MaitredError as problem:
                silent[partition] = Silent(problem)
    more = len(letters) > limit
    shown = letters[:limit]
    return Listed(shown, there, silent, LetterId.of(shown[-1]) if more else None)


@dead.command()
@queue_argument
@click.argument("id", metavar="ID")
@url_option
@timeout_option
@json_option
def show(
    queue: QueueId,
    id: str,  # noqa: A002 - what users call it
    url: str,
    timeout: float,
    *,
    as_json: bool,
) -> None:
    """Show one dead letter of QUEUE: its payload, and why it failed."""
    which = LetterId.parse(id)
    letter = run(_show(url, timeout, queue, which))
    payload = payload_of(letter.payload)
    if as_json:
        failure = _summary(letter)
        print_json(failure | {"payload": payload.value, "payload_encoding": payload.encoding})
    else:
        _print(letter, payload)


async def _show(url: str, seconds: float, queue: QueueId, which: LetterId) -> DeadLetter:
    async with connecting(url, seconds) as client:
        found = await ask(client, queue, which.partition, "show", [which.sequence], 1)
    for letter in found.letters:
        if letter.sequence == which.sequence:
            return letter
    raise InvalidArgument(
        f"{label(queue)} has no dead letter {which}.",
        remedy=f"`maitred admin queue dead list {label(queue)}` shows those that it has.",
    )


def _print(letter: DeadLetter, payload: Encoded) -> None:
    failure = failure_of(letter.failure)
    click.secho(str(LetterId.of(letter)), bold=True)
    now = time.time()
    click.echo(f"reason      {letter.reason}")
    click.echo(f"attempts    {letter.attempts}")
    click.echo(f"added       {_moment(letter.added_at)}, {_ago(letter.added_at, now)}")
    click.echo(f"died        {_moment(letter.died_at)}, {_ago(letter.died_at, now)}")
    if failure is not None:
        click.echo(f"failure     {failure.kind}: {failure.message}")
    click.echo(f"payload     {units.size(letter.payload_bytes)}, {payload.encoding}")
    click.echo()
    click.echo(payload.text())
    if failure is not None and failure.traceback:
        click.echo()
        click.echo(failure.traceback.rstrip("\n"))


def _row(letter: DeadLetter, now: float) -> dict[str, object]:
    failure = failure_of(letter.failure)
    said = "" if failure is None else " ".join(f"{failure.kind}: {failure.message}".split())
    if len(said) > FAILURE_COLUMNS:
        said = said[: FAILURE_COLUMNS - 3] + "..."
    return {
        "id": str(LetterId.of(letter)),
        "died": units.Shown(_ago(letter.died_at, now)),
        "reason": letter.reason,
        "attempts": letter.attempts,
        "payload": units.size(letter.payload_bytes),
        "failure": said,
    }


def _summary(letter: DeadLetter) -> dict[str, object]:
    failure = failure_of(letter.failure)
    return {
        "id": str(LetterId.of(letter)),
        "partition": letter.partition,
        "sequence": letter.sequence,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "added_at": letter.added_at,
        "died_at": letter.died_at,
        "payload_bytes": letter.payload_bytes,
        "failure": None
        if failure is None
        else {
            "kind": failure.kind,
            "message": failure.message,
            "traceback": failure.traceback,
        },
    }


def _ago(moment: float, now: float) -> str:
    return f"{units.duration(now - moment)} ago"


def _moment(seconds: float) -> str:
    from maitred.routing.gradual import format_time

    return format_time(seconds)
