"""`maitred admin queue dead retry | drop`: some dead letters by their ids, or all of them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from maitred.cli.address import run, timeout_option, url_option
from maitred.cli.admin_ask import connecting, tell_unreachable, unreachable
from maitred.cli.admin_letters import Action, Done, LetterCounts, do_to, do_to_all, held
from maitred.cli.admin_names import (
    LetterId,
    check_selection,
    ids_arguments,
    json_option,
    label,
    queue_argument,
)
from maitred.cli.output import Progress, print_json
from maitred.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maitred.routing.names import QueueId

NAMED_MAX = 5
"""Ids that a sentence names."""

_EPILOG = "Exit status: 0 if it was done to every letter that was meant, 1 otherwise."


class Verb(NamedTuple):
    """An action, in words."""

    action: Action
    done: str
    warning: str
    asks_for_few: bool
    """Whether letters that were named one by one need a confirmation, too."""


RETRY = Verb("retry", "will be tried again", "They will all run again.", asks_for_few=False)
DROP = Verb("drop", "dropped", "They cannot be brought back.", asks_for_few=True)


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for decorate in (
        json_option,
        timeout_option,
        url_option,
        click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
        ids_arguments("dead letters"),
        queue_argument,
    ):
        command = decorate(command)
    return command


@click.command(epilog=_EPILOG)
@_options
def retry(queue: QueueId, **options: Any) -> None:  # noqa: ANN401
    """Try dead letters of QUEUE again, with all their attempts."""
    _act(RETRY, queue, **options)


@click.command(epilog=_EPILOG)
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
    url: str,
    timeout: float,
    as_json: bool,
) -> None:
    check_selection(ids, every=every, what=f"dead letters to {verb.action}", lister="dead list")
    meant = [LetterId.parse(one) for one in ids]
    if not every:
        count = len(set(meant))
        if verb.asks_for_few and not yes:
            confirm(verb.action, f"{_letters(count)} of {label(queue)}", verb.warning)
        done = run(_some(url, timeout, queue, verb, meant))
        missing = sorted(
            one for one in set(meant) - set(done.ids) if one.partition not in done.silent
        )
    else:
        there = run(_count(url, timeout, queue))
        if there.total and not yes:
            confirm(verb.action, f"{_letters(there.total)} of {label(queue)}", verb.warning)
        done, missing = run(_all(url, timeout, queue, verb, there)), []
    _report(verb, queue, done, missing, as_json=as_json)


async def _some(url: str, seconds: float, queue: QueueId, verb: Verb, ids: list[LetterId]) -> Done:
    async with connecting(url, seconds) as client:
        return await do_to(client, queue, verb.action, ids)


async def _count(url: str, seconds: float, queue: QueueId) -> LetterCounts:
    async with connecting(url, seconds) as client:
        return await held(client, queue)


async def _all(url: str, seconds: float, queue: QueueId, verb: Verb, there: LetterCounts) -> Done:
    progress = Progress()

    def tell(done: int) -> None:
        progress(done, there.total, f"{done:,} of {there.total:,} {verb.done}")

    async with connecting(url, seconds) as client:
        return await do_to_all(client, queue, verb.action, there, tell)


def somebody_is_there() -> bool:
    """To answer a question."""
    return sys.stdin is not None and sys.stdin.isatty()


def confirm(action: str, what: str, warning: str) -> None:
    """Ask; without a person to answer, refuse instead of waiting or guessing."""
    if not somebody_is_there():
        raise InvalidArgument(
            f"To {action} {what} needs a yes, and there is nobody to ask.", remedy="Add --yes."
        )
    click.confirm(f"{action.capitalize()} {what}? {warning}", abort=True, err=True)


def _letters(count: int) -> str:
    return f"{count:,} dead {'letter' if count == 1 else 'letters'}"


def _report(
    verb: Verb, queue: QueueId, done: Done, missing: Sequence[LetterId], *, as_json: bool
) -> None:
    if as_json:
        print_json(
            {
                "action": verb.action,
                "done": len(done.ids),
                "missing": [str(one) for one in missing],
                "unreachable": unreachable(done.silent),
            }
        )
    else:
        click.echo(f"{_letters(len(done.ids))} of {label(queue)}: {verb.done}.")
    if missing:
        named = ", ".join(map(str, missing[:NAMED_MAX]))
        more = f" and {len(missing) - NAMED_MAX:,} more" if len(missing) > NAMED_MAX else ""
        click.echo(f"There is no dead letter {named}{more}.", err=True)
    tell_unreachable(done.silent)
    if missing or done.silent:
        sys.exit(1)
