"""The options that choose tasks: by state, worker, error, user, time, and argument."""

from __future__ import annotations

import re
import time
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from maitred.cli.output import shortened
from maitred.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maitred.protocol.inspection import ListedState, TaskFilter

_AGO = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) ?(s|min|m|h|d)?")
_SECONDS = {None: 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}


class ChosenTasks(NamedTuple):
    """Which tasks a command is about."""

    states: tuple[ListedState, ...]
    """Empty: those that the command applies to."""
    worker: str
    error: str
    by: str
    since: float
    """Unix time; 0: no limit."""
    until: float
    argument: str | None

    @property
    def is_everything(self) -> bool:
        """Whether no option restricts the tasks."""
        return not any(self)

    def filter(self) -> TaskFilter:
        """Return the filter for the partitions."""
        from maitred.client.task_lists import argument_filter
        from maitred.protocol.inspection import TaskFilter

        return TaskFilter(
            self.worker,
            self.error,
            self.by,
            self.since,
            self.until,
            None if self.argument is None else argument_filter(self.argument),
        )

    def words(self) -> str:
        """Return the restrictions for a question, as in ` that are dead, with the error X`."""
        told = []
        if self.states:
            told.append(f"that are {' or '.join(self.states)}")
        for name, value in (("worker", self.worker), ("error", self.error), ("by", self.by)):
            if value:
                told.append(f"{name} {shortened(value, 40)}")
        if self.since:
            told.append(f"added since {_told(self.since)}")
        if self.until:
            told.append(f"added before {_told(self.until)}")
        if self.argument is not None:
            told.append(f"argument {shortened(self.argument, 40)}")
        return f" ({', '.join(told)})" if told else ""


def filter_options(
    states: Sequence[str], default: str = "all of these"
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options; the command gets a `ChosenTasks` as `chosen`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def filtered(
            *,
            states: tuple[ListedState, ...],
            worker: str,
            error: str,
            by: str,
            since: float,
            until: float,
            argument: str | None,
            **options: Any,  # noqa: ANN401 - as given
        ) -> None:
            chosen = ChosenTasks(states, worker, error, by, since, until, argument)
            command(chosen=chosen, **options)

        made: Callable[..., None] = filtered
        for option in (
            click.option(
                "--argument",
                metavar="NAME=JSON",
                help="Whose handler is given this, as in size=128; needs the permission `reveal`.",
            ),
            _moment("--until", "Added before then."),
            _moment("--since", "Added since then: 90s, 15min, 2h, 3d ago, or a date and time."),
            click.option("--by", default="", metavar="USER", help="Added by this user."),
            click.option(
                "--error", default="", metavar="TEXT", help="In the error of the last attempt."
            ),
            click.option(
                "--worker", default="", metavar="NAME", help="Which has it, or had it last."
            ),
            click.option(
                "--state",
                "states",
                type=click.Choice(states),
                multiple=True,
                metavar="STATE",
                help=f"{', '.join(states[:-1])}{' or ' if states[1:] else ''}{states[-1]}; "
                f"repeatable.  [default: {default}]",
            ),
        ):
            made = option(made)
        return made

    return decorate


def _moment(name: str, text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(name, metavar="WHEN", callback=_read_moment, help=text)


def _read_moment(_: click.Context, option: click.Parameter, text: str | None) -> float:
    return 0.0 if text is None else moment(text, time.time(), option.opts[0])


def moment(text: str, now: float, option: str = "--since") -> float:
    """Return the unix time that the text means; raise `InvalidArgument`."""
    ago = _AGO.fullmatch(text.strip())
    if ago is not None:
        return now - float(ago[1]) * _SECONDS[ago[2]]
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise InvalidArgument(
            f"{option} cannot be {shortened(text)}.",
            remedy="Write how long ago, as in 90s, 15min, 2h or 3d, or a date and time, as in "
            "2026-11-18T19:00 (local time) or 2026-11-18T19:00Z.",
        ) from None


def _told(unix: float) -> str:
    from maitred.routing.gradual import format_time

    return format_time(unix)
