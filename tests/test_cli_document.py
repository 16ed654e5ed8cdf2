"""docs/cli.md has the help of every command as the program prints it.

`python -m tests.test_cli_document` writes the page anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from maitred.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
COMMAND = "python -m tests.test_cli_document"
BEGIN = f"<!-- from here on written by {COMMAND} -->\n"
WIDTH = 100
"""Columns of the help texts."""


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    """The path and the help of a command and of all commands below it."""
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below
            if not below.hidden:
                yield from commands(below, _context(below, name, context))


def _context(
    command: click.Command, name: str, parent: click.Context | None = None
) -> click.Context:
    return click.Context(
        command,
        info_name=name,
        parent=parent,
        **{**command.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH},
    )


def written() -> str:
    sections = [
        f"\n## {path}\n\n```text\n{text}\n```\n"
        for path, text in commands(cli, _context(cli, "maitred"))
    ]
    return "".join(sections)


def test_the_page_has_the_help_of_every_command() -> None:
    _, marker, shown = PAGE.read_text().partition(BEGIN)
    assert marker, f"{PAGE.name} has lost the line {BEGIN!r}"
    assert shown == written(), f"docs/cli.md is not up to date; run: {COMMAND}"


if __name__ == "__main__":
    people, marker, _ = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(people + marker + written())
