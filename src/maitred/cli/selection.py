"""Which of many things a command acts on: ids or `--all`; and the confirmation that it asks for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

import click

from maitred.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_Command = TypeVar("_Command", bound="Callable[..., Any]")

yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def ids_arguments(every: str) -> Callable[[_Command], _Command]:
    """`[ID]...` and `--all`, which `check_selection` checks; `every` is the help of `--all`."""

    def decorate(command: _Command) -> _Command:
        flag = click.option("--all", "every", is_flag=True, help=every)
        return click.argument("ids", metavar="[ID]...", nargs=-1)(flag(command))

    return decorate


def check_selection(ids: Sequence[str], *, every: bool, what: str, lister: str) -> None:
    """Raise `InvalidArgument` unless there are either ids or `--all`."""
    if every == bool(ids):
        raise InvalidArgument(
            "Give either ids or --all." if every else f"Nothing says which {what}.",
            remedy=f"Give ids, as `{lister}` prints them, or --all.",
        )


def confirm(action: str, what: str, warning: str = "") -> None:
    """Ask on the terminal, and abort unless the answer is yes; raise `InvalidArgument` if standard
    input is not a terminal, instead of waiting for an answer or assuming one."""
    if not stdin_is_terminal():
        raise InvalidArgument(
            f"To {action} {what} needs a yes, and standard input is not a terminal.",
            remedy="Add --yes.",
        )
    question = f"{action.capitalize()} {what}?"
    click.confirm(f"{question} {warning}".rstrip(), abort=True, err=True)


def stdin_is_terminal() -> bool:
    """Whether a person can answer a question; without standard input there is no stream at all."""
    return sys.stdin is not None and sys.stdin.isatty()
