"""How commands print: tables for people, JSON for programs, progress of long commands."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, TypeVar
from unicodedata import east_asian_width

import click

from maitred.errors import MaitredError, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_Command = TypeVar("_Command", bound="Callable[..., Any]")
_Item = TypeVar("_Item")

LABEL_COLUMNS = 12


class CannotWrite(MaitredError):
    """The results could not be written where they should go."""

    code = "cannot-write"


PROGRESS_SECONDS = 0.2
"""Least time between two redraws of the progress line: short enough to look alive, long enough to
cost nothing."""


def shortened(text: str, most: int = 60) -> str:
    """Return the text quoted for an error, cut to less than a line."""
    return repr(text if len(text) <= most else text[:most] + "...")


def cut(text: str, most: int) -> str:
    """Return the text as one line of at most `most` characters, without control characters."""
    words = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return words if len(words) <= most else words[: most - 3] + "..."


def counted(number: int, singular: str, plural: str = "") -> str:
    """The number with its noun: "1 query", "1,204 queries"."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def json_option(command: _Command) -> _Command:
    """`--json`, as in every command that prints a table."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(
        command
    )


def print_fact(name: str, text: object, color: str | None = None) -> None:
    """One line about one thing: its label, and what is known."""
    click.secho(f"{name:<{LABEL_COLUMNS}}{text}", fg=color)


def print_json(value: object) -> None:
    """Print one JSON document on standard output."""
    click.echo(json_text(value))


def json_text(value: object) -> str:
    """Return the value as JSON with every control character escaped: JSON allows those beyond
    ASCII, and some terminals obey them."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return "\n".join(
        line
        if line.isprintable()
        else "".join(letter if letter.isprintable() else _escaped(letter) for letter in line)
        for line in text.split("\n")
    )


def _escaped(letter: str) -> str:
    return "\\u007f" if letter == "\x7f" else json.dumps(letter)[1:-1]


def row_of(columns: Mapping[str, Callable[[_Item], object]], item: _Item) -> dict[str, object]:
    """Return a row of a table whose columns are functions of the item."""
    return {name: cell(item) for name, cell in columns.items()}


def print_table(rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows with the keys of the first one as columns; numbers are right-aligned."""
    if not rows:
        return
    columns = list(rows[0])
    cells = [[_cell(row[column]) for column in columns] for row in rows]
    widths = [max(len(name), *(len(row[at]) for row in cells)) for at, name in enumerate(columns)]
    right = [all(_is_number(row[column]) for row in rows) for column in columns]
    click.secho(_line(columns, widths, right), bold=True)
    for row in cells:
        click.echo(_line(row, widths, right))


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = []
    for cell, width, to_right in zip(cells, widths, right, strict=True):
        space = " " * (width - _width(cell))
        padded.append(space + cell if to_right else cell + space)
    return "  ".join(padded).rstrip()


def _width(text: str) -> int:
    """Return the columns that a text takes on a terminal: Chinese characters take two."""
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"
    return printable(str(value))


def _is_number(value: object) -> bool:
    return value is None or isinstance(value, int | float)


class Progress:
    """A line on standard error that says how far a long command is.

    On a terminal the line is redrawn; otherwise a line is printed at each tenth of the way, so that
    a log shows progress without being flooded.
    """

    def __init__(self) -> None:
        self._drawn_at = 0.0
        self._tenth = -1
        self._started = time.monotonic()

    def __call__(self, done: int, total: int, what: str) -> None:
        seconds = time.monotonic() - self._started
        share = done / total if total else 1.0
        text = f"{share:4.0%}  {seconds:5.0f} s  {what}"
        if sys.stderr.isatty():
            now = time.monotonic()
            if done == total or now - self._drawn_at >= PROGRESS_SECONDS:
                self._drawn_at = now
                click.echo(
                    f"\r\033[K{text[:100]}" + ("\n" if done == total else ""), err=True, nl=False
                )
        elif int(10 * share) > self._tenth:
            self._tenth = int(10 * share)
            click.echo(text, err=True)
