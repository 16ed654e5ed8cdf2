"""The options that say which node a command talks to, and how every command asks it."""

from __future__ import annotations

import os
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from maitred.settings import PORT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from maitred.client.client import AsyncClient

_Command = TypeVar("_Command", bound="Callable[..., Any]")
_Result = TypeVar("_Result")

DEFAULT_URL = f"maitred://127.0.0.1:{PORT}"

_TOKEN_FILE = "maitred.token_file"  # noqa: S105 - key under which `_keep` leaves the file to `_with_token`


class AskedNode(NamedTuple):
    """The node of a command, and how long connecting and each request may take."""

    url: str
    seconds: float

    def ask(self, question: Callable[[AsyncClient], Awaitable[_Result]]) -> _Result:
        """Connect, let `question` use the connection, and close it."""
        from maitred.client.pending_client import PendingClient

        async def asked() -> _Result:
            connecting = PendingClient(
                self.url, timeout_seconds=self.seconds, connect_seconds=self.seconds
            )
            async with connecting as client:
                return await question(client)

        return run(asked())


def node_options(command: Callable[..., None]) -> Callable[..., None]:
    """`--token-file`, `--url` and `--timeout`; the command gets them as `node`."""

    @wraps(command)
    def with_node(*, url: str, timeout: float, **options: Any) -> None:  # noqa: ANN401 - as given
        command(node=AskedNode(url, timeout), **options)

    seconds = click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=5.0,
        show_default=True,
        metavar="SECONDS",
        help="How long connecting may take, and then each request.",
    )
    return url_option(seconds(with_node))


def url_option(command: _Command) -> _Command:
    """`--url`, or the variable MAITRED_URL, which is the place for an address with a secret.

    `--token-file` or the variable MAITRED_TOKEN authenticate the command if the address does not.
    """
    url = click.option(
        "--url",
        envvar="MAITRED_URL",
        default=DEFAULT_URL,
        callback=_with_token,
        metavar="URL",
        help="maitred://[user:secret@]host[:port],...; with a secret better in the variable "
        f"MAITRED_URL.  [default: {DEFAULT_URL}]",
    )
    return token_file_option(callback=_keep)(url(command))


def token_file_option(**more: Any) -> Callable[[_Command], _Command]:  # noqa: ANN401 - as click's
    """`--token-file`: a token is never an argument, which other users could see in `ps`."""
    more = {"expose_value": False, "is_eager": True, **more} if more else {"callback": _warned}
    return click.option(
        "--token-file",
        metavar="FILE",
        help="A file with an API token or a JWT, read at each connection.  [default: the token in "
        "the variable MAITRED_TOKEN, if the address names no user]",
        **more,
    )


def _warned(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Return the file, after a warning if other users can read it."""
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


def _with_token(context: click.Context, _parameter: click.Parameter, url: str) -> str:
    """Return the address with the token of `--token-file` or MAITRED_TOKEN in it."""
    from urllib.parse import quote

    from maitred.security.tokens import TOKEN_USER

    file, text = context.meta.get(_TOKEN_FILE), os.environ.get("MAITRED_TOKEN", "").strip()
    if file is not None:
        return f"{url}{'&' if '?' in url else '?'}token_file={quote(file, safe='/')}"
    scheme, separator, rest = url.partition("://")
    if text and separator and "@" not in rest.partition("?")[0] and "token_file=" not in rest:
        return f"{scheme}://{TOKEN_USER}:{quote(text, safe='')}@{rest}"
    return url


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run in the event loop that clients use as well, so that measured times are theirs."""
    import asyncio

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)
