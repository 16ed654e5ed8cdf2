"""`--watch`: what a command shows, drawn again every second until Ctrl-C."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import click

from maitred.errors import MaitredError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from maitred.cli.address import AskedNode
    from maitred.client.client import AsyncClient

_Command = TypeVar("_Command", bound="Callable[..., Any]")
_Found = TypeVar("_Found")

WATCH_SECONDS = 1.0
"""Interval of the questions: that of the heartbeats which they show."""


def watch_option(command: _Command) -> _Command:
    """`--watch`, as in every command that shows a state."""
    return click.option("--watch", is_flag=True, help="Show it again every second, until Ctrl-C.")(
        command
    )


def watch(
    node: AskedNode,
    ask: Callable[[AsyncClient], Awaitable[_Found]],
    show: Callable[[_Found], None],
    told: Callable[[_Found], object] | None = None,
) -> None:
    """Ask and show until Ctrl-C. A terminal is cleared each time; otherwise a blank line separates
    what is shown. With `told`, each answer is a line of JSON. An error is shown once, and the
    question is asked again."""

    async def asking(client: AsyncClient) -> None:
        import asyncio

        trouble = ""
        first = True
        while True:
            try:
                found = await ask(client)
            except MaitredError as problem:
                # A node is being restarted, say, which a person who watches wants to see as well.
                if trouble != problem.code:
                    click.echo(f"{problem} [{problem.code}] Still trying.", err=True)
                trouble = problem.code
            else:
                trouble = ""
                if told is not None:
                    click.echo(json.dumps(told(found)))
                else:
                    _separate(first=first)
                    show(found)
                first = False
                sys.stdout.flush()
            await asyncio.sleep(WATCH_SECONDS)

    try:
        node.ask(asking)
    except KeyboardInterrupt:
        return


def _separate(*, first: bool) -> None:
    if sys.stdout.isatty():
        click.clear()
    elif not first:
        click.echo()
