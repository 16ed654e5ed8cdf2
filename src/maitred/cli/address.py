"""The option that says which node a command talks to, the same for all of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

import click

from maitred.settings import PORT

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_Command = TypeVar("_Command", bound="Callable[..., Any]")
_Result = TypeVar("_Result")

DEFAULT_URL = f"maitred://127.0.0.1:{PORT}"


_TOKEN_FILE = "maitred.token_file"  # noqa: S105 - where the option's value is kept for `_whose`


def url_option(command: _Command) -> _Command:
    """`--url`, or the variable MAITRED_URL: the place for an address with a secret in it.

    `--token-file` or the variable MAITRED_TOKEN say who asks if the address does not.
    """
    return token_file_option(callback=_keep)(_url_option(command))


def token_file_option(**more: Any) -> Callable[[_Command], _Command]:  # noqa: ANN401 - as click's
    """`--token-file`: a token is never an argument, which others could see."""
    more = {"expose_value": False, "is_eager": True, **more} if more else {"callback": _warned}
    return click.option(
        "--token-file",
        metavar="FILE",
        help="A file with an API token or a JWT, read at each connection.  [default: the token in "
        "the variable MAITRED_TOKEN, if the address names no user]",
        **more,
    )


def _warned(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """The file, and a warning if others can read it."""
    if value is not None:
        from maitred.security.exposed_files import exposure

        found = exposure("--token-file", value)
        if found is not None:
            click.echo(
                f"Warning: others can {found.others} the token file {value} (mode {found.mode}); "
                f"chmod 600 {value}",
                err=True,
            )
    return value


def _keep(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    context.meta[_TOKEN_FILE] = _warned(context, parameter, value)


def _whose(context: click.Context, _parameter: click.Parameter, url: str) -> str:
    """The address, with the token that was given beside it."""
    from urllib.parse import quote

    from maitred.security.tokens import TOKEN_USER

    file, text = context.meta.get(_TOKEN_FILE), os.environ.get("MAITRED_TOKEN", "").strip()
    if file is not None:
        return f"{url}{'&' if '?' in url else '?'}token_file={quote(file, safe='/')}"
    scheme, separator, rest = url.partition("://")
    if text and separator and "@" not in rest.partition("?")[0] and "token_file=" not in rest:
        return f"{scheme}://{TOKEN_USER}:{quote(text, safe='')}@{rest}"
    return url


def _url_option(command: _Command) -> _Command:
    return click.option(
        "--url",
        envvar="MAITRED_URL",
        default=DEFAULT_URL,
        callback=_whose,
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
