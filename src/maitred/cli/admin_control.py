"""`maitred admin queue pause`, `resume` and `set`: what operators change while a queue runs."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from maitred.cli import admin_units as units
from maitred.cli.address import node_options
from maitred.cli.admin_ask import with_suggestion
from maitred.cli.admin_names import label, queue_argument
from maitred.cli.output import counted, cut, json_option, print_json, shortened
from maitred.client.answers import ROOT
from maitred.errors import InvalidArgument, UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from maitred.cli.address import AskedNode
    from maitred.client.client import AsyncClient
    from maitred.protocol.tasks import (
        ControlQueue,
        EffectiveSetting,
        PartitionDescription,
        QueueControlled,
    )
    from maitred.routing.names import QueueId
    from maitred.settings.live import SettingValue

_Command = TypeVar("_Command", bound="Callable[..., Any]")

SHORT_NAMES = {"rate": "rate_per_second"}
"""Other names that `set` accepts: the one that operators need most, and in a hurry."""

_WORDS: dict[str, SettingValue] = {
    "none": None,
    "true": True,
    "on": True,
    "yes": True,
    "false": False,
    "off": False,
    "no": False,
}


def _check_reason(_context: click.Context, _option: click.Parameter, reason: str) -> str:
    from maitred.protocol.tasks import REASON_CHARACTERS

    if len(reason) > REASON_CHARACTERS:
        raise InvalidArgument(
            f"The reason has {len(reason):,} characters.",
            remedy=f"Write at most {REASON_CHARACTERS}.",
        )
    return reason


reason_option = click.option(
    "--reason",
    default="",
    callback=_check_reason,
    metavar="TEXT",
    help="Why, for other operators and the audit log.",
)


def _change_options(command: _Command) -> _Command:
    """`--reason` and `--expect-version`, as in every command that changes the controls."""
    for decorate in (
        click.option(
            "--expect-version",
            "version",
            type=click.IntRange(min=0),
            metavar="N",
            help="Only if the controls still have this version, as `describe` prints it.",
        ),
        reason_option,
    ):
        command = decorate(command)
    return command


@click.command(
    epilog="The pause lasts until `resume`, across restarts of nodes and moves of partitions. "
    "Deleting the queue ends it. Exit status: 0 if every partition has answered, else 1."
)
@queue_argument
@_change_options
@node_options
@json_option
def pause(
    queue: QueueId, node: AskedNode, reason: str, version: int | None, *, as_json: bool
) -> None:
    """Pause QUEUE: it accepts tasks, and hands none out.

    Running tasks go on, and retries wait. Queries of the queue are answered as before.
    """
    from maitred.protocol.tasks import ControlQueue

    message = ControlQueue(*queue, ROOT, 0, "pause", reason, version)
    answer = node.ask(lambda client: control(client, queue, message))
    if answer.changed:
        line = f"{label(queue)} is paused. Running tasks go on."
    else:
        line = f"{label(queue)} was paused already, {told_of_pause(answer)}."
    _finish(answer, line, as_json=as_json)


@click.command(epilog="Exit status: 0 if every partition has answered, else 1.")
@queue_argument
@_change_options
@node_options
@json_option
def resume(
    queue: QueueId, node: AskedNode, reason: str, version: int | None, *, as_json: bool
) -> None:
    """Resume QUEUE: it hands out tasks again."""
    from maitred.protocol.tasks import ControlQueue

    message = ControlQueue(*queue, ROOT, 0, "resume", reason, version)
    answer = node.ask(lambda client: control(client, queue, message))
    line = f"{label(queue)} is resumed." if answer.changed else f"{label(queue)} was not paused."
    _finish(answer, line, as_json=as_json)


@click.command(
    "set",
    epilog="\b\nThe settings:\n"
    "  rate_per_second           most tasks handed out per second, or none; `rate` for short\n"
    "  scaling.adaptive          whether the root changes the number of partitions by itself\n"
    "  scaling.partitions_max    most partitions that the root creates by itself\n"
    "  history.tasks             most tasks that are over and that each partition keeps\n"
    "  history.seconds           how long each of them is kept\n"
    "  history.stored            on or off: whether they are also written to the store\n"
    "  queries.policy            how the worker of a query is chosen: idle, adaptive, ...\n"
    "  queries.waiting           most queries that wait for a worker\n"
    "  queries.waiting_per_user  the same for one user\n"
    "  queries.no_worker_seconds how long queries wait for a worker after the last one left\n"
    "  queries.run_seconds       longest run of a query\n"
    "\nA value that is set live takes precedence over the settings file, on every node, until it "
    "is unset. `describe` shows each value and where it comes from. Exit status: 0 if every "
    "partition has answered, else 1.",
)
@queue_argument
@click.argument("settings", metavar="[NAME=VALUE]...", nargs=-1)
@click.option(
    "--unset", multiple=True, metavar="NAME", help="Go by the settings file again; repeatable."
)
@_change_options
@node_options
@json_option
def set_settings(
    queue: QueueId,
    settings: tuple[str, ...],
    unset: tuple[str, ...],
    node: AskedNode,
    reason: str,
    version: int | None,
    *,
    as_json: bool,
) -> None:
    """Change settings of QUEUE while it runs, as in rate=5."""
    from maitred.protocol.tasks import ControlQueue

    values, names = read_settings(settings, unset)
    message = ControlQueue(*queue, ROOT, 0, "set", reason, version, values, names)
    answer = node.ask(lambda client: control(client, queue, message))
    said = f"settings have version {answer.controls.version}"
    if not answer.changed:
        said = "settings were like this already"
    _finish(answer, f"{label(queue)}: its {said}.", as_json=as_json)


def read_settings(
    settings: Sequence[str], unset: Sequence[str]
) -> tuple[dict[str, SettingValue], list[str]]:
    """Return the settings to set, and the names of those to unset, as they were typed; raise a
    typed error for what the node would refuse."""
    from maitred.settings.live import check_set_or_unset, check_settable, check_setting

    values: dict[str, SettingValue] = {}
    for text in settings:
        typed, equals, value = text.partition("=")
        name = SHORT_NAMES.get(typed, typed)
        if not equals:
            raise InvalidArgument(
                f"{shortened(text)} does not say a value.", remedy="Write NAME=VALUE, as in rate=5."
            )
        values[name] = check_setting(name, _value(value))
    names = [SHORT_NAMES.get(name, name) for name in unset]
    for name in names:
        check_settable(name)
    check_set_or_unset(values, names)
    if not values and not names:
        raise InvalidArgument(
            "Nothing says what to set.", remedy="Write NAME=VALUE, as in rate=5, or --unset NAME."
        )
    return values, names


def _value(text: str) -> SettingValue:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


async def control(client: AsyncClient, queue: QueueId, message: ControlQueue) -> QueueControlled:
    """Ask the root to change the controls; raise `UnknownQueue` with the nearest name."""
    try:
        return cast("QueueControlled", await client.request(message))
    except UnknownQueue as problem:
        raise await with_suggestion(client, queue, problem) from None


def _finish(answer: QueueControlled, line: str, *, as_json: bool) -> None:
    from msgspec import to_builtins

    if as_json:
        told = to_builtins(answer.controls)
        print_json(
            {"controls": told, "changed": answer.changed}
            | {"partitions": answer.partitions, "told": answer.told}
        )
    else:
        click.echo(line)
    missing = answer.partitions - answer.told
    if missing:
        click.echo(
            f"{counted(missing, 'partition')} did not answer; the root goes on telling "
            f"{'it' if missing == 1 else 'them'}.",
            err=True,
        )
        sys.exit(1)


def told_of_pause(found: QueueControlled | PartitionDescription) -> str:
    """Say since when a queue is paused, by whom and why: "for 3.4 min, by ana: a bad release"."""
    pause = found.controls.pause
    if pause is None:
        return "no longer"
    by = f", by {cut(pause.by, 60)}" if pause.by else ""
    why = f": {cut(pause.reason, 200)}" if pause.reason else ""
    return f"for {units.duration(time.time() - pause.at)}{by}{why}"


def told_of_settings(settings: dict[str, EffectiveSetting]) -> Iterator[tuple[str, str]]:
    """Yield the name of each setting with its value and source, in words."""
    for name, one in settings.items():
        if one.source == "live":
            by = f" by {cut(one.by, 60)}" if one.by else ""
            at = datetime.fromtimestamp(one.at, UTC).isoformat(" ", "seconds")
            why = f": {cut(one.reason, 200)}" if one.reason else ""
            source = f"set live{by} at {at}{why}"
        else:
            source = {"default": "the default", "settings": "the node's settings"}[one.source]
        yield name, f"{_told_value(one.value)} ({source})"


def _told_value(value: SettingValue) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value)
    return "none" if value is None else f"{value:g}"
