"""`maitred completion`: the script that makes a shell complete our commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from maitred.errors import InvalidArgument

SHELLS = ("bash", "zsh", "fish")


@click.command(
    epilog='For this session: eval "$(maitred completion bash)". For good: put that line into '
    "~/.bashrc (bash) or ~/.zshrc (zsh); for fish, save the script as "
    "~/.config/fish/completions/maitred.fish."
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of SHELL."""
    found = get_completion_class(shell)
    if found is None:
        raise InvalidArgument(f"There is no completion for {shell}.")
    root = click.get_current_context().find_root().command
    click.echo(found(root, {}, "maitred", "_MAITRED_COMPLETE").source())
