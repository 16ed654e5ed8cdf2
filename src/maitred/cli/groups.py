"""Groups of commands that know what a misspelt command was meant to be."""

from __future__ import annotations

import click

from maitred.errors import UnknownCommand


class HintingGroup(click.Group):
    """Refuses an unknown command with the nearest known one."""

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(context)
        if arguments and not arguments[0].startswith("-") and arguments[0] not in known:
            raise UnknownCommand.named("command", arguments[0], known)
        return super().resolve_command(context, arguments)
