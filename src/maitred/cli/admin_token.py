"""`maitred admin token`: API tokens for programs, made, listed and revoked."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import click

from maitred.cli.address import node_options
from maitred.cli.groups import HintingGroup
from maitred.cli.output import json_option, print_json, print_table, shortened
from maitred.errors import InvalidArgument

if TYPE_CHECKING:
    from maitred.cli.address import AskedNode
    from maitred.protocol.access import TokenCreated, TokenRow, TokensFound
    from maitred.settings import Permission

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
_DURATION = re.compile(rf"([1-9][0-9]{{0,8}})([{''.join(_UNITS)}])")


@click.group(cls=HintingGroup)
def token() -> None:
    """API tokens: create, list, revoke.

    A program shows an API token instead of a user's secret. It has the permissions of that user or
    fewer, expires, and can be revoked by itself. The user of these commands needs the permission
    `admin` for every namespace (*).
    """


@token.command(
    epilog="In a script: maitred admin token create --user ci --expires 30d > token-file"
)
@click.option(
    "--user", metavar="NAME", required=True, help="The user whose permissions it has, at most."
)
@click.option(
    "--expires",
    metavar="TIME",
    default="90d",
    show_default=True,
    help="How long it is valid: a number with s, m, h, d or w.",
)
@click.option("--name", "label", metavar="TEXT", default="", help="For people to recognise it by.")
@click.option(
    "--permission",
    "granted",
    metavar="NAMESPACE=PERMISSION,...",
    multiple=True,
    help="Only these of the user's permissions; may be repeated.  [default: all of them]",
)
@node_options
@json_option
def create(
    user: str,
    expires: str,
    label: str,
    granted: tuple[str, ...],
    node: AskedNode,
    *,
    as_json: bool,
) -> None:
    """Make an API token and print it, this once: only its hash is stored."""
    from maitred.protocol.access import CreateToken

    asked = CreateToken(0, 0, user, seconds_of(expires), label, permissions_of(granted))
    made = cast("TokenCreated", node.ask(lambda client: client.request(asked)))
    if as_json:
        print_json(
            {"id": made.id, "token": made.text, "user": user, "expires": _moment(made.expires_at)}
        )
        return
    click.echo(made.text)
    sys.stdout.flush()
    click.echo(
        f"\nThe token {made.id} of the user {user!r} is valid until {_moment(made.expires_at)}. It "
        "is shown only\nthis once. Keep it in a file that only its program can read, and name that "
        f"file\nwith --token-file; to end it early: maitred admin token revoke {made.id}",
        err=True,
    )


@token.command("list")
@node_options
@json_option
def list_tokens(node: AskedNode, *, as_json: bool) -> None:
    """List the API tokens: whose they are, and until when. The tokens themselves are not stored."""
    from maitred.protocol.access import ListTokens

    found = cast("TokensFound", node.ask(lambda client: client.request(ListTokens(0, 0))))
    rows = found.tokens
    if as_json:
        print_json({"tokens": [_told(row) for row in rows]})
    elif rows:
        print_table([_row(row) for row in rows])
    else:
        click.echo("No API tokens. `maitred admin token create` makes one.")


@token.command()
@click.argument("number", metavar="ID")
@node_options
@json_option
def revoke(number: str, node: AskedNode, *, as_json: bool) -> None:
    """End an API token by its ID, and within seconds the connections that were opened with it."""
    from maitred.protocol.access import RevokeToken

    which = id_given(number)
    node.ask(lambda client: client.request(RevokeToken(0, 0, which)))
    if as_json:
        print_json({"revoked": which})
    else:
        click.echo(f"The API token {which} is revoked.")


def seconds_of(text: str) -> float:
    """Return the seconds of a duration such as `12h`; raise `InvalidArgument` for others."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise InvalidArgument(
            f"{shortened(text)} is not a duration.",
            remedy="Write a number with a unit: 12h, 30d, 8w.",
        )
    return float(int(found[1]) * _UNITS[found[2]])


def permissions_of(granted: tuple[str, ...]) -> dict[str, list[Permission]] | None:
    """Return the permissions by namespace; raise `InvalidArgument` unless all of them exist."""
    from typing import get_args

    from maitred.settings import Permission

    known = get_args(Permission)
    found: dict[str, list[Permission]] = {}
    for one in granted:
        namespace, equals, names = one.partition("=")
        given = [name.strip() for name in names.split(",")]
        if not namespace or not equals or any(name not in known for name in given):
            raise InvalidArgument(
                f"{shortened(one)} does not grant permissions in a namespace.",
                remedy=f"Write NAMESPACE=PERMISSION,... with any of {', '.join(known)}.",
            )
        found.setdefault(namespace, []).extend(cast("list[Permission]", given))
    return found or None


def id_given(text: str) -> str:
    """Return the id; refuse a whole token, which does not belong on a command line."""
    from maitred.security.tokens import id_of

    number = id_of(text.strip())
    if number is not None:
        raise InvalidArgument(
            "That is a whole API token, and arguments can be seen by others.",
            remedy=f"Revoke it by its id: maitred admin token revoke {number}",
        )
    return text.strip()


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _told(row: TokenRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "user": row.user,
        "user_exists": row.user_exists,
        "name": row.label,
        "created": _moment(row.created_at),
        "created_by": row.created_by or None,
        "expires": _moment(row.expires_at),
        "permissions": row.permissions,
    }


def _row(row: TokenRow) -> dict[str, object]:
    granted = row.permissions
    return {
        "id": row.id,
        "user": row.user if row.user_exists else f"{row.user} (does not exist)",
        "name": row.label or "-",
        "created": _moment(row.created_at),
        "by": row.created_by or "-",
        "expires": f"{_moment(row.expires_at)}{_expired(row)}",
        "permissions": "the user's"
        if granted is None
        else " ".join(f"{namespace}={','.join(given)}" for namespace, given in granted.items()),
    }


def _expired(row: TokenRow) -> str:
    return " (expired)" if datetime.now(UTC).timestamp() >= row.expires_at else ""
