"""`maitred hash-secret`: prints the hash that stands in the settings instead of a secret.

The secret is never an argument: arguments end up in the history of the shell, and other users see
them in `ps`. Only the hash goes to standard output, for scripts; the rest goes to standard error.
"""

from __future__ import annotations

import sys

import click

from maitred.errors import InvalidArgument


@click.command(
    "hash-secret", epilog='In a script: hashed="$(pass show maitred | maitred hash-secret)"'
)
def hash_secret() -> None:
    """Hash a secret that is typed in, or read as one line from standard input."""
    from maitred.security import secrets

    hashed = secrets.hash_secret(_typed() if sys.stdin.isatty() else _piped())
    click.echo(hashed)
    sys.stdout.flush()
    click.echo(
        "\nFor the settings (or users_file), with a name and permissions of your choice:\n\n"
        "[users.alice]\n"
        f'secret = "{hashed}"\n\n'
        "[users.alice.permissions]\n"
        'shop = ["produce", "work", "query"]',
        err=True,
    )


def _typed() -> str:
    secret = click.prompt("Secret", hide_input=True, confirmation_prompt="Once more", err=True)
    return str(secret)


def _piped() -> str:
    from maitred.security.secrets import SECRET_BYTES_MAX

    # Two more than allowed: a line end of two bytes still fits, and a longer secret is noticed.
    line = sys.stdin.buffer.readline(SECRET_BYTES_MAX + 2).rstrip(b"\r\n")
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise InvalidArgument(
            "The secret is no UTF-8 text.", remedy="Use letters, digits and signs."
        ) from None
