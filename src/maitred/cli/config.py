"""`maitred config`: which settings there are, whether a file is right, and what holds here."""

from __future__ import annotations

import json
import os
import textwrap
from typing import TYPE_CHECKING

import click

from maitred.cli.groups import HintingGroup
from maitred.cli.output import json_option, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maitred.config import Loaded

MASK = "********"
REASON_COLUMNS = 88
"""Long enough to read well, short enough for every terminal."""


@click.group(
    cls=HintingGroup,
    epilog="A setting comes from the command line, else from the environment "
    "(MAITRED_LIMITS__FRAME_BYTES for limits.frame_bytes), else from a file, else it has its "
    "default.",
)
def config() -> None:
    """The settings of a node."""


@config.command("list")
@json_option
def list_settings(*, as_json: bool) -> None:
    """Show every setting with its type, its default and the reason for it.

    Those that are marked as advanced hardly ever need to be changed.
    """
    from maitred.config import describe

    rows = describe()
    if as_json:
        names = ("name", "type", "default", "required", "advanced", "reason")
        print_json([{name: getattr(row, name) for name in names} for row in rows])
        return
    for row in rows:
        default = "(no default)" if row.required else f"= {_shown(row.default)}"
        kind = f"{row.type}, advanced" if row.advanced else row.type
        click.echo(f"{click.style(row.name, bold=True)} {default}  ({kind})")
        click.echo(
            textwrap.fill(
                row.reason,
                REASON_COLUMNS,
                initial_indent="    ",
                subsequent_indent="    ",
                break_on_hyphens=False,
            )
        )


@config.command()
@click.argument("file", type=click.Path())
def check(file: str) -> None:
    """Say whether FILE is a configuration that a node can start with."""
    from maitred.config import load

    load(file, {}, {})
    click.echo(f"{file} is OK.")


@config.command()
@click.option("--config", "file", type=click.Path(), help="The configuration file.")
@json_option
def show(file: str | None, *, as_json: bool) -> None:
    """Show the settings that hold here and where each came from; secrets are masked."""
    from maitred.config import load_with_sources

    rows = list(_effective(load_with_sources(file, os.environ, {})))
    if as_json:
        print_json(rows)
    else:
        print_table([{**row, "value": _shown(row["value"])} for row in rows])


def _effective(loaded: Loaded) -> Iterator[dict[str, object]]:
    from maitred.config import describe
    from maitred.schema import ANY_NAME

    for row in describe():
        if ANY_NAME not in row.name:
            value = _value(loaded.node, row.name.split("."))
            if row.kind.is_hidden and value is not None:
                value = MASK
            source = loaded.sources.get(row.name, "default")
            yield {"setting": row.name, "value": value, "from": source}
    for name, user in loaded.node.users.items():
        source = loaded.sources.get("users", "default")
        yield {"setting": f"users.{name}.secret", "value": MASK, "from": source}
        yield {"setting": f"users.{name}.permissions", "value": user.permissions, "from": source}


def _value(group: object, path: list[str]) -> object:
    for part in path:
        group = getattr(group, part, None)  # below a group that is not there, nothing is set
    return group


def _shown(value: object) -> str:
    """Return the value about as it would be written in a file."""
    return "-" if value is None else json.dumps(value, ensure_ascii=False)
