"""The option that says which node a command talks to, the same for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from maitred.settings import PORT

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_Command = TypeVar("_Command", bound="Callable[..., Any]")
_Result = TypeVar("_Result")

DEFAULT_URL = f"maitred://127.0.0.1:{PORT}"


def url_option(command: _Command) -> _Command:
    """`--url`, or the variable MAITRED_URL: the place for an address with a secret in it."""
    return click.option(
        "--url",
        envvar="MAITRED_URL",
        default=DEFAULT_URL,
        metavar="URL",
        help="maitred://[user:secret@]host[:port],...; with a secret better in the variable "
        f"MAITRED_URL.  [default: {DEFAULT_URL}]",
    )(command)


def timeout_option(command: _Command) -> _Command:
    """`--timeout`: for everything that is waited for."""
    return click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=5.0,
        show_default=True,
        metavar="SECONDS",
        help="How long connecting may take, and then each request.",
    )(command)


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Do it in the loop that clients use as well, so that times are those they would see."""
    import asyncio

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)
